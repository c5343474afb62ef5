"""The report of repair and salvage: the messages saved, those lost, and the bytes set aside."""

from __future__ import annotations

import dataclasses
import enum
import os
from dataclasses import dataclass, field
from typing import Any

from journal import format as journal_format
from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.findings import Cause, Finding, Kind
from msgstore.format import Kind as FileKind
from qindex.format import layout
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as INDEX_SUFFIX
from qindex.format.rabbitmq.queue_store_v2 import SUFFIX as STORE_SUFFIX
from qindex.format.segment import file_number


class Place(enum.Enum):
    """The file of a finding."""

    INDEX = "journal.jif, K.idx"
    PAIR = "K.qi, K.qs"
    RECORDS = "N.rdq, N.rdt"
    QUEUE = "the name or the settings of a queue"
    CONFIG = "a file that says how the others are to be read"
    NOTES = "qindex's own notes and checksums, which a copy makes anew"
    OTHER = "a directory, or a file of any other name"


class Loss(enum.Flag):
    """When a finding means that something could not be saved. Without any of these: never."""

    DAMAGE = enum.auto()
    """No crash explains it."""
    NODE = enum.auto()
    """The directory is a node's, where nothing tells which bytes were confirmed."""
    ALWAYS = enum.auto()


_DAMAGE, _NODE, _ALWAYS = Loss
_CUT = _DAMAGE | _NODE
_EVERYWHERE = dict.fromkeys(Place, _DAMAGE)

LOSSES: dict[Kind, dict[Place, Loss]] = {
    Kind.CHECKSUM: {Place.INDEX: _DAMAGE, Place.PAIR: _DAMAGE, Place.QUEUE: _DAMAGE},
    Kind.CORRECTED: {},
    Kind.RECORD: {Place.INDEX: _CUT, Place.PAIR: _DAMAGE, Place.QUEUE: _DAMAGE},
    Kind.STEP: {},
    Kind.TORN: {
        **dict.fromkeys(Place, _NODE),
        **dict.fromkeys((Place.INDEX, Place.PAIR, Place.QUEUE), _CUT),
    },
    Kind.ZEROS: {Place.INDEX: _CUT, Place.PAIR: _CUT, Place.QUEUE: _DAMAGE},
    Kind.UNFINISHED: {Place.INDEX: _CUT},
    Kind.ENTRY_WITHOUT_MESSAGE: dict.fromkeys(Place, _ALWAYS),
    Kind.MESSAGE_WITHOUT_ENTRY: _EVERYWHERE | {Place.PAIR: _CUT},
    Kind.REFCOUNT: _EVERYWHERE,
    Kind.COUNT: _EVERYWHERE,
    Kind.SIZE: {},
    Kind.DUPLICATE_MSG_ID: _EVERYWHERE,
    Kind.DUPLICATE_SEQ_ID: {Place.INDEX: _DAMAGE},
    Kind.DUPLICATE_FILE: {},
    Kind.GAP: _EVERYWHERE,
    Kind.SEQ_RANGE: {Place.INDEX: _DAMAGE},
    Kind.PERSISTENCE: {Place.PAIR: _DAMAGE},
    Kind.NAME: {Place.QUEUE: _DAMAGE},
    Kind.MISSING_FILE: {
        **dict.fromkeys(Place, _CUT),
        **dict.fromkeys((Place.RECORDS, Place.CONFIG, Place.NOTES), _NODE),
    },
    Kind.FOREIGN_FILE: {Place.INDEX: _DAMAGE, Place.PAIR: _DAMAGE, Place.QUEUE: _DAMAGE},
    Kind.UNREADABLE: {place: _DAMAGE for place in Place if place is not Place.NOTES},
    Kind.MISMATCH: {},
    Kind.OPEN_TO_OTHERS: {},
    Kind.CONFIG: {Place.CONFIG: _DAMAGE},
}
"""The one rule of :attr:`SaveReport.complete`: a row for each kind of finding. What is not lost:
garbage, which no entry names, and messages that can be told from their checksums all the same."""


