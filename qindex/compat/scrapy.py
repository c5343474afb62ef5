"""Crawls that survive ``kill -9``: Scrapy's scheduler, disk queues and duplicates filter on qindex.

One setting, beside the ``JOBDIR`` that any crawl needs that is to be resumed::

    ADDONS = {"qindex.compat.scrapy.Addon": 0}

It sets ``SCHEDULER``, ``SCHEDULER_DISK_QUEUE``, ``SCHEDULER_START_DISK_QUEUE`` and
``DUPEFILTER_CLASS`` to the classes here. What a crawl needs to go on is then in the store
``JOBDIR/requests.qindex``:

* a request that waits, in a queue for each slot and priority, as Scrapy has them;
* a request that is being worked on: it is acknowledged after its callback has ended and what that
  yielded was scheduled. Killed before, it comes again;
* the fingerprint of a request, written after the request is in its queue. Killed in between, the
  request is scheduled twice, never not at all.

So each request is handled at least once; those that were being worked on at the kill, twice.
Requests that can't be serialized are kept in memory only, as Scrapy does it.

Requests are pickled, or marshalled by the ``Marshal...`` classes. Don't resume from a JOBDIR that
comes from somebody you don't trust: unpickling runs code.
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
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.job import job_dir
from scrapy.utils.request import request_from_dict

from journal.errors import DamageError, UsageError
from qindex.compat import shared
from qindex.queue.delivery import Delivery
from qindex.queue.lifo import peek_last, take_last

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from qindex.engine.engine import Engine
    from qindex.queue.queue import Queue

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
_SEEN = "requests.seen"
_LONGEST_NAME = 200
_BATCH = 10_000
_PICKLED = b"\x80"
"""How a pickle starts, and no marshalled dictionary does."""


class _Ledger:
    """The requests of one crawl that are being worked on, with their deliveries.

    The engine of Scrapy keeps a set of them, from download to the end of the callback's output.
    What is not in it any more is done with. Where a version of Scrapy should not have that set, it
    is done with when nothing refers to it, which the garbage collector may notice late: that is
    only noted then, in the middle of whatever call, and acknowledged with the next one.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = weakref.ref(crawler)
        self._working: dict[int, tuple[weakref.ref[Request], Delivery]] = {}
        self._count = itertools.count()
        self._gone: deque[int] = deque()

    def follow(self, request: Request, delivery: Delivery) -> None:
        """Have the delivery acknowledged when the request is done with."""
        key, gone = next(self._count), self._gone
        self._working[key] = weakref.ref(request, lambda _: gone.append(key)), delivery

    def settle(self) -> None:
        """Acknowledge what is done with. O(requests being worked on)."""
        done = []
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
                known[1].ack()

    def _in_progress(self) -> set[Request] | None:
        crawler = self._crawler()
        slot = getattr(crawler and crawler.engine, "_slot", None)
        working = getattr(slot, "inprogress", None)
        return working if isinstance(working, set) else None


_ledgers: weakref.WeakKeyDictionary[Crawler, _Ledger] = weakref.WeakKeyDictionary()


def _store_of(settings: BaseSettings) -> str:
    directory = job_dir(settings)
    if directory is None:
        raise UsageError("a crawl that is to be resumed needs the setting JOBDIR")
    return os.path.join(directory, _STORE)


class _RequestQueue:
    """One queue of requests, of one slot and priority; made by Scrapy's priority queues."""

    loads: Callable[[bytes], Any]
    dumps: Callable[[Any], bytes]
    _lifo = False

    def __init__(self, crawler: Crawler, key: str) -> None:
        self._crawler = crawler
        self._ledger = _ledgers.get(crawler)
        store = _store_of(crawler.settings)
        self._name = _queue_name(os.path.dirname(store), key)
        self._engine = shared.acquire(store)
        self._queue = self._engine.queue(self._name)
        self._closed = False

    @classmethod
    def from_crawler(cls, crawler: Crawler, key: str, *_args: Any, **_options: Any) -> Any:
        """Make the queue for ``key``, a path below the JOBDIR."""
        return cls(crawler, key)

    def push(self, request: Request) -> None:
        """Schedule. Raises :class:`ValueError` for a request that can't be serialized."""
        self._queue.publish(type(self).dumps(request.to_dict(spider=self._crawler.spider)))
        self._settle()

    def pop(self) -> Request | None:
        """Take the next request; it is done with when its callback is, or, without our scheduler,
        now."""
        self._settle()
        delivery = take_last(self._queue) if self._lifo else self._queue.get(0)
        if delivery is None:
            return None
        request = self._request(delivery.body)
        if self._ledger is None:
            delivery.ack()
        else:
            self._ledger.follow(request, delivery)
        return request

    def peek(self) -> Request | None:
        """Give what :meth:`pop` would give, and leave it."""
        if self._lifo:
            body = peek_last(self._queue)
        else:
            seen = self._queue.peek(1)
            body = seen[0].body if seen else None
        return None if body is None else self._request(body)

    def _request(self, body: bytes) -> Request:
        return request_from_dict(type(self).loads(body), spider=self._crawler.spider)

    def _settle(self) -> None:
        if self._ledger is not None:
            self._ledger.settle()

    def close(self) -> None:
        """Close. The queue stays in the store: it may have requests that are worked on."""
        if not self._closed:
            self._closed = True
            shared.release(self._engine)

    def __len__(self) -> int:
        return len(self._queue)


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

    loads = staticmethod(pickle.loads)
    dumps = staticmethod(_pickled)


