"""The event loop of a server: connections, frames, calls that wait, calls of other threads.

Calls of microseconds are made on the loop's thread. Calls that may wait for the disk are made by a
few other threads. Syncs are made by one thread, one sync for all requests of the meantime. A call
that waits for a message, or for room, leaves a listener with the queue's bell, and is tried again
when that rings.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import select
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import inf
from queue import SimpleQueue
from threading import Thread, get_ident
from time import monotonic
from typing import Any, Protocol, cast

from journal.errors import StorageError, StoreError, UsageError
from qindex.queue.state import QueueState
from qindex.queue.wake_ups import Bell
from qindex.server import frames
from qindex.server import protocol as wire
from qindex.server.flow import MAX_OWED, MAX_UNDER_WAY, Flow
from qindex.server.limits import check
from qindex.server.sessions import Served, Session
from qindex.server.timers import Timer, Timers

_log = logging.getLogger("qindex.server")

_READ, _READ_ON = 1 << 16, 1 << 18
"""Bytes of one read, at the beginning of a frame and within one."""
_MAX_NOTES = 1000
"""Lines in the log about clients."""
_THREADS = 4
_HELLO_TIME = 30.0
"""Seconds that a connection has for its hello."""
_LONGEST_SLEEP = 86_400.0
"""Seconds: the system counts milliseconds in 31 bits."""
_RESERVE = 64
"""Descriptors that connections leave to the files of the store, of few; of many an eighth."""
_PEER = struct.Struct("3i")
_PEER_GROUPS = 59
"""SO_PEERGROUPS, which the module socket does not name."""
_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
_FRAME = wire.HEAD.unpack_from
_HEAD = wire.HEAD_SIZE

Reply = bytes | None
"""``None``: there is none; of an attempt: it has to be tried again."""
LATER = b""
"""The reply to a request that is answered elsewhere: it is sent already, or on its way."""


class Rung(Protocol):
    """Be tried again when a bell of a queue has rung."""

    conn: Connection

    def retry(self) -> None:
        """Try again."""


class Connection:
    """One connection. ``session``: None before its hello; ``unread``: bytes of a frame that is not
    all there; ``given``: the last request that was answered with deliveries, and their tag;
    ``is_deaf``: the client reads no more."""

    __slots__ = (
        "consumer",
        "fd",
        "flow",
        "given",
        "is_closed",
        "is_deaf",
        "most",
        "parts",
        "parts_size",
        "session",
        "sock",
        "timer",
        "unread",
        "unsent",
        "waiting",
        "wanted",
        "watched",
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock: socket.socket = sock
        self.fd: int = sock.fileno()
        self.session: Session = cast("Session", None)
        self.unread: bytearray = bytearray()
        self.wanted: int = 0
        self.unsent: deque[memoryview] = deque()
        self.flow: Flow = Flow()
        self.timer: Timer | None = None
        self.watched: int = select.EPOLLIN
        self.most: int = wire.HELLO_SIZE
        self.given: tuple[int, int] = (0, 0)
        self.parts: list[Any] = []
        self.parts_size: int = 0
        self.consumer: Any = None
        self.waiting: dict[int, Waiting] = {}
        self.is_closed: bool = False
        self.is_deaf: bool = False


def _over() -> Reply:
    return None


Replies = list[tuple[Connection, int, bytes]]


Bells = Sequence[tuple[QueueState, Bell]]
"""Bells, each with the queue whose lock it needs."""


class Waiting:
    """A call that waits for a bell of a queue, or for the first of several. ``attempt``: tries it
    again, ``None``: it goes on waiting; ``expire``: makes its result when its time is up."""

    __slots__ = ("attempt", "bells", "conn", "expire", "is_over", "number", "server", "timer")

    def __init__(
        self,
        server: Loop,
        conn: Connection,
        number: int,
        bells: Bells,
        attempt: Callable[[], Reply],
        expire: Callable[[], Reply],
    ) -> None:
        self.server: Loop = server
        self.conn: Connection = conn
        self.number: int = number
        self.bells: Bells = bells
        self.attempt: Callable[[], Reply] = attempt
        self.expire: Callable[[], Reply] = expire
        self.is_over: bool = False
        self.timer: Timer | None = None

    def ring(self) -> bool:
        """A bell rings, in any thread, with its queue's lock held."""
        if self.is_over:
            return False
        self.server.rung.append(self)
        self.server.wake()
        return True

    def listen(self) -> None:
        """Be told of the next ring. Raises what the queue's calls raise."""
        for state, bell in self.bells:
            with state.lock, state:
                bell.listen(self.ring)

    def leave(self, *, used: bool) -> None:
        """Wait no longer. A ring that it had no use for goes to the next one."""
        self.is_over = True
        self.server.timers.forget(self.timer)
        # A bell may keep this object. It must not keep the published messages as well.
        self.attempt = self.expire = _over
        for state, bell in self.bells:
            with state.lock.anyway:
                if not bell.forget(self.ring) and not used:
                    bell.notify()

    def gone(self) -> None:
        """Leave the connection. What it has led to may wait there by now, with its number."""
        if self.conn.waiting.get(self.number) is self:
            del self.conn.waiting[self.number]

    def retry(self) -> None:
        """Try again, as the bell has rung; answer, or listen again."""
        if self.is_over or self.conn.is_closed:
            return
        try:
            reply = self.attempt()
            if reply is None:
                self.listen()
                reply = self.attempt()
                if reply is None:
                    return
        except Exception as error:
            reply = self.server.error(self.number, error)
        # Of several bells, another one may have rung than that of the message: all rings are
        # passed on, and a client that is woken in vain listens again.
        self.leave(used=len(self.bells) == 1)
        self.gone()
        self.server.send(self.conn, reply)


