"""A RabbitMQ virtual host's directory, as a node would take it at its next start.

::

    <node>/msg_stores/vhosts/<hash>/
       .vhost   .config   recovery.dets   msg_store_persistent/   queues/<hash>/

Two paths lead a node to a queue's messages. After a clean stop it believes ``recovery.dets``: it
knows where each queue stood, and which messages had been delivered. Otherwise it goes through the
index of every queue, drops transient messages, starts a new segment, and calls everything
redelivered. The clean path needs the terms of the queue *and* a message store that was closed in
order and names the same queues; if only the store is in doubt, the terms still tell positions.

Nothing is written here, and whatever can't be read is a finding: a node that meets it takes the
path of a killed one, or does not start at all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from journal.errors import NotAStoreError, UnsafeFileError
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, read_optional
from qindex.format import layout
from qindex.format.rabbitmq.clean_dot import message_store_clean
from qindex.format.rabbitmq.names import (
    MAX_PRIORITY,
    QueueNameError,
    directory_name,
    parse_queue_name,
)
from qindex.format.rabbitmq.recovery_terms import QueueTerms, read_recovery_terms
from qindex.format.rabbitmq.term_format import TermError
from qindex.format.rabbitmq.vhost_config import LEGACY_SEGMENT_ENTRY_COUNT, parse_vhost_config
from qindex.recovery.delivery_rules import ALL_REDELIVERED, DirectoryRules, Transient

VHOST_FILE: Final = ".vhost"
RECOVERY_TERMS: Final = layout.RECOVERY_TERMS
PERSISTENT_STORE: Final = "msg_store_persistent"
DEFAULT_VHOST: Final = b"/"
_PATTERNS: Final = (
    "*",
    "vhosts/*",
    "msg_stores/vhosts/*",
    "*/msg_stores/vhosts/*",
    "mnesia/*/msg_stores/vhosts/*",
)
"""Patterns of virtual hosts below a directory that users may take for a store: their parent, a
node's directory, the directory of all nodes, and its parent."""
_MAX_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class QueueDirectory:
    """One directory below ``queues/``; ``name``: the queue's, or the directory's where the
    queue's is unknown. ``priority``: of a priority queue's sub-queue."""

    directory: str
    name: str
    priority: int | None = None


@dataclass(slots=True)
class Vhost:
    """The content of the files beside the queues.

    ``name``: the virtual host's. ``not_clean``: why a node would not believe the terms of a
    clean stop, ``None`` where it would. ``terms``: by directory name. ``assumed``: why
    ``entry_count`` is an assumption (:mod:`qindex.view.entry_count`), ``None`` where it is stated.
    """

    path: str
    name: bytes
    entry_count: int
    terms: dict[str, QueueTerms]
    not_clean: str | None
    findings: list[Finding] = field(default_factory=list)
    assumed: str | None = None

    @classmethod
    def read(cls, fs: FileSystem, path: str) -> Vhost:
        """Read the virtual host at ``path``. Raises :class:`OSError`."""
        findings: list[Finding] = []
        name = read_optional(fs, os.path.join(path, VHOST_FILE)) or DEFAULT_VHOST
        count, assumed = _entry_count(fs, path)
        terms_path = os.path.join(path, RECOVERY_TERMS)
        data = read_optional(fs, terms_path)
        recovered = read_recovery_terms(data)
        for problem in recovered.problems:
            lost = "its queue counts as not stopped in order"
            size = len(data or b"")
            findings.append(Finding(terms_path, 0, size, Cause.DAMAGE, problem, lost, Kind.CONFIG))
        reason = _store_reason(fs, os.path.join(path, PERSISTENT_STORE), recovered.queues.values())
        return cls(path, name, count, recovered.queues, reason, findings, assumed)

    def rules(self, directory: str) -> DirectoryRules:
        """Tell how the entries of the queue directory of that name are to be read."""
        terms = self.terms.get(directory)
        clean = terms is not None and self.not_clean is None
        return DirectoryRules(
            entry_count=self.entry_count,
            transient=Transient.BY_INDEX if clean else Transient.BY_MESSAGE,
            redelivered_below=ALL_REDELIVERED if terms is None else terms.next_deliver_seq_id,
            delivered_known=terms is not None,
            next_seq=None if terms is None else terms.next_seq_id,
            recovers=terms is None,
            of_node=True,
            redelivered=frozenset() if terms is None else terms.delivered,
            clean=clean,
            vouched=False,
        )

    def directories(self, fs: FileSystem) -> list[QueueDirectory]:
        """List the queue directories; appends the faults of their names to ``findings``."""
        found: list[QueueDirectory] = []
        nameless: list[str] = []
        root = os.path.join(self.path, layout.QUEUES)
        for directory in sorted(_names(fs, root)):
            name_path = os.path.join(root, directory, layout.QUEUE_NAME)
            try:
                raw = read_optional(fs, name_path)
            except NotADirectoryError:
                continue
            one = named(name_path, directory, raw, self.findings)
            if one is None:
                nameless.append(directory)
            else:
                found.append(one)
        return found + self._renamed(nameless, found)

    def _renamed(
        self, nameless: Iterable[str], found: list[QueueDirectory]
    ) -> list[QueueDirectory]:
        """Name the sub-queues of a priority queue if another of its sub-queues has a name."""
        known = {
            directory_name(self.name, raw_name(one.name), priority): (one.name, priority)
            for one in found
            if one.priority is not None
            for priority in range(MAX_PRIORITY + 1)
        }
        return [
            QueueDirectory(directory, *known.get(directory, (directory, None)))
            for directory in nameless
        ]

    def hashed(self, fs: FileSystem, name: str) -> list[QueueDirectory]:
        """Return the directories whose names are hashes of a queue's name, in the order in which a
        node delivers from them. ``.queue_name`` may be missing from them. Raises
        :class:`OSError`."""
        priorities = [None, *range(MAX_PRIORITY, -1, -1)]
        hashes = {directory_name(self.name, raw_name(name), one): one for one in priorities}
        root = os.path.join(self.path, layout.QUEUES)
        return [
            QueueDirectory(directory, name, priority)
            for directory, priority in hashes.items()
            if _is_directory(fs, os.path.join(root, directory))
        ]


