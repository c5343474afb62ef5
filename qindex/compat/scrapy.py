"""Crawls that survive ``kill -9``: Scrapy's scheduler, disk queues and duplicates filter on qindex.

One setting, beside the ``JOBDIR`` that any crawl needs that is to be resumed::

    ADDONS = {"qindex.compat.scrapy.Addon": 0}

It sets ``SCHEDULER``, ``SCHEDULER_DISK_QUEUE``, ``SCHEDULER_START_DISK_QUEUE`` and
``DUPEFILTER_CLASS`` to the classes here. The store ``JOBDIR/requests.qindex`` then has all that a
crawl needs to go on:

* a request that waits, in a queue for each slot and priority, as Scrapy has them
  (:mod:`qindex.compat.requests`);
* a request that is being worked on: it is acknowledged after its callback has ended and what that
  yielded was scheduled. Killed before, it comes again;
* the fingerprint of a request, written after the request is in its queue. Killed in between, the
  request is scheduled twice, never not at all.

So each request is handled at least once, and a request in work at the kill twice.
Requests that can't be serialized are kept in memory only, as Scrapy does it. A request that
can't be revived, because its class or its callback has gone since, is logged and set aside in the
queue ``requests.unreadable`` of the store; it is tried again at the next start.

Requests are pickled, or marshalled by the ``Marshal...`` classes, which unpickle nothing. Don't
resume with the ``Pickle...`` classes from a JOBDIR that somebody else can write: unpickling runs
code.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import marshal
import os
import pickle
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy.core import scheduler as plain
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.job import job_dir
from scrapy.utils.request import request_from_dict

from journal.errors import ClosedError, UsageError
from qindex.compat import shared
from qindex.compat.requests import SEEN, UNREADABLE, WAITING, Popped, Requests, Waiting
from qindex.compat.set_aside import bring_back
from qindex.queue.delivery import Delivery

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from qindex.engine.engine import Engine
    from qindex.queue.plain_queue import Queue

__all__ = [
    "Addon",
    "DupeFilter",
    "MarshalFifoDiskQueue",
    "MarshalLifoDiskQueue",
    "PickleFifoDiskQueue",
    "PickleLifoDiskQueue",
    "Scheduler",
]

_log = logging.getLogger("qindex.scrapy")

_STORE = "requests.qindex"
_QUEUES = "requests.queue"
_LONGEST_NAME = 200
_BATCH = 10_000
_PICKLED = b"\x80"
"""How a pickle starts, and no marshalled dictionary does."""


class _Ledger:
    """The requests of one crawl that are being worked on, with their deliveries.

    The engine of Scrapy keeps a set of them, from download to the end of the callback's output. A
    request that is not in it any more is done with. Where a version of Scrapy should not have that
    set, a request is done with when nothing refers to it. The garbage collector may notice that
    late, and in the middle of any call: then it is only noted, and acknowledged with the next one.
    """

    def __init__(self, crawler: Crawler, requests: Requests) -> None:
        self._crawler = weakref.ref(crawler)
        self._requests = requests
        self._working: dict[int, tuple[weakref.ref[Request], Popped]] = {}
        self._count = itertools.count()
        self._gone: deque[int] = deque()

    def follow(self, request: Request, popped: Popped) -> None:
        """Have it acknowledged when the request is done with."""
        key, gone = next(self._count), self._gone
        self._working[key] = weakref.ref(request, lambda _: gone.append(key)), popped

    def settle(self) -> None:
        """Acknowledge the requests that are done. O(requests being worked on)."""
        done: list[int] = []
        while self._gone:
            done.append(self._gone.popleft())
        working = self._in_progress()
        if working is not None:
            for key, (ref, _) in self._working.items():
                request = ref()
                if request is None or request not in working:
                    done.append(key)
        for key in done:
            known = self._working.pop(key, None)
            if known is not None:
                self._requests.done(known[1])

    def _in_progress(self) -> set[Request] | None:
        crawler = self._crawler()
        slot = None if crawler is None else getattr(_late(crawler, "engine"), "_slot", None)
        working: Any = getattr(slot, "inprogress", None)
        return working if isinstance(working, set) else None


def _late(crawler: Crawler, name: str) -> Any:
    """Return an attribute of a crawler that is set when the crawl starts, or ``None`` before: newer
    versions of Scrapy raise then."""
    try:
        return getattr(crawler, name, None)
    except RuntimeError:
        return None


def _store_of(settings: BaseSettings) -> str:
    directory = job_dir(settings)
    if directory is None:
        raise UsageError("a crawl that is to be resumed needs the setting JOBDIR")
    return os.path.join(directory, _STORE)


class _Use:
    """The requests of one crawl, for as long as something uses them. ``ledger``: our scheduler's,
    ``None`` where the crawl has another one."""

    ledger: _Ledger | None = None

    def __init__(self, crawler: Crawler) -> None:
        self.store = _store_of(crawler.settings)
        self.users = 0
        self.engine = shared.acquire(self.store)
        try:
            self.requests = shared.join(self.engine, WAITING, Requests)
            try:
                self.requests.start(self.engine)
            except BaseException:
                shared.leave(self.engine, WAITING, self.requests)
                raise
        except BaseException:
            shared.release(self.engine)
            raise

    @staticmethod
    def of(crawler: Crawler) -> _Use:
        """Return the use of a crawl, and count one more user."""
        use = _uses.get(crawler)
        if use is None:
            use = _uses[crawler] = _Use(crawler)
        use.users += 1
        return use

    def release(self, crawler: Crawler) -> None:
        """Count one less; the last one closes the store."""
        self.users -= 1
        if self.users:
            return
        if _uses.get(crawler) is self:
            del _uses[crawler]
        shared.leave(self.engine, WAITING, self.requests)
        shared.release(self.engine)


_uses: weakref.WeakKeyDictionary[Crawler, _Use] = weakref.WeakKeyDictionary()


_Loads = Callable[[bytes], Any]


def _marshalled_or_pickled(body: bytes) -> Any:
    """Return what any of the classes here has written. Runs code of whoever wrote it."""
    return pickle.loads(body) if body[:1] == _PICKLED else marshal.loads(body)


def _marshalled(body: bytes) -> Any:
    """Return what a ``Marshal...`` class has written. Raises :class:`ValueError` for a pickle."""
    if body[:1] == _PICKLED:
        raise ValueError("it is pickled, and this crawl asks for marshalled requests")
    return marshal.loads(body)


def _revive(body: bytes, spider: Spider | None, loads: _Loads) -> Request:
    """Make a request of its bytes. Raises whatever its class, its callback or what it holds may
    raise that is not there any more."""
    return request_from_dict(loads(body), spider=spider)


class _RequestQueue:
    """One queue of requests, of one slot and priority; made by Scrapy's priority queues."""

    dumps: Callable[[Any], bytes]
    loads: _Loads
    _lifo = False

    def __init__(self, crawler: Crawler, key: str) -> None:
        self._crawler = crawler
        self._use = _Use.of(crawler)
        self._ledger = self._use.ledger
        self._requests = self._use.requests
        self._waiting = self._requests.named(_queue_name(os.path.dirname(self._use.store), key))
        self._waiting.users += 1
        self._closed = False

    @classmethod
    def from_crawler(cls, crawler: Crawler, key: str, *_args: Any, **_options: Any) -> Any:
        """Make the queue for ``key``, a path below the JOBDIR."""
        return cls(crawler, key)

    def push(self, request: Request) -> None:
        """Schedule. Raises :class:`ValueError` for a request that can't be serialized."""
        self._check_open()
        body = type(self).dumps(request.to_dict(spider=self._spider))
        self._requests.push(self._waiting, body)
        self._settle()

    @property
    def _spider(self) -> Spider | None:
        return self._crawler.spider

    def pop(self) -> Request | None:
        """Take the next request; it is done with when its callback is, or, without our scheduler,
        now. What can't be revived any more is logged, set aside, and passed over."""
        self._check_open()
        self._settle()
        while True:
            popped = self._requests.pop(self._waiting, newest=self._lifo)
            if popped is None:
                return None
            request = self._revived(popped)
            if request is None:
                continue
            if self._ledger is None:
                self._requests.done(popped)
            else:
                self._ledger.follow(request, popped)
            return request

    def peek(self) -> Request | None:
        """Return what :meth:`pop` would give, and leave it."""
        self._check_open()
        while True:
            body = self._requests.peek(self._waiting, newest=self._lifo)
            if body is None:
                return None
            try:
                return _revive(body, self._spider, type(self).loads)
            except Exception:
                popped = self._requests.pop(self._waiting, newest=self._lifo)
                if popped is None or self._revived(popped) is not None:
                    raise

    def _revived(self, popped: Popped) -> Request | None:
        return _revived(self._crawler, self._requests, popped, type(self).loads)

    def _settle(self) -> None:
        if self._ledger is not None:
            self._ledger.settle()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._use.store}: the queue {self._waiting.name!r} is closed")

    def close(self) -> None:
        """Close. An empty queue is deleted when the requests taken from it are done."""
        if self._closed:
            return
        self._closed = True
        self._waiting.users -= 1
        self._requests.retire(self._waiting)
        self._use.release(self._crawler)

    def __len__(self) -> int:
        return len(self._waiting)


