"""Open the files of a store: by the snapshot, or by recovery of queues and message store together.

Recovery in order: each queue is loaded and judged (nothing is changed); the index entries of all
of them are the references of the message store, which is then recovered; entries whose message is
gone are dropped with the rest of each queue's recovery.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from journal import format as journal_format
from journal.errors import ClosedError
from journal.files import FileSystem, read_optional
from journal.findings import Cause, Finding, Kind
from journal.poison import Poison
from msgstore.errors import StaleSnapshotError
from qindex.format import layout
from qindex.format.rabbitmq.names import parse_queue_name
from qindex.format.segment import file_name, file_number
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.index.messages import Messages, has_message_store
from qindex.index.seq_ids import SeqFile
from qindex.options import Options
from qindex.recovery.load import LoadedQueue
from qindex.recovery.queue_recovery import RestingQueue, finish_recovery, load_for_recovery
from qindex.recovery.snapshot import read_snapshot, remove_snapshot

__all__ = ["Opened", "Opening", "remove_queue_directory", "stored_name"]

_log = logging.getLogger("qindex.recovery")


@dataclass(slots=True)
class Opened:
    """An open store: its queues by directory name, its messages, what recovery met."""

    queues: dict[str, RestingQueue]
    messages: Messages
    findings: list[Finding] = field(default_factory=list)


class Opening:
    """Opens the queues and the message store of one directory."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        entry_count: int,
        options: Options,
        poison: Poison,
        before_reclaim: Callable[[], None],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._queues_directory = os.path.join(directory, layout.QUEUES)
        self._entry_count = entry_count
        self._options = options
        self._poison = poison
        self._sync_indexes = before_reclaim
        self._done = threading.Event()
        self._failed = False

    def open(self) -> Opened:
        """Open all; the snapshot is removed before anything changes.

        Raises :class:`DamageError`, :class:`StorageError`, :class:`OSError`.
        """
        try:
            return self._open()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._done.set()

    def _before_reclaim(self) -> None:
        """Let the message store delete nothing before the indexes are recovered: the acks that
        made messages garbage are durable from then on."""
        self._done.wait()
        if self._failed:
            raise ClosedError(f"{self._directory}: could not be opened")
        self._sync_indexes()

    def _open(self) -> Opened:
        snapshot = read_snapshot(self._fs, self._directory, self._queues_directory)
        remove_snapshot(self._fs, self._directory)
        names = self._clean_up()
        if snapshot is not None:
            queues, message_store = snapshot
            known = set(names) == set(queues)
            gone = [one for queue in queues.values() for one in _gone(self._fs, queue)]
            # A store that came from elsewhere: what is in it must not pass for garbage.
            known &= message_store is not None or not has_message_store(self._fs, self._directory)
            if known and all(_files_agree(self._fs, queue) for queue in queues.values()):
                try:
                    return Opened(queues, self._messages(Counter(), message_store))
                except StaleSnapshotError as error:
                    _log.warning("%s: %s", self._directory, error)
            opened = self._recover(names)
            opened.findings[:0] = gone
            return opened
        return self._recover(names)

    def _messages(
        self, references: Counter[bytes], snapshot: bytes | None, power_lost: bool = False
    ) -> Messages:
        return Messages(
            self._fs,
            self._directory,
            self._options,
            self._poison,
            references=references,
            snapshot=snapshot,
            verify=power_lost,
            before_reclaim=self._before_reclaim,
        )

    def _clean_up(self) -> list[str]:
        """Finish what a crash cut short; gives the directories of the queues there are."""
        fs = self._fs
        names = []
        for name in sorted(fs.listdir(self._queues_directory)):
            path = os.path.join(self._queues_directory, name)
            unfinished = layout.QUEUE_NAME + ".tmp"
            if name.endswith(layout.DELETED_SUFFIX) or set(fs.listdir(path)) <= {unfinished}:
                remove_queue_directory(fs, path)
            else:
                names.append(name)
        return names

    def _recover(self, names: list[str]) -> Opened:
        references: Counter[bytes] = Counter()
        waiting: list[tuple[str, LoadedQueue, SeqFile]] = []
        queues: dict[str, RestingQueue] = {}
        findings: list[Finding] = []
        power_lost = False
        for name in names:
            loaded, seq_file = self._load(os.path.join(self._queues_directory, name))
            power_lost |= seq_file.power_lost
            if loaded.stored:
                references.update(msg_id for _, msg_id in loaded.stored)
                waiting.append((name, loaded, seq_file))
            else:
                queues[name] = finish_recovery(self._fs, loaded, seq_file, ())
                findings += loaded.findings
        messages = self._messages(references, None, power_lost)
        try:
            for name, loaded, seq_file in waiting:
                queues[name] = finish_recovery(self._fs, loaded, seq_file, messages.missing)
                findings += loaded.findings
        except BaseException:
            self._failed = True
            self._done.set()  # or the compaction thread, which close() joins, would wait for ever
            messages.close()
            raise
        return Opened(queues, messages, findings + messages.findings)

    def _load(self, path: str) -> tuple[LoadedQueue, SeqFile]:
        seq_file = SeqFile(self._fs, os.path.join(path, SEQ_FILE_NAME), self._poison)
        repair = self._options.repair
        loaded = load_for_recovery(self._fs, path, self._entry_count, seq_file, repair=repair)
        return loaded, seq_file

    def recover_one(self, path: str) -> tuple[RestingQueue, list[Finding]]:
        """Recover one queue of an open store, whose references are counted already."""
        loaded, seq_file = self._load(path)
        return finish_recovery(self._fs, loaded, seq_file, ()), loaded.findings

    def load_one(self, path: str) -> LoadedQueue:
        """Load one queue; nothing is changed."""
        return self._load(path)[0]


