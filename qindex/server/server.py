"""Do what the requests of clients ask for, with one engine and its queues."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from time import monotonic, time_ns
from typing import Any

from journal.compiled import build
from journal.errors import ClosedError, DisconnectedError, StoreError, UsageError
from qindex.engine.engine import Engine
from qindex.format.envelope import of_frame
from qindex.format.message import Message, message_of
from qindex.format.settings import UNSET
from qindex.queue.delivery import Batch, Delivery
from qindex.queue.notes.delays import due_time
from qindex.queue.plain_queue import Queue
from qindex.queue.restoring import restore
from qindex.queue.room import WouldWaitError
from qindex.queue.wake_ups import deadline_after
from qindex.server import protocol as wire
from qindex.server.loop import Connection, Loop, Reply
from qindex.server.pushing import Consumer, columns, extra_of, how_many_fit, of_batch
from qindex.server.sessions import Credit, Served, Session

_LARGE = 64 << 10
"""A message with so many bytes, or a batch with _LARGE_BATCH, is published by another thread."""
_SHORT_FIND = 20
"""A search that reads no more entries is made on the loop's thread."""
_LARGE_BATCH = 1 << 20
_MAX_TICKETS = 64
_MAX_GONE = 1000
"""Deleted queues whose names are kept, for an error."""
_VERSION: str = sys.modules["qindex"].__version__
"""Importing the package by its name would import modules above this one."""


