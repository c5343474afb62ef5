"""The message store: opaque records under 16-byte ids, counted references.

When ``write`` or ``write_many`` returns, the operating system has the record: the death of the
process loses nothing. ``sync`` makes all that was written before it survive power loss. References
are kept in memory only. After a crash they are counted anew from the queue indexes, so an index
entry and its message are in two files that both have to be synced.

A removal is a count in memory, too. But compaction then deletes the messages without a reference.
Before it does, it calls ``before_reclaim``, in which the engine makes the acknowledgements durable
that led to the removals.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from journal.errors import (
    ClosedError,
    DamageError,
    StorageError,
    StoreError,
    UsageError,
    storage_errors,
)
from journal.findings import Finding
from journal.fs.files import REAL, FileSystem, PathLike, pread_all
from journal.poison import Poison
from msgstore.compaction import CompactionReport, Compactor, StoppedError
from msgstore.errors import MissingMessageError
from msgstore.format import FRAME, HEADER, MAX_RECORD, Check, Kind, classify_name
from msgstore.handles import MOST_HANDLES, Handle
from msgstore.locations import Location, Place
from msgstore.recovery import Recovery
from msgstore.snapshot import dump_snapshot
from msgstore.state import State, Worth
from msgstore.writer import Writer

_REMOVALS_PER_LOCK = 512
_READS_PER_LOCK = 64


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Figures of one store; sizes in bytes.

    ``size``: the bytes in the files; ``live``: those of messages with references;
    ``stalled_seconds``: the time that publishers waited for compaction; ``last_error``: why its
    last round failed, if it did.
    """

    files: int
    size: int
    live: int
    messages: int
    index_memory: int
    compaction: CompactionReport
    stalled_seconds: float
    last_error: str | None

    @property
    def garbage(self) -> int:
        """Bytes of messages without a reference."""
        return self.size - self.live


