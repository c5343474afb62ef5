"""Connections of kombu: sessions with the server of a shared store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kombu.exceptions import ChannelError
from kombu.transport import virtual

import qindex
from journal.errors import (
    ClosedError,
    DisconnectedError,
    LeaseExpiredError,
    LockedError,
    StorageError,
    UsageError,
)
from qindex.compat.kombu.channel import Channel as StoreChannel
from qindex.compat.kombu.getter import Getter, Inbox, give_back
from qindex.compat.kombu.topology import Owners, Topology
from qindex.format.rabbitmq.names import MAX_PRIORITY
from qindex.options import Options

if TYPE_CHECKING:
    from qindex.client.engine import SharedEngine
    from qindex.client.shared_queue import SharedQueue
    from qindex.queue.delivery import Delivery

__all__ = ["Transport"]

_SWEEP_EVERY = 5.0
_SLICE = 2.0
_MAX_HANDLES = 1000
_WHILE_FULL = 0.05
_TRIES = 5
_PAUSE = 0.02

_OPTIONS = {one.name for one in fields(Options)} | {"linger"}


class Transport(virtual.Transport):
    """A connection of kombu: a session with the server of a shared store."""

    Channel = StoreChannel
    can_parse_url = True
    default_port = 0
    driver_type = "qindex"
    driver_name = "qindex"
    polling_interval = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors: tuple[type[BaseException], ...] = (
        *virtual.Transport.connection_errors,
        ClosedError,
        DisconnectedError,
        LeaseExpiredError,
        LockedError,
        StorageError,
    )
    channel_errors: tuple[type[BaseException], ...] = (
        *virtual.Transport.channel_errors,
        ChannelError,
    )

    engine: SharedEngine
    topology: Topology

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._handles: dict[str, SharedQueue] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self._bound: dict[str, set[tuple[str, str]]] = {}
        self._exclusive: set[str] = set()
        self._unused: dict[str, float] = {}
        self._swept = 0.0
        self._turn = 0
        self._loop: Any = None
        self._inbox: Inbox | None = None
        self.engine = None  # type: ignore[assignment]

    # -- the connection -------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The directory of the store."""
        client = self.client
        url = client.hostname or ""
        if "://" in url:
            path = unquote(url.partition("://")[2].partition("?")[0])
        else:
            path = "/" + (client.virtual_host or "").lstrip("/")
        # Relative, it would be another directory in each program.
        if path in ("", "/") or not os.path.isabs(path):
            raise UsageError(
                "a broker URL names a directory by its absolute path, as qindex:///srv/data, "
                f"not {url!r}"
            )
        return path

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a child that was forked after the connection was made."""
        return os.getpid() != self._pid

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL."""
        return uri

    def driver_version(self) -> str:
        """Return the version of qindex."""
        return qindex.__version__

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the connection is open."""
        return self.engine is not None and not self.engine.closed

    def establish_connection(self) -> Transport:
        """Open the store, with the options of it that are among the transport's options."""
        given = self.client.transport_options
        for name in given.keys() - _OPTIONS - {"max_priority"}:
            # Others are kombu's, or another transport's.
            similar = get_close_matches(name, [*_OPTIONS, "max_priority"], 1, 0.85)
            if similar:
                raise UsageError(f"there is no transport option {name!r}: {similar[0]!r} is meant?")
        most = given.get("max_priority") or 0
        if type(most) is not int or not 0 <= most <= MAX_PRIORITY:
            raise UsageError(f"max_priority must be None or 0 to {MAX_PRIORITY}, not {most!r}")
        options = {name: value for name, value in given.items() if name in _OPTIONS}
        self.engine = qindex.open(self.directory, shared=True, **options)
        try:
            self.topology = Topology(self.engine)
            self._owners = Owners(self.engine, self.remove)
            self.sweep_in_time()
            super().establish_connection()
        except BaseException:
            self.engine.close()
            raise
        return self

    def close_connection(self, connection: Any) -> None:
        """Requeue unsettled messages, and end the session."""
        engine = self.engine
        if not self.is_inherited:  # else they are the parent's, with their locks
            self._leave_loop()
            for channel in [*self._avail_channels, *self.channels]:
                channel.close()
        self._avail_channels.clear()
        self.channels.clear()
        if engine is None or engine.closed:
            return
        if not self.is_inherited:
            with suppress(*self.connection_errors):
                for name in list(self._exclusive):
                    self.remove(name)
                for name in list(self._unused):
                    self._owners.release(name)
        engine.close()

    # -- queues of the store --------------------------------------------------------------------

    def declare(self, name: str, settings: dict[str, Any]) -> None:
        """Make a queue, or change its settings."""
        known = self._handles.get(name)
        if known is not None and self._settings.get(name) == settings:
            try:
                len(known)
            except ClosedError:
                self._forget(name)
            else:
                return
        try:
            handle = self.engine.queue(name, **settings)
        except UsageError:
            if "max_priority" not in settings:
                raise
            # It holds messages already: its priorities stay.
            rest = {one: value for one, value in settings.items() if one != "max_priority"}
            handle = self.engine.queue(name, **rest)
        if len(self._handles) >= _MAX_HANDLES:
            self._handles.clear()  # queues of replies come and go
        self._handles[name] = handle
        if settings:
            self._settings[name] = settings

    def handle(self, name: str) -> SharedQueue:
        """Return a queue, made if it is missing."""
        found = self._handles.get(name)
        if found is None:
            settings = self._settings.get(name)
            if settings is None:
                settings = {} if name in self.engine.queue_names() else self._usual()
            self.declare(name, settings)
            found = self._handles[name]
            for exchange, routing_key in self._bound.get(name, ()):
                self.topology.bind(name, exchange, routing_key, None)
        return found

    def _usual(self) -> dict[str, Any]:
        most = self.client.transport_options.get("max_priority", StoreChannel.max_priority)
        return {"max_priority": most} if most else {}

    def call(self, name: str, work: Callable[[SharedQueue], Any]) -> Any:
        """Do something with a queue, made anew if another process has deleted it."""
        try:
            return work(self.handle(name))
        except ClosedError:
            if self.engine.closed:
                raise
            self._forget(name)
            return work(self.handle(name))

    def publish_if_there(self, name: str, body: bytes, options: Any) -> bool:
        """Publish to a queue, unless it was deleted: then its bindings go. Return whether it is
        there."""
        if name not in self._handles and name not in self.engine.queue_names():
            self.topology.forget_queue(name)
            return False
        try:
            self.handle(name).publish(body, **options)
        except ClosedError:
            if self.engine.closed:
                raise
            self._forget(name)
            if name not in self.engine.queue_names():
                self.topology.forget_queue(name)
                return False
            self.handle(name).publish(body, **options)  # deleted, and declared again
        return True

    def _forget(self, name: str) -> None:
        self._handles.pop(name, None)

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: Any) -> None:
        """Bind a queue."""
        self._bound.setdefault(queue, set()).add((exchange, routing_key))
        self.topology.bind(queue, exchange, routing_key, arguments)

    def remove(self, name: str) -> None:
        """Delete a queue with all that belongs to it."""
        self._forget(name)
        self._bound.pop(name, None)
        self._settings.pop(name, None)
        self._exclusive.discard(name)
        self._unused.pop(name, None)
        self.topology.forget_queue(name)
        with suppress(UsageError):  # there is none
            self.engine.delete_queue(name)
        self._owners.removed(name)

    # -- queues that expire ---------------------------------------------------------------------

    def keep(self, name: str, unused: float, *, is_exclusive: bool, is_owned: bool) -> None:
        """Have a queue removed that nobody uses. ``is_owned``: it is used from now on."""
        self.sweep_in_time()
        self._unused[name] = unused
        if is_exclusive:
            self._exclusive.add(name)
        if not is_owned:
            self._owners.note(name, unused)
            return
        for _ in range(_TRIES if is_exclusive else 1):
            if self._owners.hold(name, unused):
                break
            sleep(_PAUSE)  # another process may be about to remove it

    def use(self, name: str) -> None:
        """Keep a queue that expires for as long as this connection is open."""
        if name in self._unused:
            self._owners.hold(name, self._unused[name])

    def sweep_in_time(self) -> None:
        """Remove queues that nobody uses, each few seconds."""
        now = monotonic()
        if now - self._swept >= _SWEEP_EVERY:
            self._swept = now
            self._owners.sweep()

    # -- deliveries -----------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message to its consumer. Raises `TimeoutError`."""
        if not self.drain(self.channels, timeout):
            raise TimeoutError

    def drain(self, channels: Sequence[StoreChannel], timeout: float | None) -> bool:
        """Deliver one message. Return False after `timeout` seconds without one."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            left = _SLICE if deadline is None else min(deadline - monotonic(), _SLICE)
            if self._deliver_next(channels, max(left, 0)):
                return True
            if deadline is not None and monotonic() >= deadline:
                return False

    def _deliver_next(self, channels: Sequence[StoreChannel], seconds: float) -> bool:
        self.sweep_in_time()
        inbox = self._inbox
        if inbox is not None:
            return self._deliver_from(inbox, seconds)
        open_to: dict[str, StoreChannel] = {}
        for channel in channels:
            if channel._active_queues:
                if channel.qos.can_consume():
                    open_to.update(dict.fromkeys(channel._active_queues, channel))
                else:
                    seconds = min(seconds, _WHILE_FULL)
        if not open_to:
            sleep(seconds)
            return False
        self._turn += 1
        found = self.take(list(open_to), self._turn, seconds, channels)
        if found is None:
            return False
        open_to[found.queue_name].deliver(found)
        return True

    def take(
        self, names: Sequence[str], turn: int, seconds: float, channels: Sequence[StoreChannel]
    ) -> Delivery | None:
        """Take the next message of several queues, each of them first in its turn.

        Raises `DisconnectedError` if unsettled messages of `channels` went back meanwhile.
        """
        at = turn % len(names)
        handles = [self.handle(name) for name in (*names[at:], *names[:at])]
        found: Delivery | None = None
        try:
            if len(handles) == 1:
                found = handles[0].get(seconds)
            else:
                found = self.engine.get(handles, seconds)
        except ClosedError:
            if self.engine.closed:
                raise
            for handle in handles:
                try:
                    len(handle)
                except ClosedError:
                    self._forget(handle.name)
        try:
            self.check_session(channels)
        except DisconnectedError:
            if found is not None:
                give_back(found)
            raise
        return found

    def check_session(self, channels: Sequence[StoreChannel]) -> None:
        """Raise `DisconnectedError` if unsettled messages went back: the server was killed."""
        for channel in channels:
            if channel._qos is not None and channel._qos.is_lost():
                raise DisconnectedError("the server of the store has gone", maybe_done=False)

    # -- an event loop --------------------------------------------------------------------------

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have an event loop deliver the messages, which threads wait for."""
        self._leave_loop()
        self._loop, self._inbox = loop, Inbox()
        loop.add_reader(self._inbox.fileno(), self.on_readable, connection, loop)
        loop.on_tick.add(self._begin_getters)
        self._timer = loop.call_repeatedly(_SWEEP_EVERY, self._sweep_in_loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Undo :meth:`register_with_event_loop`."""
        self._leave_loop()

    def _sweep_in_loop(self) -> None:
        inbox = self._inbox
        try:
            if self.engine is not None and not self.engine.closed:
                self.sweep_in_time()
        except self.connection_errors as error:
            if inbox is not None:
                inbox.put(error)

    def _leave_loop(self) -> None:
        loop, inbox, self._inbox = self._loop, self._inbox, None
        self._loop = None
        for channel in self.channels:
            self._end_getter(channel)
        if loop is None or inbox is None:
            return
        loop.on_tick.discard(self._begin_getters)
        self._timer.cancel()
        with suppress(KeyError, ValueError, OSError):
            loop.remove_reader(inbox.fileno())
        for item in inbox.close():
            if not isinstance(item, BaseException) and not self.is_inherited:
                item[0].qos.hand(-1)
                give_back(item[1])

    def _begin_getters(self) -> None:
        inbox = self._inbox
        if inbox is None or self.engine is None or self.engine.closed:
            return
        for channel in self.channels:
            if channel._active_queues and channel.getter is None:
                names = list(dict.fromkeys(channel._active_queues))
                channel.getter = Getter(self, channel, names, inbox)
                channel.getter.start()

    def retire(self, channel: StoreChannel) -> None:
        """Take note that the queues of a channel have changed."""
        self._end_getter(channel)
        if self._inbox is not None and channel._active_queues:
            self._inbox.wake()  # the tick that follows begins the next one

    def _end_getter(self, channel: StoreChannel) -> None:
        getter, channel.getter = channel.getter, None
        if getter is not None:
            getter.stop()

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Deliver what the threads have taken."""
        inbox = self._inbox
        if inbox is not None:
            inbox.clear()
            while inbox and self._deliver_from(inbox, 0):
                pass

    def _deliver_from(self, inbox: Inbox, seconds: float) -> bool:
        self._begin_getters()
        item = inbox.get(seconds)
        if item is None:
            return False
        if isinstance(item, BaseException):
            raise item
        channel, delivery = item
        try:
            channel.deliver(delivery)
        finally:
            channel.qos.hand(-1)
        return True