@dataclass(slots=True)
class SavedQueue:
    """One queue of the new store, of virtual host ``vhost``.

    ``messages`` and ``bytes`` (of their bodies) are there; ``redelivered`` of them come again;
    ``expiring`` have an expiry. ``lost``: entries whose message is nowhere. ``transient``:
    messages that do not outlive a restart, dropped. ``moved``: entries left out, which a
    move to another queue or a transaction acknowledges. ``unnamed``: of the messages, those that no
    entry names, as their index is lost; some of them may have been acknowledged. ``max_priority``:
    of a priority queue.
    """

    name: str
    vhost: str
    messages: int = 0
    bytes: int = 0
    redelivered: int = 0
    expiring: int = 0
    lost: int = 0
    transient: int = 0
    moved: int = 0
    next_seq_id: int = 0
    unnamed: int = 0
    max_priority: int | None = None

    def declaration(self) -> dict[str, Any]:
        """Return how a node's definitions name the queue."""
        arguments = {} if self.max_priority is None else {"x-max-priority": self.max_priority}
        return {
            "name": self.name,
            "vhost": self.vhost,
            "durable": True,
            "auto_delete": False,
            "arguments": arguments,
        }


@dataclass(slots=True)
class SaveReport:
    """The report of a repair or salvage.

    ``findings``: all that is wrong with the source; ``lost``: those of them by which something
    could not be saved. ``quarantined``: files in the new store with the damaged bytes.
    ``restored``: damaged files whose content could be told all the same.
    ``stored_messages``, ``stored_bytes``: copied from message store to message store. ``of_node``:
    the source is a RabbitMQ node's. ``for_node``: the copy is for one.
    """

    source: str
    target: str
    queues: list[SavedQueue] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    stored_messages: int = 0
    stored_bytes: int = 0
    restored: set[str] = field(default_factory=set)
    of_node: bool = False
    for_node: bool = False

    @property
    def lost(self) -> list[Finding]:
        """The findings by which something could not be saved."""
        return [one for one in self.findings if self.loses(one)]

    def loses(self, finding: Finding) -> bool:
        """Return whether a finding names something that could not be saved.

        Args:
            finding: A finding of the report.
        """
        if finding.path in self.restored or self._is_explained(finding):
            return False
        return loses(finding, of_node=self.of_node)

    def _is_explained(self, finding: Finding) -> bool:
        """Return whether it is a block without its checksum, and another finding describes the
        damage in its bytes."""
        if finding.kind is not Kind.CHECKSUM or file_number(os.path.basename(finding.path)) is None:
            return False
        block = range(finding.offset, finding.offset + finding.length + 1)
        return any(
            one.path == finding.path and one is not finding and one.offset in block
            for one in self.findings
        )

    @property
    def complete(self) -> bool:
        """Whether nothing was lost: no entry lacks its message, and no record was cut."""
        return not self.lost and not any(queue.lost for queue in self.queues)

    @property
    def declarations(self) -> list[dict[str, Any]]:
        """The queues that a node must have declared before it starts from the copy: it deletes the
        directories of all others. As its definitions have them."""
        return [queue.declaration() for queue in self.queues] if self.for_node else []

    @property
    def messages(self) -> int:
        """Messages saved, in all queues."""
        return sum(queue.messages for queue in self.queues)

    def to_dict(self) -> dict[str, Any]:
        """Return the report ready for JSON."""
        return {
            "source": self.source,
            "target": self.target,
            "complete": self.complete,
            "queues": [dataclasses.asdict(queue) for queue in self.queues],
            "messages": self.messages,
            "stored_messages": self.stored_messages,
            "stored_bytes": self.stored_bytes,
            "findings": [one.to_dict() | {"lost": self.loses(one)} for one in self.findings],
            "quarantined": self.quarantined,
            "declarations": self.declarations,
        }


def loses(finding: Finding, *, of_node: bool = False) -> bool:
    """Return whether something that ``finding`` names can't be in a copy of the store, by
    :data:`LOSSES`. ``of_node``: the store is a RabbitMQ node's."""
    loss = LOSSES[finding.kind].get(place_of(finding.path), Loss(0))
    holds = Loss.ALWAYS
    if finding.cause is Cause.DAMAGE:
        holds |= Loss.DAMAGE
    if of_node:
        holds |= Loss.NODE
    return bool(loss & holds)


def place_of(path: str) -> Place:
    """Return which kind of file a path is of."""
    name = os.path.basename(path)
    if name == journal_format.FILE_NAME or file_number(name) is not None:
        return Place.INDEX
    if name in (layout.SETTINGS, layout.QUEUE_NAME):
        return Place.QUEUE
    if name in (layout.CONFIG, layout.MARKER):
        return Place.CONFIG
    if name.endswith((INDEX_SUFFIX, STORE_SUFFIX)):
        return Place.PAIR
    if name.endswith((FileKind.RECORDS.value, FileKind.TAIL.value)):
        return Place.RECORDS
    if name.endswith(SUMS_SUFFIX) or name.startswith("qindex."):
        return Place.NOTES
    return Place.OTHER
