"""Scrapy's scheduler on qindex without a crawl: before there is an engine, with many domains, and
with requests that can't be revived."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scrapy")

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.utils.test import get_crawler

import qindex
from qindex.compat.scrapy import DupeFilter, PickleLifoDiskQueue, Scheduler
from tests.qindex.support import copy_live


class Site(Spider):
    name = "site"

    def parse_more(self, response: Any) -> None:
        """Nothing."""


class Downloader:
    """As much of Scrapy's as its priority queue asks for."""

    slots: dict[str, Any] = {}  # noqa: RUF012

    @staticmethod
    def get_slot_key(request: Request) -> str:
        return request.url.split("/")[2]


class Engine:
    downloader = Downloader()


def made(job: Path, *, engine: bool, **settings: Any) -> tuple[Crawler, Scheduler]:
    crawler = get_crawler(
        Site, {"ADDONS": {"qindex.compat.scrapy.Addon": 0}, "JOBDIR": str(job), **settings}
    )
    crawler.spider = Site.from_crawler(crawler)
    if engine:
        fake: Any = Engine()
        crawler.engine = fake
    scheduler = Scheduler.from_crawler(crawler)
    scheduler.open(crawler.spider)
    return crawler, scheduler


def urls(scheduler: Scheduler) -> list[str]:
    found = []
    while (request := scheduler.next_request()) is not None:
        found.append(request.url)
    return found


PLAIN = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}


def test_before_there_is_an_engine(tmp_path: Path) -> None:
    """It raised RuntimeError, which Scrapy's own does not."""
    _, scheduler = made(tmp_path, engine=False, **PLAIN)
    for n in range(3):
        assert scheduler.enqueue_request(Request(f"http://a.example/{n}"))
    assert not scheduler.enqueue_request(Request("http://a.example/0"))
    request = scheduler.next_request()
    assert request is not None
    assert request.url == "http://a.example/2"
    del request
    scheduler.close("finished")
    _, scheduler = made(tmp_path, engine=False, **PLAIN)
    assert urls(scheduler) == ["http://a.example/1", "http://a.example/0"]
    scheduler.close("finished")


@pytest.mark.parametrize("debug", [False, True])
def test_the_filter_logs_as_scrapys_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, debug: bool
) -> None:
    crawler, scheduler = made(tmp_path, engine=True, DUPEFILTER_DEBUG=debug)
    with caplog.at_level(logging.DEBUG):
        for _ in range(100):
            scheduler.enqueue_request(Request("http://a.example/"))
    logged = [one for one in caplog.records if "duplicate request" in one.getMessage()]
    assert len(logged) == (99 if debug else 1)
    assert crawler.stats is not None
    assert crawler.stats.get_value("dupefilter/filtered") == 99
    scheduler.close("finished")


def test_the_filter_needs_no_crawl(tmp_path: Path) -> None:
    crawler = get_crawler(Site)
    one = DupeFilter.from_crawler(crawler)
    one.open()
    assert not one.request_seen(Request("http://a.example/"))
    assert one.request_seen(Request("http://a.example/"))
    one.close("finished")


def test_many_domains_have_few_files(tmp_path: Path) -> None:
    _, scheduler = made(tmp_path, engine=True)
    for turn in range(2):
        for n in range(300):
            scheduler.enqueue_request(Request(f"http://{turn}-{n}.example/"))
        store = tmp_path / "requests.qindex"
        assert sum(path.is_file() for path in store.rglob("*")) < 20
        assert len(scheduler) == 300
        if not turn:
            assert len(urls(scheduler)) == 300
    killed = copy_live(tmp_path, tmp_path / "killed")
    scheduler.close("finished")
    for job in (tmp_path, killed):
        _, scheduler = made(job, engine=True)
        assert len(scheduler) == 300
        assert set(urls(scheduler)) == {f"http://1-{n}.example/" for n in range(300)}
        scheduler.close("finished")


