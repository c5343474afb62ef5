"""Ways to harm the files of a store, each named, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from tests.damage.samples import Sample

__all__ = ["Harm", "file_kind", "flips", "others"]

_BLOCK = 512
_DENSE = 1024
"""Of a file up to this size, and of the last so many bytes before the zeros at the end of a
longer one, every bit counts."""


@dataclass(frozen=True, slots=True)
class Harm:
    """``what`` was done to the file at ``path``, at ``offset``; ``files``: all there are then;
    ``others``: paths of the other files that are not what they were."""

    path: str
    offset: int
    what: str
    files: dict[str, bytes]
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.path} at offset {self.offset}: {self.what}"


def file_kind(path: str) -> str:
    """Give the row of the table that a file counts for."""
    name = os.path.basename(path)
    return name if name.startswith((".", "qindex.")) else "*" + "".join(_suffixes(name))


def _suffixes(name: str) -> list[str]:
    first, *rest = name.split(".")
    return ["." + one for one in rest] or [first]


def flips(sample: Sample, path: str, *, share: int = 1, seed: int = 0) -> Iterator[Harm]:
    """Flip bits of one file: every ``share``-th, from ``seed`` on; the first and last bytes of its
    content (:data:`_DENSE`) ``share`` times as often in a long file as what lies between."""
    data = sample.files[path]
    used = len(data.rstrip(b"\0"))
    for bit in range(len(data) * 8):
        at = bit >> 3
        dense = len(data) <= _DENSE or used - _DENSE <= at < used + 64
        if (bit * 7 + seed) % (share if dense else share * share):
            continue
        content = bytearray(data)
        content[at] ^= 0x80 >> (bit & 7)
        yield Harm(path, at, f"bit {bit & 7} flipped", {**sample.files, path: bytes(content)})


def others(sample: Sample, path: str, *, share: int = 1, seed: int = 0) -> Iterator[Harm]:
    """Cut the file at every ``share``-th length; make each block of 512 bytes zero; remove it, put
    it twice behind itself, and put each other file of its kind in its place."""
    files = sample.files
    data = files[path]
    for length in range(seed % share, len(data), share):
        yield Harm(path, length, "cut here", {**files, path: data[:length]})
    for start in range(0, len(data), _BLOCK):
        zero = bytes(len(data[start : start + _BLOCK]))
        content = data[:start] + zero + data[start + _BLOCK :]
        if content != data:
            yield Harm(path, start, "512 bytes zero", {**files, path: content})
    rest = {name: one for name, one in files.items() if name != path}
    yield Harm(path, 0, "removed", rest)
    if data:
        yield Harm(path, len(data), "doubled", {**files, path: data + data})
    for other in sorted(files):
        if other != path and file_kind(other) == file_kind(path) and files[other] != data:
            yield Harm(path, 0, f"replaced by {other}", {**files, path: files[other]})
            if other > path:
                swapped = {**files, path: files[other], other: data}
                yield Harm(path, 0, f"swapped with {other}", swapped, (other,))
    name = os.path.basename(path)
    if name[:1].isdigit():
        copy = os.path.join(os.path.dirname(path), "7" + name[1:])
        if copy not in files:
            yield Harm(path, 0, f"copied to {copy}", {**files, copy: data}, (copy,))