def _revived(crawler: Crawler, requests: Requests, popped: Popped, loads: _Loads) -> Request | None:
    """Make a request of a taken message; ``None`` if that fails: it is set aside then."""
    try:
        return _revive(popped.delivery.body, crawler.spider, loads)
    except Exception as error:
        requests.set_aside(popped, f"{type(error).__name__}: {error}")
        if crawler.stats is not None:
            crawler.stats.inc_value("qindex/unreadable")
        return None


def _queue_name(job: str, key: str) -> str:
    name = os.path.relpath(os.path.abspath(key), os.path.join(os.path.abspath(job), _QUEUES))
    if len(os.fsencode(name)) > _LONGEST_NAME:
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()
        name = f"{name[: _LONGEST_NAME // 4]}-{digest}"
    return name


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=4)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error  # which Scrapy takes for "not serializable"


class PickleFifoDiskQueue(_RequestQueue):
    """Breadth first; any request that pickle takes."""

    dumps: Callable[[Any], bytes] = staticmethod(_pickled)
    loads: _Loads = staticmethod(_marshalled_or_pickled)


class PickleLifoDiskQueue(PickleFifoDiskQueue):
    """Depth first, Scrapy's default order."""

    _lifo = True


class MarshalFifoDiskQueue(_RequestQueue):
    """Breadth first; requests of plain values, quicker. Nothing is unpickled."""

    dumps: Callable[[Any], bytes] = staticmethod(marshal.dumps)
    loads: _Loads = staticmethod(_marshalled)