def test_a_job_of_a_version_with_a_queue_for_each_domain(tmp_path: Path) -> None:
    """Its queues are taken over, and the empty ones go."""
    crawler, scheduler = made(tmp_path / "new", engine=True)
    bodies = {
        name: [
            PickleLifoDiskQueue.dumps(Request(f"http://{name}.example/{n}").to_dict())
            for n in range(5)
        ]
        for name in ("a", "b")
    }
    scheduler.close("finished")
    with qindex.open(tmp_path / "old" / "requests.qindex") as engine:
        for name, of_one in bodies.items():
            engine.queue(f"{name}.example-0123/0").publish_many(of_one)
        engine.queue("c.example-0123/0")
    del crawler
    _, scheduler = made(tmp_path / "old", engine=True)
    assert len(scheduler) == 10
    assert len(urls(scheduler)) == 10
    scheduler.close("finished")
    with qindex.open(tmp_path / "old" / "requests.qindex") as engine:
        assert set(engine.queue_names()) <= {"requests.seen", "requests.waiting"}


def test_what_can_not_be_revived_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawler, scheduler = made(tmp_path, engine=True)
    spider = crawler.spider
    assert isinstance(spider, Site)
    for n in range(4):
        callback = spider.parse_more if n % 2 else None
        scheduler.enqueue_request(Request(f"http://a.example/{n}", callback=callback))
    scheduler.close("finished")
    with monkeypatch.context() as patch:
        patch.delattr(Site, "parse_more")
        crawler, scheduler = made(tmp_path, engine=True)
        assert urls(scheduler) == ["http://a.example/2", "http://a.example/0"]
        assert crawler.stats is not None
        assert crawler.stats.get_value("qindex/unreadable") == 2
        assert len(scheduler) == 0
        scheduler.close("finished")
        _, scheduler = made(tmp_path, engine=True)
        assert urls(scheduler) == []
        scheduler.close("finished")
        assert "2 requests can't be revived" in caplog.text
    crawler, scheduler = made(tmp_path, engine=True)
    assert sorted(urls(scheduler)) == ["http://a.example/1", "http://a.example/3"]
    scheduler.close("finished")
    crawler, scheduler = made(tmp_path, engine=True)
    assert urls(scheduler) == []
    scheduler.close("finished")


def test_use_after_close_is_refused(tmp_path: Path) -> None:
    crawler, scheduler = made(tmp_path, engine=True)
    queue = PickleLifoDiskQueue.from_crawler(crawler, str(tmp_path / "requests.queue" / "x" / "0"))
    queue.close()
    queue.close()
    for call in (lambda: queue.push(Request("http://a.example/")), queue.pop, queue.peek):
        with pytest.raises(qindex.ClosedError):
            call()
    scheduler.close("finished")


def test_a_crawl_with_marshalled_requests_unpickles_nothing(tmp_path: Path) -> None:
    """A pickle in its store is set aside; a crawl that asks for pickle takes both."""
    marshalled = {"SCHEDULER_DISK_QUEUE": "qindex.compat.scrapy.MarshalLifoDiskQueue"}
    crawler, scheduler = made(tmp_path / "job", engine=True, **marshalled)
    scheduler.enqueue_request(Request("http://a/plain"))
    scheduler.close("finished")
    mark = tmp_path / "ran"
    code = b"\x80\x04c__builtin__\nexec\n(X" + _counted(f"open({str(mark)!r}, 'w')") + b"tR."
    with qindex.open(tmp_path / "job" / "requests.qindex") as engine:
        (waiting,) = engine.queue("requests.waiting").peek()
        engine.queue("requests.waiting").publish(code, key=waiting.key)
    crawler, scheduler = made(tmp_path / "job", engine=True, **marshalled)
    assert urls(scheduler) == ["http://a/plain"]
    assert crawler.stats is not None
    assert crawler.stats.get_value("qindex/unreadable") == 1
    assert not mark.exists()
    scheduler.close("finished")


def _counted(text: str) -> bytes:
    return len(text.encode()).to_bytes(4, "little") + text.encode()
