"""Wait for the messages of several queues, in a thread that an event loop hears of."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any

from journal.errors import ClosedError, DisconnectedError, LeaseExpiredError, StoreError

if TYPE_CHECKING:
    from qindex.queue.delivery import Delivery

__all__ = ["Getter", "Inbox", "give_back"]

_WAIT = 5.0
_LOOK = 0.1


def give_back(delivery: Delivery) -> None:
    """Requeue a message as if it had not been delivered."""
    if not delivery.settled:
        with suppress(LeaseExpiredError, ClosedError, DisconnectedError):
            delivery.nack(delay=0, count=False)


class Inbox:
    """Messages that threads have taken for an event loop, and the errors that they have met."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._is_closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Return the descriptor that can be read when there is something."""
        return self._read

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> bool:
        """Add an item. Return False if it is closed."""
        with self._changed:
            if self._is_closed:
                return False
            self._items.append(item)
            self._changed.notify()
            self._wake()
        return True

    def wake(self) -> None:
        """Have the event loop run once."""
        with self._changed:
            if not self._is_closed:
                self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is awake
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Take note that the event loop is awake."""
        with suppress(BlockingIOError):
            os.read(self._read, 4096)

    def get(self, seconds: float) -> Any:
        """Return the next item, or None after this many seconds."""
        with self._changed:
            if not self._items:
                self._changed.wait(seconds)
            return self._items.popleft() if self._items else None

    def close(self) -> list[Any]:
        """Close it. Return its content."""
        with self._changed:
            self._is_closed = True
            left = list(self._items)
            self._items.clear()
        os.close(self._read)
        os.close(self._write)
        return left


class Getter(threading.Thread):
    """Take messages of a channel's queues while it has room for them."""

    def __init__(self, transport: Any, channel: Any, names: Sequence[str], inbox: Inbox) -> None:
        super().__init__(name=f"qindex-getter-{channel.channel_id}", daemon=True)
        self._transport = transport
        self._channel = channel
        self._names = names
        self._inbox = inbox
        self._is_stopped = False
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Take no more. A message that is on its way goes back."""
        with self._lock:
            self._is_stopped = True
        qos = self._channel.qos
        with qos.room:
            qos.room.notify_all()

    def run(self) -> None:
        """Take messages until it is stopped, or an error comes."""
        turn = 0
        try:
            while self._wait_for_room():
                turn += 1
                found = self._transport.take(self._names, turn, _WAIT, [self._channel])
                if found is not None and not self._hand(found):
                    give_back(found)
        except StoreError as error:
            if not self._is_stopped and not isinstance(error, ClosedError):
                self._inbox.put(error)

    def _wait_for_room(self) -> bool:
        qos = self._channel.qos
        while not self._is_stopped:
            with qos.room:
                if not qos.has_room():
                    qos.room.wait(_WAIT)
                    continue
            if qos.can_consume():
                return True
            # Celery's option worker_disable_prefetch says no, and does not say when that changes.
            sleep(_LOOK)
        return False

    def _hand(self, delivery: Delivery) -> bool:
        qos = self._channel.qos
        with self._lock:
            if self._is_stopped:
                return False
            qos.hand(1)
            if self._inbox.put((self._channel, delivery)):
                return True
            qos.hand(-1)
            return False
