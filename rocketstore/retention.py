"""Retention: the rules by which CommitLog files are deleted."""

from __future__ import annotations

import time
from dataclasses import dataclass

from journal.errors import UsageError
from journal.schema import Int, Number

_HOURS, _HOUR, _FILES = Number(0, 1e7), Int(0, 23), Int(1, 1 << 31)
DISK_FULL_RATIO = 0.90
"""Above this share of the disk, puts are refused (when a retention is set)."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules of the real store.

    A file goes when ``hours`` have passed since it was last written, in the hours of the day
    named in ``delete_when`` (local time), or at any time when the disk is used above
    ``disk_ratio``; above ``force_ratio`` files go whatever their age. The last file never goes.
    """

    hours: float = 72.0
    delete_when: tuple[int, ...] = (4,)
    disk_ratio: float = 0.75
    force_ratio: float = 0.85
    full_ratio: float = DISK_FULL_RATIO
    most_at_once: int = 10

    def __post_init__(self) -> None:
        hours = all(_HOUR.fits(hour) for hour in self.delete_when)
        if not _HOURS.fits(self.hours) or not hours or not _FILES.fits(self.most_at_once):
            raise UsageError(
                f"retention: hours must be {_HOURS.wanted}, delete_when hours 0 to 23, "
                f"most_at_once {_FILES.wanted}"
            )
        if not 0 < self.disk_ratio <= self.force_ratio <= self.full_ratio <= 1:
            raise UsageError(
                "retention: 0 < disk_ratio <= force_ratio <= full_ratio <= 1 must hold"
            )

    def is_due(self, now: float, disk_used: float, *, manual: bool) -> bool:
        """Return whether expired files are to be deleted now.

        Args:
            now: Seconds since 1970.
            disk_used: The used share of the disk, 0 to 1.
            manual: Whether a caller asked for it.
        """
        return (
            manual or disk_used > self.disk_ratio or time.localtime(now).tm_hour in self.delete_when
        )

    def is_expired(self, now: float, modified: float, disk_used: float) -> bool:
        """Return whether a file may be deleted.

        Args:
            now: Seconds since 1970.
            modified: When the file was last modified, in seconds since 1970.
            disk_used: The used share of the disk, 0 to 1.
        """
        return disk_used > self.force_ratio or now - modified >= self.hours * 3600
