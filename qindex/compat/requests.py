"""Where the requests of a crawl wait: what Scrapy's queues, one for each domain and priority, keep.

Most of those queues are small, come by the thousand, and are gone soon. A queue of the engine has a
directory and files of its own, made durably, which takes milliseconds. So the first requests of
each are together in one queue of the engine, with the name of theirs as the key, and their seq_ids
in memory; those beyond are in a queue of their own, which goes when it is empty::

    requests.waiting        up to FEW requests of each queue, the oldest ones that it has
    example.com-1a2b/0      the others of one queue

Old requests in ``requests.waiting`` keep their segments. When these are many for the requests in
them, the oldest messages move to the end, and keep the place that they had in their own queue in
the header ``place``.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace

import qindex
from journal.errors import DamageError, StoreError
from qindex.compat import shared
from qindex.compat.set_aside import set_aside
from qindex.queue.delivery import Delivery
from qindex.queue.plain_queue import peek_last, take_last

_log = logging.getLogger("qindex.scrapy")

WAITING = "requests.waiting"
SEEN = "requests.seen"
UNREADABLE = "requests.unreadable"
"""Queues of the store beside those of single domains: see :mod:`qindex.compat.scrapy`."""

FEW = 32
PLACE = "place"

_SPREAD = 8
_SPARE = 4 * 16_384
"""The oldest messages move when the seq_ids in use span so many times as many as there are, and so
many more."""
_MOVED_AT_ONCE = 64


class Waiting:
    """One queue of requests. ``few``: seq_ids in ``requests.waiting``, oldest first; ``own``: the
    queue of the engine for the requests after those; ``out``: messages of ``own`` that are being
    worked on; ``users``: objects of Scrapy's that use it."""

    __slots__ = ("few", "name", "out", "own", "users")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.few: deque[int] = deque()
        self.own: qindex.Queue | None = None
        self.out: int = 0
        self.users: int = 0

    def __len__(self) -> int:
        return len(self.few) + (0 if self.own is None else len(self.own))

    def front(self, *, newest: bool) -> qindex.Queue | None:
        """Return the own queue if the next request to be taken is there."""
        if self.own is None or not len(self.own) or (self.few and not newest):
            return None
        return self.own


@dataclass(frozen=True, slots=True)
class Popped:
    """A request that was taken; ``own``: from the queue's own queue of the engine."""

    waiting: Waiting
    delivery: Delivery
    own: bool