class Loop:
    """Serves connections on a listening socket. ``linger``, ``group``: as in
    :class:`qindex.server.server.Server`, which says what the requests do."""

    handlers: dict[Any, Callable[[Connection, int, list[Any]], Reply]]

    def __init__(
        self, listener: socket.socket, *, linger: float | None, group: int | None, most: int
    ) -> None:
        self.directory: str = ""
        self._listener: socket.socket | None = listener
        self.linger = linger
        self._group = group
        self.most = most
        self._uid = os.getuid()
        self.epoll: select.epoll = select.epoll()
        self.event: int = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # A descriptor that is readable once a signal has come, which ends the loop; -1 for none.
        self.signalled: int = -1
        self.connections: dict[int, Connection] = {}
        self.timers: Timers[Connection | None] = Timers()
        self.most_connections: int = _most_connections()
        self._spare: int = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.linger_until: float | None = None
        self.rung: deque[Rung] = deque()
        self.renewed: list[Rung] = []
        self.finished: deque[tuple[Connection | None, Callable[[], None]]] = deque()
        self.to_sync: dict[Served, Replies] = {}
        self.syncs: SimpleQueue[dict[Served, Replies] | None] = SimpleQueue()
        self.syncer: Thread | None = None
        self.pool: ThreadPoolExecutor | None = None
        self._thread = get_ident()
        self._ended = False
        self._notes = 0
        self._batched: dict[Connection, bytes] | None = None
        self.frame: wire.Framer = wire.Framer()

    def greet(self, conn: Connection, number: int, request: list[Any]) -> Reply:
        """Answer the first request of a connection, the hello."""
        raise NotImplementedError

    def left(self, conn: Connection) -> None:
        """A connection was closed."""

    def wake(self) -> None:
        """Let the loop look at rung bells and finished calls. From any thread."""
        if get_ident() != self._thread:
            os.eventfd_write(self.event, 1)

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the last client has gone, or ``signalled`` is readable."""
        self._thread = get_ident()
        listener = self._listener
        assert listener is not None
        listening, event = listener.fileno(), self.event
        self.epoll.register(listening, select.EPOLLIN)
        self.epoll.register(event, select.EPOLLIN)
        if self.signalled >= 0:
            self.epoll.register(self.signalled, select.EPOLLIN)
        connections = self.connections
        poll = self.epoll.poll
        if self.linger is not None:
            self.linger_until = monotonic() + max(self.linger, 1.0)
        while not self._ended:
            for fd, events in poll(self._time_to_wait()):
                conn = connections.get(fd)
                try:
                    if conn is None:
                        if fd == listening:
                            self._accept()
                        elif fd == event:
                            os.eventfd_read(event)
                        elif fd == self.signalled:
                            self._ended = True
                        continue
                    if events & _READABLE:
                        self._read(conn)
                    if events & select.EPOLLOUT and not conn.is_closed:
                        self._flush(conn)
                except Exception as error:
                    self._give_up(conn, error)
            while self.rung or self.finished:
                while self.finished:
                    self._safely(*self.finished.popleft())
                self.rung.extend(self.renewed)
                self.renewed.clear()
                self._retry_rung()
            if self.to_sync:
                self._safely(None, self.hand_over)
            if self.linger_until is not None or self.timers.first < inf:
                self._look_at_the_clock()

    def _retry_rung(self) -> None:
        while self.rung:
            one = self.rung.popleft()
            self._safely(one.conn, one.retry)

    def _safely(self, conn: Connection | None, call: Callable[[], None]) -> None:
        """Make a call for a connection. An error that nobody foresaw ends it, and no other one."""
        try:
            call()
        except Exception as error:
            self._give_up(conn, error)

    def _give_up(self, conn: Connection | None, error: Exception) -> None:
        if self._notes < _MAX_NOTES:
            self._notes += 1
            _log.error("a connection is closed, as a call for it has failed", exc_info=error)
        if conn is not None:
            with suppress(Exception):
                self._close(conn)

    def _time_to_wait(self) -> float | None:
        ends = self.timers.first
        if self.linger_until is not None:
            ends = min(ends, self.linger_until)
        # epoll counts whole milliseconds. The extra one makes sure that it does not end early.
        return None if ends == inf else min(max(ends - monotonic(), 0), _LONGEST_SLEEP) + 0.001

    def _look_at_the_clock(self) -> None:
        now = monotonic()
        for conn, call in self.timers.due(now):
            self._safely(conn, call)
        if self.linger_until is not None and now >= self.linger_until:
            self._ended = True

    # -- connections ---------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._refuse_with_spare():
                    continue
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    self._note("no more connections: %s", error)
                    self.epoll.modify(self._listener.fileno(), 0)
                    self.timers.add(monotonic() + 0.5, None, self._listen_again)
                    return
                continue
            sock.setblocking(False)
            if not self._may_come(sock):
                sock.close()
                continue
            if len(self.connections) >= self.most_connections:
                self._refuse_one_too_many(sock)
                continue
            conn = Connection(sock)
            self.epoll.register(conn.fd, select.EPOLLIN)
            self.connections[conn.fd] = conn
            silent = partial(self._refuse_silent, conn)
            conn.timer = self.timers.add(monotonic() + _HELLO_TIME, conn, silent)

    def _refuse_with_spare(self) -> bool:
        """Answer a connection for which only the spare descriptor is left. False without one."""
        spare, self._spare = self._spare, -1
        if spare < 0 or self._listener is None:
            return False
        os.close(spare)
        with suppress(OSError):
            self._refuse_one_too_many(self._listener.accept()[0])
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self._spare >= 0

    def _refuse_one_too_many(self, sock: socket.socket) -> None:
        """Answer the hello of a connection for which no descriptor is left."""
        self._note("a connection is refused: there are %d", len(self.connections))
        cause = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        doing = f"the server has {len(self.connections)} connections, and takes no more"
        with suppress(OSError):
            sock.send(self.error(1, StorageError(self.directory, doing, cause)))
        sock.close()

    def _listen_again(self) -> None:
        if self._listener is not None:
            self.epoll.modify(self._listener.fileno(), select.EPOLLIN)

    def _refuse_silent(self, conn: Connection) -> None:
        if conn.session is None and not conn.is_closed:
            self._close(conn)

    def _may_come(self, sock: socket.socket) -> bool:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        _, uid, gid = _PEER.unpack(raw)
        if uid == self._uid or (self._group is not None and gid == self._group):
            return True
        if self._group is not None and self._group in _groups_of(sock):
            return True
        self._note("a connection of user %d is refused", uid)
        return False

    def _read(self, conn: Connection) -> None:
        unread = conn.unread
        data = None if unread else frames.received(conn.fd, False)
        if data is None:
            try:
                data = conn.sock.recv(_READ_ON if unread else _READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
        if not data:
            self._close(conn)
            return
        size = len(data)
        if (
            not unread
            and _HEAD <= size < conn.most
            and frames.size_of(data, 0) == size - _HEAD
            and conn.flow.under_way < MAX_UNDER_WAY
        ):
            # Most often it is one request, whole.
            try:
                request = frames.values_of(data, _HEAD)
                if request is None or len(request) < 2 or type(request[0]) is not int:
                    request = wire.decode(data[_HEAD:])
            except ValueError as error:
                self._refuse_frame(conn, str(error))
                return
            if conn.consumer is None:
                self._handle(conn, request)
                self._retry_renewed()
            else:
                self._batched = {}
                try:
                    self._handle(conn, request)
                finally:
                    self._send_batched()
            return
        if unread:
            unread += data
            if len(unread) >= conn.wanted:
                conn.unread = bytearray()
                self._parse(conn, unread)
        else:
            self._parse(conn, data)

    def _parse(self, conn: Connection, data: bytes | bytearray) -> None:
        """Handle the requests that are there, and keep the rest, or what is put off."""
        while True:
            self._batched = {}
            try:
                self._handle_all(conn, data)
            finally:
                self._send_batched()
            if not conn.flow.is_held or conn.is_closed or not conn.flow.goes_on():
                break
            data, conn.unread = conn.unread, bytearray()
        self._watch(conn)

    def _handle_all(self, conn: Connection, data: bytes | bytearray) -> None:
        at, end = 0, len(data)
        conn.wanted = _HEAD
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
                if not conn.flow.goes_on():
                    break
                at = start + size
                try:
                    request = wire.decode(view[start:at])
                except ValueError as error:
                    self._refuse_frame(conn, str(error))
                    break
                self._handle(conn, request)
            if at < end and not conn.is_closed:
                conn.unread += view[at:]

    def _retry_renewed(self) -> None:
        while self.renewed:
            one = self.renewed.pop()
            self._safely(one.conn, one.retry)

    def _send_batched(self) -> None:
        """Send the replies to the requests that were read, and the messages that consumers can have
        now, together."""
        self._retry_renewed()
        batched, self._batched = self._batched, None
        if batched:
            for other, out in batched.items():
                self._send_now(other, out)
                if other.consumer is not None and other.consumer.is_cut and not other.unsent:
                    self._safely(other, other.consumer.retry)

    def _go_on(self, conn: Connection) -> None:
        """Handle requests that were put off, as something has come to its end, or read on."""
        if conn.flow.is_held and not conn.is_closed and conn.flow.goes_on():
            unread, conn.unread = conn.unread, bytearray()
            self._parse(conn, unread)
        else:
            self._watch(conn)

    def _refuse_frame(self, conn: Connection, why: str) -> None:
        self._note("a client's bytes are refused: %s", why)
        with suppress(OSError):
            conn.sock.send(self.frame(0, wire.ERROR, "UsageError", why, {}))
        self._close(conn)

    def _note(self, what: str, value: object) -> None:
        """Log a fault of a client. The number of these lines is limited."""
        if self._notes < _MAX_NOTES:
            self._notes += 1
            _log.warning(what, value)

    def send(self, conn: Connection, data: bytes) -> None:
        """Send bytes, after the requests that are being read now."""
        if conn.is_closed or conn.is_deaf or not data:
            return
        conn.flow.owed += len(data)
        if self._batched is not None:
            if len(data) <= MAX_OWED:
                out = self._batched.get(conn)
                # Most often there is one reply, which is sent as it is.
                self._batched[conn] = data if out is None else out + data
                return
            self._send_now(conn, self._batched.pop(conn, b""))
        self._send_now(conn, data)

    def _send_now(self, conn: Connection, data: bytes) -> None:
        if conn.is_closed or conn.is_deaf or not data:
            return
        if conn.unsent:
            self._keep(conn, data, 0)
            return
        sent = frames.sent(conn.fd, data)
        if sent < 0:
            try:
                sent = conn.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._send_no_more(conn)
                return
        conn.flow.owed -= sent
        if sent < len(data):
            self._keep(conn, data, sent)

    def _keep(self, conn: Connection, data: bytes, sent: int) -> None:
        """Keep bytes until the client reads on. They are not copied: they may be a large body."""
        conn.unsent.append(memoryview(data)[sent:])
        self._watch(conn)

    def send_around(self, conn: Connection, front: bytes, body: bytes, back: bytes) -> bytes:
        """Send a frame in pieces: a large body is not copied into it."""
        for piece in (front, body, back):
            self.send(conn, piece)
        return LATER

    def _flush(self, conn: Connection) -> None:
        view = conn.unsent[0]
        try:
            sent = conn.sock.send(view[: 1 << 20])
        except BlockingIOError:
            return
        except OSError:
            self._send_no_more(conn)
            return
        if sent == len(view):
            conn.unsent.popleft()
        else:
            conn.unsent[0] = view[sent:]
        conn.flow.owed -= sent
        if conn.consumer is not None and conn.flow.owed < MAX_OWED:
            conn.consumer.retry()
        self._go_on(conn)

    def _send_no_more(self, conn: Connection) -> None:
        """Close a connection that the client does not read. That of a consumer is read to its end:
        a consumer that was stopped has yet to say which messages it did not get."""
        if conn.consumer is None or conn.flow.is_held:
            self._close(conn)
            return
        conn.is_deaf = True
        conn.consumer.leave()
        conn.unsent, conn.flow.owed = deque(), 0
        self._watch(conn)

    def _watch(self, conn: Connection) -> None:
        """Read no more from a client that does not read."""
        wanted = select.EPOLLIN if conn.flow.reads() else select.EPOLLRDHUP
        if conn.unsent:
            wanted |= select.EPOLLOUT
        if wanted != conn.watched and not conn.is_closed:
            conn.watched = wanted
            self.epoll.modify(conn.fd, wanted)

    def _close(self, conn: Connection) -> None:
        if conn.is_closed:
            return
        conn.is_closed = True
        del self.connections[conn.fd]
        with suppress(OSError):
            self.epoll.unregister(conn.fd)
        conn.sock.close()
        for waiting in list(conn.waiting.values()):
            waiting.leave(used=False)
        conn.waiting.clear()
        self.timers.forget(conn.timer)
        conn.unread, conn.unsent, conn.parts = bytearray(), deque(), []
        if conn.consumer is not None:
            conn.consumer.leave()
        self.left(conn)

    # -- requests ------------------------------------------------------------------------------

    def _handle(self, conn: Connection, request: list[Any]) -> None:
        number = request[0]
        session = conn.session
        try:
            check(request)
            if session is None:
                reply = self.greet(conn, number, request)
            else:
                handler = self.handlers.get(request[1])
                if handler is None:
                    raise UsageError(f"verb {request[1]!r} is not for a session")
                reply = handler(conn, number, request)
        except StoreError as error:
            reply = self.error(number, error)
        except Exception as error:
            reply = self.error(number, error)
            self._note("a request is refused: %r", error)
        # Clients that wait for what this request has brought are woken before its sender.
        self._retry_rung()
        if reply:
            self.send(conn, reply)

    def error(self, number: int, error: BaseException) -> bytes:
        """Return the reply that tells of an error."""
        return self.frame(number, wire.ERROR, *wire.error_values(error))

    # -- waiting -------------------------------------------------------------------------------

    def wait_for(
        self,
        conn: Connection,
        number: int,
        bells: Bells,
        attempt: Callable[[], Reply],
        deadline: float | None,
        expire: Callable[[], Reply],
    ) -> Reply:
        """Try it whenever a bell rings, until the deadline (:func:`time.monotonic`)."""
        if conn.is_closed:
            return LATER  # since the call was made, by another thread
        if number in conn.waiting:
            raise UsageError(f"request {number} waits already: each has a number of its own")
        waiting = Waiting(self, conn, number, bells, attempt, expire)
        # A ring since the last try would have found no listener.
        try:
            waiting.listen()
            reply = attempt()
        except BaseException:
            waiting.leave(used=len(bells) == 1)
            raise
        if reply is not None:
            waiting.leave(used=False)
            return reply
        conn.waiting[number] = waiting
        if deadline is not None:
            waiting.timer = self.timers.add(deadline, conn, partial(self._expire, waiting))
        return LATER

    def _expire(self, waiting: Waiting) -> None:
        if waiting.is_over or waiting.conn.is_closed:
            return
        expire = waiting.expire
        waiting.leave(used=False)
        waiting.gone()
        reply = expire()
        if reply:
            self.send(waiting.conn, reply)

    # -- other threads -------------------------------------------------------------------------

    def aside_value(self, conn: Connection, number: int, call: Callable[[], Any]) -> Reply:
        """Make a call in another thread, and reply with its result."""
        return self.aside(
            conn, number, lambda: wire.frame(number, wire.DONE, wire.as_plain(call()))
        )

    def aside(
        self,
        conn: Connection,
        number: int,
        call: Callable[[], bytes],
        done: Callable[[bytes], Reply] | None = None,
        refused: Callable[[BaseException], Reply] | None = None,
    ) -> Reply:
        """Make a call in another thread. ``done``: called on the loop's thread with its result, to
        make the reply; ``refused``: with its error."""
        if self.pool is None:
            self.pool = ThreadPoolExecutor(_THREADS, "qindex-server")

        # No function within this one: compiled, it would be in a cycle that keeps large bodies.
        answer = partial(self._answer_call, conn, number, done, refused)
        future = self.pool.submit(call)
        conn.flow.under_way += 1
        future.add_done_callback(partial(self._call_ended, conn, answer))
        return LATER

    def _call_ended(
        self,
        conn: Connection,
        answer: Callable[[Future[bytes]], None],
        future: Future[bytes],
    ) -> None:
        self.finished.append((conn, partial(answer, future)))
        self.wake()

    def _answer_call(
        self,
        conn: Connection,
        number: int,
        done: Callable[[bytes], Reply] | None,
        refused: Callable[[BaseException], Reply] | None,
        future: Future[bytes],
    ) -> None:
        conn.flow.under_way -= 1
        error = future.exception()
        try:
            if error is None:
                answer: Reply = future.result()
                if done is not None:
                    answer = done(future.result())
            else:
                answer = refused(error) if refused is not None else self.error(number, error)
        except Exception as raised:
            answer = self.error(number, raised)
        if error is not None and not isinstance(error, StoreError):
            self._note("a call has failed: %r", error)
        if answer:
            self.send(conn, answer)
        self._go_on(conn)

    def durable(self, served: Served, conn: Connection, number: int, reply: bytes) -> Reply:
        """Send a reply when all that was done to the queue is on disk."""
        self.to_sync.setdefault(served, []).append((conn, number, reply))
        return LATER

    def hand_over(self) -> None:
        """Ask for the syncs of this turn."""
        if self.syncer is None:
            self.syncer = Thread(target=self._sync_all, name="qindex-server-sync", daemon=True)
            self.syncer.start()
        asked, self.to_sync = self.to_sync, {}
        self.syncs.put(asked)

    def _sync_all(self) -> None:
        while (asked := self.syncs.get()) is not None:
            while not self.syncs.empty():
                more = self.syncs.get()
                if more is None:
                    self.syncs.put(None)
                    break
                for served, replies in more.items():
                    asked.setdefault(served, []).extend(replies)
            for served, replies in asked.items():
                error: BaseException | None = None
                try:
                    if served.flusher.mover.is_behind():
                        served.flusher.mover.settle()
                    served.queue._parts.sync_all()
                except BaseException as caught:
                    error = caught
                self.finished.append((None, partial(self._answer, replies, error)))
                self.wake()

    def _answer(self, replies: Replies, error: BaseException | None) -> None:
        for conn, number, reply in replies:
            self.send(conn, reply if error is None else self.error(number, error))

    # -- the end -------------------------------------------------------------------------------

    def retire(self) -> None:
        """End after this turn of the loop, as after a signal."""
        self._ended = True

    def refuse_new(self) -> None:
        """Take no more connections."""
        listener, self._listener = self._listener, None
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        if listener is not None:
            with suppress(OSError):
                self.epoll.unregister(listener.fileno())
            listener.close()


def _most_connections() -> int:
    """Return how many connections leave a reserve of descriptors."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if most == resource.RLIM_INFINITY else most - max(_RESERVE, most // 8)


def _groups_of(sock: socket.socket) -> array[int]:
    """Return the groups that the process at the other end has beside its first one."""
    groups = array("I")
    with suppress(
        OSError
    ):  # Linux before 4.13, or more than the 256 groups that Python has room for
        groups.frombytes(sock.getsockopt(socket.SOL_SOCKET, _PEER_GROUPS, 1024))
    return groups
