"""Values by key, in a queue of a store: what other libraries keep beside their tasks.

Each value is a message with a key. A new value is published before the old ones are dropped, so
that a reader finds one of them at any moment, and after any crash the newest. Values that do not
expire have a priority of their own: a queue expires from the head of each priority, where they
would hold up all others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import qindex
from qindex.client.faces import AnyEngine, AnyQueue, AnyTransaction
from qindex.queue.delivery import Delivery

MOST = 1 << 30
"""More messages than a queue of values holds."""
_KEPT = 1
"""The priority of values that do not expire."""
_EXPIRES = "expires"
_TURN_LEASE = 30.0
"""Seconds after which the turn of a process that is suspended goes to another one."""


class Values:
    """Values of one engine by their keys, some of which expire.

    ``name``: of the queue; ``expires``: seconds.
    """

    def __init__(self, engine: AnyEngine, name: str, expires: float) -> None:
        self._queue: AnyQueue = engine.queue(name, max_priority=_KEPT)
        self._engine = engine
        self._expires = expires
        self._turn_name = f"{name}.turn"

    def put(self, key: str, value: bytes, *, expiring: bool = False) -> None:
        """Set a value, replacing an earlier one."""
        priority, ttl = (0, self._expires) if expiring else (_KEPT, None)
        seq_id = self._queue.publish(value, key=key, priority=priority, ttl=ttl)
        found = self._queue.find(key, MOST)
        # Not a newer one, which another process has just put there.
        self._drop(one for one in found if one.priority != priority or one.seq_id < seq_id)

    def put_first(self, tx: AnyTransaction, key: str, value: bytes) -> None:
        """Set the value of a key that has none, as a part of a transaction."""
        tx.publish(self._queue.name, value, key=key, priority=_KEPT)

    def add(self, key: str, value: bytes, ttl: float | None = None) -> bool:
        """Set a value unless there is one; return whether it was set. ``ttl``: until it ends."""
        if self.get(key) is not None:
            return False
        headers = None if ttl is None else {_EXPIRES: time.time() + ttl}
        while True:
            try:
                self._queue.publish(value, key=key, unique=key, headers=headers, priority=_KEPT)
                return True
            except qindex.DuplicateError as error:
                found = [one for one in self._queue.find(key, MOST) if one.seq_id == error.seq_id]
                if not found or not _is_over(found[0]):
                    return False
                self._queue.cancel(error.seq_id)

    def get(self, key: str) -> bytes | None:
        """Return a value, or None where there is none."""
        found = self._queue.find(key, MOST)
        return None if not found or _is_over(found[-1]) else found[-1].body

    def pop(self, key: str) -> bytes | None:
        """Drop a value and return it. One caller alone gets it."""
        while found := self._queue.find(key, MOST):
            self._drop(found[:-1])
            if self._queue.cancel(found[-1].seq_id):
                return None if _is_over(found[-1]) else found[-1].body
        return None

    def drop_kept(self, key: str) -> None:
        """Drop the value without expiry of a key that also has an expiring value. The process that
        set the expiring value may have been killed before it dropped the other."""
        self._drop(one for one in self._queue.find(key, MOST) if one.priority == _KEPT)

    def items(self) -> dict[str, bytes]:
        """Return all values by their keys."""
        return {
            one.key: one.body
            for one in self._queue.peek(MOST)
            if one.key is not None and not _is_over(one)
        }

    def increase(self, key: str, amount: int) -> int:
        """Add to a number and return it; a missing one is 0."""
        with self._my_turn():
            number = int(self.get(key) or 0) + amount
            self.put(key, b"%d" % number, expiring=True)
        return number

    def clear(self) -> None:
        """Drop all values."""
        self._queue.purge()

    def _drop(self, found: Iterable[Delivery]) -> None:
        for one in found:
            self._queue.cancel(one.seq_id)

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        """Let no other process change a number meanwhile.

        The turn is a message, which is with the process whose turn it is. If that is killed, the
        message goes back to the queue, for the next one.
        """
        queue = self._engine.queue(self._turn_name)
        with suppress(qindex.DuplicateError):
            queue.publish(b"", unique="turn")
        turn = queue.get(lease=_TURN_LEASE)
        try:
            yield
        finally:
            with suppress(qindex.LeaseExpiredError, qindex.DisconnectedError):
                turn.nack(delay=0, count=False)


def _is_over(one: Delivery) -> bool:
    expires = (one.headers or {}).get(_EXPIRES)
    return expires is not None and expires <= time.time()
