"""What a workload has been promised, message by message: the model that states are held against.

A message's publish, delivery and ack each have begun, returned, and become durable at some time. A
:class:`Promise` says at one moment what follows for a crash at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from qindex.format.priorities import SHIFT

__all__ = ["Book", "Message", "Outcome", "Promise", "Queued", "violations"]

NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Queued:
    """A message found in a queue: its number, its place, and whether it was delivered before."""

    number: int
    seq_id: int
    redelivered: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What opening a state gave: the messages of each queue in order, and the seq_id that a new
    message got there. ``error``: what must not happen at all (an exception, damage, a wrong
    body); the rest may be missing then."""

    queues: tuple[tuple[str, tuple[Queued, ...], int], ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    """Of one queue, as numbers of messages.

    After a kill ``kept`` are there and ``gone`` are not; after a loss of power ``safe`` are there
    and ``safely_gone`` are not. ``seqs``: all that may be there, with their seq_ids where those
    are known. ``delivered``, ``safely_delivered``: those there are marked as delivered before;
    ``offered``: others of these may be. ``next_seq``: no new message gets a lower seq_id.
    ``letters``: came as dead letters, or were about to.
    ``reserved``: seq_ids below are reserved. ``delayed``: have places by their due times.
    ``moved``: numbers, and names of dead-letter queues, of which it is certain that a message is
    in the one or the other, until it is ``leaving`` that one; after a loss of power it may be in
    both, unless it ``moves_once``.
    ``published_in``, ``acked_in``: transactions whose commits have begun, and messages of theirs.
    ``was_safe``: were durable, whatever became of them. ``priorities``: of messages; ``next_seqs``:
    as ``next_seq``, of each priority.
    """

    must_exist: bool
    may_exist: bool
    kept: frozenset[int]
    gone: frozenset[int]
    safe: frozenset[int]
    safely_gone: frozenset[int]
    seqs: dict[int, int | None]
    delivered: frozenset[int]
    safely_delivered: frozenset[int]
    offered: frozenset[int]
    next_seq: int
    reserved: int
    moved: frozenset[tuple[int, str]]
    safely_moved: frozenset[tuple[int, str]]
    leaving: frozenset[int]
    letters: frozenset[int]
    moves_once: bool
    delayed: frozenset[int]
    published_in: frozenset[tuple[int, int]]
    acked_in: frozenset[tuple[int, int]]
    was_safe: frozenset[int]
    priorities: dict[int, int]
    next_seqs: dict[int, int]


@dataclass(slots=True)
class Message:
    """One message in one queue. ``lasting``: it outlives the engine's run and its own ttl.
    ``delayed``: it was published, or given back, with a delay. ``rank``: its place among others,
    once it is due. ``published_in``, ``acked_in``: the numbers of transactions, 0 for none.
    ``priority``: messages with a higher one come first."""

    number: int
    lasting: bool
    seq_id: int | None = None
    ready: bool = False
    published: bool = False
    safe: bool = False
    offered: bool = False
    delivered: bool = False
    safely_delivered: bool = False
    going: bool = False
    gone: bool = False
    safely_gone: bool = False
    moved_to: str = ""
    is_letter: bool = False
    delayed: bool = False
    rank: float = 0
    published_in: int = 0
    acked_in: int = 0
    priority: int = 0


@dataclass(slots=True)
class Book:
    """All that is known of one queue."""

    messages: dict[int, Message] = field(default_factory=dict)
    created: bool = False
    deleted: bool = False
    moves_once: bool = False
    reserved: int = 0
    _frozen: Promise | None = None

    def changed(self) -> None:
        """Have the next promise made anew."""
        self._frozen = None

    def ready(self) -> list[Message]:
        """Give those that a get would give, in order."""
        ready = (one for one in self.messages.values() if one.ready)
        return sorted(ready, key=lambda one: (-one.priority, one.rank or one.number))

    def out(self) -> list[Message]:
        """Give those that are with a consumer, in order."""
        return [
            one
            for one in self.messages.values()
            if one.published and not one.ready and not one.going and one.offered
        ]

    def syncing(self) -> Callable[[], None]:
        """A sync begins; what is to be called when it has returned: all that returned before it
        began is durable then."""
        every = self.messages.values()
        published = [one for one in every if one.published]
        delivered = [one for one in every if one.delivered]
        gone = [one for one in every if one.gone]

        def synced() -> None:
            for one in published:
                one.safe = True
            for one in delivered:
                one.safely_delivered = True
            for one in gone:
                one.safely_gone = True
            self.changed()

        return synced

    def restarted(self) -> None:
        """The engine was opened anew: nothing is with a consumer any more."""
        for one in list(self.messages.values()):
            if not one.lasting or one.going:
                one.going = one.gone = True
                one.ready = False
            elif one.published:
                one.ready = not one.delayed or one.rank > 0
        self.changed()

    def promise(self) -> Promise:
        """Say what holds now."""
        if self._frozen is None:
            every = self.messages.values()
            staying = [one for one in every if one.lasting and not one.going]
            moved = [one for one in every if one.moved_to and one.published]
            self._frozen = Promise(
                must_exist=self.created and not self.deleted,
                may_exist=not self.deleted,
                kept=_numbers(one for one in staying if one.published),
                gone=_numbers(one for one in every if one.gone or not one.lasting),
                safe=_numbers(one for one in staying if one.safe),
                safely_gone=_numbers(one for one in every if one.safely_gone or not one.lasting),
                seqs={one.number: one.seq_id for one in every},
                delivered=_numbers(one for one in every if one.delivered),
                safely_delivered=_numbers(one for one in every if one.safely_delivered),
                offered=_numbers(one for one in every if one.offered),
                next_seq=_next_seqs(every).get(0, 0),
                reserved=self.reserved,
                moved=frozenset((one.number, one.moved_to) for one in moved),
                safely_moved=frozenset((one.number, one.moved_to) for one in moved if one.safe),
                leaving=_numbers(one for one in every if one.going),
                letters=_numbers(one for one in every if one.is_letter),
                moves_once=self.moves_once,
                delayed=_numbers(one for one in every if one.delayed),
                published_in=_pairs((one.published_in, one.number) for one in every),
                acked_in=_pairs((one.acked_in, one.number) for one in every),
                was_safe=_numbers(one for one in every if one.safe),
                priorities={one.number: one.priority for one in every},
                next_seqs=_next_seqs(every),
            )
        return self._frozen


def _next_seqs(messages: Iterable[Message]) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in messages:
        if one.seq_id is not None:
            priority = one.seq_id >> SHIFT
            found[priority] = max(found.get(priority, 0), one.seq_id + 1)
    return found


def _numbers(messages: Iterable[Message]) -> frozenset[int]:
    return frozenset(one.number for one in messages)


def _pairs(found: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    return frozenset(pair for pair in found if pair[0])


def violations(
    promises: dict[str, Promise], outcome: Outcome, kill: bool, later_power: bool = False
) -> list[str]:
    """Tell which promises an outcome breaks; empty when it keeps all.

    ``later_power``: after the kill, in recovery, power was lost, too. No file tells then whether a
    move that was not synced had reached the disk."""
    if later_power:
        promises = {name: _with_power_lost(promise) for name, promise in promises.items()}
    if outcome.error:
        return [outcome.error]
    found: list[str] = []
    there = {name for name, _, _ in outcome.queues}
    for name, promise in promises.items():
        if promise.must_exist and name not in there:
            found.append(f"queue {name!r} is gone")
    for name, messages, next_seq in outcome.queues:
        there_promise = promises.get(name)
        if there_promise is None:
            found.append(f"queue {name!r} was never made")
            continue
        ordered = kill and not later_power
        found += [
            f"{name}: {what}"
            for what in _of_queue(there_promise, messages, next_seq, kill, ordered)
        ]
        if kill and not later_power:
            found += [f"{name}: {what}" for what in _of_last(there_promise, messages, next_seq)]
    for name in promises.keys() - there:
        kept = promises[name].kept if kill else promises[name].safe
        if kept:
            found.append(f"{name}: lost {sorted(kept)}, with the queue")
    whole = kill and not later_power
    return found + _moved(promises, outcome, kill) + _together(promises, outcome, whole)


def _with_power_lost(promise: Promise) -> Promise:
    if promise.moves_once:
        return promise
    moved = promise.letters.union(number for number, _ in promise.moved)
    moved = moved.union(number for _, number in promise.published_in | promise.acked_in)
    unsynced = moved - promise.safely_gone
    return replace(promise, gone=promise.gone - unsynced, moved=frozenset())


def _moved(promises: dict[str, Promise], outcome: Outcome, kill: bool) -> list[str]:
    """Tell which messages are in neither, or in both, of the queues they may be in."""
    found = []
    present = {name: {one.number for one in messages} for name, messages, _ in outcome.queues}
    for source, promise in promises.items():
        certain = promise.moved if kill else promise.safely_moved
        for number, target in promise.moved:
            places = [name for name in (source, target) if number in present.get(name, ())]
            left = number in promises[target].leaving
            if not places and not left and (number, target) in certain:
                found.append(f"message {number} is neither in {source!r} nor in {target!r}")
            if len(places) == 2 and (kill or promise.moves_once):
                found.append(f"message {number} is both in {source!r} and in {target!r}")
    return found


def _together(promises: dict[str, Promise], outcome: Outcome, kill: bool) -> list[str]:
    """Tell which transactions have happened in part. A loss of power may cut one that was not
    synced in two, but nothing that it acknowledged goes without what it has published."""
    present = {name: {one.number for one in messages} for name, messages, _ in outcome.queues}
    arrived: dict[int, list[bool]] = {}
    acked: dict[int, list[bool]] = {}
    for name, promise in promises.items():
        there = present.get(name, set())
        for transaction, number in promise.published_in:
            is_there = number in there or number in promise.leaving
            arrived.setdefault(transaction, []).append(is_there)
        for transaction, number in promise.acked_in:
            if kill or promise.moves_once or number in promise.was_safe:
                acked.setdefault(transaction, []).append(number not in there)
    found = []
    strict = kill or all(promise.moves_once for promise in promises.values())
    for transaction in arrived.keys() | acked.keys():
        came, went = arrived.get(transaction, []), acked.get(transaction, [])
        if strict and len({*came, *went}) > 1:
            found.append(f"transaction {transaction} is there in part: {came}, {went}")
        if any(went) and not all(came):
            found.append(f"transaction {transaction} has lost what it published")
    return found


def _of_queue(
    promise: Promise, messages: tuple[Queued, ...], next_seq: int, kill: bool, ordered: bool
) -> list[str]:
    """``ordered``: no power was lost. Otherwise a move that was not synced may be there in part,
    and the timer makes it once more."""
    found = []
    again = NONE if ordered or promise.moves_once else promise.letters
    begun = NONE if ordered else {one for one in promise.letters if promise.seqs[one] is None}
    numbers = [one.number for one in messages]
    present = set(numbers)
    kept, gone, delivered = promise.kept, promise.gone, promise.delivered
    if not kill:
        kept, gone, delivered = promise.safe, promise.safely_gone, promise.safely_delivered
    if not promise.may_exist:
        found.append("the deleted queue is back")
    if kept - present:
        found.append(f"lost {sorted(kept - present)}")
    if gone & present:
        found.append(f"acknowledged, and back: {sorted(gone & present)}")
    if present - promise.seqs.keys():
        found.append(f"never published: {sorted(present - promise.seqs.keys())}")
    messages = tuple(
        one
        for at, one in enumerate(messages)
        if one.number not in again or one.number not in numbers[:at]
    )
    numbers = [one.number for one in messages]
    moving = again | begun | promise.delayed
    sure = [one for one in numbers if one not in moving]
    priorities = promise.priorities
    in_order = sorted(sure, key=lambda number: (-priorities.get(number, 0), number))
    if len(numbers) > len(present) or sure != in_order:
        found.append(f"not in order, or twice: {numbers}")
    seqs = [one.seq_id for one in messages if one.number not in promise.delayed]
    if seqs != sorted(set(seqs), key=lambda seq: (-(seq >> SHIFT), seq)):
        found.append(f"seq_ids out of order: {seqs}")
    seqs = sorted(one.seq_id for one in messages if not one.seq_id >> SHIFT)
    for one in messages:
        given = promise.seqs.get(one.number)
        made_again = one.number in again
        if given is not None and given != one.seq_id and not made_again:
            found.append(f"message {one.number} had seq_id {given}, now {one.seq_id}")
        if one.seq_id >> SHIFT != priorities.get(one.number, 0) and not made_again:
            found.append(f"message {one.number} has another priority: seq_id {one.seq_id}")
        next_of_its = promise.next_seqs.get(one.seq_id >> SHIFT, 0)
        if given is None and one.number in promise.seqs and one.seq_id < next_of_its:
            found.append(f"message {one.number} got seq_id {one.seq_id}, which was given out")
        if one.redelivered and one.number not in promise.offered:
            found.append(f"message {one.number} passes for delivered, and never was")
        if not one.redelivered and one.number in delivered and not made_again:
            found.append(f"message {one.number} was delivered, and passes for new")
    if next_seq < promise.next_seq or (seqs and next_seq <= seqs[-1]):
        found.append(f"seq_id {next_seq} is given out again")
    return found


def _of_last(promise: Promise, messages: tuple[Queued, ...], next_seq: int) -> list[str]:
    """Of the publish that had not returned when its process died all messages are there, or none.
    Where their seq_ids were reserved the next one tells which."""
    last = [number for number, seq in promise.seqs.items() if seq is None]
    last = [number for number in last if number not in promise.letters]
    lasting = [number for number in last if number not in promise.gone]
    present = {one.number for one in messages}
    there = [number for number in lasting if number in present]
    found = []
    if there not in ([], lasting):
        found.append(f"of {lasting}, which had not been published, {there} are there")
    plain = (one.seq_id + 1 for one in messages if not one.seq_id >> SHIFT)
    most = max([promise.next_seq, *plain])
    is_reserved = 0 < promise.next_seq + len(last) <= promise.reserved
    if is_reserved and next_seq > most + len(last) - len(lasting):
        found.append(f"seq_id {next_seq} is given out, and {most} never was")
    return found
