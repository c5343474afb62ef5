"""Connections to the server of a store, and the session that they belong to."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from time import monotonic
from typing import Any, NoReturn, cast

import msgpack

from journal.errors import (
    ClosedError,
    DisconnectedError,
    LeaseExpiredError,
    NotAStoreError,
    UsageError,
)
from journal.memory import forks, words
from qindex.options import Options
from qindex.server import frames, place, spawn
from qindex.server import protocol as wire

_READ = 1 << 16
_LONGEST_POLL = 86_400.0
"""Seconds: the system counts milliseconds in 31 bits."""
_unpack = partial(msgpack.unpackb, strict_map_key=False)
_TRIES = 5
ANY = -1
"""The generation of a request that is about no delivery."""
Asked = Generator[tuple[tuple[Any, ...], Any], list[Any], list[Any]]
"""Yields requests, each with what goes after its verb; is sent the values of the reply."""


class UnsentError(Exception):
    """The server has gone before it got the request: it can be made again."""


class Link:
    """One connection; for one thread at a time. ``generation``: of its session."""

    __slots__ = (
        "_number",
        "_poll",
        "_unread",
        "fd",
        "frame",
        "generation",
        "is_clean",
        "most",
        "pushed",
        "sock",
    )

    def __init__(self, sock: socket.socket, generation: int = 0) -> None:
        self.sock: socket.socket = sock
        self.fd: int = sock.fileno()
        self.generation: int = generation
        self.frame: wire.Framer = wire.Framer()
        self.most: int = wire.HELLO_SIZE
        self.pushed: deque[list[Any]] = deque()
        self._unread = bytearray()
        self._number = 0
        self.is_clean: bool = True
        self._poll: select.poll | None = None

    def request(self, *values: Any) -> list[Any]:
        """Make a request. Return the reply; messages pushed meanwhile are kept.

        Raises :class:`UnsentError`, :class:`DisconnectedError`, :class:`UsageError`.
        """
        return self.exchange((ANY, *values))

    def exchange(self, request: tuple[Any, ...], queue: int | None = None) -> list[Any]:
        """Make a request as :meth:`request` does. Its first item, a generation, is left out, and
        the number of a ``queue`` goes after the verb."""
        self._number = number = self._number + 1
        data = frames.frame_of(number, queue, request)
        if data is None:
            where = () if queue is None else (queue,)
            data = self.frame.of((number, request[1], *where, *request[2:]))
        if len(data) > self.most:
            raise too_large(data, self.most)
        self.is_clean = False
        self.send(data)
        while True:
            found = self.read()
            if found[0] == number:
                self.is_clean = True
                return found
            if found[0] == 0:
                self.pushed.append(found)

    def make_all(self, steps: Asked) -> list[Any]:
        """Make the requests of :func:`in_session`. Return the values of the last reply."""
        try:
            asked = next(steps)
            while True:
                asked = steps.send(result(self.exchange(*asked)))
        except StopIteration as end:
            return cast("list[Any]", end.value)

    def tell(self, *values: Any) -> None:
        """Make a request that has no reply."""
        self._number = number = self._number + 1
        self.send(self.frame(number, *values))

    def send(self, data: bytes) -> None:
        """Send a frame. Raises :class:`UnsentError`."""
        done = frames.sent(self.fd, data)
        if done == len(data):
            return
        try:
            self.sock.sendall(memoryview(data)[max(done, 0) :])
        except OSError as error:
            raise UnsentError from error

    def read(self) -> list[Any]:
        """Return the next frame. Raises :class:`DisconnectedError`."""
        unread = self._unread
        try:
            if not unread:
                data = frames.received(self.fd, True)
                if data is None:
                    data = self.sock.recv(_READ)
                if len(data) >= 4 and frames.size_of(data, 0) == len(data) - 4:
                    found: list[Any] | None = frames.values_of(data, 4)
                    if found is None:
                        found = _unpack(data[4:])
                    return found
                if not data:
                    _gone()
                unread += data
            while len(unread) < 4 or (wanted := int.from_bytes(unread[:4], "big") + 4) > len(
                unread
            ):
                data = self.sock.recv(1 << 20)
                if not data:
                    _gone()
                unread += data
        except OSError as error:
            raise DisconnectedError(_GONE, maybe_done=True) from error
        with memoryview(unread) as view:
            found = _unpack(view[4:wanted])
        del unread[:wanted]
        return found

    def wait(self, seconds: float | None) -> bool:
        """Wait until there is something to read; false when the time is up."""
        if self._unread:
            return True
        if seconds is None:
            return True
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.sock, select.POLLIN)
        deadline = monotonic() + seconds
        while not self._poll.poll(min(max(seconds, 0), _LONGEST_POLL) * 1000):
            seconds = deadline - monotonic()
            if seconds <= 0:
                return False
        return True

    def drop(self) -> None:
        """Close it in the middle of a call: what its reply gives goes back, uncounted."""
        with contextlib.suppress(UnsentError):
            self.sock.setblocking(False)
            self.send(self.frame(self._number + 1, wire.DROP, self._number))
        self.close()

    def close(self) -> None:
        """Close it. In a forked child, that of the parent stays open."""
        self.fd = -1
        with contextlib.suppress(OSError):
            self.sock.close()


_GONE = "the server of the store has gone"


def _gone() -> NoReturn:
    raise DisconnectedError(_GONE, maybe_done=True)


class Opens:
    """A queue of the client. ``at``: the session that its number is of, and the number, which
    follows the verb of a request."""

    __slots__ = ("_home", "at", "name")

    def __init__(self, home: Home, name: str, at: tuple[int, Any]) -> None:
        self._home: Home = home
        self.name: str = name
        self.at: tuple[int, Any] = at

    def opening(self, generation: int) -> Generator[Any, list[Any], tuple[int, Any]]:
        """Ask the server of this session for the number. Raises :class:`ClosedError` for a queue
        that was deleted."""
        values = yield (ANY, wire.OPEN, self.name, False, {}, []), None
        self.at = at = (generation, values[0])
        return at


def in_session(queue: Opens | None, requests: Sequence[tuple[Any, ...]], generation: int) -> Asked:
    """Make requests on one connection of the session ``generation``, with no other between them.
    Return the values of the last reply.

    Deliveries, transactions and numbers of queues belong to one session. This is where threads and
    coroutines see to it that they are never used in another one.

    Raises:
        LeaseExpiredError: The subject of the requests belongs to a session that has ended.
    """
    if requests[0][0] not in (ANY, generation):
        raise went_back()
    number = None
    if queue is not None:
        at = queue.at
        if at[0] != generation:
            at = yield from queue.opening(generation)
        number = at[1]
    values: list[Any] = []
    for request in requests:
        values = yield request, None if request[1] == wire.PART_OF_BATCH else number
    return values


class Home:
    """The session of one engine in this process, and its connections.

    ``there``: the options of the server. ``generation``: counts sessions. A session ends with its
    server, or at a fork; then what it held has gone back to its queues. ``ended``: the last one of
    which that is known.
    """

    def __init__(self, directory: str, options: dict[str, Any], linger: float) -> None:
        if not isinstance(linger, int | float) or not 0 <= linger < 1e9:
            raise UsageError(f"linger must be seconds from 0 to 1e9, not {linger!r}")
        self.directory = directory
        self.options: Options = Options(**options)
        self._given = _not_usual(options)
        self._options = options
        self._linger = linger
        self.generation: int = 0
        self.ended: int = -1
        self.is_closed: bool = False
        self.is_draining = False
        self.version: str = ""
        self.build: str = ""
        self.there: dict[str, Any] = {}
        self._stamp = forks.stamp()
        self._lock = threading.RLock()
        self._is_connecting = False
        self._idle: list[Link] = []
        self._made: list[Link] = []
        self._life: Link | None = None
        self._id: bytes | None = None
        _homes.add(self)

    def lives(self, generation: int) -> bool:
        """Return whether a session goes on, as far as this process knows."""
        return generation == self.generation and generation > self.ended

    # -- connections ----------------------------------------------------------------------------

    def take(self) -> Link:
        """Return a connection that no other thread uses. Raises :class:`ClosedError`, and what
        starting a server raises."""
        if words.kept_stamp() != self._stamp:
            self.leave_parent()
        if self.is_closed:
            raise closed(self)
        if self.ended >= self.generation:
            with self._lock:
                if self.ended >= self.generation:
                    self._forget()
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def give(self, link: Link) -> None:
        """Return a connection whose replies have all been read."""
        if link.generation == self.generation and not self.is_closed:
            self._idle.append(link)
        else:
            link.close()

    def lost(self, link: Link) -> None:
        """The server has gone: what this session held has gone back to its queues."""
        link.close()
        with self._lock:
            if link.generation == self.generation:
                self._forget()

    def _forget(self) -> None:
        self.generation += 1
        idle, self._idle = self._idle, []
        life, self._life = self._life, None
        self._id = None
        for one in idle:
            one.close()
        if life is not None:
            life.close()

    def leave_parent(self) -> None:
        """This is a forked child: it gets a session of its own. Its parent's is left alone."""
        if forks.stamp() == self._stamp:
            return
        self._lock = threading.RLock()
        self._is_connecting = False
        self._stamp = forks.stamp()
        self._forget()
        # Also the links that other threads of the parent were using at the fork: the session of the
        # parent lasts as long as any of them is open.
        made, self._made = self._made, []
        for one in made:
            one.close()

    def _connect(self) -> Link:
        began = monotonic()  # others that wait for the lock do not wait for as long once more
        with self._lock:
            if self._is_connecting:
                raise UsageError("a signal's handler interrupts a connect, and can't wait for it")
            self._is_connecting = True
            try:
                return self._connect_anew(began)
            finally:
                self._is_connecting = False

    def _connect_anew(self, began: float) -> Link:
        for _ in range(_TRIES):
            if self._life is None:
                # It is never used: the session lasts as long as it is open, whatever becomes of
                # the others.
                self._life = self._greet(None, began)
                if self._life is None:
                    continue
            link = self._greet(self._id, began)
            if link is not None:
                return link
            self._forget()
        raise DisconnectedError(
            f"{self.directory}: its server closes the connection: it does not let user "
            f"{os.geteuid()} in, or it ends as soon as it begins (see its log)"
        )

    def _greet(self, session: bytes | None, began: float) -> Link | None:
        """Connect and say hello; ``None`` where the server ended meanwhile."""
        sock = spawn.find(self.directory, self._options, self._linger, began)
        link = Link(sock, self.generation)
        try:
            try:
                reply = link.request(wire.HELLO, "qindex", wire.VERSION, session)
            except UnsentError:
                reply = link.read()  # it may say why it has closed
            values = result(reply)
        except (UnsentError, DisconnectedError):
            link.close()
            return None
        except BaseException:
            link.close()
            raise
        self.version, _, self._id, self.there, self.build = values
        with contextlib.suppress(FileNotFoundError):  # the server has just ended
            if place.is_copy(self.directory, self.there.get(wire.INODE)):
                link.close()
                raise NotAStoreError(
                    f"{self.directory}: a copy by hard links of a store whose server runs: it has "
                    "the files of that store; copy without them (cp -a)"
                )
        link.most = wire.HEAD_SIZE + self.there["max_message_bytes"] + wire.OVERHEAD
        for name, value in self._given.items():
            its_own = self.there.get(name)
            if its_own != value:
                link.close()
                raise UsageError(
                    f"{self.directory}: its server has {name}={its_own!r}, not {value!r}: "
                    "the process that opens it first gives the options"
                )
        self._made = [one for one in self._made if one.fd >= 0]
        self._made.append(link)
        return link

    # -- calls ----------------------------------------------------------------------------------

    def call(self, queue: Opens | None, *request: Any) -> list[Any]:
        """Make a request; see :meth:`make`."""
        return self.make_in(queue, request)[1]

    def make(self, queue: Opens | None, request: tuple[Any, ...]) -> list[Any]:
        """Make a request; see :meth:`make_in`. Return the values of its reply."""
        return self.make_in(queue, request)[1]

    def make_in(self, queue: Opens | None, request: tuple[Any, ...]) -> tuple[int, list[Any]]:
        """Make a request, again where no server got it. Return the session that it was made in, and
        the values of its reply.

        Args:
            queue: The queue whose number goes after the verb (:class:`Opens`), or None.
            request: The session that holds the subject of the request, or :data:`ANY`; the verb;
                and the other arguments.

        Raises:
            DisconnectedError: The server has gone in the middle of the call.
            LeaseExpiredError: The session that is named has ended.
            StoreError: What the server has raised.
        """
        # The common case by itself: the queue is open, on a connection that is there.
        link = self.take()
        generation, its_own = request[0], link.generation
        at = None if queue is None else queue.at
        if at is None or at[0] != its_own or (generation != ANY and generation != its_own):
            self.give(link)
            return self.call_together(queue, (request,))
        try:
            reply = link.exchange(request, at[1])
        except UnsentError:
            self.lost(link)
            return self.call_together(queue, (request,))
        except BaseException as error:
            self._give_up(link, error)
            raise
        self.give(link)
        if reply[1]:
            raise wire.error_of(*reply[2:5])
        return its_own, reply[2:]

    def _give_up(self, link: Link, error: BaseException) -> None:
        """Close a connection after an error, unless its replies have all been read."""
        if isinstance(error, DisconnectedError) and not link.is_clean:
            self.lost(link)
        elif link.is_clean:
            self.give(link)
        else:
            link.drop()

    def call_together(
        self, queue: Opens | None, requests: Sequence[tuple[Any, ...]]
    ) -> tuple[int, list[Any]]:
        """Make requests on one connection, with no other between them; see :meth:`make_in`. Return
        the session that they were made in, and the values of the last reply."""
        for _ in range(_TRIES):
            link = self.take()
            try:
                values = link.make_all(in_session(queue, requests, link.generation))
            except UnsentError:
                self.lost(link)
                continue  # parts of a batch are nothing without its end
            except BaseException as error:
                self._give_up(link, error)
                raise
            self.give(link)
            return link.generation, values
        raise DisconnectedError(f"{self.directory}: servers end as soon as they begin")

    def close(self) -> None:
        """Say good-bye: what this session holds goes back, as if it had not been delivered."""
        if self.is_closed:
            return
        if forks.stamp() != self._stamp:
            self.leave_parent()
        try:
            if self._life is not None:
                with contextlib.suppress(UnsentError, DisconnectedError):
                    self._life.request(wire.BYE)
        finally:
            self.is_closed = True
            with self._lock:
                self._forget()


