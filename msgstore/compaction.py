"""Reclaim the space of dead messages while readers and writers go on.

A file without a live message is deleted. Files with more garbage than is allowed are combined:

1. Copy their live records into ``N.rdq.tmp``, N a number no file has had; sync it.
2. Rename it to ``N.rdq``; sync the directory. This is the commit point.
3. Point the index at the copies, a few hundred at a time. A record whose message has been removed
   meanwhile stays in N as garbage.
4. The old files have no live message now. Call ``before_reclaim``, so that every acknowledgement
   that made a record garbage is as durable as the engine promises; then delete them.

No byte of a live record is ever overwritten or moved within a file, so a reader with an old
location in its hand still reads the right bytes. After a crash before step 2 recovery removes the
``.tmp`` file; after it, both copies are whole, and the old files are found dead or not at all. A
RabbitMQ node ignores the ``.tmp`` name and takes either copy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from journal.background import Background
from journal.errors import StorageError, StoreError
from journal.fs.files import create, pread_all, pwrite_all
from journal.locks.call_lock import CallLock
from journal.locks.flag import Flag
from journal.locks.lock_order import Rank
from msgstore.format import tmp_name
from msgstore.scan import Record, scan_file
from msgstore.state import State, Worth
from msgstore.writer import HARMLESS_ERRORS, Writer

_LOG = logging.getLogger("qindex.msgstore")

_CHUNK = 1 << 20
"""Bytes copied at a time; the interpreter's lock is free while each chunk is."""
_LOCKED_RECORDS = 128
"""Index entries looked at in one go under the lock: well under a millisecond."""
_DRAINED_SECONDS = 0.5
"""A dead current file is rolled and deleted when nothing was appended to it for so long."""
_RETRY_SECONDS = 1.0
_LONGEST_STALL = 0.25
"""Seconds one publish waits for room at most: it slows publishers and can't deadlock them."""
_SLACK = 1.05
"""The excess of a full store over the size that garbage_ratio allows its files."""
_CALM = 0.8
"""Below this share of the bytes that the disk may hold, compaction takes its time."""
_LONGEST_REST = 0.01


@dataclass(slots=True)
class CompactionReport:
    """The result of a compaction. Sizes in bytes; ``reclaimed`` is net of the copied bytes."""

    files_deleted: int = 0
    files_written: int = 0
    records_moved: int = 0
    bytes_copied: int = 0
    bytes_deleted: int = 0

    @property
    def reclaimed(self) -> int:
        """Bytes of disk given back."""
        return self.bytes_deleted - self.bytes_copied


class StoppedError(Exception):
    """The store is being closed while a file is copied."""


@dataclass(frozen=True, slots=True)
class _Move:
    msg_id: bytes
    source: int
    offset: int
    total: int
    target_offset: int