class MarshalLifoDiskQueue(MarshalFifoDiskQueue):
    """Depth first, of plain values."""

    _lifo = True


class Scheduler(plain.Scheduler):
    """Scrapy's scheduler, that finds what a killed crawl has left.

    Scrapy notes which queues there are (``active.json``) when a crawl is closed in order. This
    scheduler finds the other queues in the store, and tells Scrapy of them.
    """

    _use: _Use | None = None

    def open(self, spider: Spider) -> Any:
        """Open the queues, also the ones a killed crawl left.

        Args:
            spider: The spider.

        Returns:
            What Scrapy's scheduler returns.
        """
        assert self.crawler is not None
        if self.dqdir is None:
            return super().open(spider)
        self._use = _Use.of(self.crawler)
        requests = self._use.requests
        self._use.ledger = _Ledger(self.crawler, requests)
        opened = super().open(spider)
        for waiting in requests.leftover():
            self._take_over(requests, waiting)
        self._retry(requests)
        return opened

    def _take_over(self, requests: Requests, waiting: Waiting) -> None:
        """Have Scrapy know of a queue: its newest request is scheduled anew, which opens the queue
        that it goes to. Where that is another one, all of them go there."""
        assert self.crawler is not None
        count = len(waiting)
        popped = requests.pop(waiting, newest=True)
        for _ in range(count):
            if popped is None:
                break
            request = _revived(self.crawler, requests, popped, self._loads)
            if request is not None:
                self._schedule(requests, request, popped)
            if waiting.users:
                break
            popped = requests.pop(waiting, newest=request is None)
        requests.retire(waiting)
        _log.info("resuming: %d requests of %r", count, waiting.name)

    @property
    def _loads(self) -> _Loads:
        """Reads the requests of the class that the settings name."""
        loads: _Loads = getattr(self.dqclass, "loads", _marshalled)
        return loads

    def _schedule(self, requests: Requests, request: Request, popped: Popped) -> None:
        """Put a request into the queue that it belongs to; it is there twice for a moment, never
        not. Where it can't be serialized any more it is kept in memory, and stays where it is on
        disk until it is done with."""
        assert self.crawler is not None
        if self._dqpush(request):
            requests.done(popped)
        else:
            self._mqpush(request)
            assert self._use is not None
            assert self._use.ledger is not None
            self._use.ledger.follow(request, popped)

    def _retry(self, requests: Requests) -> None:
        """Schedule the requests that were set aside and can be revived now."""
        engine = requests.engine
        assert engine is not None
        assert self.crawler is not None
        if UNREADABLE not in engine.queue_names():
            return
        queue = engine.queue(UNREADABLE)

        def put(delivery: Delivery) -> bool:
            try:
                return self._dqpush(_revive(delivery.body, self.spider, self._loads))
            except Exception as error:
                _log.debug("%r still can't be revived: %s", delivery, error)
                return False

        done = bring_back(queue, put)
        if done:
            _log.info("%d unreadable requests are scheduled again", done)
        if len(queue):
            _log.warning(
                "%s: %d requests can't be revived: they are in the queue %r, and are tried again "
                "at the next start",
                engine.directory,
                len(queue),
                UNREADABLE,
            )

    def close(self, reason: str) -> Any:
        """Close the queues, and acknowledge the requests that are done.

        Args:
            reason: Why the crawl ends.

        Returns:
            What Scrapy's scheduler returns.
        """
        assert self.crawler is not None
        if self._use is not None and self._use.ledger is not None:
            self._use.ledger.settle()
        try:
            return super().close(reason)
        finally:
            if self._use is not None:
                self._use.release(self.crawler)
                self._use = None


