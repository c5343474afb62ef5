"""``recovery.dets``: where each queue stood when the node was stopped in order.

A node writes the file while it stops, one object for each queue, and empties it at the next
start; an empty table, or no entry for a queue, therefore means that the queue was not stopped
cleanly since::

    {"<queue directory name>",                      a charlist
     [{segments, [{SegmentNumber, Unacked}, ...]},
      {next_seq_id, N}, {next_deliver_seq_id, N},
      {persistent_ref, <<16 bytes>>}, {persistent_count, N}, {persistent_bytes, N}]}

A queue of version 2 has ``{v2_index_state, {2, #{SegmentNumber => Unacked}}}`` in place of
``segments``; one being converted may have both. A node of 4.3 has, in place of
``next_deliver_seq_id``, ``{redeliver_seq_id, N}`` and ``{delivery_count, #{SeqId => Count}}``:
a message is redelivered if its seq_id is below the former or in the latter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from qindex.format.rabbitmq.dets_format import read_table
from qindex.format.rabbitmq.term_format import Atom, Term, TermError, charlist

_REF_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """One queue's position and counts at a clean stop.

    ``segments`` maps a segment's number to its count of published and unacknowledged entries,
    ``segments_v2`` those of version 2 (``None``: the queue has no such files).
    Messages below ``next_deliver_seq_id`` had been delivered, and those in ``delivered``.
    ``persistent_ref`` is the queue's 16-byte name towards the message store, ``None`` for a queue
    that never used it.
    ``persistent_count`` and ``persistent_bytes`` (of bodies) are of persistent messages alone.
    """

    segments: dict[int, int]
    next_seq_id: int
    next_deliver_seq_id: int
    persistent_ref: bytes | None
    persistent_count: int
    persistent_bytes: int
    segments_v2: dict[int, int] | None = None
    delivered: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RecoveryTerms:
    """The content of ``recovery.dets``: terms by queue directory name.

    ``problems`` has a line for whatever could not be read; such a queue has no terms, which a
    node, too, takes for "not stopped cleanly".
    """

    queues: dict[str, QueueTerms] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_recovery_terms(data: bytes | None) -> RecoveryTerms:
    """Read the bytes of ``recovery.dets`` (``None``: there is no such file). Raises nothing.

    Where the same queue turns up twice (in a file that was not closed properly), which entry is
    the newer is unknown, and neither is believed.
    """
    if data is None:
        return RecoveryTerms()
    try:
        table = read_table(data)
    except TermError as error:
        return RecoveryTerms(problems=[str(error)])
    queues: dict[str, QueueTerms] = {}
    problems = list(table.problems)
    twice: set[str] = set()
    for entry in table.objects:
        try:
            name, terms = _queue(entry)
        except TermError as error:
            problems.append(f"an entry {error}")
            continue
        if name in queues:
            twice.add(name)
        queues[name] = terms
    for name in sorted(twice):
        del queues[name]
        problems.append(f"queue {name} has two entries")
    return RecoveryTerms(queues, problems)


def _queue(entry: Term) -> tuple[str, QueueTerms]:
    if type(entry) is not tuple or len(entry) != 2:
        raise TermError("is not a pair of a name and terms")
    name = charlist(entry[0]).decode("latin-1")
    if type(entry[1]) is not list:
        raise TermError(f"for queue {name!a} has no list of terms")
    pairs: dict[str, Term] = {}
    for term in entry[1]:
        if type(term) is tuple and len(term) == 2 and type(term[0]) is Atom:
            pairs.setdefault(term[0], term[1])  # the first one counts, as in an Erlang proplist
    try:
        terms = QueueTerms(
            segments=_segments(pairs),
            next_seq_id=_count(pairs, "next_seq_id"),
            next_deliver_seq_id=_count(
                pairs, "redeliver_seq_id" if "redeliver_seq_id" in pairs else "next_deliver_seq_id"
            ),
            persistent_ref=_reference(pairs),
            persistent_count=_count(pairs, "persistent_count"),
            persistent_bytes=_count(pairs, "persistent_bytes"),
            segments_v2=_segments_v2(pairs),
            delivered=_delivered(pairs),
        )
    except TermError as error:
        raise TermError(f"for queue {name!a} {error}") from None
    return name, terms


def _count(pairs: dict[str, Term], key: str) -> int:
    value = pairs.get(key)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise TermError(f"has no {key} that is a count")
    return value


def _reference(pairs: dict[str, Term]) -> bytes | None:
    value = pairs.get("persistent_ref")
    if value == Atom("undefined"):
        return None
    if type(value) is not bytes or len(value) != _REF_BYTES:
        raise TermError(f"has no persistent_ref of {_REF_BYTES} bytes")
    return value


def _segments(pairs: dict[str, Term]) -> dict[int, int]:
    value = pairs.get("segments")
    if value is None and "v2_index_state" in pairs:
        return {}
    if type(value) is not list:
        raise TermError("has no segments")
    segments: dict[int, int] = {}
    for pair in value:
        if type(pair) is not tuple or len(pair) != 2 or not all(map(_is_count, pair)):
            raise TermError("has segments that are not pairs of numbers")
        if pair[0] in segments:
            raise TermError("has two counts for a segment")
        segments[pair[0]] = pair[1]
    return segments


def _is_count(value: Term) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _segments_v2(pairs: dict[str, Term]) -> dict[int, int] | None:
    value = pairs.get("v2_index_state")
    if value is None or value == Atom("undefined"):
        return None
    if type(value) is not tuple or len(value) != 2 or value[0] != 2 or type(value[1]) is not dict:
        raise TermError("has a v2_index_state that is none of version 2")
    if not all(_is_count(number) for pair in value[1].items() for number in pair):
        raise TermError("has segments that are not pairs of numbers")
    return dict(value[1])


def _delivered(pairs: dict[str, Term]) -> frozenset[int]:
    value = pairs.get("delivery_count", {})
    if type(value) is not dict or not all(_is_count(seq) for seq in value):
        raise TermError("has a delivery_count that counts no seq_ids")
    return frozenset(value)
