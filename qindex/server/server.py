"""The server: one event loop over an engine that never waits.

Calls of microseconds are made on the loop's thread. Calls that may wait for the disk are made by a
few other threads, and syncs by one, which makes one for all who ask for it in the meantime. A call
that waits for a message, or for room, leaves a listener with the queue's bell, and is tried again
when that rings.
"""

from __future__ import annotations

import errno
import heapq
import logging
import os
import select
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from queue import SimpleQueue
from threading import Thread, get_ident
from time import monotonic, time_ns
from typing import Any

from journal.compiled import build
from journal.errors import ClosedError, DisconnectedError, StoreError, UsageError
from qindex.engine.engine import Engine
from qindex.format.message import Message, message_of
from qindex.format.settings import UNSET
from qindex.queue.delivery import Batch, Delivery
from qindex.queue.queue import Queue
from qindex.queue.room import WouldWaitError
from qindex.queue.state import QueueState
from qindex.queue.wake_ups import Bell, deadline_after
from qindex.server import protocol as wire
from qindex.server.sessions import Credit, Served, Session

_log = logging.getLogger("qindex.server")

_READ = 1 << 16
_BACKLOG = 512
_MOST_UNSENT = 1 << 20
"""Bytes that a connection has not read yet: above it, nothing more is read from it or pushed."""
_MOST_NOTES = 1000
"""Lines in the log about clients."""
_MOST_UNDER_WAY = 8
"""Calls of one connection that other threads make at a time."""
_MOST_PUSHED = 512
_LARGE = 64 << 10
"""A message with so many bytes, or a batch with _LARGE_BATCH, is published by another thread."""
_LARGE_BATCH = 1 << 20
_THREADS = 4
_HELLO_TIME = 30.0
"""Seconds that a connection has for its hello."""
_PEER = struct.Struct("3i")
_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
_FRAME = wire.HEAD.unpack_from
_HEAD = wire.HEAD_SIZE

_VERSION: str = sys.modules["qindex"].__version__
"""To import the package by its name would be to import what is above this."""

Reply = bytes | None
"""``None``: it comes later."""