def named(
    path: str, directory: str, raw: bytes | None, findings: list[Finding]
) -> QueueDirectory | None:
    """Name a queue directory by the bytes of its name file ``path``; ``None`` where they tell no
    name, which ``findings`` note once."""
    if raw is None:
        return None
    try:
        name = parse_queue_name(raw, directory)
    except QueueNameError as error:
        lost = "the name is unknown"
        finding = Finding(path, 0, len(raw), Cause.DAMAGE, str(error), lost, Kind.NAME)
        if finding not in findings:
            findings.append(finding)
        return None
    return QueueDirectory(directory, name.queue.decode("utf-8", "surrogateescape"), name.priority)


def group_queues(directories: list[QueueDirectory]) -> dict[str, list[QueueDirectory]]:
    """Put the sub-queues of priority queues together; by name, highest priority first."""
    queues: dict[str, list[QueueDirectory]] = {}
    for one in sorted(directories, key=lambda one: (one.name, delivery_order(one))):
        queues.setdefault(one.name, []).append(one)
    return queues


def find_vhosts(
    fs: FileSystem, directory: str, *, marks: frozenset[str] = frozenset((VHOST_FILE,))
) -> list[str]:
    """Find virtual hosts' directories below a node's directory: relative paths, sorted.
    ``marks``: names of which one tells a virtual host's directory."""
    found = []
    for pattern in _PATTERNS:
        paths = [""]
        for part in pattern.split("/"):
            paths = [
                os.path.join(path, name)
                for path in paths
                for name in (_look(fs, os.path.join(directory, path)) if part == "*" else [part])
            ]
        found += [one for one in paths if marks & set(_look(fs, os.path.join(directory, one)))]
    return sorted(found)


def vhosts_in(fs: FileSystem, directory: str, marks: frozenset[str]) -> list[str]:
    """Return the virtual hosts' directories in ``directory``, relative to it; "" for itself.
    ``marks`` as for :func:`find_vhosts`. Raises :class:`NotAStoreError` where there is none."""
    if marks & set(fs.listdir(directory)):
        return [""]
    found = find_vhosts(fs, directory, marks=marks)
    if not found:
        raise NotAStoreError(
            f"{directory}: no RabbitMQ virtual host's directory, nor one of a node"
        )
    return found


def refuse_node_directory(fs: FileSystem, directory: str) -> None:
    """Raise :class:`NotAStoreError` for a directory that holds virtual hosts, and name them."""
    names = set(_names(fs, directory))
    if layout.MARKER in names or layout.QUEUES in names or VHOST_FILE in names:
        return
    vhosts = find_vhosts(fs, directory)
    if not vhosts:
        return
    shown = ", ".join(_described(fs, directory, one) for one in vhosts[:_MAX_LISTED])
    more = f" and {len(vhosts) - _MAX_LISTED} more" if len(vhosts) > _MAX_LISTED else ""
    raise NotAStoreError(
        f"{directory}: is a RabbitMQ node's directory; "
        f"use the directory of one of its virtual hosts: {shown}{more}"
    )


def _described(fs: FileSystem, directory: str, vhost: str) -> str:
    path = os.path.join(directory, vhost)
    name = read_optional(fs, os.path.join(path, VHOST_FILE)) or b""
    return f"{path} (virtual host {name.decode('utf-8', 'replace')!r})"


def _is_directory(fs: FileSystem, path: str) -> bool:
    try:
        return stat.S_ISDIR(fs.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _look(fs: FileSystem, path: str) -> list[str]:
    """List a path that may be a directory; empty if a link leads there, for that is outside."""
    try:
        return _names(fs, path)
    except UnsafeFileError:
        return []


def _names(fs: FileSystem, path: str) -> list[str]:
    try:
        return fs.listdir(path)
    except (NotADirectoryError, FileNotFoundError, PermissionError):
        return []


def _entry_count(fs: FileSystem, path: str) -> tuple[int, str | None]:
    """Return the number of entries a segment, and why it is an assumption."""
    try:
        config = parse_vhost_config(read_optional(fs, os.path.join(path, layout.CONFIG)))
    except TermError as error:
        return LEGACY_SEGMENT_ENTRY_COUNT, str(error)
    return config.segment_entry_count, config.fallback


def _store_reason(fs: FileSystem, store: str, terms: Iterable[QueueTerms]) -> str | None:
    names = _names(fs, store)
    return message_store_clean(
        read_optional(fs, os.path.join(store, "clean.dot")) if names else None,
        [one.persistent_ref for one in terms if one.persistent_ref is not None],
        has_file_summary="file_summary.ets" in names,
        has_index="msg_store_index.ets" in names,
        has_rdt=any(name.endswith(".rdt") for name in names),
    )


def raw_name(name: str) -> bytes:
    """Return the bytes of a queue's name, as a reader shows it."""
    return name.encode("utf-8", "surrogateescape")


def delivery_order(one: QueueDirectory) -> int:
    """Sort key of the sub-queues of a priority queue: a node delivers the highest first."""
    return -1 if one.priority is None else -one.priority
