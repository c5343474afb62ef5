"""Convert a RabbitMQ virtual host's queues to another version of their files, in place. A node of
4.2 does so when it starts, and one of 4.3 does not any more.

Steps for each virtual host, while no node has it open::

    1. build the new files in  <vhost>/qindex.convert/new/, synced
    2. write  qindex.convert/plan, synced: from here on the conversion is done
    3. remove recovery.dets, clean.dot, *.ets: what a node wrote about the old files
    4. rename each new file into its place, beside the old ones; sync
    5. remove the old files; sync
    6. remove the plan, then qindex.convert/

A program that dies before 2 has changed nothing; the next call begins anew. A call that dies
after it is finished by the next call. At each moment the queue's directory itself has every
message, and a reader gives it once: of files of both versions an entry of version 2 counts if its
message is there, and those of version 1 that do not count there. For that,

* of version 1 the journal goes last, for it has the acknowledgements of entries in segments;
* where a queue has files of both versions already, those of version 2 are added to, so that the
  old ``K.qi`` fits the new ``K.qs``; to version 1 it goes by way of version 2;
* new files of the message store have numbers that are not taken.

Nodes of 3.10 to 4.2 have the same rule, one of 4.3 has not; none knows what we were about. So none
is to be started in between. Without the notes of a clean stop a node calls all messages
redelivered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from journal import format as journal_format
from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.errors import DamageError, StorageError, UsageError
from journal.findings import Cause, Finding, Kind
from journal.fs.beneath import beneath
from journal.fs.files import (
    REAL,
    FileSystem,
    PathLike,
    checked_path,
    make_dirs,
    names_in,
    read_optional,
    replace_file,
)
from journal.fs.files import unlink_if_there as unlink
from journal.locks.directory_lock import DirectoryLock
from msgstore.format import NODE_STATE_NAMES, TAIL_FLAG, classify_name
from msgstore.format import file_name as store_file
from qindex.format import layout
from qindex.format.headers import DUE_FILE
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as INDEX_SUFFIX
from qindex.format.rabbitmq.queue_store_v2 import SUFFIX as STORE_SUFFIX
from qindex.format.segment import file_number
from qindex.index.messages import PERSISTENT_DIRECTORY
from qindex.recovery.queue_directory import remove_queue_directory as remove_tree
from qindex.tools.copying import StoreCopy, for_salvage
from qindex.tools.marker_check import check_marker
from qindex.tools.repair import check_source, hold_store
from qindex.tools.saved import SavedQueue, SaveReport
from qindex.tools.staging import Staging, sync_directories, sync_tree
from qindex.view.rabbitmq_vhost import RECOVERY_TERMS, VHOST_FILE, QueueDirectory, vhosts_in
from qindex.view.reader import StoreReader

Version = Literal[1, 2]
Progress = Callable[[int, int], None]

_WORK: Final = layout.CONVERSION
_LOCK: Final = "lock"
_NEW: Final = "new"
_PLAN: Final = "plan"
_MARKS: Final = frozenset((VHOST_FILE, layout.QUEUES, _WORK))


def convert(
    directory: PathLike,
    to: Version,
    *,
    out: PathLike | None = None,
    progress: Progress | None = None,
) -> SaveReport:
    """Convert the queues of a virtual host to files of another version.

    Crash-safe: call it again after a crash.

    Args:
        directory: A virtual host's or a node's directory, which is not running; queues that have
            that version are left as they are. Or a closed store of qindex, with ``out``.
        to: 2, which nodes of 3.10 and later read, or 1, for nodes of 3.10 to 3.12. To version 1
            the message store is rewritten, as such nodes do not read all that later ones write.
        out: For a store of qindex: the virtual host's directory to make, empty or missing, with the
            persistent messages under their seq_ids. The store is not changed. Settings of queues
            are not among what a node reads.
        progress: Called with the messages converted and the messages in all.

    Returns:
        A report of the conversion.

    Raises:
        UsageError: The arguments do not fit the directory.
        DamageError: A message can't be read (see :func:`qindex.tools.salvage.salvage`); nothing
            was changed.
        LockedError: A process has the store open.
        NotAStoreError: It is neither a store nor a node's directory.
        StorageError: The system refused an operation.
    """
    return convert_store(directory, to, out=out, progress=progress, fs=REAL)


def convert_store(
    directory: PathLike,
    to: Version,
    *,
    out: PathLike | None = None,
    progress: Progress | None = None,
    fs: FileSystem,
) -> SaveReport:
    """Convert queues as :func:`convert` does, on any file system."""
    if to not in get_args(Version):
        raise UsageError(f"a version is 1 or 2, not {to!r}")
    source = os.path.abspath(checked_path(directory))
    around = [] if out is None else [os.path.dirname(os.path.abspath(checked_path(out)))]
    fs = beneath(fs, source, *around)
    marker = check_marker(fs, source)[0]
    try:
        if marker is not None:
            return _handed_over(fs, source, marker, to, out, progress)
        if out is not None:
            raise UsageError(f"{source}: is converted in place; see salvage for a copy")
        report = SaveReport(source, source)
        for vhost in vhosts_in(fs, source, _MARKS):
            _Conversion(fs, os.path.join(source, vhost), to, report, progress).run()
        return report
    except OSError as error:
        where = error.filename or source
        raise StorageError(where, "the queues can't be converted", error) from error


@dataclass(frozen=True, slots=True)
class _Plan:
    """The steps after the build; paths are relative to the virtual host's directory.

    ``puts``: names to be moved from ``new/``, and where to; ``removes``: files that go then, in
    stages, of which one is durable before the next.
    """

    puts: list[tuple[str, str]]
    removes: list[list[str]]

    def pack(self) -> bytes:
        return layout.pack_checked((self.puts, self.removes))

    @classmethod
    def unpack(cls, data: bytes) -> _Plan:
        """Raises :class:`ValueError`."""
        try:
            puts, removes = layout.unpack_checked(data)
            moves = [(str(new), str(place)) for new, place in puts]
            return cls(moves, [[str(path) for path in stage] for stage in removes])
        except TypeError as error:
            raise ValueError(str(error)) from error


class _Conversion:
    """The conversion of one virtual host, in place."""

    def __init__(
        self,
        fs: FileSystem,
        vhost: str,
        to: Version,
        report: SaveReport,
        progress: Progress | None,
    ) -> None:
        self._fs = fs
        self._vhost = vhost
        self._to = to
        self._report = report
        self._progress = progress
        self._work = os.path.join(vhost, _WORK)
        self._new = os.path.join(self._work, _NEW)

    def run(self) -> None:
        """Do it. Raises :class:`OSError`, :class:`StoreError`."""
        fs = self._fs
        make_dirs(fs, self._work)
        lock = DirectoryLock(fs, os.path.join(self._work, _LOCK))
        try:
            plan = self._plan()
            if plan is not None:
                self._finish(plan)
            if self._to == 1 and self._wanted(StoreReader(self._vhost, fs), {1, 2}):
                self._convert(2, SaveReport(self._vhost, self._vhost))
            self._convert(self._to, self._report)
        finally:
            lock.release()
        remove_tree(fs, self._work)

    def _plan(self) -> _Plan | None:
        """Return what a conversion was about to do when it was cut short."""
        path = os.path.join(self._work, _PLAN)
        data = read_optional(self._fs, path)
        if data is None:
            return None
        try:
            return _Plan.unpack(data)
        except ValueError as error:
            raise DamageError(path, 0, f"no plan of a conversion: {error}") from error

    def _convert(self, to: Version, report: SaveReport) -> None:
        fs = self._fs
        if _NEW in fs.listdir(self._work):
            remove_tree(fs, self._new)
        plan = self._build(to, report)
        if plan is not None:
            sync_tree(fs, self._new)
            fs.sync_dir(self._vhost)
            replace_file(fs, os.path.join(self._work, _PLAN), plan.pack())
            self._finish(plan)

    @staticmethod
    def _wanted(reader: StoreReader, versions: set[int]) -> list[QueueDirectory]:
        """Return the directories that have files of all these versions."""
        return [one for one in reader.directories() if {*reader.pin(one).versions} >= versions]

    def _build(self, to: Version, report: SaveReport) -> _Plan | None:
        """Make the new files, where there are some to be made."""
        reader = StoreReader(self._vhost, self._fs)
        copy = StoreCopy(
            self._fs,
            reader,
            self._new,
            report,
            sums=False,
            version=to,
            progress=self._progress,
        )
        wanted = self._wanted(reader, {3 - to})
        if not wanted:
            return None
        vhost = reader.vhost
        assert vhost is not None
        copy.check()
        self._refuse_damage(report)
        make_dirs(self._fs, os.path.join(self._new, layout.QUEUES))
        if to == 1:
            copy.basic_for = vhost.name
        with_store = to == 1 or self._is_half_combined()
        if with_store:
            copy.copy_messages()
        for checked in copy.checked:
            if checked.queue not in wanted:
                continue
            if to == 2:
                copy.copy_pairs(checked)
            saved = SavedQueue(checked.queue.name, vhost.name.decode("utf-8", "backslashreplace"))
            copy.copy_queue_for_node(checked, saved)
            report.queues.append(saved)
        return self._planned(to, [one.directory for one in wanted], with_store=with_store)

    def _refuse_damage(self, report: SaveReport) -> None:
        findings = report.findings
        findings[:] = [one for one in findings if one.path != self._work]
        for finding in findings:
            rescued = finding.kind is Kind.MESSAGE_WITHOUT_ENTRY  # there may be no slots for them
            if rescued or (finding.cause is Cause.DAMAGE and report.loses(finding)):
                raise for_salvage(finding.path, finding.offset, finding.what)

    def _is_half_combined(self) -> bool:
        """Return whether messages may be in files that later nodes do not look at."""
        return any(name.endswith(".rdt") for name in self._names(PERSISTENT_DIRECTORY))

    def _planned(self, to: Version, queues: list[str], *, with_store: bool) -> _Plan:
        """Return where the new files belong, and which ones they are for."""
        puts: list[tuple[str, str]] = []
        removes: list[list[str]] = [[], []]
        for queue in queues:
            directory = os.path.join(layout.QUEUES, queue)
            for name in self._names(os.path.join(_WORK, _NEW, directory)):
                path = os.path.join(directory, name)
                puts.append((path, path))
            for name in self._names(directory):
                if _version_of(name) == 3 - to:
                    removes[_stage(name)].append(os.path.join(directory, name))
        if with_store:
            there = self._names(PERSISTENT_DIRECTORY)
            first = 1 + max((_store_number(name) for name in there), default=-1)
            for name in self._names(os.path.join(_WORK, _NEW, PERSISTENT_DIRECTORY)):
                new = os.path.join(PERSISTENT_DIRECTORY, name)
                number = first + _store_number(name)
                puts.append((new, os.path.join(PERSISTENT_DIRECTORY, store_file(number))))
            removes[0] += [
                os.path.join(PERSISTENT_DIRECTORY, name)
                for name in there
                if _store_number(name) >= 0
            ]
        return _Plan(puts, removes)

    def _finish(self, plan: _Plan) -> None:
        """Move the new files into place. An earlier call may have done a part."""
        fs, vhost = self._fs, self._vhost
        unlink(fs, os.path.join(vhost, RECOVERY_TERMS))
        for name in NODE_STATE_NAMES:
            unlink(fs, os.path.join(vhost, PERSISTENT_DIRECTORY, name))
        places = {os.path.dirname(place) for _, place in plan.puts}
        for place in sorted(places):
            make_dirs(fs, os.path.join(vhost, place))
        self._sync({"", *([PERSISTENT_DIRECTORY] if self._names(PERSISTENT_DIRECTORY) else [])})
        for new, place in plan.puts:
            # A directory that is not there has been moved already.
            with contextlib.suppress(FileNotFoundError):
                fs.rename(os.path.join(self._new, new), os.path.join(vhost, place))
        self._sync(places)
        for paths in plan.removes:
            for path in paths:
                unlink(fs, os.path.join(vhost, path))
            self._sync({os.path.dirname(path) for path in paths})
        unlink(fs, os.path.join(self._work, _PLAN))
        fs.sync_dir(self._work)

    def _sync(self, places: set[str]) -> None:
        sync_directories(self._fs, [os.path.join(self._vhost, one) for one in sorted(places)])

    def _names(self, place: str) -> list[str]:
        return names_in(self._fs, os.path.join(self._vhost, place))


def _version_of(name: str) -> int | None:
    """Return the version of a file in a queue's directory; ``None``: any."""
    of = name.removesuffix(SUMS_SUFFIX)
    if of == journal_format.FILE_NAME or file_number(of) is not None:
        return 1
    is_pair = any(file_number(name, suffix) is not None for suffix in (INDEX_SUFFIX, STORE_SUFFIX))
    return 2 if is_pair else None