class PickleLifoDiskQueue(PickleFifoDiskQueue):
    """Depth first, Scrapy's default order."""

    _lifo = True


class MarshalFifoDiskQueue(_RequestQueue):
    """Breadth first; requests of plain values, quicker."""

    loads = staticmethod(marshal.loads)
    dumps = staticmethod(marshal.dumps)


class MarshalLifoDiskQueue(MarshalFifoDiskQueue):
    """Depth first, of plain values."""

    _lifo = True


class Scheduler(plain.Scheduler):
    """Scrapy's scheduler, that finds what a killed crawl has left.

    Scrapy notes which queues there are (``active.json``) when a crawl is closed in order. Here
    those that it did not note are found in the store, and their requests are scheduled anew.
    """

    _engine: Engine | None = None

    def open(self, spider: Spider) -> Any:
        """Open the queues, as Scrapy does, and take over what no list knows of."""
        assert self.crawler is not None
        if self.dqdir is None:
            return super().open(spider)
        self._engine = shared.acquire(_store_of(self.crawler.settings))
        _ledgers[self.crawler] = _Ledger(self.crawler)
        before = set(self._engine.queue_names())
        opened = super().open(spider)
        known = {queue.name for queue in _open_queues(self._engine)}
        for name in sorted(before - known - {_SEEN}):
            self._take_over(self._engine, name)
        return opened

    def _take_over(self, engine: Engine, name: str) -> None:
        """Schedule the requests of a queue anew; each is there twice for a moment, never not."""
        assert self.dqs is not None
        queue = engine.queue(name)
        # Counted first: some go into the same queue again, behind all that it had.
        count = len(queue)
        for _ in range(count):
            try:
                delivery = queue.get(0)
            except DamageError as error:
                _log.error("a request is lost: %s", error)
                continue
            if delivery is None:
                break
            loads = pickle.loads if delivery.body[:1] == _PICKLED else marshal.loads
            self.dqs.push(request_from_dict(loads(delivery.body), spider=self.spider))
            delivery.ack()
        if count:
            _log.info("resuming: %d requests of %r", count, name)

    def close(self, reason: str) -> Any:
        """Close the queues; acknowledge what is done with."""
        assert self.crawler is not None
        ledger = _ledgers.get(self.crawler)
        if ledger is not None:
            ledger.settle()
        try:
            return super().close(reason)
        finally:
            if self._engine is not None:
                shared.release(self._engine)
                self._engine = None


def _open_queues(engine: Engine) -> list[Queue]:
    return engine._awake_queues()


class DupeFilter(BaseDupeFilter):
    """Filters requests by their fingerprints, which are kept in the store.

    A fingerprint is written when the next one is asked for: by then its request is scheduled.
    Without a JOBDIR it filters as Scrapy's own, in memory.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._fingerprints: set[bytes] = set()
        self._unwritten: list[bytes] = []
        self._engine: Engine | None = None
        self._queue: Queue | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> DupeFilter:
        """Make the filter of a crawl."""
        return cls(crawler)

    def open(self) -> None:
        """Read the fingerprints. O(their number)."""
        if job_dir(self._crawler.settings) is None:
            return
        self._engine = shared.acquire(_store_of(self._crawler.settings))
        self._queue = self._engine.queue(_SEEN)
        # Taken and never acknowledged: they are all there again at the next open.
        while batch := self._queue.get_many(_BATCH):
            self._fingerprints.update(batch.bodies)

    def request_seen(self, request: Request) -> bool:
        """Tell whether a request like this was asked about before."""
        self._write()
        assert self._crawler.request_fingerprinter is not None
        fingerprint = self._crawler.request_fingerprinter.fingerprint(request)
        if fingerprint in self._fingerprints:
            return True
        self._fingerprints.add(fingerprint)
        self._unwritten.append(fingerprint)
        return False

    def _write(self) -> None:
        if self._unwritten and self._queue is not None:
            self._queue.publish_many(self._unwritten)
        self._unwritten.clear()

    def log(self, request: Request, spider: Spider) -> None:
        """Note that a request was filtered."""
        _log.debug("filtered duplicate request: %s", request)
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value("dupefilter/filtered")

    def close(self, reason: str) -> None:
        """Write what is left."""
        self._write()
        if self._engine is not None:
            shared.release(self._engine)
            self._engine = None


class Addon:
    """Scrapy's way to several settings with one: ``ADDONS = {"qindex.compat.scrapy.Addon": 0}``."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Set the scheduler, the disk queues and the duplicates filter."""
        here = "qindex.compat.scrapy."
        for name, value in (
            ("SCHEDULER", "Scheduler"),
            ("SCHEDULER_DISK_QUEUE", "PickleLifoDiskQueue"),
            ("SCHEDULER_START_DISK_QUEUE", "PickleFifoDiskQueue"),
            ("DUPEFILTER_CLASS", "DupeFilter"),
        ):
            settings.set(name, here + value, priority="addon")
