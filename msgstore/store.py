"""The message store: opaque records under 16-byte ids, counted references.

When ``write`` or ``write_many`` returns, the operating system has the record: the death of the
process loses nothing. ``sync`` makes all that was written before it survive power loss. References
are kept in memory only. After a crash they are counted anew from the queue indexes, so an index
entry and its message are in two files that both have to be synced.

A removal is also a count in memory. But compaction then deletes the messages without a reference.
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
from msgstore.handles import MAX_HANDLES, Handle
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
        max_open_files: int = MAX_HANDLES,
        garbage_ratio: float = 0.5,
        compaction_bytes_per_second: float | None = None,
        before_reclaim: Callable[[], None] | None = None,
        background: bool = True,
        repair: bool = False,
        read_only: bool = False,
        verify: bool = False,
    ) -> MessageStore:
        """Open the store in ``directory``, and make one if there is none.

        With the ``snapshot`` of a clean shutdown nothing is scanned. Otherwise all files are
        scanned: ``findings`` lists the problems, and ``missing`` the ids without a sound record.
        Leftovers of a crash are repaired.

        Args:
            directory: The store's directory.
            references: Counts by message id, from the queue indexes: the records that are wanted.
            snapshot: What :meth:`snapshot` returned at the last clean shutdown.
            check: Called with an id and a record; returns what is wrong with it, or None.
            poison: Refuses further writes after a failed one, for all parts of the engine.
            fs: The file system.
            file_size_limit: Size at which a file rolls.
            max_message_bytes: The largest record.
            max_open_files: Idle file handles to keep.
            garbage_ratio: Share of dead bytes above which files are compacted.
            compaction_bytes_per_second: Limit on what compaction copies. None: no limit.
            before_reclaim: Called before files are deleted, from any thread, without a lock of the
                store.
            background: Compact in a thread. Without it only :meth:`compact` reclaims.
            repair: Copy damaged bytes to ``quarantine/`` and go on.
            read_only: Change nothing, and never raise for damage.
            verify: Read and check every scanned record in the newest files, up to 1 GiB. Use it
                after a power failure, which may damage any record that was not synced. Without it
                only the last file's records are checked.

        Returns:
            The store.

        Raises:
            StaleSnapshotError: The snapshot does not fit the files; open without it.
            DamageError: The files are damaged, and ``repair`` is false.
            StorageError: The system refused.
            UsageError: An argument is wrong.
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
        """Delete all records of a store that is not open. Other files stay.

        Args:
            directory: The store's directory.
            fs: The file system.

        Raises:
            StorageError: The system refused.
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
        """Store a record. The operating system has it on return.

        If the store has the message, the references are added and nothing is written. Do not hold a
        lock that ``before_reclaim`` needs: the call may wait up to 0.25 s for compaction.
        O(len(record)).

        Args:
            msg_id: The id, 16 bytes.
            record: The record.
            references: The number of references to it.

        Raises:
            StorageError: The system refused; nothing is recorded.
            WritesRefusedError: An earlier write failed.
            UsageError: The record is too large, or the store is read-only.
        """
        self._check_writable()
        self._compactor.make_room(len(record))
        self._writer.write(msg_id, record, references)

    def write_new(self, msg_id: bytes, parts: Sequence[bytes]) -> None:
        """Store a record in parts, under a new id and one reference.

        Nothing is looked up, so the id must be a new one.

        Args:
            msg_id: The id, 16 bytes.
            parts: The parts of the record, the largest one last.

        Raises:
            StoreError: As :meth:`write`.
        """
        self._check_writable()
        size = sum(map(len, parts))
        self._compactor.make_room(size)
        self._writer.write_new(msg_id, parts, size)

    def write_many(self, items: Sequence[tuple[bytes, bytes, int]]) -> None:
        """Store several records, in one append for each MiB. All or none.

        Args:
            items: ``(msg_id, record, references)`` of each.

        Raises:
            StoreError: As :meth:`write`. None of them is in the store.
        """
        self._check_writable()
        self._compactor.make_room(sum(len(record) for _, record, _ in items))
        self._writer.write_many(items)

    def add_references(self, msg_id: bytes, count: int = 1) -> None:
        """Add references to a message.

        Args:
            msg_id: The id, 16 bytes.
            count: The number of new references.

        Raises:
            MissingMessageError: The store does not have the message.
        """
        self._check_writable()
        if count < 1:
            raise UsageError(f"{count} references can't be added")
        with self._state.lock:
            if not self._state.locations.refer(msg_id, count):
                raise MissingMessageError(self._state.directory, msg_id)

    def remove(self, msg_ids: Iterable[bytes]) -> None:
        """Remove one reference of each message. Without any, a message is garbage.

        Args:
            msg_ids: The ids, 16 bytes each.

        Raises:
            MissingMessageError: Some ids are unknown; the others are done.
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
        """Remove one reference of a message.

        Args:
            msg_id: The id, 16 bytes.

        Raises:
            MissingMessageError: The store does not have the message.
        """
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

        Raises:
            StorageError: The system refused. The store takes no more writes.
        """
        self._check_writable()
        self._writer.sync()

    def is_syncing_here(self) -> bool:
        """Return whether the calling thread is inside :meth:`sync`."""
        return self._writer.is_syncing_here()

    # -- reading ------------------------------------------------------------------------------

    def read(self, msg_id: bytes) -> bytes:
        """Return a record, verified by the store's check.

        Args:
            msg_id: The id, 16 bytes.

        Returns:
            The record.

        Raises:
            MissingMessageError: The store does not have the message.
            DamageError: The record is damaged.
            StorageError: It can't be read.
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
        """Return a record as it is on disk, frame included, unchecked.

        Args:
            msg_id: The id, 16 bytes.

        Returns:
            The path of its file, its offset there and its bytes.

        Raises:
            MissingMessageError: The store does not have the message.
            StorageError: It can't be read.
        """
        state = self._state
        with state.lock:
            (file, offset, total), handle = self._find(msg_id)
        path = state.path(file)
        with storage_errors(path, "can't be read"):
            return path, offset, pread_all(state.fs, handle.fd, total, offset)

    def read_many(self, msg_ids: Iterable[bytes]) -> list[bytes | StoreError]:
        """Return many records, in the order of the ids.

        Args:
            msg_ids: The ids, 16 bytes each.

        Returns:
            The records. An unreadable one is replaced by its error.
        """
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
        """Return the number of references of a message.

        Args:
            msg_id: The id, 16 bytes.

        Returns:
            The number; 0 if the store does not have the message.
        """
        location = self.locate(msg_id)
        return 0 if location is None else location.references

    def locate(self, msg_id: bytes) -> Location | None:
        """Return where a record is now.

        Args:
            msg_id: The id, 16 bytes.

        Returns:
            Its location, whose file ``msgstore.format.file_name`` names. None if it is unknown.
        """
        with self._state.lock:
            return self._state.locations.get(msg_id)

    # -- the rest -----------------------------------------------------------------------------

    def compact(self) -> CompactionReport:
        """Reclaim now, in this thread, until nothing qualifies.

        It calls ``before_reclaim``.

        Returns:
            A report of the reclaimed space.

        Raises:
            StorageError: The disk is full or fails; nothing is lost.
        """
        self._check_writable()
        try:
            return self._compactor.run(roll=True)
        except StoppedError as error:
            raise ClosedError(f"{self._state.directory}: closed while compacting") from error

    def stats(self) -> StoreStats:
        """Return the store's figures at this moment.

        Returns:
            The figures.
        """
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
        """End the background thread. Nothing is reclaimed any more, here or elsewhere."""
        self._compactor.close()

    def snapshot(self) -> bytes:
        """Return the state for :meth:`open` after a clean shutdown.

        Call it after the last write and :meth:`sync`, and before :meth:`close`. It stops
        compaction, so that no file changes any more.

        Returns:
            The snapshot.
        """
        self._check_writable()
        self._compactor.close()
        with self._state.lock:
            state = self._state
            return dump_snapshot(state.locations, state.summary, self._writer.next_file)

    def close(self) -> None:
        """Stop compaction and close the files. Sync before: this makes nothing durable."""
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
