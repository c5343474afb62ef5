"""Values by key, in two queues of a store: what other libraries keep beside their tasks.

Each value is a message with a key. A new value is published before the old ones are dropped, so
that a reader finds one of them at any moment, and after any crash the newest. Values that expire
have a queue of their own with a ``message_ttl``: a queue expires from its head, where a value that
does not expire would hold up all others.
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
_EXPIRES = "expires"
_TURN_LEASE = 30.0
"""Seconds after which the turn of a process that is suspended goes to another one."""


class Values:
    """Values of one engine by their keys: those that are kept, and those that expire.

    ``name``: the queues are ``NAME.values`` and ``NAME.results``; ``expires``: seconds.
    """

    def __init__(self, engine: AnyEngine, name: str, expires: float) -> None:
        self._kept: AnyQueue = engine.queue(f"{name}.values")
        self._expiring: AnyQueue = engine.queue(f"{name}.results", message_ttl=expires)
        self._engine = engine
        self._turn_name = f"{name}.turn"

    def put(self, key: str, value: bytes, *, expiring: bool = False) -> None:
        """Set a value, replacing an earlier one."""
        queue, other = self._kept, self._expiring
        if expiring:
            queue, other = other, queue
        seq_id = queue.publish(value, key=key)
        for one in queue.find(key, MOST):
            if one.seq_id < seq_id:
                queue.cancel(one.seq_id)
        _drop(other, other.find(key, MOST))

    def put_first(self, tx: AnyTransaction, key: str, value: bytes) -> None:
        """Set the value of a key that has none, as a part of a transaction."""
        tx.publish(self._kept.name, value, key=key)

    def add(self, key: str, value: bytes, ttl: float | None = None) -> bool:
        """Set a value unless there is one; return whether it was set. ``ttl``: until it ends."""
        if self.get(key) is not None:
            return False
        headers = None if ttl is None else {_EXPIRES: time.time() + ttl}
        while True:
            try:
                self._kept.publish(value, key=key, unique=key, headers=headers)
                return True
            except qindex.DuplicateError as error:
                found = [one for one in self._kept.find(key, MOST) if one.seq_id == error.seq_id]
                if not found or not _is_over(found[0]):
                    return False
                self._kept.cancel(error.seq_id)

    def get(self, key: str) -> bytes | None:
        """Return a value, or None where there is none."""
        for queue in (self._expiring, self._kept, self._expiring):
            # Looked at again: a value may move to the expiring ones between two looks.
            found = queue.find(key, MOST)
            if found:
                return None if _is_over(found[-1]) else found[-1].body
        return None

    def pop(self, key: str) -> bytes | None:
        """Drop a value and return it. One caller alone gets it."""
        for queue in (self._expiring, self._kept):
            while found := queue.find(key, MOST):
                _drop(queue, found[:-1])
                if queue.cancel(found[-1].seq_id):
                    if queue is self._expiring:
                        _drop(self._kept, self._kept.find(key, MOST))
                    return None if _is_over(found[-1]) else found[-1].body
        return None

    def drop_kept(self, key: str) -> None:
        """Drop the value that does not expire of a key that has one which does: whoever set that
        may have been killed before it came to this."""
        _drop(self._kept, self._kept.find(key, MOST))

    def items(self) -> dict[str, bytes]:
        """Return all values by their keys."""
        found = {}
        for queue in (self._kept, self._expiring):
            for one in queue.peek(MOST):
                if one.key is not None and not _is_over(one):
                    found[one.key] = one.body
        return found

    def increase(self, key: str, amount: int) -> int:
        """Add to a number and return it; a missing one is 0."""
        with self._my_turn():
            number = int(self.get(key) or 0) + amount
            self.put(key, b"%d" % number, expiring=True)
        return number

    def clear(self) -> None:
        """Drop all values."""
        self._kept.purge()
        self._expiring.purge()

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


def _drop(queue: AnyQueue, found: Iterable[Delivery]) -> None:
    for one in found:
        queue.cancel(one.seq_id)