class DupeFilter(RFPDupeFilter):
    """Scrapy's filter of requests by their fingerprints, which are kept in the store.

    A fingerprint is written when Scrapy checks the next one: by then its request is scheduled.
    Without a JOBDIR it filters in memory, and it logs what Scrapy's own logs.
    """

    def __init__(self, crawler: Crawler) -> None:
        debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        super().__init__(None, debug, fingerprinter=_late(crawler, "request_fingerprinter"))
        self._crawler = crawler
        self._unwritten: list[bytes] = []
        self._engine: Engine | None = None
        self._queue: Queue | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        """Make the filter of a crawl.

        Args:
            crawler: The crawler.

        Returns:
            The filter.
        """
        return cls(crawler)

    def open(self) -> None:
        """Read the fingerprints. O(their number)."""
        if job_dir(self._crawler.settings) is None:
            return
        self._engine = shared.acquire(_store_of(self._crawler.settings))
        self._queue = self._engine.queue(SEEN)
        # Taken and never acknowledged: they are all there again at the next open.
        while batch := self._queue.get_many(_BATCH):
            self._fingerprints.update(batch.bodies)

    def request_seen(self, request: Request) -> bool:
        """Return whether a request like this was seen before, and note it.

        Args:
            request: The request.
        """
        self._write()
        fingerprint: bytes = self.fingerprinter.fingerprint(request)
        if fingerprint in self._fingerprints:
            return True
        self._fingerprints.add(fingerprint)
        self._unwritten.append(fingerprint)
        return False

    def _write(self) -> None:
        if self._unwritten and self._queue is not None:
            self._queue.publish_many(self._unwritten)
        self._unwritten.clear()

    def close(self, reason: str) -> None:
        """Write the remaining fingerprints.

        Args:
            reason: Why the crawl ends; ignored.
        """
        self._write()
        if self._engine is not None:
            shared.release(self._engine)
            self._engine = None


class Addon:
    """Scrapy's way to several settings with one: ``ADDONS = {"qindex.compat.scrapy.Addon": 0}``."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Set the scheduler, the disk queues and the duplicates filter.

        Args:
            settings: The settings of the crawl.
        """
        here = "qindex.compat.scrapy."
        for name, value in (
            ("SCHEDULER", "Scheduler"),
            ("SCHEDULER_DISK_QUEUE", "PickleLifoDiskQueue"),
            ("SCHEDULER_START_DISK_QUEUE", "PickleFifoDiskQueue"),
            ("DUPEFILTER_CLASS", "DupeFilter"),
        ):
            settings.set(name, here + value, priority="addon")