class Connection:
    """One connection. ``unread``: bytes of a frame that is not all there; ``given``: the
    last request that was answered with deliveries, and their tag."""

    __slots__ = (
        "answered",
        "consumer",
        "fd",
        "given",
        "is_closed",
        "is_paused",
        "most",
        "parts",
        "parts_size",
        "session",
        "sock",
        "under_way",
        "unread",
        "unsent",
        "waiting",
        "wanted",
        "watched",
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.session: Session | None = None
        self.unread = bytearray()
        self.wanted = 0
        self.unsent = bytearray()
        self.watched = select.EPOLLIN
        self.most = wire.HELLO_SIZE
        self.given: tuple[int, int] = (0, 0)
        self.parts: list[Any] = []
        self.parts_size = 0
        self.consumer: Consumer | None = None
        self.waiting: dict[int, Waiting] = {}
        self.is_closed = False
        self.is_paused = False
        self.under_way = 0
        self.answered = 0


class Waiting:
    """A call that waits for a bell of a queue. ``attempt``: tries it again, ``None``: it goes on
    waiting; ``expire``: what it gives when its time is up."""

    __slots__ = ("attempt", "bell", "conn", "expire", "is_over", "number", "server", "state")

    def __init__(
        self,
        server: Server,
        conn: Connection,
        number: int,
        state: QueueState,
        bell: Bell,
        attempt: Callable[[], Reply],
        expire: Callable[[], Reply],
    ) -> None:
        self.server = server
        self.conn = conn
        self.number = number
        self.state = state
        self.bell = bell
        self.attempt = attempt
        self.expire = expire
        self.is_over = False

    def ring(self) -> bool:
        """The bell rings, in any thread, with the queue's lock held."""
        if self.is_over:
            return False
        self.server.rung.append(self)
        self.server.wake()
        return True

    def listen(self) -> None:
        """Be told of the next ring. Raises what the queue's calls raise."""
        with self.state.lock, self.state:
            self.bell.listen(self.ring)

    def leave(self, *, used: bool) -> None:
        """Wait no longer. A ring that it had no use for goes to the next one."""
        self.is_over = True
        with self.state.lock.anyway:
            if not self.bell.forget(self.ring) and not used:
                self.bell.notify()


class Consumer:
    """What is pushed to one connection, as long as there are messages and credit."""

    __slots__ = ("conn", "credit", "is_over", "last_tag", "listens", "server")

    def __init__(self, server: Server, conn: Connection, credit: Credit) -> None:
        self.server = server
        self.conn = conn
        self.credit = credit
        self.listens = False
        self.is_over = False

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

    def pump(self) -> None:
        """Send what there is, and there is credit for."""
        while not self.is_over and len(self.conn.unsent) < _MOST_UNSENT:
            most = self.credit.room()
            if most <= 0:
                return
            if not self._push(min(most, _MOST_PUSHED)):
                if self.listens:
                    return
                state = self.credit.served.state
                with state.lock, state:
                    state.arrived.listen(self.ring)
                self.listens = True

    def _push(self, most: int) -> bool:
        """Send messages, up to ``most``; false when there are none."""
        conn, credit = self.conn, self.credit
        session = conn.session
        assert session is not None
        served = credit.served
        deliveries = take_some(served, most, credit.lease)
        if not deliveries:
            return False
        tags = [session.hold(served, one, credit) for one in deliveries]
        credit.is_hungry = False
        try:
            data = self.server.frame(0, wire.PUSH, tags[0], *columns(deliveries))
        except UsageError:
            session.take_back(tags)
            raise
        self.server.send(conn, data)
        return True


def take_some(served: Served, most: int, lease: float | None) -> list[Delivery]:
    """Take messages, up to ``most``, and of large ones fewer."""
    deliverer = served.deliverer
    first = deliverer.get(0, lease, False)
    if first is None:
        return []
    taken = [first]
    if most > 1 and served.state.ready():
        rest = min(most - 1, wire.PART // (len(first.body) + 64))
        if rest:
            with suppress(StoreError):  # damage: it is raised again where it is met first
                taken += deliverer.get_many(rest, 0, lease=lease, waits=False)
    return taken


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


class Server:
    """Serves an open engine on a listening socket.

    ``linger``: seconds after its last client has gone after which it ends; ``None``: never.
    ``group``: the id of a group whose members may use it as well. ``most_idle`` is for its end.
    """

    def __init__(
        self,
        engine: Engine,
        listener: socket.socket,
        *,
        linger: float | None,
        group: int | None = None,
    ) -> None:
        self.engine = engine
        self._listener: socket.socket | None = listener
        self._linger = linger
        self._group = group
        self._uid = os.getuid()
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._connections: dict[int, Connection] = {}
        self._sessions: dict[bytes, Session] = {}
        self._members: dict[Session, set[Connection]] = {}
        self._served: dict[int, Served] = {}
        self._numbers: dict[Queue, int] = {}
        self._gone: dict[int, str] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._linger_until: float | None = None
        self.rung: deque[Waiting | Consumer] = deque()
        self._renewed: list[Consumer] = []
        self._finished: deque[Callable[[], None]] = deque()
        self._to_sync: dict[Served, list[tuple[Connection, int, bytes]]] = {}
        self._syncs: SimpleQueue[dict[Served, list[tuple[Connection, int, bytes]]] | None] = (
            SimpleQueue()
        )
        self._syncer: Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._thread = get_ident()
        self._ended = False
        self._notes = 0
        self._batched: dict[Connection, bytearray] | None = None
        self.frame = wire.Framer()
        options = {
            name: value
            for name, value in asdict(engine.options).items()
            if name not in ("lock_timeout", "read_only")
        }
        self._options = options
        self._most = engine.options.max_message_bytes + wire.OVERHEAD
        self._handlers = self._all_handlers()

    def wake(self) -> None:
        """Let the loop look at what is rung or finished. From any thread."""
        if get_ident() != self._thread:
            os.eventfd_write(self._event, 1)

    def stop(self) -> None:
        """End the loop. From any thread, or a signal's handler."""
        self._ended = True
        with suppress(OSError):
            os.eventfd_write(self._event, 1)

    # -- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the last client has gone, or :meth:`stop`."""
        self._thread = get_ident()
        listener = self._listener
        assert listener is not None
        listening, event = listener.fileno(), self._event
        self._epoll.register(listening, select.EPOLLIN)
        self._epoll.register(event, select.EPOLLIN)
        connections = self._connections
        poll = self._epoll.poll
        if self._linger is not None:
            self._linger_until = monotonic() + max(self._linger, 1.0)
        while not self._ended:
            for fd, events in poll(self._time_to_wait()):
                conn = connections.get(fd)
                if conn is None:
                    if fd == listening:
                        self._accept()
                    elif fd == event:
                        os.eventfd_read(event)
                    continue
                if events & _READABLE:
                    self._read(conn)
                if events & select.EPOLLOUT and not conn.is_closed:
                    self._flush(conn)
            while self.rung or self._finished:
                while self._finished:
                    self._finished.popleft()()
                self.rung.extend(self._renewed)
                self._renewed.clear()
                while self.rung:
                    self._retry(self.rung.popleft())
            if self._to_sync:
                self._hand_over()
            if self._timers or self._linger_until is not None:
                self._look_at_the_clock()

    def _time_to_wait(self) -> float | None:
        ends = self._linger_until
        if self._timers and (ends is None or self._timers[0][0] < ends):
            ends = self._timers[0][0]
        # epoll counts whole milliseconds: a little later is no earlier.
        return None if ends is None else max(ends - monotonic(), 0) + 0.001

    def _look_at_the_clock(self) -> None:
        now = monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        if self._linger_until is not None and now >= self._linger_until:
            self._ended = True

    def _at(self, deadline: float, call: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (deadline, self._timer_count, call))

    # -- connections ----------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    _log.error("no more connections: %s", error)
                    self._epoll.modify(self._listener.fileno(), 0)
                    self._at(monotonic() + 0.5, self._listen_again)
                    return
                continue
            sock.setblocking(False)
            if not self._may_come(sock):
                sock.close()
                continue
            conn = Connection(sock)
            self._connections[conn.fd] = conn
            self._epoll.register(conn.fd, select.EPOLLIN)
            self._at(monotonic() + _HELLO_TIME, partial(self._refuse_silent, conn))

    def _listen_again(self) -> None:
        if self._listener is not None:
            self._epoll.modify(self._listener.fileno(), select.EPOLLIN)

    def _refuse_silent(self, conn: Connection) -> None:
        if conn.session is None and not conn.is_closed:
            self._close(conn)

    def _may_come(self, sock: socket.socket) -> bool:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        _, uid, gid = _PEER.unpack(raw)
        if uid == self._uid or (self._group is not None and gid == self._group):
            return True
        if self._group is not None and self._group in _groups_of(uid):
            return True
        self._note("a connection of user %d is refused", uid)
        return False

    def _read(self, conn: Connection) -> None:
        try:
            data = conn.sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(conn)
            return
        unread = conn.unread
        if (
            not unread
            and conn.consumer is None
            and _HEAD <= len(data) < conn.most
            and _FRAME(data)[0] == len(data) - _HEAD
        ):
            # Most often it is one request, whole.
            try:
                request = wire.decode(data[_HEAD:])
            except ValueError as error:
                self._refuse_frame(conn, str(error))
                return
            self._handle(conn, request)
            while self._renewed:
                self._retry(self._renewed.pop())
            return
        if unread:
            unread += data
            if len(unread) >= conn.wanted:
                conn.unread = bytearray()
                self._parse(conn, unread)
        else:
            self._parse(conn, data)

    def _parse(self, conn: Connection, data: bytes | bytearray) -> None:
        """Handle the requests that are there, and keep the rest.

        Those of a client that does not wait for its replies stay unread as long as there are many
        under way, or much that it has not read.
        """
        at, end = 0, len(data)
        conn.wanted = _HEAD
        batched = self._batched = {}
        with memoryview(data) as view:
            while end - at >= _HEAD and not conn.is_closed:
                size = _FRAME(data, at)[0]
                if size > conn.most:
                    self._refuse_frame(conn, f"a frame of {size} bytes: {conn.most} are allowed")
                    break
                start = at + _HEAD
                if start + size > end:
                    conn.wanted = size + _HEAD
                    break
                if conn.under_way >= _MOST_UNDER_WAY or conn.answered > _MOST_UNSENT:
                    conn.is_paused = True
                    break
                at = start + size
                try:
                    request = wire.decode(view[start:at])
                except ValueError as error:
                    self._refuse_frame(conn, str(error))
                    break
                self._handle(conn, request)
            while self._renewed:
                self._retry(self._renewed.pop())
            if at < end and not conn.is_closed:
                conn.unread += view[at:]
        self._batched = None
        for other, out in batched.items():
            other.answered = 0
            self.send(other, out)
        if conn.is_paused:
            self._watch(conn)

    def _resume(self, conn: Connection) -> None:
        """Read on, where that was put off, and there is room for it again."""
        if (
            conn.is_paused
            and not conn.is_closed
            and 2 * conn.under_way < _MOST_UNDER_WAY
            and len(conn.unsent) < _MOST_UNSENT
        ):
            conn.is_paused = False
            self._watch(conn)
            unread, conn.unread = conn.unread, bytearray()
            self._parse(conn, unread)

    def _refuse_frame(self, conn: Connection, why: str) -> None:
        self._note("a client's bytes are refused: %s", why)
        with suppress(OSError):
            conn.sock.send(self.frame(0, wire.ERROR, "UsageError", why, {}))
        self._close(conn)

    def _note(self, what: str, value: object) -> None:
        """Log what a client did; not for ever, whatever it does."""
        if self._notes < _MOST_NOTES:
            self._notes += 1
            _log.warning(what, value)

    def send(self, conn: Connection, data: bytes | bytearray) -> None:
        """Send bytes, at the end of what is being read now."""
        if conn.is_closed:
            return
        if self._batched is not None:
            out = self._batched.get(conn)
            if out is None:
                self._batched[conn] = bytearray(data)
            else:
                out += data
            conn.answered += len(data)
            return
        if conn.unsent:
            conn.unsent += data
            self._watch(conn)
            return
        try:
            sent = conn.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(conn)
            return
        if sent < len(data):
            conn.unsent += memoryview(data)[sent:]
            self._watch(conn)

    def _flush(self, conn: Connection) -> None:
        try:
            with memoryview(conn.unsent) as view:
                sent = conn.sock.send(view[: 1 << 20])
        except BlockingIOError:
            return
        except OSError:
            self._close(conn)
            return
        del conn.unsent[:sent]
        self._watch(conn)
        if len(conn.unsent) < _MOST_UNSENT:
            if conn.consumer is not None:
                self._pump(conn.consumer)
            self._resume(conn)

    def _watch(self, conn: Connection) -> None:
        """Read no more from who does not read."""
        unsent = len(conn.unsent)
        reads = unsent < _MOST_UNSENT and not conn.is_paused
        wanted = select.EPOLLIN if reads else select.EPOLLRDHUP
        if unsent:
            wanted |= select.EPOLLOUT
        if wanted != conn.watched and not conn.is_closed:
            conn.watched = wanted
            self._epoll.modify(conn.fd, wanted)

    def _close(self, conn: Connection) -> None:
        if conn.is_closed:
            return
        conn.is_closed = True
        del self._connections[conn.fd]
        with suppress(OSError):
            self._epoll.unregister(conn.fd)
        conn.sock.close()
        for waiting in list(conn.waiting.values()):
            waiting.leave(used=False)
        conn.waiting.clear()
        conn.unread, conn.unsent, conn.parts = bytearray(), bytearray(), []
        session, consumer = conn.session, conn.consumer
        if consumer is not None:
            consumer.leave()
        if session is None:
            return
        members = self._members[session]
        members.discard(conn)
        if not members:
            self._end(session)

    def _end(self, session: Session) -> None:
        del self._sessions[session.id], self._members[session]
        session.end()
        if not self._sessions and self._linger is not None:
            self._linger_until = monotonic() + self._linger

    # -- requests -------------------------------------------------------------------------------

    def _handle(self, conn: Connection, request: list[Any]) -> None:
        number, verb = request[0], request[1]
        session = conn.session
        try:
            if session is None:
                reply = self._hello(conn, number, request)
            else:
                handler = self._handlers.get(verb)
                if handler is None:
                    raise UsageError(f"there is no verb {verb!r}")
                reply = handler(conn, number, request)
        except StoreError as error:
            reply = self._error(number, error)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            reply = self._error(number, UsageError(f"no such request: {error}"))
            self._note("a request is refused: %r", error)
        if reply is not None:
            self.send(conn, reply)

    def _error(self, number: int, error: BaseException) -> bytes:
        return self.frame(number, wire.ERROR, *wire.error_values(error))

    def _hello(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        if request[1] != wire.HELLO or len(request) < 5 or request[2] != "qindex":
            raise UsageError("the first request is no hello")
        version, known = request[3], request[4]
        if version != wire.VERSION:
            if self._linger is not None:
                self._linger = 0.0
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
        self._linger_until = None
        conn.session = session
        conn.most = self._most
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
        assert session is not None
        session.has_said_bye = True
        for member in list(self._members[session]):
            for waiting in list(member.waiting.values()):
                waiting.leave(used=False)
                closed = ClosedError(f"{self.engine.directory}: the engine is closed")
                self.send(member, self._error(waiting.number, closed))
            member.waiting.clear()
            if member.consumer is not None:
                member.consumer.leave()
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
            known = self._numbers[queue] = len(self._numbers) + len(self._gone) + 1
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

        return self._aside(conn, number, call, done)

    # -- publishing -----------------------------------------------------------------------------

    def _publish(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._served.get(request[2]) or self._queue(request[2])
        body = request[3]
        if len(body) > _LARGE:
            return self._publish_any(conn, number, served, body, {})
        try:
            seq = served.publish(body, None, None, None, None, True, False, None, False)
        except WouldWaitError:
            return self._publish_any(conn, number, served, body, {})
        reply = self.frame(number, 0, seq)
        if served.sync_each:
            return self._durable(served, conn, number, reply)
        if not seq & 63 and served.flusher.is_due():
            return self._see_to_flush(served, conn, number, reply)
        return reply

    def _publish_with(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        return self._publish_any(conn, number, self._queue(request[2]), request[3], request[4])

    def _publish_any(
        self, conn: Connection, number: int, served: Served, body: Any, given: dict[str, Any]
    ) -> Reply:
        options = dict(given)
        confirm = bool(options.pop("confirm", False)) or served.sync_each
        timeout = options.pop("timeout", None)
        _check_options(options, wire.PUBLISH_OPTIONS)

        def publish() -> int:
            return served.producer.publish(body, waits=False, **options)

        def finish(seq: int) -> Reply:
            reply = self.frame(number, wire.DONE, seq)
            if confirm:
                return self._durable(served, conn, number, reply)
            return self._see_to_flush(served, conn, number, reply)

        aside = isinstance(body, bytes) and len(body) > _LARGE
        return self._with_room(conn, number, publish, finish, timeout, aside=aside)

    def _part(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        conn.parts += request[2]
        conn.parts_size += sum(map(_size, request[2]))
        if conn.parts_size > wire.MOST_PARTS:
            conn.parts, conn.parts_size = [], 0
            raise UsageError(f"a batch may have {wire.MOST_PARTS} bytes")
        return self.frame(number, wire.DONE)

    def _publish_many(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        batch, conn.parts, conn.parts_size = [*conn.parts, *request[3]], [], 0
        options = dict(request[4])
        confirm = bool(options.pop("confirm", False)) or served.sync_each
        timeout = options.pop("timeout", None)
        _check_options(options, wire.PUBLISH_OPTIONS)
        size = 0
        for at, one in enumerate(batch):
            if type(one) is not bytes:
                batch[at] = one = _message(one)
            size += _size(one)

        def publish() -> range:
            return served.producer.publish_many(batch, waits=False, **options)

        def finish(seqs: range) -> Reply:
            reply = self.frame(number, wire.DONE, seqs.start, seqs.stop)
            if confirm and seqs:
                return self._durable(served, conn, number, reply)
            return self._see_to_flush(served, conn, number, reply)

        aside = size > _LARGE_BATCH
        return self._with_room(conn, number, publish, finish, timeout, aside=aside)

    def _publish_to(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        _, _, names, given, options = request
        options = dict(options)
        confirm = bool(options.pop("confirm", False))
        timeout = options.pop("timeout", None)
        _check_options(options, frozenset({"ttl", "persistent"}))
        message = message_of(_message(given), None, None, None, time_ns())
        ttl, persistent = options.get("ttl"), options.get("persistent", True)

        def publish() -> list[int]:
            return self.engine._publish_to(names, message, ttl, persistent, waits=False)

        def finish(seqs: list[int]) -> Reply:
            reply = self.frame(number, wire.DONE, seqs)
            if not confirm and self.engine.options.durability != "fsync":
                return reply

            def sync() -> bytes:
                for name in names:
                    self.engine.queue(name).sync()
                return reply

            return self._aside(conn, number, sync)

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
        """Publish, here or in another thread; wait where there is no room, and try again."""
        deadline = deadline_after(timeout)

        def attempt() -> Reply:
            if not aside:
                return finish(publish())
            results: list[Any] = []

            def call() -> bytes:
                results.append(publish())
                return b""

            return self._aside(conn, number, call, lambda _: finish(results[0]), refused=wait)

        def wait(error: BaseException) -> Reply:
            if not isinstance(error, WouldWaitError):
                return self._error(number, error)
            full = error.room
            if deadline is not None and monotonic() >= deadline:
                full.count_refusal(error.count)
                return self._error(number, error)

            def expire() -> Reply:
                full.count_refusal(error.count)
                return self._error(number, error)

            return self._wait(conn, number, full.state, full.state.room, again, deadline, expire)

        def again() -> Reply:
            try:
                return attempt()
            except WouldWaitError:
                return None

        try:
            return attempt()
        except WouldWaitError as error:
            return wait(error)

    def _see_to_flush(self, served: Served, conn: Connection, number: int, reply: bytes) -> Reply:
        """Send a publisher's reply when the flush has caught up, if it has fallen far behind."""
        flusher, state = served.flusher, served.state
        if not flusher.is_due():
            return reply
        if flusher.request is None:
            if state.flushing:
                return reply

            def flush() -> bytes:
                flusher.flush()
                return reply

            return self._aside(conn, number, flush)
        if not flusher.is_pressed():
            return reply

        def attempt() -> Reply:
            return None if flusher.is_pressed() and state.flushing else reply

        return self._wait(
            conn, number, state, state.flushed, attempt, monotonic() + 1.0, lambda: reply
        )

    def _reserve(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        queue = self._queue(request[2]).queue
        return self._aside_value(conn, number, lambda: queue.reserve(request[3]))

    # -- delivering -----------------------------------------------------------------------------

    def _get(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._served.get(request[2]) or self._queue(request[2])
        timeout, lease = request[3], request[4]
        acked = len(request) > 5
        if acked:
            self._ack_one(conn, served, request[5], request[6])
        delivery = served.deliverer.get(0, lease, False)
        if delivery is not None:
            return self._given(conn, number, served, delivery, acked)
        if timeout is not None and not timeout > 0:
            reply = self.frame(number, wire.DONE)
            return self._settled(served, conn, number, reply) if acked else reply

        def attempt() -> Reply:
            found = served.deliverer.get(0, lease, False)
            return None if found is None else self._given(conn, number, served, found, acked)

        def expire() -> Reply:
            return self.frame(number, wire.DONE)

        deadline = deadline_after(timeout)
        return self._wait(
            conn, number, served.state, served.state.arrived, attempt, deadline, expire
        )

    def _given(
        self, conn: Connection, number: int, served: Served, delivery: Delivery, acked: bool
    ) -> Reply:
        session = conn.session
        assert session is not None
        tag = session.hold(served, delivery)
        extra = delivery._extra
        try:
            reply = self.frame(
                number,
                wire.DONE,
                tag,
                delivery.seq_id,
                delivery.body,
                delivery.redelivered,
                delivery.delivery_count,
                extra if type(extra) is int else extra_of(delivery),
            )
        except UsageError:
            session.take_back((tag,))
            raise
        conn.given = (number, tag)
        return self._settled(served, conn, number, reply) if acked else reply

    def _get_many(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        most, timeout, lease = request[3], request[4], request[5]
        if type(most) is not int or most < 1:
            raise UsageError(f"max_messages must be at least 1, not {most!r}")
        session = conn.session
        assert session is not None
        index = served.state.index

        def attempt() -> Reply:
            # Messages of a size that is not known yet: of large ones fewer in a frame.
            batch = served.deliverer.get_many(min(most, 64), 0, lease=lease, waits=False)
            if not batch:
                return None
            size = sum(map(len, batch.bodies))
            rest = min(most - len(batch), 64 * wire.PART // (size + 64 * len(batch)))
            if len(batch) == 64 and rest > 0 and size < wire.PART:
                with suppress(StoreError):
                    more = served.deliverer.get_many(rest, 0, lease=lease, waits=False)
                    _join(batch, more)
            tag = session.hold_batch(served, batch)
            plain = not batch._counts and all(type(one) is int for one in batch._extras)
            try:
                if plain:
                    states = bytes(batch._states)
                    data = self.frame(
                        number,
                        wire.DONE,
                        tag,
                        len(batch) < most and index.live > index.out,
                        batch.seq_ids,
                        batch.bodies,
                        states,
                        list(batch._extras),
                        {},
                    )
                else:
                    more_waits = len(batch) < most and index.live > index.out
                    data = self.frame(number, wire.DONE, tag, more_waits, *columns(batch))
            except UsageError:
                session.take_back((tag,))
                raise
            conn.given = (number, tag)
            return data

        def expire() -> Reply:
            return self.frame(number, wire.DONE)

        reply = attempt()
        if reply is not None:
            return reply
        if timeout is not None and not timeout > 0:
            return expire()
        deadline = deadline_after(timeout)
        state = served.state
        return self._wait(conn, number, state, state.arrived, attempt, deadline, expire)

    def _consume(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        if conn.consumer is not None:
            raise UsageError("one consumer for each connection")
        if type(request[3]) is not int or request[3] < 1:
            raise UsageError(f"prefetch must be at least 1, not {request[3]!r}")
        credit = Credit(served, request[3], request[4])
        conn.consumer = Consumer(self, conn, credit)
        self.send(conn, self.frame(number, wire.DONE))
        self._pump(conn.consumer)
        return None

    def _want(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        consumer = conn.consumer
        if consumer is not None:
            if len(consumer.credit.held) >= consumer.credit.prefetch and conn.session is not None:
                conn.session._sweep()  # leases that have run out
            consumer.credit.is_hungry = True
            self._pump(consumer)
        return self.frame(number, wire.DONE) if request[2] else None

    def _cancel(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """The consumer has ended: what it was not given goes back, and does not count."""
        consumer, session = conn.consumer, conn.session
        assert session is not None
        if consumer is not None:
            consumer.leave()
            last = request[2]
            session.take_back([tag for tag in consumer.credit.held if tag > last])
            conn.consumer = None
        return self.frame(number, wire.DONE)

    def _forget(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """A coroutine that waits was cancelled. The reply may be on its way."""
        waiting = conn.waiting.pop(request[2], None)
        if waiting is not None:
            waiting.leave(used=False)
        return None

    def _drop(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """The client closes this connection, in the middle of a call: it has not read the reply of
        this request."""
        answered, tag = conn.given
        if answered == request[2] and conn.session is not None:
            conn.session.take_back((tag,))
        return None

    def _pump(self, consumer: Consumer) -> None:
        try:
            consumer.pump()
        except StoreError as error:
            consumer.credit.is_hungry = True
            self.send(consumer.conn, self._error(0, error))

    def _peek(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        queue, most = self._queue(request[2]).queue, request[3]
        return self._aside(
            conn, number, lambda: wire.frame(number, wire.DONE, *columns(queue.peek(most)))
        )

    # -- settling -------------------------------------------------------------------------------

    def _ack_one(self, conn: Connection, served: Served, tag: int, seq: int) -> None:
        session = conn.session
        assert session is not None
        delivery = session.find(served, tag, seq)
        try:
            served.settler.ack(delivery, False)
        finally:
            if delivery._queue is None or not delivery._queue.is_out(seq):
                credit = session.forget(tag, seq)
                if credit is not None:
                    self._renew(credit, conn)

    def _renew(self, credit: Credit, conn: Connection) -> None:
        """A consumer may be given another message: behind the reply of this request."""
        if credit.room() > 0:
            consumer = conn.consumer
            if consumer is None or consumer.credit is not credit:
                assert conn.session is not None
                for member in self._members[conn.session]:
                    if member.consumer is not None and member.consumer.credit is credit:
                        consumer = member.consumer
            if consumer is not None and not consumer.is_over:
                self._renewed.append(consumer)

    def _ack(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._served.get(request[2]) or self._queue(request[2])
        self._ack_one(conn, served, request[3], request[4])
        reply = self.frame(number, 0)
        return self._settled(served, conn, number, reply) if served.sync_each else reply

    def _settled(self, served: Served, conn: Connection, number: int, reply: bytes) -> Reply:
        return self._durable(served, conn, number, reply) if served.sync_each else reply

    def _ack_many(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        tags, seqs = request[3], request[4]
        session = conn.session
        assert session is not None
        served.settler.ack_many(session.find_many(served, tags, seqs), waits=False)
        for credit in session.forget_many(tags, seqs):
            self._renew(credit, conn)
        return self._settled(served, conn, number, self.frame(number, wire.DONE))

    def _ack_up_to(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        count = served.settler.ack_up_to(request[3], waits=False)
        session = conn.session
        assert session is not None
        credits = {one.consumer for one in self._members[session] if one.consumer is not None}
        session._sweep()
        self._renewed.extend(credits)
        return self._settled(served, conn, number, self.frame(number, wire.DONE, count))

    def _nack(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        return self._give_back(conn, number, request, requeue=True)

    def _reject(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        return self._give_back(conn, number, request, requeue=False)

    def _give_back(
        self, conn: Connection, number: int, request: list[Any], *, requeue: bool
    ) -> Reply:
        served, tag, seq = self._queue(request[2]), request[3], request[4]
        session = conn.session
        assert session is not None
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
                if failure is not None:
                    raise failure
                return reply

            def done(answer: bytes) -> bytes:
                forget()
                return answer

            return self._aside(conn, number, call, done)
        if requeue:
            settler.nack(delivery, False)
        else:
            settler.reject(delivery, False)
        forget()
        return reply if requeue else self._settled(served, conn, number, reply)

    def _take_back(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        session = conn.session
        assert session is not None
        for tag, seq in request[2]:
            for served in self._served.values():
                with suppress(UsageError):
                    delivery = session.find(served, tag, seq)
                    served.settler.take_back_uncounted([delivery])
                    session.forget(tag, seq)
                    break
        return self.frame(number, wire.DONE)

    def _extend_lease(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        served = self._queue(request[2])
        session = conn.session
        assert session is not None
        delivery = session.find(served, request[3], request[4])
        served.settler.extend_lease(delivery, request[5])
        return self.frame(number, wire.DONE)

    def _is_out(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        session = conn.session
        assert session is not None
        try:
            delivery = session.find(self._queue(request[2]), request[3], request[4])
        except StoreError:
            return self.frame(number, wire.DONE, False, False)
        return self.frame(number, wire.DONE, not delivery.settled, delivery._has_lapsed())

    # -- the rest -------------------------------------------------------------------------------

    def _on_queue(self, call: Callable[[Queue], Any]) -> Callable[..., Reply]:
        def handle(conn: Connection, number: int, request: list[Any]) -> Reply:
            queue = self._queue(request[2]).queue
            return self._aside_value(conn, number, lambda: call(queue))

        return handle

    def _on_engine(self, call: Callable[[Engine], Any]) -> Callable[..., Reply]:
        def handle(conn: Connection, number: int, request: list[Any]) -> Reply:
            return self._aside_value(conn, number, lambda: call(self.engine))

        return handle

    def _ready(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        queue = self._queue(request[2]).queue
        return self.frame(number, wire.DONE, len(queue), queue._parts.state.index.out)

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
            return answer

        return self._aside(conn, number, call, done)

    def _held(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        session = conn.session
        assert session is not None
        return self.frame(number, wire.DONE, session.count())

    # -- waiting --------------------------------------------------------------------------------

    def _wait(
        self,
        conn: Connection,
        number: int,
        state: QueueState,
        bell: Bell,
        attempt: Callable[[], Reply],
        deadline: float | None,
        expire: Callable[[], Reply],
    ) -> Reply:
        """Try it whenever the bell rings, until the deadline (:func:`time.monotonic`)."""
        waiting = Waiting(self, conn, number, state, bell, attempt, expire)
        waiting.listen()
        # A ring since the last try would have found no listener.
        try:
            reply = attempt()
        except BaseException:
            waiting.leave(used=True)
            raise
        if reply is not None:
            waiting.leave(used=False)
            return reply
        conn.waiting[number] = waiting
        if deadline is not None:
            self._at(deadline, partial(self._expire, waiting))
        return None

    def _retry(self, one: Waiting | Consumer) -> None:
        if one.is_over or one.conn.is_closed:
            return
        if isinstance(one, Consumer):
            self._pump(one)
            return
        try:
            reply = one.attempt()
            if reply is None:
                one.listen()
                reply = one.attempt()
                if reply is None:
                    return
        except StoreError as error:
            reply = self._error(one.number, error)
        one.leave(used=True)
        one.conn.waiting.pop(one.number, None)
        self.send(one.conn, reply)

    def _expire(self, waiting: Waiting) -> None:
        if waiting.is_over or waiting.conn.is_closed:
            return
        waiting.leave(used=False)
        waiting.conn.waiting.pop(waiting.number, None)
        reply = waiting.expire()
        if reply is not None:
            self.send(waiting.conn, reply)

    # -- other threads --------------------------------------------------------------------------

    def _aside_value(self, conn: Connection, number: int, call: Callable[[], Any]) -> Reply:
        return self._aside(
            conn, number, lambda: wire.frame(number, wire.DONE, wire.as_plain(call()))
        )

    def _aside(
        self,
        conn: Connection,
        number: int,
        call: Callable[[], bytes],
        done: Callable[[bytes], Reply] | None = None,
        refused: Callable[[BaseException], Reply] | None = None,
    ) -> Reply:
        """Make a call in another thread. ``done``: called on the loop's with what it gives, to
        make the reply; ``refused``: with its error."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "qindex-server")

        def finish(future: Future[bytes]) -> None:
            self._finished.append(partial(reply, future))
            self.wake()

        conn.under_way += 1

        def reply(future: Future[bytes]) -> None:
            conn.under_way -= 1
            error = future.exception()
            try:
                if error is None:
                    answer: Reply = future.result()
                    if done is not None:
                        answer = done(future.result())
                else:
                    answer = refused(error) if refused is not None else self._error(number, error)
            except StoreError as raised:
                answer = self._error(number, raised)
            if error is not None and not isinstance(error, StoreError):
                self._note("a call has failed: %r", error)
            if answer is not None:
                self.send(conn, answer)
            if conn.is_paused:
                self._resume(conn)

        self._pool.submit(call).add_done_callback(finish)
        return None

    def _durable(self, served: Served, conn: Connection, number: int, reply: bytes) -> Reply:
        """Send a reply when all that was done to the queue is on disk."""
        self._to_sync.setdefault(served, []).append((conn, number, reply))
        return None

    def _hand_over(self) -> None:
        if self._syncer is None:
            self._syncer = Thread(target=self._sync_all, name="qindex-server-sync", daemon=True)
            self._syncer.start()
        asked, self._to_sync = self._to_sync, {}
        self._syncs.put(asked)

    def _sync_all(self) -> None:
        while (asked := self._syncs.get()) is not None:
            while not self._syncs.empty():
                more = self._syncs.get()
                if more is None:
                    self._syncs.put(None)
                    break
                for served, replies in more.items():
                    asked.setdefault(served, []).extend(replies)
            for served, replies in asked.items():
                error: BaseException | None = None
                try:
                    if served.flusher.mover.pending:
                        served.flusher.mover.settle()
                    served.state.sync_all()
                except BaseException as caught:
                    error = caught
                self._finished.append(partial(self._answer, replies, error))
                self.wake()

    def _answer(
        self, replies: list[tuple[Connection, int, bytes]], error: BaseException | None
    ) -> None:
        for conn, number, reply in replies:
            self.send(conn, reply if error is None else self._error(number, error))

    def _sync_queue(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        reply = self.frame(number, wire.DONE)
        return self._durable(self._queue(request[2]), conn, number, reply)

    # -- the end --------------------------------------------------------------------------------

    def refuse_new(self) -> None:
        """Take no more connections."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                self._epoll.unregister(listener.fileno())
            listener.close()

    def close(self) -> None:
        """End the calls that wait, and those under way; close the engine, then all connections."""
        self.refuse_new()
        gone = DisconnectedError("the server of the store has ended")
        for conn in list(self._connections.values()):
            for waiting in list(conn.waiting.values()):
                waiting.leave(used=False)
                self.send(conn, self._error(waiting.number, gone))
            conn.waiting.clear()
            if conn.consumer is not None:
                conn.consumer.leave()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if self._to_sync:
            self._hand_over()
        if self._syncer is not None:
            self._syncs.put(None)
            self._syncer.join()
        while self._finished:
            self._finished.popleft()()
        try:
            for session in list(self._members):
                session.has_said_bye = True
                session.take_back(list(session._held))
            self.engine.close()
        finally:
            for conn in list(self._connections.values()):
                conn.is_closed = True
                conn.sock.close()
            self._connections.clear()
            self._epoll.close()
            os.close(self._event)

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
            wire.FINDINGS: self._on_engine(lambda engine: list(engine.findings)),
        }


def _check_options(given: dict[str, Any], known: frozenset[str]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"there is no option {name!r}")


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
    """Add messages to a batch that were taken right behind it."""
    batch._taken = more._taken
    batch._extend(more._seqs, more.bodies, more._states, more._extras)
    batch._counts = {**batch._counts, **more._counts}


def _groups_of(uid: int) -> list[int]:
    import pwd

    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)