def _stage(name: str) -> int:
    """Return when a file of a queue is removed."""
    return int(name == journal_format.FILE_NAME)


def _delayed(reader: StoreReader, queue: QueueDirectory) -> list[Finding]:
    """Return a note about the delayed messages of a queue: a node delivers them at once."""
    count = reader.queue(queue.directory).summary().delayed
    if not count:
        return []
    path = os.path.join(reader.path_of(queue), DUE_FILE)
    what, then = f"{count} messages are delayed", "a node delivers them at once"
    return [Finding(path, 0, 0, Cause.CRASH, what, then, Kind.MISMATCH)]


def _store_number(name: str) -> int:
    """Return the number of a message store's file, -1 for any other."""
    known = classify_name(name)
    return -1 if known is None else known[1] & ~TAIL_FLAG


def _handed_over(
    fs: FileSystem,
    source: str,
    marker: layout.StoreMarker,
    to: Version,
    out: PathLike | None,
    progress: Progress | None,
) -> SaveReport:
    """Make a virtual host's directory of a store of qindex."""
    if out is None:
        raise UsageError(
            f"{source}: is a store of qindex; name a new directory for a node with --out"
        )
    with contextlib.ExitStack() as stack:
        held = hold_store(fs, source)
        if held is not None:
            stack.callback(held.release)
        staging = stack.enter_context(Staging(fs, out, source))
        fs = staging.fs
        report = SaveReport(source, staging.target, for_node=True)
        reader = StoreReader(source, fs, marker=marker)
        vhost = marker.vhost.encode("utf-8", "surrogateescape")
        copy = StoreCopy(
            fs,
            reader,
            staging.path,
            report,
            sums=False,
            version=to,
            basic_for=vhost,
            progress=progress,
        )
        check_source(copy, marker)
        copy.begin_vhost(vhost)
        copy.copy_messages()
        queues: dict[str, SavedQueue] = {}
        for checked in copy.checked:
            name = checked.queue.name
            saved = queues.setdefault(name, SavedQueue(name, marker.vhost))
            copy.copy_queue_for_node(checked, saved)
            report.findings += _delayed(reader, checked.queue)
            if checked.queue.priority is not None:
                stored = reader.queue(name).settings_if_sound().max_priority
                saved.max_priority = max(saved.max_priority or 1, stored or 1)
        report.queues += queues.values()
        staging.commit()
    return report
