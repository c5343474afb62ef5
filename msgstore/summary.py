"""Summaries of the files of a store: the size of each and how much of it is live.

Not thread-safe; the owner's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterator


class FileSummary:
    """One file: ``size`` is the end of its last record, ``live`` the bytes of its records that
    have references (frames included). ``stuck`` tells why compaction can't empty it, if so."""

    __slots__ = ("live", "size", "stuck")

    def __init__(self, size: int = 0, live: int = 0) -> None:
        self.size: int = size
        self.live: int = live
        self.stuck: str | None = None

    @property
    def garbage(self) -> int:
        """Bytes of messages without a reference."""
        return self.size - self.live

    def __repr__(self) -> str:
        return f"FileSummary(size={self.size}, live={self.live})"


class Summary:
    """All files by key, and the sums over them, kept as they change."""

    def __init__(self) -> None:
        self.files: dict[int, FileSummary] = {}
        self.size: int = 0
        self.live: int = 0

    def __iter__(self) -> Iterator[tuple[int, FileSummary]]:
        """Keys ascending."""
        return iter(sorted(self.files.items()))

    def __len__(self) -> int:
        return len(self.files)

    def add_file(self, key: int, size: int = 0, live: int = 0) -> FileSummary:
        """Put in a file that is not there yet."""
        entry = self.files[key] = FileSummary(size, live)
        self.size += size
        self.live += live
        return entry

    def drop_file(self, key: int) -> FileSummary:
        """Forget a file that is deleted."""
        entry = self.files.pop(key)
        self.size -= entry.size
        self.live -= entry.live
        return entry

    def resize(self, key: int, size: int) -> None:
        """The file has been cut."""
        entry = self.files[key]
        self.size += size - entry.size
        entry.size = size

    def append(self, entry: FileSummary, total: int) -> None:
        """Count ``total`` live bytes more at the end of a file."""
        entry.size += total
        entry.live += total
        self.size += total
        self.live += total

    def change_live(self, entry: FileSummary, by: int) -> None:
        """Count ``by`` live bytes more (or less) without the file changing its size."""
        entry.live += by
        self.live += by
