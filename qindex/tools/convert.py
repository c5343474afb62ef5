"""Convert a RabbitMQ virtual host's queues to another version of their files, in place: what a node
of 4.2 does when it starts, and one of 4.3 does not do any more.

Steps for each virtual host, while no node has it open::

    1. build the new queue directories in  <vhost>/qindex.convert/new/, synced
    2. write  qindex.convert/plan, synced: from here on the conversion is done
    3. remove recovery.dets, clean.dot, *.ets: what a node wrote about the old files
    4. for each directory in the plan: rename the old one to qindex.convert/old/, the new one into
       its place; sync the directories
    5. remove the plan, then qindex.convert/

A program that dies before 2 has changed nothing; the next call begins anew. One that dies after
it is finished by the next call. No message is in one place alone at any moment. A node must not
be started in between: it would take a queue that is on its way for an empty one.

Without the notes of a clean stop a node calls all messages redelivered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final, Literal, get_args

from journal.beneath import beneath
from journal.errors import DamageError, StorageError, UsageError
from journal.files import (
    REAL,
    FileSystem,
    PathLike,
    checked_path,
    make_dirs,
    read_optional,
    replace_file,
)
from journal.files import unlink_if_there as unlink
from journal.lock import DirectoryLock
from msgstore.format import NODE_STATE_NAMES
from qindex.format import layout
from qindex.format.rabbitmq.names import format_queue_name, parse_queue_name
from qindex.format.rabbitmq.vhost_config import format_vhost_config
from qindex.index.messages import PERSISTENT_DIRECTORY
from qindex.recovery.queue_directory import remove_queue_directory as remove_tree
from qindex.tools.copying import StoreCopy
from qindex.tools.marker_check import check_marker
from qindex.tools.saved import SavedQueue, SaveReport
from qindex.tools.staging import Staging, sync_tree
from qindex.view.rabbitmq_vhost import RECOVERY_TERMS, VHOST_FILE, find_vhosts
from qindex.view.reader import StoreReader

__all__ = ["Version", "convert"]

Version = Literal[1, 2]
Progress = Callable[[int, int], None]

_WORK: Final = layout.CONVERSION
_LOCK: Final = "lock"
_NEW: Final = "new"
_OLD: Final = "old"
_PLAN: Final = "plan"
_MARKS: Final = frozenset((VHOST_FILE, layout.QUEUES, _WORK))


def convert(
    directory: PathLike,
    to: Version,
    *,
    out: PathLike | None = None,
    progress: Progress | None = None,
    fs: FileSystem = REAL,
) -> SaveReport:
    """Give the queues of a virtual host files of version ``to``: 2, which nodes of 4.3 read alone
    and those of 3.10 to 4.2 read, too; or 1, for nodes of 3.10 to 3.12.

    ``directory``: a virtual host's, or a node's, which is not running; queues that have that
    version already are left as they are. To version 1 the message store is written anew, for such
    nodes do not read all that later ones write. Or a store of ours: then ``out``, which must be
    empty or not there, becomes a virtual host's directory with its messages, and the store is not
    changed.
    ``progress`` is called with the messages converted and those that there are.

    Crash-safe: call again after one. Raises :class:`UsageError`; :class:`DamageError` for a
    directory in which a message can't be read (see :func:`qindex.tools.salvage.salvage`), unchanged
    then; :class:`qindex.LockedError`, :class:`NotAStoreError`, :class:`StorageError`.
    """
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
        for vhost in _vhosts(fs, source):
            _Conversion(fs, os.path.join(source, vhost), to, report, progress).run()
        return report
    except OSError as error:
        where = error.filename or source
        raise StorageError(where, "the queues can't be converted", error) from error


def _vhosts(fs: FileSystem, source: str) -> list[str]:
    if set(fs.listdir(source)) & _MARKS:
        return [""]
    found = find_vhosts(fs, source, marks=_MARKS)
    if not found:
        raise UsageError(f"{source}: no RabbitMQ virtual host's directory, nor one of a node")
    return found


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
                make_dirs(fs, self._work)
            for name in (_NEW, _OLD):
                self._remove(name)
            plan = self._build()
            if plan:
                sync_tree(fs, self._new)
                fs.sync_dir(self._vhost)
                content = layout.pack_checked(plan)
                replace_file(fs, os.path.join(self._work, _PLAN), content)
                self._finish(plan)
            else:
                self._remove(_NEW)
        finally:
            lock.release()
        self._clear()

    def _plan(self) -> list[str] | None:
        """Give the directories that a conversion was about to exchange when it was cut short."""
        path = os.path.join(self._work, _PLAN)
        data = read_optional(self._fs, path)
        if data is None:
            return None
        try:
            return [str(name) for name in layout.unpack_checked(data)]
        except ValueError as error:
            raise DamageError(path, 0, f"no plan of a conversion: {error}") from error

    def _build(self) -> list[str]:
        """Make the new directories; gives their paths, relative to the virtual host's."""
        reader = StoreReader(self._vhost, self._fs)
        copy = StoreCopy(
            self._fs,
            reader,
            self._new,
            self._report,
            sums=False,
            version=self._to,
            progress=self._progress,
        )
        wanted = [one for one in reader.directories() if {*reader.pin(one).versions} - {self._to}]
        if not wanted:
            return []
        vhost = reader.vhost
        assert vhost is not None
        copy.check()
        findings = self._report.findings
        findings[:] = [one for one in findings if one.path != self._work]
        for finding in findings:
            if self._report.loses(finding):
                what = f"{finding.what} (salvage copies what is sound)"
                raise DamageError(finding.path, finding.offset, what)
        plan = [os.path.join(layout.QUEUES, one.directory) for one in wanted]
        make_dirs(self._fs, os.path.join(self._new, layout.QUEUES))
        if self._to == 1:
            copy.basic_for = vhost.name
        if self._to == 1 or self._is_half_combined():
            copy.copy_messages()
            make_dirs(self._fs, os.path.join(self._new, PERSISTENT_DIRECTORY))
            plan.append(PERSISTENT_DIRECTORY)
        for checked in copy.checked:
            if checked.queue not in wanted:
                continue
            name, raw = copy.name_of(checked.queue, vhost.name.decode("utf-8", "backslashreplace"))
            if raw is not None:
                parsed = parse_queue_name(raw, checked.queue.directory)
                raw = format_queue_name(*parsed, version=self._to)
            saved = SavedQueue(name, vhost.name.decode("utf-8", "backslashreplace"))
            copy.copy_queue(checked, checked.queue.directory, raw, saved, -1)
            saved.next_seq_id = checked.next_seen
            self._report.queues.append(saved)
        return plan

    def _is_half_combined(self) -> bool:
        """Tell whether messages may be in files that later nodes do not look at."""
        store = os.path.join(self._vhost, PERSISTENT_DIRECTORY)
        return any(name.endswith(".rdt") for name in self._names(store))

    def _finish(self, plan: list[str]) -> None:
        """Put what was built in place. May have been done in part before."""
        fs, vhost = self._fs, self._vhost
        unlink(fs, os.path.join(vhost, RECOVERY_TERMS))
        store = os.path.join(vhost, PERSISTENT_DIRECTORY)
        for name in NODE_STATE_NAMES:
            unlink(fs, os.path.join(store, name))
        if self._names(store):
            fs.sync_dir(store)
        old = os.path.join(self._work, _OLD)
        make_dirs(fs, os.path.join(old, layout.QUEUES))
        make_dirs(fs, os.path.join(vhost, layout.QUEUES))
        fs.sync_dir(vhost)
        for place in plan:
            new, target = os.path.join(self._new, place), os.path.join(vhost, place)
            if os.path.basename(place) not in self._names(os.path.dirname(new)):
                continue  # it is in its place
            if os.path.basename(place) in self._names(os.path.dirname(target)):
                fs.rename(target, self._free(os.path.join(old, place)))
            fs.rename(new, target)
        for path in (os.path.join(vhost, layout.QUEUES), os.path.join(old, layout.QUEUES), vhost):
            fs.sync_dir(path)
        unlink(fs, os.path.join(self._work, _PLAN))
        fs.sync_dir(self._work)

    def _free(self, path: str) -> str:
        """Give a name that is not taken: a node that was started in between made a second one."""
        taken = self._names(os.path.dirname(path))
        name = os.path.basename(path)
        while name in taken:
            name += ".again"
        return os.path.join(os.path.dirname(path), name)

    def _remove(self, name: str) -> None:
        if name in self._names(self._work):
            remove_tree(self._fs, os.path.join(self._work, name))

    def _clear(self) -> None:
        remove_tree(self._fs, self._work)

    def _names(self, path: str) -> list[str]:
        try:
            return self._fs.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _handed_over(
    fs: FileSystem,
    source: str,
    marker: layout.StoreMarker,
    to: Version,
    out: PathLike | None,
    progress: Progress | None,
) -> SaveReport:
    """Make a virtual host's directory of a store of ours."""
    if out is None:
        raise UsageError(f"{source}: a store of ours; it needs a new directory for a node (--out)")
    with Staging(fs, out, source) as staging:
        report = SaveReport(source, staging.target)
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
        copy.check()
        make_dirs(fs, os.path.join(staging.path, layout.QUEUES))
        replace_file(fs, os.path.join(staging.path, VHOST_FILE), vhost)
        config = format_vhost_config(copy.entry_count)
        replace_file(fs, os.path.join(staging.path, layout.CONFIG), config)
        copy.copy_messages()
        report.queues += _copied(copy, marker.vhost, to)
        staging.commit()
    return report


def _copied(copy: StoreCopy, vhost: str, to: Version) -> Iterator[SavedQueue]:
    for checked in copy.checked:
        name, raw = copy.name_of(checked.queue, vhost)
        if raw is not None:
            parsed = parse_queue_name(raw, checked.queue.directory)
            raw = format_queue_name(*parsed, version=to)
        saved = SavedQueue(name, vhost)
        try:
            copy.copy_queue(checked, checked.queue.directory, raw, saved, -1)
        except UsageError as error:
            raise UsageError(f"queue {name!r}: {error}") from error
        saved.next_seq_id = checked.next_seen
        yield saved