def _gone(fs: FileSystem, resting: RestingQueue) -> Iterator[Finding]:
    """Tell which segment files of the snapshot are missing or shorter now, which no crash does.
    Recovery would not know: a segment without a file is one whose messages are acknowledged."""
    for number, (unacked, size) in sorted(resting.segments.items()):
        path = os.path.join(resting.directory, file_name(number))
        try:
            there = fs.stat(path).st_size
        except FileNotFoundError:
            there = 0
        if there < size:
            what = f"the file has {there} bytes of {size} at the clean close"
            consequence = f"it had {unacked} messages: what is missing of them is lost"
            finding = Finding(
                path, there, size - there, Cause.DAMAGE, what, consequence, Kind.MISSING_FILE
            )
            _log.error("%s", finding)
            yield finding


def _files_agree(fs: FileSystem, resting: RestingQueue) -> bool:
    """Tell whether the segment files are those of the snapshot, by name and size."""
    sizes = {}
    for name in fs.listdir(resting.directory):
        number = file_number(name)
        if number is not None or name == journal_format.FILE_NAME:
            sizes[number] = fs.stat(os.path.join(resting.directory, name)).st_size
    journal_size = sizes.pop(None, 0)
    expected = {number: size for number, (_, size) in resting.segments.items()}
    return journal_size == 0 and sizes == expected


def remove_queue_directory(fs: FileSystem, path: str) -> None:
    """Remove a directory and what is in it. Raises :class:`OSError`."""
    for name in fs.listdir(path):
        inner = os.path.join(path, name)
        try:
            fs.unlink(inner)
        except (IsADirectoryError, PermissionError):
            remove_queue_directory(fs, inner)
    fs.rmdir(path)


def stored_name(fs: FileSystem, path: str, hashed: str, findings: list[Finding]) -> str:
    """Give the name of the queue in a directory; where its file is missing or can't be read (noted
    in ``findings``, once), that of the directory."""
    file = os.path.join(path, layout.QUEUE_NAME)
    what, kind = "the file is missing", Kind.MISSING_FILE
    try:
        data = read_optional(fs, file)
    except OSError as error:
        data, what, kind = None, f"can't be read: {error.strerror or error}", Kind.UNREADABLE
    if data is None:
        consequence = "the queue is listed by its directory's name"
        finding = Finding(file, 0, 0, Cause.DAMAGE, what, consequence, kind)
        if finding not in findings:
            _log.error("%s", finding)
            findings.append(finding)
        return hashed
    return parse_queue_name(data, hashed).queue.decode("utf-8", "surrogateescape")
