"""The owner of ``qindex.seq``; see :mod:`qindex.format.seq_ids` for what it is for."""

from __future__ import annotations

import os
from collections.abc import Iterable

from journal.errors import StorageError
from journal.fs.files import FileSystem, PathLike, pwrite_all, read_optional
from journal.poison import PASSING, Poison, was_tried
from qindex.format.layout import new_identity
from qindex.format.seq_ids import (
    FILE_SIZE,
    FLOOR_SLOTS,
    INCARNATION_SLOT,
    RESERVE_SLOTS,
    SLOT_SIZE,
    SeqSlot,
    incarnation_of,
    incarnation_slot,
    pack_slot,
    short_boot_id,
    sound_slot,
)

RESERVE = 1 << 20
"""seq_ids reserved at once: one sync for each million messages."""
_SLOTS_AT = range(0, FILE_SIZE, SLOT_SIZE)


class SeqFile:
    """Floor and reservation of one queue's seq_ids. Raises :class:`StorageError`.

    ``reserved``: no seq_id at or above it may be given out before :meth:`reserve`.
    ``incarnation``: of the queue, 0 where the file has none. ``is_there``: whether there may be
    such a file; without one nothing is read.
    """

    def __init__(
        self, fs: FileSystem, path: PathLike, poison: Poison, *, is_there: bool = True
    ) -> None:
        self._fs = fs
        self._path = os.fspath(path)
        self._poison = poison
        # Where the system does not tell, no two runs are the same one.
        self._boot = short_boot_id(fs.boot_id() or os.urandom(16))
        data = (read_optional(fs, path, FILE_SIZE) if is_there else None) or b""
        self._slots = [sound_slot(data, at) if data else None for at in _SLOTS_AT]
        self.reserved: int = 0
        self._floor = -1
        for slot in self._slots:
            if slot is not None:
                self.reserved = max(self.reserved, slot.reserved)
                if slot.boot == self._boot:
                    self._floor = max(self._floor, slot.floor)
        mine = self._slots.pop()
        self.incarnation: int = 0 if mine is None else incarnation_of(mine)

    @property
    def same_run(self) -> bool:
        """Whether the queue was written to in this run of the operating system: then no power
        was lost since, and all that was written is there."""
        return self._floor >= 0

    @property
    def unused(self) -> bool:
        """Whether the queue, for all we know, has never given out a seq_id."""
        return not self.reserved

    @property
    def power_lost(self) -> bool:
        """Whether the queue was last written to, for all we know, in a run of the operating system
        that has ended: then writes that were not synced may be lost."""
        return bool(self.reserved) and not self.same_run

    def incarnate(self) -> int:
        """Return the queue's incarnation. One that was never used gets its own here, which is on
        disk with the first reservation."""
        if self.unused and not self.incarnation:
            self.incarnation = new_identity()
        return self.incarnation

    def next_after_crash(self, seen: int) -> int:
        """Return the first seq_id that was certainly never given out; ``seen``: one above the
        highest that recovery found. In the same run of the operating system no write is lost, so
        the floor and ``seen`` decide; else only the reservation does."""
        return max(self._floor if self._floor >= 0 else self.reserved, seen)

    def reserve(self, needed: int, incarnation: int | None = None) -> None:
        """Reserve seq_ids up to beyond ``needed``, durably on return. ``incarnation``: of a queue
        that was never used, where it is a copy of another; 0 where that one has none."""
        slot = SeqSlot(max(needed, self._floor), needed + RESERVE, self._boot)
        if self.unused:
            self.incarnation = self.incarnate() if incarnation is None else incarnation
        self._put(slot, RESERVE_SLOTS, durable=True)
        self.reserved = slot.reserved
        self._floor = slot.floor

    def raise_floor(self, floor: int) -> None:
        """Note that seq_ids below ``floor`` are given out; called before the journal, which says
        so too, is emptied."""
        if floor > self._floor:
            slot = SeqSlot(floor, self.reserved, self._boot)
            self._put(slot, FLOOR_SLOTS, durable=False)
            self._floor = floor

    def _put(self, slot: SeqSlot, numbers: Iterable[int], *, durable: bool) -> None:
        fs = self._fs
        # Each kind of write takes its oldest slot, and never the newest, which counts.
        number = min(numbers, key=self._age)
        syncing = False
        try:
            fd = fs.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
            try:
                if self.unused and self.incarnation:
                    # First, so that no seq_id is ever given out without one.
                    mine = pack_slot(incarnation_slot(self.incarnation))
                    pwrite_all(fs, fd, mine, SLOT_SIZE * INCARNATION_SLOT)
                pwrite_all(fs, fd, pack_slot(slot), SLOT_SIZE * number)
                syncing = durable
                if durable:
                    fs.fdatasync(fd)
            finally:
                fs.close(fd)
            if durable:
                fs.sync_dir(os.path.dirname(self._path))
        except OSError as error:
            failure = StorageError(self._path, "seq_ids can't be reserved", error)
            if was_tried(error) if syncing else error.errno not in PASSING:
                self._poison.set(failure)
            raise failure from error
        self._slots[number] = slot

    def _age(self, number: int) -> tuple[int, int]:
        """Return which slots are older; an unsound slot holds nothing."""
        slot = self._slots[number]
        return (-1, -1) if slot is None else (slot.reserved, slot.floor)
