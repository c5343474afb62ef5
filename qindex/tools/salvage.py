"""Save the messages of a RabbitMQ node (3.10 to 4.3) whose directory is all that is left of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal, get_args

from journal.errors import StorageError, UsageError
from journal.fs.beneath import beneath
from journal.fs.files import (
    REAL,
    FileSystem,
    PathLike,
    checked_path,
    make_dirs,
    read_optional,
)
from qindex.format import layout
from qindex.format.rabbitmq.names import (
    QueueNameError,
    directory_name,
    format_queue_name,
    parse_queue_name,
)
from qindex.tools.copying import StoreCopy
from qindex.tools.marker_check import check_marker
from qindex.tools.not_read import node_directories, queues_not_read
from qindex.tools.queue_check import CheckedQueue
from qindex.tools.repair import (
    NAMELESS,
    begin_priorities,
    begin_store,
    reserve_seq_ids,
    settle,
)
from qindex.tools.saved import SavedQueue, SaveReport
from qindex.tools.staging import Staging
from qindex.view.rabbitmq_vhost import (
    DEFAULT_VHOST,
    VHOST_FILE,
    QueueDirectory,
    group_queues,
    vhosts_in,
)
from qindex.view.reader import StoreReader

UNNAMED = "recovered-messages"
"""The queue of messages that no entry names, where entries are lost."""

Format = Literal["qindex", "rabbitmq", "rabbitmq-4"]

_LOOKED_AT = 100
_MARKS = frozenset((VHOST_FILE, layout.QUEUES))


def salvage(
    directory: PathLike,
    out: PathLike,
    *,
    format: Format = "qindex",
    names: Iterable[str] = (),
    segment_entry_count: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SaveReport:
    """Make ``out`` a sound store with all messages of a node's directory that can be saved.

    These are the messages that the node would deliver: persistent and unacknowledged, in order
    (highest priority first), with its redelivered flags and their expiry, and messages that the
    node does not find or does not start with. Messages that no entry names are saved into the queue
    whose file they are in, or into ``recovered-messages``. Quorum queues and streams are named, and
    not read.

    Args:
        directory: A virtual host's, a node's data directory, or a ``msg_stores`` tree; it is not
            changed.
        out: The new directory, empty or missing. From several virtual hosts it gets a store for
            each, under the name of its directory.
        format: ``"qindex"``, a store; ``"rabbitmq"``, a virtual host's directory for nodes
            of 3.10 to 3.12; ``"rabbitmq-4"``, one for 4.0 and later. Records are kept as they are,
            but for ``"rabbitmq"`` those of 3.13 and later become what such a node delivers.
        names: Queue names to try for directories that have lost theirs.
        segment_entry_count: Of a virtual host that has lost its ``.config``, if its files do not
            tell.
        progress: Called with the messages saved and the messages in all.

    Returns:
        A report of the saved and lost messages.

    Raises:
        UsageError: ``out`` is not empty or within ``directory``.
        NotAStoreError: ``directory`` is not a node's.
        StorageError: The system refused an operation; there is no ``out``.
    """
    if format not in get_args(Format):
        raise UsageError(f"format must be qindex, rabbitmq or rabbitmq-4, not {format!r}")
    source = os.path.abspath(checked_path(directory))
    fs = beneath(REAL, source, os.path.dirname(os.path.abspath(checked_path(out))))
    if check_marker(fs, source)[0] is not None:
        raise UsageError(f"{source}: is a store of qindex; use qindex repair")
    vhosts = vhosts_in(fs, source, _MARKS)
    try:
        with Staging(fs, out, source) as staging:
            fs = staging.fs
            report = SaveReport(source, staging.target, of_node=True, for_node=format != "qindex")
            for vhost in vhosts:
                target = staging.path
                if len(vhosts) > 1:
                    target = os.path.join(target, os.path.basename(vhost))
                    make_dirs(fs, target)
                one = SaveReport(source, staging.target, of_node=True)
                reader = StoreReader(
                    os.path.join(source, vhost), fs, segment_entry_count=segment_entry_count
                )
                _Salvage(fs, reader, target, one, list(names), progress).run(format)
                _add(report, one, os.path.relpath(target, staging.path))
            for node in node_directories(vhosts):
                report.findings += queues_not_read(fs, os.path.normpath(os.path.join(source, node)))
            staging.commit()
            return report
    except OSError as error:
        where = error.filename or os.fspath(out)
        raise StorageError(where, "the store can't be copied", error) from error


def _add(report: SaveReport, one: SaveReport, inside: str) -> None:
    report.queues += one.queues
    report.findings += one.findings
    report.restored |= one.restored
    report.stored_messages += one.stored_messages
    report.stored_bytes += one.stored_bytes
    report.quarantined += [os.path.normpath(os.path.join(inside, at)) for at in one.quarantined]


class _Salvage:
    """The salvage of one virtual host."""

    def __init__(
        self,
        fs: FileSystem,
        reader: StoreReader,
        target: str,
        report: SaveReport,
        names: list[str],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._fs = fs
        self._reader = reader
        self._target = target
        self._report = report
        self._vhost = self._vhost_name()
        self._copy = StoreCopy(fs, reader, target, report, names, progress=progress)

    def run(self, format: Format) -> None:
        """Do it. Raises :class:`OSError`, :class:`StoreError`."""
        copy, fs = self._copy, self._fs
        copy.check()
        if format == "qindex":
            identity = layout.new_identity()
            marker = layout.StoreMarker(copy.entry_count, self._text, identity=identity)
            begin_store(fs, self._target, marker)
        else:
            copy.sums = False
            if format == "rabbitmq-4":
                copy.version = 2
            else:
                copy.basic_for = self._vhost
            copy.begin_vhost(self._vhost)
        copy.names = [*copy.names, *self._routing_keys()]
        unnamed = copy.take_unnamed()
        copy.copy_messages()
        groups = group_queues([checked.queue for checked in copy.checked])
        for name, group in groups.items():
            saved = self._ours(name, group) if format == "qindex" else self._theirs(name, group)
            self._report.queues.append(saved)
        if unnamed:
            self._report.queues.append(self._unnamed())
        copy.set_aside()
        if format == "qindex":
            settle(fs, self._target)

    @property
    def _text(self) -> str:
        return _text_of(self._vhost)

    def _vhost_name(self) -> bytes:
        """Find the virtual host's name; each queue's name file also has it.

        A name that damage has made too long, or given a NUL, is none: no store opens with it.
        """
        vhost = self._reader.vhost
        assert vhost is not None
        is_name = _fits(vhost.name)
        if is_name and read_optional(self._fs, os.path.join(vhost.path, VHOST_FILE)):
            return vhost.name
        for queue in self._reader.directories():
            path = os.path.join(self._reader.path_of(queue), layout.QUEUE_NAME)
            try:
                found = parse_queue_name(read_optional(self._fs, path) or b"", queue.directory)
            except QueueNameError:
                continue
            if _fits(found.vhost):
                return found.vhost
        return vhost.name if is_name else DEFAULT_VHOST

    def _routing_keys(self) -> Iterator[str]:
        """Yield names that queues may have which have lost theirs: a message that was published
        to the default exchange has its queue's name for a routing key."""
        for reader in self._reader.readers():
            if reader.name == reader.directories[0].directory:
                rows = islice(reader.entries(), _LOOKED_AT)
                yield from dict.fromkeys(row.key for row in rows if row.key)

    def _checked(self, queue: QueueDirectory) -> CheckedQueue:
        return next(one for one in self._copy.checked if one.queue == queue)

    def _ours(self, name: str, group: list[QueueDirectory]) -> SavedQueue:
        """Copy a queue; a priority queue with the directories that it has."""
        found, raw = self._copy.name_of(group[0], self._text)
        name = found if raw is not None or group[0].priority is not None else NAMELESS + name
        saved = SavedQueue(name, self._text)
        for queue in group:
            directory = directory_name(self._text, name, queue.priority)
            raw = format_queue_name(self._text, name, queue.priority)
            self._copy.copy_queue(self._checked(queue), directory, raw, saved)
            rules = self._reader.rules(queue)
            seen = self._checked(queue).next_seen
            saved.next_seq_id = max(seen, self._reader.next_seq(queue, rules, seen))
            path = os.path.join(self._target, layout.QUEUES, directory)
            reserve_seq_ids(self._fs, path, saved.next_seq_id)
        highest = max((queue.priority for queue in group if queue.priority is not None), default=-1)
        if highest >= 0:
            saved.max_priority = max(highest, 1)
            begin_priorities(self._fs, self._target, saved)
        return saved

    def _unnamed(self) -> SavedQueue:
        """Copy the messages that no entry names into a queue of their own."""
        saved = SavedQueue(UNNAMED, self._text)
        directory = directory_name(self._text, UNNAMED)
        raw = format_queue_name(self._text, UNNAMED, version=self._copy.version)
        self._copy.copy_unnamed(directory, raw, saved)
        if self._copy.sums:
            path = os.path.join(self._target, layout.QUEUES, directory)
            reserve_seq_ids(self._fs, path, saved.next_seq_id)
        return saved

    def _theirs(self, name: str, group: list[QueueDirectory]) -> SavedQueue:
        """Copy a queue's directories under their own names: a node knows them by these."""
        saved = SavedQueue(name, self._text)
        for queue in group:
            self._copy.copy_queue_for_node(self._checked(queue), saved)
        return saved


def _text_of(vhost: bytes) -> str:
    """Return a virtual host's name as the marker of a store has it."""
    return vhost.decode("utf-8", "backslashreplace")


def _fits(vhost: bytes) -> bool:
    """Return whether a store can have this virtual host's name in its marker."""
    return layout.VHOST_SHAPE.fits(_text_of(vhost))
