"""Open a state and tell what is in it; and see that life goes on there."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import qindex
from journal.fs.files import FileSystem
from journal.locks.lock_order import LockOrder
from qindex.engine.opening import open_store
from qindex.format import layout
from qindex.format.headers import DUE_HEADER, KEY_HEADER
from qindex.queue.dead_letter import DEATHS, FIRST_QUEUE, FIRST_REASON
from qindex.queue.delivery import Delivery
from qindex.queue.timer import Alarm
from qindex.recovery import point_in_time
from qindex.tools import queue_check, store_check
from qindex.tools.verify import verify_store
from tests.crash.driver import KINDS, OPTIONS, ROOT, UNIQUE_KEYS, body_of
from tests.crash.ledger import Outcome, Queued
from tests.recording_fs import RecordingFileSystem

__all__ = ["Opened", "open_store", "verified"]

_ALL = 100_000
_PROBE = b"probe"
_KEYS = {options["key"] for _, options in KINDS.values() if "key" in options}


class _BrokenError(Exception):
    """A promise of a kind that needs no model to see it."""


class _TimerByHand(Alarm):
    """A timer whose thread gets its turn as soon as it may: at each file operation of the open for
    which no lock is held."""

    def __init__(self, order: LockOrder) -> None:
        super().__init__(order)
        self._order = order
        self._has_begun = mock.Mock(return_value=True)
        self._thread = mock.Mock(start=self._has_begun, is_mine=lambda: False)
        self._firing = False

    def fire(self) -> None:
        is_running = self._has_begun.called and not self._firing
        if is_running and not any(is_mine() for _, is_mine in self._order._held):
            self._firing = True
            try:
                self._call(self._take_due())
            finally:
                self._firing = False


class _WithTimer:
    """A file system that lets the timers of the engines that use it fire."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._timers: list[_TimerByHand] = []

    def timer(self, order: LockOrder) -> Alarm:
        self._timers.append(_TimerByHand(order))
        return self._timers[-1]

    def fire(self) -> None:
        for timer in self._timers:
            timer.fire()

    def stop(self) -> None:
        """Let no timer fire any more, and be as quick as the file system itself."""
        for name in dir(self._fs):
            if not name.startswith("_"):
                setattr(self, name, getattr(self._fs, name))

    def __getattr__(self, name: str) -> Any:
        self.fire()
        return getattr(self._fs, name)


def open_as_user(fs: FileSystem, options: dict[str, Any]) -> qindex.Engine:
    """Open as a user would, who leaves nothing to be repaired; timers fire meanwhile."""
    engine: qindex.Engine
    if not _has_settings(fs):
        engine = open_store(ROOT, fs=fs, **{**OPTIONS, **options})
        return engine
    seen = _WithTimer(fs)
    with mock.patch("qindex.engine.engine.Alarm", seen.timer):
        engine = open_store(ROOT, fs=seen, **{**OPTIONS, **options})
    seen.fire()
    seen.stop()
    return engine


def _has_settings(fs: FileSystem) -> bool:
    """Tell whether a queue has settings: without a ttl no timer is set while a store opens."""
    queues = f"{ROOT}/{layout.QUEUES}"
    with suppress(FileNotFoundError):
        return any(layout.SETTINGS in fs.listdir(f"{queues}/{one}") for one in fs.listdir(queues))
    return False


def verified(fs: FileSystem) -> str:
    """Verify a state before anybody opens it; tell of damage, which no crash leaves."""
    with ExitStack() as patches:
        for module in (point_in_time, queue_check, store_check):
            patches.enter_context(mock.patch.object(module, "sleep"))
        try:
            damage = verify_store(ROOT, fs=fs).damage
        except qindex.NotAStoreError:
            return ""  # it was being made
    return f"verify calls it damage: {damage[0]}" if damage else ""