class Requests(shared.Shared):
    """All queues of requests of one store."""

    def __init__(self) -> None:
        super().__init__("the requests of a crawl")
        self.engine: qindex.Engine | None = None
        self.waiting: dict[str, Waiting] = {}
        self._together: qindex.Queue | None = None
        self._places: dict[int, int] = {}
        self._until_look = 0

    def start(self, engine: qindex.Engine) -> None:
        """Find the requests in the store. O(queues and messages in ``requests.waiting``)."""
        if self.engine is not None:
            return
        self.engine = engine
        names = set(engine.queue_names())
        for name in names - {WAITING, SEEN, UNREADABLE}:
            self.named(name).own = engine.queue(name)
        if WAITING in names:
            self._together = engine.queue(WAITING)
            self._find_places(engine)

    def _find_places(self, engine: qindex.Engine) -> None:
        assert self._together is not None
        found: dict[str, dict[int, int]] = {}
        count = 0
        with qindex.open(engine.directory, read_only=True) as reading:
            for delivery in reading.queue(WAITING):
                count += 1
                seq, place = delivery.seq_id, delivery.headers.get(PLACE, delivery.seq_id)
                of_one = found.setdefault(delivery.key or "", {})
                twice = of_one.get(place)
                of_one[place] = seq
                if place != seq:
                    self._places[seq] = place
                if twice is not None:
                    # A crash came between a message's move and the end of where it had been.
                    before = self._together.get(seq_id=twice)
                    if before is not None:
                        before.ack()
        if count < len(self._together):
            _log.error(
                "%s: %d requests are damaged: see qindex verify",
                engine.directory,
                len(self._together) - count,
            )
        for name, of_one in found.items():
            self.named(name).few.extend(of_one[place] for place in sorted(of_one))

    def named(self, name: str) -> Waiting:
        """Return the queue of this name."""
        known = self.waiting.get(name)
        if known is None:
            known = self.waiting[name] = Waiting(name)
        return known

    def leftover(self) -> list[Waiting]:
        """Return the queues with requests that are not in use, by name; empty ones are deleted."""
        unused = [one for one in self.waiting.values() if not one.users]
        for one in unused:
            self.retire(one)
        return sorted((one for one in unused if len(one)), key=lambda one: one.name)

    def push(self, waiting: Waiting, body: bytes) -> None:
        """Put a request after all others of its queue."""
        assert self.engine is not None
        # A request that is being worked on counts too: after a crash it is in its place again.
        own_used = waiting.own is not None and (len(waiting.own) or waiting.out)
        if not own_used and len(waiting.few) < FEW:
            if self._together is None:
                self._together = self.engine.queue(WAITING)
            waiting.few.append(self._together.publish(body, key=waiting.name))
            self._keep_together()
            return
        if waiting.own is None:
            waiting.own = self.engine.queue(waiting.name)
        waiting.own.publish(body)

    def pop(self, waiting: Waiting, *, newest: bool) -> Popped | None:
        """Take the oldest request of a queue, or the newest; ``None`` when there is none.

        A damaged request is logged, set aside in quarantine by the engine, and passed over.
        """
        while len(waiting):
            try:
                popped = self._pop(waiting, newest)
            except DamageError as error:
                _log.error("a request is lost: %s", error)
                continue
            if popped is not None:
                return popped
        return None

    def _pop(self, waiting: Waiting, newest: bool) -> Popped | None:
        own = waiting.front(newest=newest)
        if own is not None:
            delivery = take_last(own) if newest else own.get(0)
            waiting.out += delivery is not None
        else:
            assert self._together is not None
            seq = waiting.few.pop() if newest else waiting.few.popleft()
            self._places.pop(seq, None)
            try:
                delivery = self._together.get(seq_id=seq)
            except DamageError as error:
                _log.error("%s", error)
                # It may have been met on the way, and this one may be sound.
                delivery = self._together.get(seq_id=seq)
        return None if delivery is None else Popped(waiting, delivery, own is not None)

    def peek(self, waiting: Waiting, *, newest: bool) -> bytes | None:
        """Return the body of what :meth:`pop` would give, and leave it."""
        own = waiting.front(newest=newest)
        if own is not None:
            if newest:
                return peek_last(own)
            seen = own.peek(1)
            return seen[0].body if seen else None
        popped = self.pop(waiting, newest=newest)
        if popped is None:
            return None
        popped.delivery.nack()
        if popped.own:
            waiting.out -= 1
        elif newest:
            waiting.few.append(popped.delivery.seq_id)
        else:
            waiting.few.appendleft(popped.delivery.seq_id)
        return popped.delivery.body

    def done(self, popped: Popped) -> None:
        """Settle a request that is done with."""
        popped.delivery.ack()
        self._settled(popped)

    def set_aside(self, popped: Popped, why: str) -> None:
        """Move a request that can't be revived to the queue of those."""
        assert self.engine is not None
        name = popped.waiting.name
        set_aside(self.engine, popped.delivery, name, UNREADABLE, why)
        self._settled(popped)
        _log.error(
            "%s: a request of %r can't be revived (%s): moved to the queue %r",
            self.engine.directory,
            name,
            why,
            UNREADABLE,
        )

    def _settled(self, popped: Popped) -> None:
        if popped.own:
            popped.waiting.out -= 1
            self.retire(popped.waiting)

    def retire(self, waiting: Waiting) -> None:
        """Delete a queue that is empty and not in use."""
        if waiting.users or waiting.out or len(waiting):
            return
        if waiting.own is not None and self.engine is not None:
            try:
                if waiting.own.stats().messages:
                    return  # another program has delayed some
                self.engine.delete_queue(waiting.name)
            except StoreError as error:
                _log.warning("%s", error)
                return
        self.waiting.pop(waiting.name, None)

    # -- requests that have waited for long -----------------------------------------------------

    def _keep_together(self) -> None:
        """Now and then, move the oldest messages where they keep too many segments."""
        self._until_look -= 1
        if self._until_look > 0:
            return
        self._until_look = _MOVED_AT_ONCE
        queue = self._together
        assert queue is not None
        oldest = queue.peek(1)
        if oldest:
            spread = queue.stats().next_seq_id - oldest[0].seq_id
            if spread > _SPREAD * len(queue) + _SPARE:
                self._move_some(queue)

    def _move_some(self, queue: qindex.Queue) -> None:
        batch = queue.get_many(_MOVED_AT_ONCE)
        messages = []
        for one in batch:
            place = self._places.pop(one.seq_id, one.seq_id)
            messages.append(replace(one.message, headers={**one.headers, PLACE: place}))
        moved = queue.publish_many(messages)
        for one, message, seq in zip(batch, messages, moved, strict=True):
            few = self.named(message.key or "").few
            # It may be of no queue: a request that was being worked on when its crawl was killed.
            if one.seq_id in few:
                few[few.index(one.seq_id)] = seq
            else:
                few.append(seq)
            self._places[seq] = message.headers[PLACE]
        queue.ack_many(batch)