def result(reply: list[Any]) -> list[Any]:
    """Return the values of a reply. Raises its error."""
    if reply[1] == wire.DONE:
        return reply[2:]
    raise wire.error_of(*reply[2:5])


def too_large(data: bytes, most: int) -> UsageError:
    """Say that a frame has more bytes than the server takes. Nothing of it was sent."""
    return UsageError(
        f"{len(data)} bytes are too many for one call: the server takes {most}; nothing was sent"
    )


def closed(home: Home) -> ClosedError:
    """Say that an engine is closed."""
    return ClosedError(f"{home.directory}: the engine is closed")


def went_back() -> LeaseExpiredError:
    """Say that a delivery's session has ended."""
    return LeaseExpiredError(
        "the connection that the delivery came through was lost: the message went back to its queue"
    )


def _not_usual(options: dict[str, Any]) -> dict[str, Any]:
    usual = Options()
    passing = ("lock_timeout", "repair", "mode", "read_only")
    return {
        name: value
        for name, value in options.items()
        if name not in passing and value != getattr(usual, name)
    }


_homes: weakref.WeakSet[Home] = weakref.WeakSet()


def _leave_parents() -> None:
    """A child that keeps its parent's connections open would keep the parent's session alive."""
    for home in list(_homes):
        home.leave_parent()


forks.in_child(_leave_parents)
