"""The rules by which index entries are delivered: our engine's, or a RabbitMQ node's."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from journal.format import SEQ_MASK

ALL_REDELIVERED = SEQ_MASK + 1


class Transient(enum.Enum):
    """The rule for messages that were published as transient."""

    KEPT = "kept"
    """They are there as long as the engine that took them runs; from outside it can't be told
    whether it does."""
    BY_INDEX = "by the index"
    """Dropped; the index entry says which are (a node after a clean stop)."""
    BY_MESSAGE = "by the message"
    """Dropped; an embedded message itself says it, else the index entry (a node after a kill)."""


@dataclass(frozen=True, slots=True)
class DirectoryRules:
    """The rules by which the entries of one queue directory are read.

    ``entry_count``: entries a segment. ``transient``: see :class:`Transient`.
    ``redelivered_below``: entries with a lower seq_id are redelivered; ``None``: those that the
    index has as delivered. ``delivered_known``: whether that tells which messages had been
    delivered, or only that the node does not know. ``next_seq``: the seq_id of the next publish
    where that is written down, else ``None``. ``recovers``: the node starts with a new segment.
    ``of_node``: the files are as a RabbitMQ node leaves them (:mod:`qindex.recovery.node_files`).
    ``keeps_expired``: expired messages are not dropped, for they go to a dead-letter queue.
    ``redelivered``: seq_ids that are redelivered, whatever the others are. ``clean``: a node that
    was stopped in order finds all that its index names. ``journalled_pairs``: the files of version
    2 are beside a journal of ours, in a store that an engine wrote (it was in no release).
    ``pending``: seq_ids of transactions that are not committed. ``vouched``: the checksums are of
    these files, for no node has had them.
    """

    entry_count: int
    transient: Transient = Transient.KEPT
    redelivered_below: int | None = None
    delivered_known: bool = True
    next_seq: int | None = None
    recovers: bool = False
    of_node: bool = False
    keeps_expired: bool = False
    redelivered: frozenset[int] = frozenset()
    clean: bool = False
    journalled_pairs: bool = False
    pending: frozenset[int] = frozenset()
    vouched: bool = True