class Opened:
    """An engine opened on a state."""

    def __init__(self, engine: qindex.Engine, options: dict[str, Any]) -> None:
        self.engine = engine
        self._options = options
        self._taken: dict[str, list[Delivery]] = {}

    def look(self) -> Outcome:
        """Take all messages of all queues, and publish one to each."""
        try:
            names = self.engine.queue_names()
            return Outcome(tuple((name, *self._queue(name)) for name in names))
        except Exception as error:
            return Outcome(error=f"{type(error).__name__}: {error}")

    def _queue(self, name: str) -> tuple[tuple[Queued, ...], int]:
        queue = self.engine.queue(name)
        ready = len(queue)
        taken = self._taken[name] = list(queue.get_many(_ALL))
        found = [
            _found(each, *self._labels(each))
            for each in taken
            if each.body != _PROBE and not self._is_torn(each)
        ]
        if len(taken) > ready or len(queue):
            what = f"{ready} messages were counted, {len(taken)} came, {len(queue)} stay"
            raise _BrokenError(what)
        if queue._parts.state.keys is not None:
            _try_keys(queue, taken)
        for finding in self.engine.findings:
            if finding.cause is qindex.Cause.DAMAGE:
                raise _BrokenError(f"damage where there is none: {finding}")
        return tuple(found), queue.publish(_PROBE)

    def _is_torn(self, delivery: Delivery) -> bool:
        """Tell whether it is what a loss of power has left of a message that was not synced: a
        record of RabbitMQ's has no checksum that would tell. It counts as lost."""
        ours = self.engine.options.record_format == "qindex"
        return not ours and b"\0" in delivery.body

    def _labels(self, delivery: Delivery) -> tuple[str | None, dict[str, Any]]:
        """Give key and properties as they were published."""
        if self.engine.options.record_format == "qindex":
            return delivery.key, dict(delivery.properties)
        # RabbitMQ's record has a key and an exchange in any case.
        key = delivery.key if delivery.key in _KEYS else None
        properties = dict(delivery.properties)
        if (properties.pop("exchange"), properties.pop("delivery_mode")) != ("", 2):
            raise _BrokenError(f"properties of no message: {delivery.properties}")
        return key, properties

    def goes_on(self, fs: RecordingFileSystem) -> str:
        """Acknowledge half of what was taken, publish, compact, close, open, die and open again;
        tell what went wrong, or nothing. To be called after :meth:`look`."""
        try:
            left = {name: self._use(name) for name in self._taken}
            left = self._after_limits(left)
            self.engine.compact()
            self.engine.close()
            with open_as_user(fs, self._options) as again:
                _compare(again, left, "closed and opened")
            killed = open_as_user(fs, self._options)
            _compare(killed, left, "closed and opened twice")
            fs.forget_descriptors()
            _compare(open_as_user(fs, self._options), left, "killed and opened")
        except Exception as error:
            return f"later on: {type(error).__name__}: {error}"
        return ""

    def _after_limits(self, left: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        """Give what stays in the queues, where some of it was dropped or moved by their limits:
        that it is what stays later on, too, is what is asked for."""
        queues = [self.engine.queue(name) for name in self.engine.queue_names()]
        if not any(queue.settings.dead_letter for queue in queues):
            return left
        held = {name: [each.body for each in taken[1::2]] for name, taken in self._taken.items()}
        return {
            queue.name: held.get(queue.name, []) + [each.body for each in queue.peek(_ALL)]
            for queue in queues
        }

    def _use(self, name: str) -> list[bytes]:
        """Acknowledge every other message and publish; gives the bodies that stay, in order."""
        queue = self.engine.queue(name)
        taken = self._taken[name]
        queue.ack_many(taken[::2])
        more = [b"more %d" % number for number in range(3)] + [b"most" * 400]
        queue.publish_many(more)
        return [each.body for each in taken[1::2]] + [_PROBE] + more


def _try_keys(queue: qindex.Queue, taken: list[Delivery]) -> None:
    """A unique key is taken just if its message is there."""
    for key in UNIQUE_KEYS:
        holders = [one.seq_id for one in taken if one.headers.get(KEY_HEADER) == key]
        try:
            seq = queue.publish(_PROBE, unique=key)
        except qindex.DuplicateError as error:
            if not holders or error.seq_id != holders[-1]:
                raise _BrokenError(f"{key} is taken by {error.seq_id}, not {holders}") from error
        else:
            queue.cancel(seq)
            if holders:
                raise _BrokenError(f"{key} is free, with {holders} there")


def _found(delivery: Delivery, key: str | None, properties: dict[str, Any]) -> Queued:
    """Hold a message against what was published."""
    number, kind, _ = delivery.body.split(b" ", 2)
    if delivery.body != body_of(int(number), kind.decode()):
        raise _BrokenError(f"message {number!r} has another body: {delivery.body!r}")
    options = KINDS[kind.decode()][1]
    headers = dict(delivery.headers)
    deaths = headers.pop(DEATHS, None)
    headers.pop(DUE_HEADER, None)
    headers.pop(KEY_HEADER, None)
    for name in (FIRST_QUEUE, FIRST_REASON):
        headers.pop(name, None)
    told = (key, headers, properties)
    wanted = dict(options.get("properties", {}))
    if "priority" in options:
        wanted["priority"] = options["priority"]
    if told != (options.get("key"), options.get("headers", {}), wanted):
        raise _BrokenError(f"message {number!r} has another key or headers: {told}")
    if (delivery.expiry is not None) != ("ttl" in options and not deaths):
        raise _BrokenError(f"message {number!r} expires at {delivery.expiry}")
    return Queued(int(number), delivery.seq_id, delivery.redelivered)


def _compare(engine: qindex.Engine, left: dict[str, list[bytes]], when: str) -> None:
    if engine.queue_names() != sorted(left):
        raise _BrokenError(f"{when}: the queues are {engine.queue_names()}")
    for name, bodies in left.items():
        queue = engine.queue(name)
        there = [each.body for each in queue.peek(_ALL)]
        if queue._parts.state.later is not None:
            there, bodies = sorted(there), sorted(bodies)  # they come by their due times
        if there != bodies:
            raise _BrokenError(f"{when}: {name} holds {there}, not {bodies}")