class Server(Loop):
    """Serves an open engine on a listening socket.

    ``linger``: seconds after its last client has gone after which it ends; ``None``: never.
    ``group``: the id of a group whose members may use it as well.
    """

    def __init__(
        self,
        engine: Engine,
        listener: socket.socket,
        *,
        linger: float | None,
        group: int | None = None,
    ) -> None:
        most = engine.options.max_message_bytes + wire.OVERHEAD
        super().__init__(listener, linger=linger, group=group, most=most)
        self.engine = engine
        self.directory: str = engine.directory
        self._sessions: dict[bytes, Session] = {}
        self._members: dict[Session, set[Connection]] = {}
        self._served: dict[int, Served] = {}
        self._numbers: dict[Queue, int] = {}
        self._next_number = 1
        self._gone: dict[int, str] = {}
        self._run = os.urandom(8)
        # How many of each of the last tickets were published; -1: it is under way.
        self._restored: dict[bytes, int] = {}
        self._options = {
            name: value
            for name, value in asdict(engine.options).items()
            if name not in ("lock_timeout", "read_only")
        }
        self._options[wire.INODE] = os.stat(engine.directory).st_ino
        self.handlers: dict[Any, Callable[[Connection, int, list[Any]], Reply]] = (
            self._all_handlers()
        )

    def left(self, conn: Connection) -> None:
        """A connection was closed: its session ends with the last one."""
        session = conn.session
        if session is None:
            return
        members = self._members[session]
        members.discard(conn)
        if not members:
            self._end(session)

    def _end(self, session: Session) -> None:
        del self._sessions[session.id], self._members[session]
        session.end()
        if not self._sessions and self.linger is not None:
            self.linger_until = monotonic() + self.linger

    def greet(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """Answer a hello: begin a session, or join one."""
        if request[1] != wire.HELLO or len(request) < 5 or request[2] != "qindex":
            raise UsageError("the first request is not a hello")
        version, known = request[3], request[4]
        if version != wire.VERSION:
            if self.linger is not None:
                self.linger: float | None = 0.0
            raise UsageError(
                f"the server of {self.engine.directory} is qindex {_VERSION} with "
                f"protocol {wire.VERSION}, and this is protocol {version}: it ends when its last "
                "client has gone, and the next one starts another"
            )
        if known is None:
            session = Session()
            self._sessions[session.id] = session
            self._members[session] = set()
        else:
            session = self._sessions.get(known)  # type: ignore[assignment]
            if session is None:
                raise DisconnectedError("the session has ended")
        self.linger_until = None
        conn.session = session
        self.timers.forget(conn.timer)
        conn.most = self.most
        self._members[session].add(conn)
        return self.frame(
            number,
            wire.DONE,
            _VERSION,
            list(wire.CAPABILITIES),
            session.id,
            self._options,
            build(),
        )

    def _bye(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        session = conn.session
        session.has_said_bye = True
        closed = ClosedError(f"{self.engine.directory}: the engine is closed")
        for member in list(self._members[session]):
            for waiting in list(member.waiting.values()):
                waiting.leave(used=False)
                self.send(member, self.error(waiting.number, closed))
            member.waiting.clear()
            if member.consumer is not None:
                member.consumer.leave()
                self.send(member, self.error(0, closed))
        session.take_back(list(session._held))
        return self.frame(number, wire.DONE)

    def _queue(self, number: Any) -> Served:
        served = self._served.get(number)
        if served is None:
            name = self._gone.get(number)
            raise ClosedError(f"queue {name!r} was deleted" if name else f"no queue {number!r}")
        return served

    def _opened(self, queue: Queue) -> Served:
        known = self._numbers.get(queue)
        if known is None:
            known = self._numbers[queue] = self._next_number
            self._next_number = known + 1
            self._served[known] = Served(queue, known)
        return self._served[known]

    def _open(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        _, _, name, makes, settings, unset = request

        def call() -> bytes:
            if not makes and name not in self.engine.queue_names():
                raise ClosedError(f"queue {name!r} was deleted")
            given = {**settings, **dict.fromkeys(unset, UNSET)}
            opened.append(self.engine.queue(name, **given))
            return b""

        opened: list[Queue] = []

        def done(_: bytes) -> bytes:
            return wire.frame(number, wire.DONE, self._opened(opened[0]).number)

        return self.aside(conn, number, call, done)

    # -- publishing ----------------------------------------------------------------------------

    def _publish(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._served.get(request[2]) or self._queue(request[2])
        body = request[3]
        if len(body) > _LARGE:
            return self._publish_any(conn, number, served, body, {})
        try:
            seq = served.publish(body)
        except WouldWaitError:
            return self._publish_any(conn, number, served, body, {})
        reply = self.frame.of((number, 0, seq))
        if served.sync_each:
            return self.durable(served, conn, number, reply)
        if served.state.owed:
            return self._see_to_flush(served, conn, number, reply)
        return reply

    def _publish_with(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        return self._publish_any(conn, number, self._queue(request[2]), request[3], request[4])

    def _publish_any(
        self, conn: Connection, number: int, served: Served, body: Any, given: dict[str, Any]
    ) -> Reply:
        options, confirm, timeout = _options_of(given)

        def publish() -> int:
            return served.publish(body, **options)

        def finish(seq: int) -> Reply:
            reply = self.frame(number, wire.DONE, seq)
            if confirm or served.sync_each:
                return self.durable(served, conn, number, reply)
            return self._see_to_flush(served, conn, number, reply)

        aside = isinstance(body, bytes) and len(body) > _LARGE
        return self._with_room(conn, number, publish, finish, timeout, aside=aside)

    def _part(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """Keep messages of a batch, whose end comes on this connection."""
        conn.parts = self._batch(conn, request[2], request[3:])
        conn.parts_size += sum(map(_size, request[2]))
        if conn.parts_size > wire.MAX_PARTS:
            conn.parts, conn.parts_size = [], 0
            raise UsageError(f"a batch may have {wire.MAX_PARTS} bytes: nothing of it is published")
        return self.frame(number, wire.DONE)

    def _batch(self, conn: Connection, messages: list[Any], before: list[int]) -> list[Any]:
        """Return the messages of a batch up to here. ``before``: how many there are before these,
        if the client says so."""
        parts, conn.parts = conn.parts, []
        count = before[0] if before else len(parts)
        if not count:
            conn.parts_size = 0
            return messages
        if count != len(parts):
            raise UsageError(
                f"a batch lacks {count - len(parts)} of its first {count} messages, which were "
                "refused: nothing of it is published"
            )
        parts += messages
        return parts

    def _publish_many(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        batch = self._batch(conn, request[3], request[5:])
        conn.parts_size = 0
        options, confirm, timeout = _options_of(request[4])
        size = 0
        for at, one in enumerate(batch):
            if type(one) is not bytes:
                batch[at] = one = _message(one)
            size += _size(one)

        def publish() -> range:
            return served.producer.publish_many(batch, **options)

        def finish(seqs: range) -> Reply:
            reply = self.frame(number, wire.DONE, seqs.start, seqs.stop)
            if seqs and (confirm or served.sync_each):
                return self.durable(served, conn, number, reply)
            return self._see_to_flush(served, conn, number, reply)

        aside = size > _LARGE_BATCH
        return self._with_room(conn, number, publish, finish, timeout, aside=aside)

    def _publish_to(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        _, _, names, given, more = request
        options, confirm, timeout = _options_of(more)
        message = message_of(_message(given), None, None, None, 0)
        ttl, persistent = options.get("ttl"), options.get("persistent", True)

        def publish() -> list[int]:
            return self.engine._publish_to(names, message, ttl, persistent)

        def finish(seqs: list[int]) -> Reply:
            reply = self.frame(number, wire.DONE, seqs)
            if not confirm:
                return reply

            def sync() -> bytes:
                for name in names:
                    self.engine.queue(name).sync()
                return reply

            return self.aside(conn, number, sync)

        return self._with_room(conn, number, publish, finish, timeout, aside=True)

    def _with_room(
        self,
        conn: Connection,
        number: int,
        publish: Callable[[], Any],
        finish: Callable[[Any], Reply],
        timeout: float | None,
        *,
        aside: bool,
    ) -> Reply:
        """Publish, here or in another thread. If there is no room, wait and try again."""
        return Publishing(self, conn, number, publish, finish, timeout, aside).begin()

    def _see_to_flush(self, served: Served, conn: Connection, number: int, reply: bytes) -> Reply:
        """Send a publisher's reply. If the flush has fallen far behind, send it after the flush has
        caught up."""
        owed: list[Any] = served.state.take_owed()
        if not all(one.is_asked_for() for one in owed):

            def flush() -> bytes:
                for one in owed:
                    served.state.pay(one)
                return reply

            return self.aside(conn, number, flush)
        pressing = {one: state for one in owed if (state := one.pressing()) is not None}
        if not pressing:
            return reply

        def attempt() -> Reply:
            waits = any(one.pressing() and state.flushing for one, state in pressing.items())
            return None if waits else reply

        bells = tuple((state, state.flushed) for state in pressing.values())
        return self.wait_for(conn, number, bells, attempt, monotonic() + 1.0, lambda: reply)

    def _reserve(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        queue = self._queue(request[2]).queue
        return self.aside_value(conn, number, lambda: queue.reserve(request[3]))

    # -- messages that are moved ---------------------------------------------------------------

    def _ticket(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """Return a ticket for messages that come next. A client that did not get the reply of their
        RESTORE can ask for them by it, or another client if that one died."""
        queue, count = self._queue(request[2]).queue, request[4]
        message = Message(b"", properties={"priority": request[3]})

        def call() -> bytes:
            level = queue._parts.level_for(message)
            first = level.state.base + level.producer.reserve(count)
            return wire.frame(number, wire.DONE, self._run + os.urandom(8), first)

        return self.aside(conn, number, call)

    def _restore(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """Publish messages as they were, or tell how many of a ticket were published."""
        queue, ticket, given = self._queue(request[2]).queue, request[3], request[4]
        if given is not None:
            given = self._batch(conn, given, request[5:])
        conn.parts, conn.parts_size = [], 0
        known = self._restored
        there = None if ticket is None else known.get(ticket, 0)
        if ticket is not None and ticket[: len(self._run)] != self._run:
            there = None
        if there is not None and there < 0:
            raise UsageError("another process is just importing these messages")
        if given is None:
            return self.frame(number, wire.DONE, there)
        if ticket is not None:
            if there is None or ticket in known:
                raise UsageError("a ticket is used once, and with the server that gave it")
            known[ticket] = -1
        count = 0

        def call() -> bytes:
            nonlocal count
            for there_now in restore(queue, list(map(of_frame, given))):
                count = there_now
            return wire.frame(number, wire.DONE, count)

        def done(reply: bytes) -> bytes:
            self._note_restored(ticket, count)
            return reply

        def refused(error: BaseException) -> Reply:
            self._note_restored(ticket, count)
            return self.error(number, error)

        return self.aside(conn, number, call, done, refused)

    def _note_restored(self, ticket: bytes | None, count: int) -> None:
        if ticket is not None:
            self._restored[ticket] = count
            while len(self._restored) > _MAX_TICKETS:
                del self._restored[next(iter(self._restored))]

    # -- delivering ----------------------------------------------------------------------------

    def _get(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._served.get(request[2]) or self._queue(request[2])
        timeout, lease = request[3], request[4]
        acked = len(request) > 5
        if acked:
            self._ack_one(conn, served, request[5], request[6])
        delivery = served.deliverer.get(lease)
        if delivery is not None:
            return self._given(conn, number, served, delivery, acked)

        def attempt() -> Reply:
            found = served.deliverer.get(lease)
            return None if found is None else self._given(conn, number, served, found, acked)

        def expire() -> Reply:
            reply = self.frame(number, wire.DONE)
            return self._settled(served, conn, number, reply) if acked else reply

        return self._wait_for_message(conn, number, (served,), attempt, timeout, expire)

    def _get_first(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """Return the next message of the first of several queues that has one."""
        sources = [self._queue(one) for one in request[2]]
        timeout, lease = request[3], request[4]

        def attempt() -> Reply:
            for at, served in enumerate(sources):
                found = served.deliverer.get(lease)
                if found is not None:
                    return self._given(conn, number, served, found, False, at)
            return None

        return self._now_or_later(conn, number, sources, attempt, timeout)

    def _now_or_later(
        self,
        conn: Connection,
        number: int,
        sources: Sequence[Served],
        attempt: Callable[[], Reply],
        timeout: float | None,
    ) -> Reply:
        """Try to take messages now, and again when some come; reply with nothing when the time is
        up."""

        def expire() -> Reply:
            return self.frame(number, wire.DONE)

        reply = attempt()
        if reply is not None:
            return reply
        return self._wait_for_message(conn, number, sources, attempt, timeout, expire)

    def _wait_for_message(
        self,
        conn: Connection,
        number: int,
        sources: Sequence[Served],
        attempt: Callable[[], Reply],
        timeout: float | None,
        expire: Callable[[], Reply],
    ) -> Reply:
        """Go on after an attempt that found nothing: what it owes is paid first, if it has ended
        early."""
        if any(one.deliverer.is_crowded() for one in sources):

            def pay() -> bytes:
                for one in sources:
                    one.state.catch_up()
                return b""

            def again(_: bytes) -> Reply:
                reply = attempt()
                if reply is not None:
                    return reply
                return self._wait_for_message(conn, number, sources, attempt, timeout, expire)

            return self.aside(conn, number, pay, again)
        for one in sources:
            one.state.hand_over()
        if timeout is not None and not timeout > 0:
            return expire()
        bells = [(one.state, one.state.arrived) for one in sources]
        return self.wait_for(conn, number, bells, attempt, deadline_after(timeout), expire)

    def _given(
        self,
        conn: Connection,
        number: int,
        served: Served,
        delivery: Delivery,
        acked: bool,
        at: int | None = None,
    ) -> Reply:
        """Reply with a delivery, and the place of its queue in the list that was asked."""
        session = conn.session
        tag = session.hold(served, delivery)
        extra = delivery._extra
        body = delivery.body
        before = (number, 0, tag, delivery.seq_id)
        others = (
            delivery.redelivered,
            delivery.delivery_count,
            extra if type(extra) is int else extra_of(delivery),
            *(() if at is None else (at,)),
        )
        try:
            if len(body) > wire.LARGE and not (acked and served.sync_each):
                front, back = wire.around(before, len(body), others)
                conn.given = (number, tag)
                return self.send_around(conn, front, body, back)
            reply = self.frame.of((*before, body, *others))
        except UsageError:
            session.take_back((tag,))
            raise
        conn.given = (number, tag)
        return self._settled(served, conn, number, reply) if acked else reply

    def _get_many(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        most, timeout, lease = request[3], request[4], request[5]
        session = conn.session
        state = served.state

        def attempt() -> Reply:
            # Messages of a size that is not known yet: of large ones fewer in a frame.
            batch = served.deliverer.get_many(min(most, 64), lease=lease)
            if not batch:
                return None
            if served.state.owed:
                served.state.hand_over()
            size = sum(map(len, batch.bodies))
            rest = min(most - len(batch), 64 * wire.PART // (size + 64 * len(batch)))
            is_plain = served.state.levels is None  # a batch is of one priority
            if is_plain and len(batch) == 64 and rest > 0 and size < wire.PART:
                with suppress(StoreError):
                    more = served.deliverer.get_many(rest, lease=lease)
                    _join(batch, more)
            count = how_many_fit(batch.bodies)
            if count < len(batch):
                served.settler.take_back_uncounted(batch[count:])
                batch = batch[:count]
            tag = session.hold_batch(served, batch)
            plain = not batch._counts and all(type(one) is int for one in batch._extras)
            more_waits = len(batch) < most and state.inside_all() > 0
            conn.given = (number, tag)
            try:
                found: tuple[Any, ...]
                if plain:
                    found = (batch.seq_ids, batch.bodies, bytes(batch._states))
                    found += (list(batch._extras), {})
                else:
                    found = columns(batch)
                return of_batch(self, conn, (number, wire.DONE, tag, more_waits), found)
            except UsageError:
                session.take_back((tag,))
                raise

        return self._now_or_later(conn, number, (served,), attempt, timeout)

    def _consume(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        if conn.consumer is not None:
            raise UsageError("one consumer for each connection")
        credit = Credit(served, request[3], request[4])
        conn.consumer = Consumer(self, conn, credit)
        self.send(conn, self.frame(number, wire.DONE))
        conn.consumer.retry()
        return None

    def _want(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        consumer = conn.consumer
        if consumer is not None:
            if len(consumer.credit.held) >= consumer.credit.prefetch:
                conn.session._sweep()  # leases that have run out
            if request[3] >= consumer.last_tag:  # nothing is on its way
                consumer.credit.is_hungry = True
            consumer.retry()
        return self.frame(number, wire.DONE) if request[2] else None

    def _cancel(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """End a consumer: the messages that it did not get go back, and do not count."""
        consumer, session = conn.consumer, conn.session
        if consumer is not None:
            consumer.leave()
            last = request[2]
            session.take_back([tag for tag in consumer.credit.held if tag > last])
            conn.consumer = None
        return self.frame(number, wire.DONE)

    def _forget(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """A coroutine that waits was cancelled. Its call has a reply, which may be on its way."""
        waiting = conn.waiting.pop(request[2], None)
        if waiting is not None:
            waiting.leave(used=False)
            self.send(conn, self.frame(waiting.number, wire.DONE))
        return None

    def _drop(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """The client closes this connection, in the middle of a call: it has not read the reply of
        this request."""
        answered, tag = conn.given
        if answered == request[2]:
            conn.session.take_back((tag,))
        return None

    def _peek(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        queue, most = self._queue(request[2]).queue, request[3]
        return self.aside(
            conn, number, lambda: wire.frame(number, wire.DONE, *columns(queue.peek(most)))
        )

    def _find(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        queue, key, most = self._queue(request[2]).queue, request[3], request[4]

        def find() -> bytes:
            return wire.frame(number, wire.DONE, *columns(queue.find(key, most)))

        is_short = type(key) is str and queue._parts.work_of_find(key) <= _SHORT_FIND
        return find() if is_short else self.aside(conn, number, find)

    def _get_one(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served, seq, lease = self._queue(request[2]), request[3], request[4]
        delivery = served.deliverer.take_at(seq, lease=lease)
        served.state.hand_over()
        if delivery is None:
            return self.frame(number, wire.DONE)
        return self._given(conn, number, served, delivery, False)

    # -- transactions --------------------------------------------------------------------------

    def _begin(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        transaction = self.engine.transaction()
        transaction.__enter__()
        return self.frame(number, wire.DONE, conn.session.begin(transaction))

    def _publish_in(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served, together = self._queue(request[2]), conn.session.transaction(request[3])
        message = message_of(_message(request[4]), None, None, None, time_ns())
        options, _, timeout = _options_of(request[5])
        due = due_time(options.get("delay"), options.get("at"))
        unique, window = options.get("unique"), options.get("window")
        until = options.get("until", "acked")

        def publish() -> int:
            with together.lock:
                return together.transaction._publish(
                    *(served.queue, message, options.get("ttl"), due),
                    *(unique, window, until, options.get("priority")),
                )

        def finish(seq: int) -> Reply:
            return self.frame(number, wire.DONE, seq)

        aside = served.sync_each or len(message.body) > _LARGE
        return self._with_room(conn, number, publish, finish, timeout, aside=aside)

    def _ack_in(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        session = conn.session
        served, together = self._queue(request[2]), session.transaction(request[3])
        delivery = session.find(served, request[4], request[5])
        with together.lock:
            together.transaction.ack(delivery)
            together.acks.append((served, request[4], delivery))
        return self.frame(number, wire.DONE)

    def _end_transaction(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        session = conn.session
        together = session.transaction(request[2])
        commit = bool(request[3])
        # As long as it is there, its deliveries are known to be neither settled nor outstanding.

        def call() -> bytes:
            with together.lock:
                if commit:
                    together.transaction.__exit__(None, None, None)
                else:
                    together.transaction._roll_back()
                    together.transaction.catch_up()
            return wire.frame(number, wire.DONE)

        def end(*, acked: bool) -> None:
            session.transactions.pop(request[2], None)
            for served, tag, delivery in together.acks:
                if acked:
                    credit = session.forget(tag, delivery.seq_id)
                    if credit is not None and not conn.is_closed:
                        self._renew(credit, conn)
                elif session.id not in self._sessions:
                    with suppress(StoreError):
                        served.settler.nack(delivery)
                        served.state.hand_over()

        def done(reply: bytes) -> bytes:
            end(acked=commit)
            return reply

        def refused(error: BaseException) -> Reply:
            end(acked=False)
            return self.error(number, error)

        return self.aside(conn, number, call, done, refused)

    # -- settling ------------------------------------------------------------------------------

    def _ack_one(self, conn: Connection, served: Served, tag: int, seq: int) -> None:
        session = conn.session
        delivery = session.find(served, tag, seq)
        try:
            served.settler.ack(delivery)
        finally:
            if delivery._queue is None or not delivery._queue.is_out(seq):
                if delivery._queue is not None and delivery._has_lapsed():
                    session.note_lapsed(tag, seq)
                credit = session.forget(tag, seq)
                if credit is not None:
                    self._renew(credit, conn)

    def _renew(self, credit: Credit, conn: Connection) -> None:
        """A consumer may be given another message: after the reply of this request."""
        if credit.room() > 0:
            consumer = conn.consumer
            if consumer is None or consumer.credit is not credit:
                for member in self._members[conn.session]:
                    if member.consumer is not None and member.consumer.credit is credit:
                        consumer = member.consumer
            if consumer is not None and not consumer.is_over:
                self.renewed.append(consumer)

    def _ack(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._served.get(request[2]) or self._queue(request[2])
        self._ack_one(conn, served, request[3], request[4])
        reply = self.frame.of((number, 0))
        if served.sync_each or served.state.owed:
            return self._settled(served, conn, number, reply)
        return reply

    def _settled(self, served: Served, conn: Connection, number: int, reply: bytes) -> Reply:
        if served.sync_each:
            return self.durable(served, conn, number, reply)
        return self._see_to_flush(served, conn, number, reply)

    def _ack_many(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        tags, seqs = request[3], request[4]
        session = conn.session
        served.settler.ack_many(session.find_many(served, tags, seqs))
        for credit in session.forget_many(tags, seqs):
            self._renew(credit, conn)
        return self._settled(served, conn, number, self.frame(number, wire.DONE))

    def _ack_up_to(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        count = served.settler.ack_up_to(request[3])
        session = conn.session
        credits = {one.consumer for one in self._members[session] if one.consumer is not None}
        session._sweep()
        self.renewed.extend(credits)
        return self._settled(served, conn, number, self.frame(number, wire.DONE, count))

    def _nack(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        if len(request) > 5:
            return self._postpone(conn, number, request)
        return self._give_back(conn, number, request, requeue=True)

    def _postpone(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """Requeue a delivery with a delay, or uncounted."""
        delay, count = request[5:7]
        return self._settle_aside(
            conn, number, request, lambda queue, one: queue.nack(one, delay=delay, count=count)
        )

    def _move(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        name, headers, delay = request[5:8]
        return self._settle_aside(
            conn,
            number,
            request,
            lambda queue, one: queue.move(one, name, headers=headers, delay=delay),
        )

    def _settle_aside(
        self,
        conn: Connection,
        number: int,
        request: list[Any],
        settle: Callable[[Queue, Delivery], None],
    ) -> Reply:
        """Settle a delivery in another thread: it may have to be moved, or something synced."""
        served, tag, seq = self._queue(request[2]), request[3], request[4]
        session = conn.session
        delivery = session.find(served, tag, seq)

        def call() -> bytes:
            settle(served.queue, delivery)
            return wire.frame(number, wire.DONE)

        def done(reply: bytes) -> bytes:
            credit = session.forget(tag, seq)
            if credit is not None and not conn.is_closed:
                self._renew(credit, conn)
            return reply

        return self.aside(conn, number, call, done)

    def _cancel_message(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        dropped = served.settler.cancel(request[3])
        return self._settled(served, conn, number, self.frame(number, wire.DONE, dropped))

    def _reject(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        if len(request) > 5:
            reason = request[5]
            return self._settle_aside(
                conn, number, request, lambda queue, one: queue.reject(one, reason)
            )
        return self._give_back(conn, number, request, requeue=False)

    def _give_back(
        self, conn: Connection, number: int, request: list[Any], *, requeue: bool
    ) -> Reply:
        served, tag, seq = self._queue(request[2]), request[3], request[4]
        session = conn.session
        delivery = session.find(served, tag, seq)
        settler = served.settler
        reply = self.frame(number, wire.DONE)

        def forget() -> None:
            credit = session.forget(tag, seq)
            if credit is not None and not conn.is_closed:
                self._renew(credit, conn)

        if served.sync_each and served.queue.settings.dead_letter is not None:
            # To be durable it takes several syncs, in order.
            def call() -> bytes:
                failure = settler.give_back_together([(delivery, requeue)])[0]
                served.state.catch_up()
                if failure is not None:
                    raise failure
                return reply

            def done(answer: bytes) -> bytes:
                forget()
                return answer

            return self.aside(conn, number, call, done)
        if requeue:
            settler.nack(delivery)
            served.state.hand_over()
        else:
            settler.reject(delivery)
        forget()
        return reply if requeue else self._settled(served, conn, number, reply)

    def _take_back(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        session = conn.session
        for tag, seq in request[2]:
            served = session.queue_of(tag)
            if served is None:
                continue
            with suppress(StoreError):
                served.settler.take_back_uncounted([session.find(served, tag, seq)])
                credit = session.forget(tag, seq)
                if credit is not None:
                    self._renew(credit, conn)
        return self.frame(number, wire.DONE)

    def _extend_lease(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        session = conn.session
        delivery = session.find(served, request[3], request[4])
        served.settler.extend_lease(delivery, request[5])
        return self.frame(number, wire.DONE)

    def _is_out(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        session = conn.session
        try:
            delivery = session.find(self._queue(request[2]), request[3], request[4])
        except StoreError:
            return self.frame(number, wire.DONE, False, False)
        return self.frame(number, wire.DONE, not delivery.settled, delivery._has_lapsed())

    # -- the rest ------------------------------------------------------------------------------

    def _on_queue(self, call: Callable[[Queue], Any]) -> Callable[..., Reply]:
        def handle(conn: Connection, number: int, request: list[Any]) -> Reply:
            queue = self._queue(request[2]).queue
            return self.aside_value(conn, number, lambda: call(queue))

        return handle

    def _on_engine(self, call: Callable[[Engine], Any]) -> Callable[..., Reply]:
        def handle(conn: Connection, number: int, request: list[Any]) -> Reply:
            return self.aside_value(conn, number, lambda: call(self.engine))

        return handle

    def _ready(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        queue = self._queue(request[2]).queue
        return self.frame(number, wire.DONE, len(queue), queue._parts.out())

    def _settings(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        queue = self._queue(request[2]).queue
        return self.frame(number, wire.DONE, wire.as_plain(queue.settings))

    def _delete_queue(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        name = request[2]

        def call() -> bytes:
            return wire.frame(number, wire.DONE, self.engine.delete_queue(name))

        def done(answer: bytes) -> bytes:
            for queue, known in list(self._numbers.items()):
                if queue.name == name and queue._parts.state.lock.is_over():
                    del self._numbers[queue], self._served[known]
                    self._gone[known] = name
            while len(self._gone) > _MAX_GONE:
                del self._gone[next(iter(self._gone))]
            return answer

        return self.aside(conn, number, call, done)

    def _held(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        session = conn.session
        return self.frame(number, wire.DONE, session.count())

    def _retire(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """End for `qindex serve`, which takes the store over."""
        if self.linger is None:
            raise UsageError(f"{self.directory}: `qindex serve` has it already")
        self.retire()
        return self.frame(number, wire.DONE)

    def _sync_queue(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        reply = self.frame(number, wire.DONE)
        return self.durable(self._queue(request[2]), conn, number, reply)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """End the calls that wait, and those under way; close the engine, then all connections."""
        self.refuse_new()
        gone = DisconnectedError("the server of the store has ended")
        for conn in list(self.connections.values()):
            for waiting in list(conn.waiting.values()):
                waiting.leave(used=False)
                self.send(conn, self.error(waiting.number, gone))
            conn.waiting.clear()
            if conn.consumer is not None:
                conn.consumer.leave()
        if self.pool is not None:
            self.pool.shutdown(wait=True)
        if self.to_sync:
            self.hand_over()
        if self.syncer is not None:
            self.syncs.put(None)
            self.syncer.join()
        while self.finished:
            self._safely(*self.finished.popleft())
        try:
            for session in list(self._members):
                session.has_said_bye = True
                session.take_back(list(session._held))
            self.engine.close()
        finally:
            for conn in list(self.connections.values()):
                conn.is_closed = True
                conn.sock.close()
            self.connections.clear()
            self.epoll.close()
            os.close(self.event)

    def _all_handlers(self) -> dict[Any, Callable[[Connection, int, list[Any]], Reply]]:
        return {
            wire.BYE: self._bye,
            wire.OPEN: self._open,
            wire.PUBLISH: self._publish,
            wire.PUBLISH_WITH: self._publish_with,
            wire.PUBLISH_MANY: self._publish_many,
            wire.PART_OF_BATCH: self._part,
            wire.PUBLISH_TO: self._publish_to,
            wire.RESERVE: self._reserve,
            wire.GET: self._get,
            wire.GET_MANY: self._get_many,
            wire.ACK: self._ack,
            wire.ACK_MANY: self._ack_many,
            wire.ACK_UP_TO: self._ack_up_to,
            wire.NACK: self._nack,
            wire.REJECT: self._reject,
            wire.TAKE_BACK: self._take_back,
            wire.EXTEND_LEASE: self._extend_lease,
            wire.IS_OUT: self._is_out,
            wire.CONSUME: self._consume,
            wire.WANT: self._want,
            wire.CANCEL: self._cancel,
            wire.PEEK: self._peek,
            wire.PURGE: self._on_queue(Queue.purge),
            wire.READY: self._ready,
            wire.SETTINGS: self._settings,
            wire.QUEUE_STATS: self._on_queue(Queue.stats),
            wire.QUEUE_FLUSH: self._on_queue(Queue.flush),
            wire.QUEUE_SYNC: self._sync_queue,
            wire.QUEUE_NAMES: self._on_engine(Engine.queue_names),
            wire.DELETE_QUEUE: self._delete_queue,
            wire.STATS: self._on_engine(Engine.stats),
            wire.FLUSH: self._on_engine(Engine.flush),
            wire.SYNC: self._on_engine(Engine.sync),
            wire.COMPACT: self._on_engine(Engine.compact),
            wire.HELD: self._held,
            wire.DROP: self._drop,
            wire.FORGET: self._forget,
            wire.CANCEL_MESSAGE: self._cancel_message,
            wire.MOVE: self._move,
            wire.FIND: self._find,
            wire.GET_ONE: self._get_one,
            wire.GET_FIRST: self._get_first,
            wire.TICKET: self._ticket,
            wire.RESTORE: self._restore,
            wire.BEGIN: self._begin,
            wire.PUBLISH_IN: self._publish_in,
            wire.ACK_IN: self._ack_in,
            wire.END: self._end_transaction,
            wire.RETIRE: self._retire,
            wire.FINDINGS: self._on_engine(lambda engine: list(engine.findings)),
        }


class Publishing:
    """A publish under way. It may run in another thread, and is tried again if there is no room.

    No function of it refers to itself: a cycle would keep the bodies until the collector comes.
    """

    def __init__(
        self,
        server: Server,
        conn: Connection,
        number: int,
        publish: Callable[[], Any],
        finish: Callable[[Any], Reply],
        timeout: float | None,
        aside: bool,
    ) -> None:
        self._server = server
        self._conn = conn
        self._number = number
        self._publish = publish
        self._finish = finish
        self._deadline = deadline_after(timeout)
        self._aside = aside
        self._result: Any = None

    def begin(self) -> Reply:
        """Publish."""
        try:
            return self._attempt()
        except WouldWaitError as error:
            return self._wait(error)

    def _attempt(self) -> Reply:
        if not self._aside:
            return self._finish(self._publish())
        return self._server.aside(self._conn, self._number, self._call, self._done, self._wait)

    def _call(self) -> bytes:
        self._result = self._publish()
        return b""

    def _done(self, _: bytes) -> Reply:
        return self._finish(self._result)

    def _wait(self, error: BaseException) -> Reply:
        if not isinstance(error, WouldWaitError):
            return self._server.error(self._number, error)
        full, count = error.room, error.count
        refusal = self._server.error(self._number, error)

        def expire() -> Reply:
            full.count_refusal(count)
            return refusal

        if error.is_stuck:

            def free_head() -> bytes:
                return b"free" if full.free_head() else b""

            def publish(found: bytes) -> Reply:
                return self.begin() if found else expire()

            return self._server.aside(self._conn, self._number, free_head, publish)

        if self._deadline is not None and monotonic() >= self._deadline:
            return expire()
        bells = ((full.state, full.state.room),)
        return self._server.wait_for(
            self._conn, self._number, bells, self._again, self._deadline, expire
        )

    def _again(self) -> Reply:
        """Try again, on the loop's thread: whether it is done has to be known here and now, or it
        would be done once more."""
        try:
            return self._finish(self._publish())
        except WouldWaitError:
            return None


def _options_of(given: dict[str, Any]) -> tuple[dict[str, Any], bool, float | None]:
    """Return the options of a publish, whether it is to be confirmed, and its timeout."""
    options = dict(given)
    confirm, timeout = bool(options.pop("confirm", False)), options.pop("timeout", None)
    at = options.get("at")
    if at is not None:
        try:
            options["at"] = datetime.fromisoformat(at)
        except (TypeError, ValueError):
            raise UsageError(f"at must be a time in ISO 8601, not {at!r}") from None
    return options, confirm, timeout


def _size(one: Any) -> int:
    if isinstance(one, bytes):
        return len(one)
    body = one.body if isinstance(one, Message) else one[0]
    return len(body)


def _message(given: Any) -> Message:
    """Return the message that a client sent as a list: body, key, headers, properties, time."""
    body, key, headers, properties, stamp = given
    return Message(body, key, headers or {}, properties or {}, stamp)


def _join(batch: Batch, more: Batch) -> None:
    """Add messages to a batch that were taken right after it."""
    batch._taken = more._taken
    batch._extend(more._seqs, more.bodies, more._states, more._extras)
    batch._counts = {**batch._counts, **more._counts}