class MessageStore:
    """One directory of ``.rdq`` files. Safe for use by many threads.

    >>> import tempfile
    >>> with MessageStore.open(tempfile.mkdtemp(), references={}, snapshot=None,
    ...                        check=lambda msg_id, record: None, poison=Poison()) as store:
    ...     store.write(b"0123456789abcdef", b"record", references=2)
    ...     store.remove([b"0123456789abcdef"])
    ...     store.read(b"0123456789abcdef")
    b'record'
    """

    def __init__(self, state: State, writer: Writer, compactor: Compactor, read_only: bool) -> None:
        self._state = state
        self._writer = writer
        self._compactor = compactor
        self._read_only = read_only
        self._pread = state.fs.pread
        self._check = state.check
        self.findings: list[Finding] = []
        self.missing: set[bytes] = set()

    @classmethod
    def open(
        cls,
        directory: PathLike,
        *,
        references: Mapping[bytes, int] | None,
        snapshot: bytes | None,
        check: Check,
        poison: Poison,
        fs: FileSystem = REAL,
        file_size_limit: int = 16 << 20,
        max_message_bytes: int = 128 << 20,
        max_open_files: int = MOST_HANDLES,
        garbage_ratio: float = 0.5,
        compaction_bytes_per_second: float | None = None,
        before_reclaim: Callable[[], None] | None = None,
        background: bool = True,
        repair: bool = False,
        read_only: bool = False,
        verify: bool = False,
    ) -> MessageStore:
        """Open the store in ``directory``, which is made if need be.

        With the ``snapshot`` of a clean shutdown nothing is scanned. Else ``references`` (message
        id -> count, from the queue indexes) tells which records are wanted, and all files are
        scanned; ``findings`` then lists the problems and ``missing`` the ids without a
        sound record. Leftovers of a crash are put right; for damage see ``repair``.

        ``verify``: every record that is scanned is read and checked, of the newest files up to
        1 GiB; to be asked for after a loss of power, which may leave any of them damaged that was
        not synced. Without it only the last file's are.

        ``before_reclaim`` is called, without any lock of the store but from any thread, before
        files are deleted; with ``background=False`` only :meth:`compact` reclaims.
        ``max_open_files``: handles that are kept when they are idle. ``repair`` copies damaged
        bytes to ``quarantine/`` and goes on, where otherwise :class:`DamageError` is raised.
        ``read_only`` changes nothing and never raises for damage.

        Raises :class:`StaleSnapshotError` (open again without it), :class:`DamageError`,
        :class:`StorageError`, :class:`UsageError`.
        """
        if not 0 < garbage_ratio < 1:
            raise UsageError(f"garbage_ratio is {garbage_ratio}, not between 0 and 1")
        if not 0 < max_message_bytes <= MAX_RECORD or file_size_limit < 1:
            raise UsageError("max_message_bytes or file_size_limit is out of range")
        path = os.fspath(directory)
        recovery = Recovery(
            fs,
            path,
            check=check,
            max_record=max_message_bytes,
            file_size_limit=file_size_limit,
            repair=repair,
            read_only=read_only,
            verify=verify,
        )
        if snapshot is not None:
            recovered = recovery.from_snapshot(snapshot)
        elif references is not None:
            recovered = recovery.from_files(references)
        else:
            raise UsageError("a store is opened with references or with a snapshot")
        state = State(
            fs,
            path,
            poison,
            check,
            recovered,
            garbage_ratio=garbage_ratio,
            writable=not read_only,
            max_open_files=max_open_files,
        )
        writer = Writer(
            state,
            next_file=recovered.next_file,
            file_size_limit=file_size_limit,
            max_message_bytes=max_message_bytes,
            on_garbage=lambda: compactor.wake(),
        )
        compactor = Compactor(
            state,
            writer,
            file_size_limit=file_size_limit,
            before_reclaim=before_reclaim or _nothing,
            bytes_per_second=compaction_bytes_per_second,
            background=background and not read_only,
        )
        if state.leftovers or any(state.is_reclaimable(*item) for item in state.summary):
            compactor.wake()
        store = cls(state, writer, compactor, read_only)
        store.findings = recovered.findings
        store.missing = recovered.missing
        return store

    @staticmethod
    def erase(directory: PathLike, fs: FileSystem = REAL) -> None:
        """Delete all records of a store that is not open: a transient one, at each start.

        Foreign files stay. Raises :class:`StorageError`.
        """
        try:
            known = [(classify_name(name), name) for name in fs.listdir(directory)]
            ours = [(kind[0], name) for kind, name in known if kind is not None]
            # RabbitMQ does not start on an N.rdt without its N.rdq, so the .rdq files go last.
            for _, name in sorted(ours, key=lambda item: item[0] is Kind.RECORDS):
                fs.unlink(os.path.join(directory, name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(directory, "can't be erased", error) from error

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing ------------------------------------------------------------------------------

    def write(self, msg_id: bytes, record: bytes, references: int = 1) -> None:
        """Store a record under ``references`` references; the operating system has it on return.

        If the store has the message the references are added, and nothing is written. One
        append, O(len(record)). Do not hold a lock that ``before_reclaim`` needs: the call may
        wait (0.25 s at most) for compaction to make room.

        Raises :class:`StorageError` (nothing is recorded), :class:`WritesRefusedError`,
        :class:`UsageError`.
        """
        self._check_writable()
        self._compactor.make_room(len(record))
        self._writer.write(msg_id, record, references)

    def write_new(self, msg_id: bytes, parts: Sequence[bytes]) -> None:
        """Store a record under one reference, as :meth:`write` does. It is given in parts, the
        last of them the largest; nothing is looked up: the id must be a new one."""
        self._check_writable()
        size = sum(map(len, parts))
        self._compactor.make_room(size)
        self._writer.write_new(msg_id, parts, size)

    def write_many(self, items: Sequence[tuple[bytes, bytes, int]]) -> None:
        """Store ``(msg_id, record, references)`` of each item, in one append for each MiB.

        All or none: after an error none of them is in the store. Raises as :meth:`write`.
        """
        self._check_writable()
        self._compactor.make_room(sum(len(record) for _, record, _ in items))
        self._writer.write_many(items)

    def add_references(self, msg_id: bytes, count: int = 1) -> None:
        """Count ``count`` references more. Raises :class:`MissingMessageError`."""
        self._check_writable()
        if count < 1:
            raise UsageError(f"{count} references can't be added")
        with self._state.lock:
            if not self._state.locations.refer(msg_id, count):
                raise MissingMessageError(self._state.directory, msg_id)

    def remove(self, msg_ids: Iterable[bytes]) -> None:
        """Take away one reference of each id; a message without any is garbage at once.

        Raises :class:`MissingMessageError` for unknown ids; the others are done.
        """
        self._check_writable()
        state = self._state
        wanted = list(msg_ids)
        unknown: list[bytes] = []
        worth = Worth.NOTHING
        for start in range(0, len(wanted), _REMOVALS_PER_LOCK):
            with state.lock:
                for msg_id in wanted[start : start + _REMOVALS_PER_LOCK]:
                    location = state.locations.release(msg_id)
                    if location is None:
                        unknown.append(msg_id)
                    elif not location.references:
                        worth = max(worth, state.discard(location))
        if worth is not Worth.NOTHING:
            self._compactor.wake_for(worth)
        if unknown:
            raise MissingMessageError(state.directory, *unknown)

    def remove_one(self, msg_id: bytes) -> None:
        """Take away a reference, as :meth:`remove` does."""
        self._check_writable()
        state = self._state
        worth = Worth.NOTHING
        with state.lock:
            location = state.locations.release(msg_id)
            if location is not None and not location.references:
                worth = state.discard(location)
        if worth is not Worth.NOTHING:
            self._compactor.wake_for(worth)
        if location is None:
            raise MissingMessageError(state.directory, msg_id)

    def sync(self) -> None:
        """Make all that was written before this call durable. Callers share one sync.

        Raises :class:`StorageError`, after which the store takes no more writes.
        """
        self._check_writable()
        self._writer.sync()

    def is_syncing_here(self) -> bool:
        """Return whether the calling thread is in the middle of a :meth:`sync`."""
        return self._writer.is_syncing_here()

    # -- reading ------------------------------------------------------------------------------

    def read(self, msg_id: bytes) -> bytes:
        """The record, verified by the store's check.

        Raises :class:`MissingMessageError`, :class:`DamageError`, :class:`StorageError`.
        """
        with self._state.lock:
            place, handle = self._find(msg_id)
        return self._read_at(msg_id, place, handle)

    def _read_at(self, msg_id: bytes, place: Place, handle: Handle) -> bytes:
        state = self._state
        file, offset, total = place
        wanted = total - FRAME
        try:
            record = self._pread(handle.fd, wanted, offset + HEADER)
            if len(record) != wanted:
                record = pread_all(state.fs, handle.fd, wanted, offset + HEADER)
        except OSError as error:
            raise StorageError(state.path(file), "can't be read", error) from error
        reason = self._check(msg_id, record) if len(record) == wanted else "the file ends in it"
        if reason is not None:
            what = f"message {msg_id.hex()} is damaged: {reason}"
            raise DamageError(state.path(file), offset, what)
        return record

    def raw(self, msg_id: bytes) -> tuple[str, int, bytes]:
        """A record as it is on disk, frame included: path, offset, bytes. Nothing is checked.

        Raises :class:`MissingMessageError`, :class:`StorageError`.
        """
        state = self._state
        with state.lock:
            (file, offset, total), handle = self._find(msg_id)
        path = state.path(file)
        with storage_errors(path, "can't be read"):
            return path, offset, pread_all(state.fs, handle.fd, total, offset)

    def read_many(self, msg_ids: Iterable[bytes]) -> list[bytes | StoreError]:
        """Return the records in the order of the ids. An unreadable record is replaced by its
        error."""
        state = self._state
        state.check_open()
        wanted = list(msg_ids)
        result: list[bytes | StoreError] = []
        for start in range(0, len(wanted), _READS_PER_LOCK):
            some = wanted[start : start + _READS_PER_LOCK]
            with state.lock:
                found = [self._try_find(msg_id) for msg_id in some]
            for msg_id, where in zip(some, found, strict=True):
                if isinstance(where, StoreError):
                    result.append(where)
                    continue
                try:
                    result.append(self._read_at(msg_id, *where))
                except StoreError as error:
                    # Without the frames that it was raised in, which have files open.
                    result.append(error.with_traceback(None))
        return result

    def _try_find(self, msg_id: bytes) -> tuple[Place, Handle] | StoreError:
        """As :meth:`_find`, or why there is none."""
        try:
            return self._find(msg_id)
        except StoreError as error:
            return error.with_traceback(None)

    def _find(self, msg_id: bytes) -> tuple[Place, Handle]:
        """Return the place of a message, and its file. The caller holds the lock, so that
        compaction can't delete the file in between."""
        state = self._state
        place = state.locations.place(msg_id)
        if place is None or state.closed:
            state.check_open()
            raise MissingMessageError(state.directory, msg_id)
        try:
            return place, state.handles.get(place[0])
        except FileNotFoundError as error:
            if self._read_only:  # another process, which has the store open, has reclaimed it
                raise MissingMessageError(state.directory, msg_id) from error
            path = state.path(place[0])
            try:
                state.fs.listdir(state.directory)
            except OSError:
                # All of the store is away, perhaps for a while: no message of it is lost yet.
                raise StorageError(path, "is gone", error) from error
            raise DamageError(path, place[1], "the file is gone") from error
        except OSError as error:
            raise StorageError(state.path(place[0]), "can't be opened", error) from error

    def __contains__(self, msg_id: bytes) -> bool:
        with self._state.lock:
            return msg_id in self._state.locations

    def __len__(self) -> int:
        with self._state.lock:
            return len(self._state.locations)

    def references(self, msg_id: bytes) -> int:
        """Count the references of a message; 0 if the store does not have it."""
        location = self.locate(msg_id)
        return 0 if location is None else location.references

    def locate(self, msg_id: bytes) -> Location | None:
        """Where the record is now; ``msgstore.format.file_name`` names the file."""
        with self._state.lock:
            return self._state.locations.get(msg_id)

    # -- the rest -----------------------------------------------------------------------------

    def compact(self) -> CompactionReport:
        """Reclaim now, in this thread, until nothing qualifies. ``before_reclaim`` is called.

        Raises :class:`StorageError` when the disk is full or fails; nothing is lost by it.
        """
        self._check_writable()
        try:
            return self._compactor.run(roll=True)
        except StoppedError as error:
            raise ClosedError(f"{self._state.directory}: closed while compacting") from error

    def stats(self) -> StoreStats:
        """Figures as of now."""
        state = self._state
        with state.lock:
            return StoreStats(
                files=len(state.summary),
                size=state.summary.size,
                live=state.summary.live,
                messages=len(state.locations),
                index_memory=state.locations.memory(),
                compaction=self._compactor.report(),
                stalled_seconds=self._compactor.stalled_seconds,
                last_error=self._compactor.last_error,
            )

    def is_compaction_thread(self) -> bool:
        """Return whether the calling thread is the background compaction thread."""
        return self._compactor.is_mine()

    def stop_compaction(self) -> None:
        """Let the background thread end, and :meth:`compact` in other threads: nothing is
        reclaimed any more."""
        self._compactor.close()

    def snapshot(self) -> bytes:
        """The state for :meth:`open` after a clean shutdown: after the last write and
        :meth:`sync`, before :meth:`close`. Stops compaction, so that no file changes any more."""
        self._check_writable()
        self._compactor.close()
        with self._state.lock:
            state = self._state
            return dump_snapshot(state.locations, state.summary, self._writer.next_file)

    def close(self) -> None:
        """Stop compaction and close the files. Makes nothing durable; see :meth:`sync`."""
        if self._state.closed:
            return
        self._compactor.close()
        self._writer.close()

    def _check_writable(self) -> None:
        if self._state.closed:
            self._state.check_open()
        if self._read_only:
            raise UsageError(f"{self._state.directory}: the message store is open for reading only")


def _nothing() -> None:
    """The default ``before_reclaim``."""
