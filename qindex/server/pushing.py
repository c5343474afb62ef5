"""Push messages to consumers, and lay them out for the wire."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from journal.errors import StoreError, UsageError
from qindex.queue.delivery import Delivery
from qindex.server import protocol as wire
from qindex.server.flow import MAX_OWED
from qindex.server.loop import Connection, Loop
from qindex.server.sessions import Credit, Served

_MAX_PUSHED = 512


class Consumer:
    """Push to one connection, as long as there are messages and credit. ``is_cut``: the connection
    has too much to take."""

    __slots__ = ("conn", "credit", "is_cut", "is_over", "last_tag", "listens", "server")

    def __init__(self, server: Loop, conn: Connection, credit: Credit) -> None:
        self.server: Loop = server
        self.conn: Connection = conn
        self.credit: Credit = credit
        self.listens: bool = False
        self.is_over: bool = False
        self.is_cut: bool = False
        self.last_tag: int = 0

    def ring(self) -> bool:
        """A message has come; as :meth:`Waiting.ring`."""
        if self.is_over:
            return False
        self.listens = False
        self.server.rung.append(self)
        self.server.wake()
        return True

    def leave(self) -> None:
        """Take no more messages."""
        self.is_over = True
        state = self.credit.served.state
        with state.lock.anyway:
            state.arrived.forget(self.ring)

    def retry(self) -> None:
        """Send what there is, and there is credit for; or the error that is met."""
        if self.is_over or self.conn.is_closed:
            return
        try:
            self._pump()
        except StoreError as error:
            self.credit.is_hungry = True
            self.server.send(self.conn, self.server.error(0, error))

    def _pump(self) -> None:
        self.is_cut = False
        while not self.is_over and self.conn.flow.owed < MAX_OWED:
            most = self.credit.room()
            if most <= 0:
                return
            if not self._push(min(most, _MAX_PUSHED)):
                if self.listens:
                    return
                state = self.credit.served.state
                with state.lock, state:
                    state.arrived.listen(self.ring)
                self.listens = True
        self.is_cut = True

    def _push(self, most: int) -> bool:
        """Send messages, up to ``most``; false when there are none."""
        conn, credit = self.conn, self.credit
        session = conn.session
        served = credit.served
        deliveries = take_some(served, most, credit.lease)
        if not deliveries:
            return False
        tags = [session.hold(served, one, credit) for one in deliveries]
        credit.is_hungry = False
        self.last_tag = tags[-1]
        try:
            data = of_batch(self.server, conn, (0, wire.PUSH, tags[0]), columns(deliveries))
        except UsageError:
            session.take_back(tags)
            raise
        self.server.send(conn, data)
        return True


def of_batch(
    server: Loop, conn: Connection, before: tuple[Any, ...], columns: tuple[Any, ...]
) -> bytes:
    """Return the frame of a batch, to be sent, or nothing if it was sent in pieces."""
    seqs, bodies, *others = columns
    if len(bodies) == 1 and len(bodies[0]) > wire.LARGE:
        front, back = wire.around((*before, seqs), len(bodies[0]), others, in_list=True)
        return server.send_around(conn, front, bodies[0], back)
    return server.frame(*before, seqs, bodies, *others)


def take_some(served: Served, most: int, lease: float | None) -> list[Delivery]:
    """Take messages, up to ``most``, and of large ones fewer."""
    deliverer = served.deliverer
    first = deliverer.get(lease)
    if served.state.owed:
        served.state.hand_over()
    if first is None:
        return []
    taken = [first]
    if most > 1 and served.queue._parts.ready():
        rest = min(most - 1, wire.PART // (len(first.body) + 64))
        if rest:
            with suppress(StoreError):  # damage: it is raised again where it is met first
                taken += deliverer.get_many(rest, lease=lease)
    count = how_many_fit([one.body for one in taken])
    if count < len(taken):
        served.settler.take_back_uncounted(taken[count:])
    return taken[:count]


def how_many_fit(bodies: list[bytes]) -> int:
    """Return how many of some messages go into one frame. The others are given back."""
    size = 0
    for at, body in enumerate(bodies, 1):
        size += len(body)
        if size > wire.MAX_BODIES:
            return at
    return len(bodies)


def extra_of(delivery: Delivery) -> Any:
    """Return what a message has beside its body: its time, or all there is."""
    extra = delivery._extra
    if type(extra) is int:
        return extra
    message = delivery.message
    expiry = delivery.expiry
    return [
        message.timestamp,
        message.key,
        dict(message.headers),
        dict(message.properties),
        expiry,
    ]


def columns(deliveries: Iterable[Delivery]) -> tuple[Any, ...]:
    """Return the columns of a batch: seq_ids, bodies, whether each was delivered before, what
    else it has, and how often those were delivered that came back."""
    seqs, bodies, states, extras, counts = [], [], bytearray(), [], {}
    for one in deliveries:
        seqs.append(one.seq_id)
        bodies.append(one.body)
        again = one.redelivered
        states.append(2 if again else 1)
        extra = one._extra
        extras.append(extra if type(extra) is int else extra_of(one))
        count = one.delivery_count
        if count != (2 if again else 1):
            counts[one.seq_id] = count
    return seqs, bodies, bytes(states), extras, counts