class Compactor:
    """Compaction of one store: on demand, and in a thread that is woken by garbage."""

    def __init__(
        self,
        state: State,
        writer: Writer,
        *,
        file_size_limit: int,
        before_reclaim: Callable[[], None],
        bytes_per_second: float | None,
        background: bool,
    ) -> None:
        self._state = state
        self._fs = state.fs
        self._writer = writer
        self._limit = file_size_limit
        self._before_reclaim = before_reclaim
        self._bytes_per_second = bytes_per_second
        self._background = background
        self._allowed_per_live = _SLACK / (1 - state.garbage_ratio)
        self._mutex = CallLock()
        self._wake = Flag()
        self._stop = Flag()
        self._freed = Flag()
        self._starting = threading.RLock()
        order = state.poison.order
        self._mutex.before_waiting = order.add(Rank.COMPACTION, self._mutex.is_mine)
        order.add(Rank.STORE_ROOM, self._starting._is_owned)  # type: ignore[attr-defined]
        self._thread = Background(self._loop, "msgstore-compaction")
        self._busy = False
        self._watches_drain = False
        self._reserved = 0
        self._rested = 0.0
        self.totals: CompactionReport = CompactionReport()
        self.last_error: str | None = None
        self.stalled_seconds: float = 0.0

    # -- the thread ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the thread look for garbage soon; returns at once."""
        if self._wake.is_set() or not self._background:
            return
        self._wake.set()
        if not self._stop.is_set():
            with self._starting:
                if self._stop.is_set() or self._thread.start():
                    return
            # The thread is started again when there is more garbage. The caller's removal is valid.
            self._wake.clear()

    def is_mine(self) -> bool:
        """Return whether the calling thread is the background one."""
        return self._thread.is_mine()

    def wake_for(self, worth: Worth) -> None:
        """Wake the thread for the garbage that removals have left."""
        # A queue that is empty after every message drains the current file each time: that wakes
        # the thread once, and it then looks again by the clock.
        if worth is Worth.RECLAIM or (worth is Worth.DRAINED and not self._watches_drain):
            self.wake()

    def _loop(self) -> None:
        timeout: float | None = None
        drained: tuple[int, int] | None = None
        while True:
            self._wake.wait(timeout)
            if self._stop.is_set():
                return
            self._busy = True
            self._wake.clear()
            timeout = None
            try:
                if self._state.poison.reason is not None:
                    return
                if drained is not None:
                    self._writer.roll_if_dead(*drained)
                self.run(roll=False)
                self.last_error = None
            except StoppedError:
                return
            except Exception as error:
                # A thread has no caller to raise to: the failure is logged and shown in stats,
                # garbage that could not be reclaimed stays, and the next round tries again.
                self.last_error = str(error)
                _LOG.warning("compaction of %s failed: %s", self._state.directory, error)
                timeout = _RETRY_SECONDS
            finally:
                self._busy = False
                self._freed.set()
            drained = self._dead_current()
            self._watches_drain = drained is not None
            if drained is not None:
                timeout = _DRAINED_SECONDS

    def _dead_current(self) -> tuple[int, int] | None:
        state = self._state
        with state.lock:
            if state.current is None:
                return None
            entry = state.summary.files[state.current]
            if entry.live or not entry.size:
                return None
            return state.current, entry.size

    def close(self) -> None:
        """Stop the thread; a copy that is under way is given up and removed."""
        self._stop.set()
        self._wake.set()
        with self._starting:
            pass  # no thread is about to be started
        self._thread.join()

    # -- back-pressure ------------------------------------------------------------------------

    def make_room(self, incoming: int) -> None:
        """Slow a publisher down while the thread is behind: the disk holds at most 2.1 times the
        live bytes (for a garbage ratio of a half) plus two files."""
        if (self._busy or self._wake.is_set()) and self._is_over(incoming) and self._can_help():
            started = time.monotonic()
            deadline = started + _LONGEST_STALL
            while self._is_over(incoming) and self._can_help():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._freed.clear()
                self._freed.wait(min(left, 0.02))
            self.stalled_seconds += time.monotonic() - started

    def _is_over(self, incoming: int, share: float = 1.0) -> bool:
        """Return whether the files, the running copy and ``incoming`` exceed the allowed size."""
        summary = self._state.summary
        allowed = self._allowed_per_live * summary.live + 2 * self._limit
        return summary.size + self._reserved + incoming > allowed * share

    def _can_help(self) -> bool:
        return self.last_error is None and (self._busy or self._wake.is_set())

    # -- one round ----------------------------------------------------------------------------

    def run(self, *, roll: bool) -> CompactionReport:
        """Delete and combine until nothing qualifies, with ``roll`` also a dead current file.

        Raises :class:`StorageError` when the disk is full or fails; nothing is lost by it.
        """
        report = CompactionReport()
        with self._mutex:
            if roll:
                dead = self._dead_current()
                if dead is not None:
                    self._writer.roll_if_dead(*dead)
            try:
                self._delete_dead(report)
                while group := self._select():
                    self._combine(group, report)
                    self._delete_dead(report)
            finally:
                self._reserved = 0
                self._add_up(report)
        return report

    def report(self) -> CompactionReport:
        """All rounds since open, added up."""
        return replace(self.totals)

    def _add_up(self, report: CompactionReport) -> None:
        totals = self.totals
        totals.files_deleted += report.files_deleted
        totals.files_written += report.files_written
        totals.records_moved += report.records_moved
        totals.bytes_copied += report.bytes_copied
        totals.bytes_deleted += report.bytes_deleted

    def _check(self) -> None:
        if self._stop.is_set():
            raise StoppedError
        self._state.poison.check()

    def _delete_dead(self, report: CompactionReport) -> None:
        state = self._state
        with state.lock:
            files = state.summary.files
            dead = [key for key in files if not files[key].live and key != state.current]
            leftovers = list(state.leftovers)
        if not dead and not leftovers:
            return
        self._check()
        self._before_reclaim()
        # RabbitMQ does not start on an N.rdt without its N.rdq, so those go first.
        for path in leftovers:
            self._unlink(path)
            with state.lock:
                state.leftovers.remove(path)
        for key in dead:
            with state.lock:
                state.unsynced.discard(key)
            self._unlink(state.path(key))
            with state.lock:
                handle = state.handles.forget(key)
                report.bytes_deleted += state.summary.drop_file(key).size
            del handle  # closes the file and frees its blocks: not under the lock
            report.files_deleted += 1
            self._freed.set()
            self._breathe()

    def _unlink(self, path: str) -> None:
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            _LOG.warning("%s was deleted by someone else", path)
        except OSError as error:
            raise StorageError(path, "can't be deleted", error) from error

    def _select(self) -> list[int]:
        """The files to combine next: those with the most garbage, as many as fill one file."""
        state = self._state
        with state.lock:
            files = [
                (entry.live / entry.size, key, entry.live, entry.size)
                for key, entry in state.summary
                if entry.live and key != state.current and entry.stuck is None
            ]
        wasteful = [file for file in files if 1 - file[0] > state.garbage_ratio]
        if not wasteful:
            # Remains of earlier rounds: worth a copy only when many become one.
            wasteful = [file for file in files if file[3] < self._limit // 8]
            if len(wasteful) < 8:
                return []
        group: list[int] = []
        live = 0
        for _, key, file_live, _ in sorted(wasteful):
            if group and live + file_live > self._limit:
                break
            group.append(key)
            live += file_live
        self._reserved = live
        return sorted(group)

    # -- combining ----------------------------------------------------------------------------

    def _combine(self, group: list[int], report: CompactionReport) -> None:
        self._check()
        state = self._state
        key = self._writer.next_key()
        tmp = os.path.join(state.directory, tmp_name(key))
        try:
            copier = _Copier(self, tmp)
            try:
                for source in group:
                    copier.copy_live(source)
                copier.finish()
            finally:
                copier.close()
            if not copier.moves:
                self._fs.unlink(tmp)
                self._mark_unfound(group)
                return
            self._fs.rename(tmp, state.path(key))
            self._fs.sync_dir(state.directory)
        except BaseException as error:
            self._give_up(tmp, state.path(key), error)
            raise
        report.bytes_copied += copier.size
        report.files_written += 1
        report.records_moved += self._switch(key, copier.size, copier.moves)
        self._reserved = 0
        self._mark_unfound(group)

    def _mark_unfound(self, group: list[int]) -> None:
        """Keep a file that still has live messages: the scan did not come across them."""
        state = self._state
        with state.lock:
            for source in group:
                entry = state.summary.files[source]
                if entry.live:
                    entry.stuck = f"{entry.live} live bytes are not found by a scan of the file"
                    _LOG.error("%s: %s; it is kept", state.path(source), entry.stuck)

    def _give_up(self, tmp: str, target: str, error: BaseException) -> None:
        """Nothing depends on the copy yet: remove it, so that a full disk gets its space back."""
        for path in (tmp, target):
            with contextlib.suppress(OSError):
                # What can't be removed now, the next open finds unneeded.
                self._fs.unlink(path)
        if isinstance(error, OSError):
            failure = StorageError(tmp, "can't be written by compaction", error)
            if error.errno not in HARMLESS_ERRORS:
                self._state.poison.set(failure)
            raise failure from error

    def _switch(self, key: int, size: int, moves: list[_Move]) -> int:
        """Point the index at the copies; return the number of copies that were still wanted."""
        state = self._state
        moved = 0
        with state.lock:
            target = state.summary.add_file(key, size)
        for start in range(0, len(moves), _LOCKED_RECORDS):
            with state.lock:
                for move in moves[start : start + _LOCKED_RECORDS]:
                    if not state.locations.is_at(move.msg_id, move.source, move.offset):
                        continue
                    state.locations.move(move.msg_id, key, move.target_offset)
                    source = state.summary.files[move.source]
                    state.summary.change_live(source, -move.total)
                    state.summary.change_live(target, move.total)
                    moved += 1
        return moved

    def live_records(self, source: int) -> list[Record]:
        """The records of a file that the index points at, by offset."""
        state = self._state
        records = scan_file(self._fs, state.path(source), check=state.check).records
        live: list[Record] = []
        for start in range(0, len(records), _LOCKED_RECORDS):
            with state.lock:
                for record in records[start : start + _LOCKED_RECORDS]:
                    msg_id, offset, total = record
                    if state.locations.place(msg_id) == (source, offset, total):
                        live.append(record)
        return live

    def throttle(self, copied: int) -> None:
        """Wait as long as ``copied`` bytes may take; stop when the store is being closed."""
        if self._bytes_per_second is not None:
            self._stop.wait(copied / self._bytes_per_second)
        else:
            self._breathe()
        self._check()

    def _breathe(self) -> None:
        """Rest as long as was worked since the last rest, unless publishers are about to wait.

        A copy at full speed takes a processor, the memory's bandwidth and the file system's
        journal. Publishers feel each of them.
        """
        if not self._is_over(0, _CALM):
            self._stop.wait(min(time.monotonic() - self._rested, _LONGEST_REST))
        self._rested = time.monotonic()

    def mark_stuck(self, source: int, reason: str) -> None:
        """Leave a file alone from now on: its bytes do not match the index."""
        with self._state.lock:
            self._state.summary.files[source].stuck = reason


class _Copier:
    """Copies live records into one new file."""

    def __init__(self, compactor: Compactor, tmp: str) -> None:
        self._compactor = compactor
        self._state = compactor._state
        self._fs = self._state.fs
        self._fd = create(self._fs, tmp)
        self._parts: list[bytes] = []
        self._pending = 0
        self._written = 0
        self.moves: list[_Move] = []

    @property
    def size(self) -> int:
        """Bytes copied so far."""
        return self._written + self._pending

    def copy_live(self, source: int) -> None:
        state = self._state
        records = self._compactor.live_records(source)
        with state.lock:
            handle = state.handles.get(source)
        # Neighbours are read in one go.
        run_start = run_end = 0
        for msg_id, offset, total in records:
            if offset != run_end or run_end - run_start >= _CHUNK:
                self._copy_run(source, handle.fd, run_start, run_end)
                run_start = run_end = offset
            target = self.size + run_end - run_start
            self.moves.append(_Move(msg_id, source, offset, total, target))
            run_end += total
        self._copy_run(source, handle.fd, run_start, run_end)

    def _copy_run(self, source: int, fd: int, start: int, end: int) -> None:
        while start < end:
            wanted = min(_CHUNK, end - start)
            data = pread_all(self._fs, fd, wanted, start)
            if len(data) != wanted:
                reason = f"the file ends at {start + len(data)}, inside a live record"
                self._compactor.mark_stuck(source, reason)
                raise StoreError(f"{self._state.path(source)}: {reason}")
            self._parts.append(data)
            self._pending += wanted
            start += wanted
            if self._pending >= _CHUNK:
                self._flush()

    def _flush(self) -> None:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        pwrite_all(self._fs, self._fd, data, self._written)
        self._written += len(data)
        self._pending = 0
        self._parts.clear()
        self._compactor.throttle(len(data))

    def finish(self) -> None:
        """Write the rest and make all of it durable."""
        if self._pending:
            self._flush()
        self._fs.fdatasync(self._fd)

    def close(self) -> None:
        self._fs.close(self._fd)
