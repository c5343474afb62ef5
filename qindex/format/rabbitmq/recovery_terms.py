"""``recovery.dets``: where each queue stood when the node was stopped in order.

A node writes the file while it stops, one object for each queue, and empties it at the next
start; an empty table, or no entry for a queue, therefore means that the queue was not stopped
cleanly since::

    {"<queue directory name>",                      a charlist
     [{segments, [{SegmentNumber, Unacked}, ...]},
      {next_seq_id, N}, {next_deliver_seq_id, N},
      {persistent_ref, <<16 bytes>>}, {persistent_count, N}, {persistent_bytes, N}]}

A queue of version 2 has ``v2_index_state`` in place of ``segments``; such an entry is reported
and skipped. One being converted has both, and is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from qindex.format.rabbitmq.dets_format import read_table
from qindex.format.rabbitmq.term_format import Atom, Term, TermError, charlist

__all__ = ["QueueTerms", "RecoveryTerms", "read_recovery_terms"]

_REF_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """One queue's position and counts at a clean stop.

    ``segments`` maps a segment's number to its count of published and unacknowledged entries.
    Messages below ``next_deliver_seq_id`` had been delivered. ``persistent_ref`` is the queue's
    16-byte name towards the message store, ``None`` for a queue that never used it.
    ``persistent_count`` and ``persistent_bytes`` (of bodies) are of persistent messages alone.
    """

    segments: dict[int, int]
    next_seq_id: int
    next_deliver_seq_id: int
    persistent_ref: bytes | None
    persistent_count: int
    persistent_bytes: int


@dataclass(frozen=True, slots=True)
class RecoveryTerms:
    """What ``recovery.dets`` says: terms by queue directory name.

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
        raise TermError("is no pair of a name and terms")
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
            next_deliver_seq_id=_count(pairs, "next_deliver_seq_id"),
            persistent_ref=_reference(pairs),
            persistent_count=_count(pairs, "persistent_count"),
            persistent_bytes=_count(pairs, "persistent_bytes"),
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
    if type(value) is not list:
        if "v2_index_state" in pairs:
            raise TermError("is of a queue of version 2")
        raise TermError("has no segments")
    segments: dict[int, int] = {}
    for pair in value:
        if type(pair) is not tuple or len(pair) != 2 or not all(map(_is_count, pair)):
            raise TermError("has segments that are no pairs of numbers")
        if pair[0] in segments:
            raise TermError("has two counts for a segment")
        segments[pair[0]] = pair[1]
    return segments


def _is_count(value: Term) -> bool:
    return type(value) is int and 0 <= value < 1 << 64
