"""A real crawl by Scrapy, killed in the middle, resumed: every page is visited."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import qindex
from tests.effort import by_tier, part
from tests.qindex.support import WAIT

pytest.importorskip("scrapy")

ROOT = Path(__file__).parents[3]
PAGES = 120
CONCURRENT = 4
CHOSEN = part(range(3), by_tier(quick=3, all=1, nightly=1), "crawls")


class Site(BaseHTTPRequestHandler):
    """Page n links to 2n+1 and 2n+2, and back to its parent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        number = int(self.path.rpartition("/")[2] or 0)
        time.sleep(0.01)
        children = [n for n in (2 * number + 1, 2 * number + 2, (number - 1) // 2) if n < PAGES]
        page = "".join(f'<a href="/{n}">x</a>' for n in children if n >= 0).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A crawler that is killed leaves its connections: nothing to print."""


def one_of_them(number: int) -> pytest.MarkDecorator:
    """Give the mark of a crawl that the quick tier leaves to other commits."""
    return pytest.mark.skipif(number not in CHOSEN, reason="this crawl is another commit's")


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = Server(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def crawl(site: str, directory: Path, *old: str) -> subprocess.Popen[bytes]:
    with (directory / "scrapy.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.qindex.compat.crawl_child"]
            + [f"{site}/0", str(directory / "job"), str(directory / "visited"), *old],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )


def visited(directory: Path) -> list[int]:
    path = directory / "visited"
    if not path.exists():
        return []
    return [int(line.rpartition("/")[2]) for line in path.read_text().splitlines()]


def left(directory: Path) -> dict[str, int]:
    with qindex.open(directory / "job" / "requests.qindex") as engine:
        return {name: len(engine.queue(name)) for name in engine.queue_names()}


@one_of_them(0)
def test_a_killed_crawl_goes_on_without_loss(site: str, tmp_path: Path) -> None:
    kills = 0
    for enough in (25, 60):
        child = crawl(site, tmp_path)
        deadline = time.monotonic() + WAIT
        while len(visited(tmp_path)) < enough:
            assert child.poll() is None, (tmp_path / "scrapy.log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        child.wait()
        kills += 1
        assert len(set(visited(tmp_path))) < PAGES
    child = crawl(site, tmp_path)
    assert child.wait(WAIT) == 0
    pages = visited(tmp_path)
    assert set(pages) == set(range(PAGES)), (tmp_path / "scrapy.log").read_text()[-3000:]
    again = {page: times for page, times in Counter(pages).items() if times > 1}
    # What was being worked on at a kill, or not yet known as seen; the start comes with each run.
    assert sum(times - 1 for page, times in again.items() if page) <= kills * 2 * CONCURRENT
    waiting = left(tmp_path)
    assert waiting.pop("requests.seen") == PAGES
    # Empty queues of domains are gone.
    assert waiting == {"requests.waiting": 0}


@one_of_them(1)
def test_an_interrupted_crawl_goes_on(site: str, tmp_path: Path) -> None:
    child = crawl(site, tmp_path)
    deadline = time.monotonic() + WAIT
    while len(visited(tmp_path)) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGINT)  # Scrapy finishes what it works on, and closes
    assert child.wait(WAIT) == 0
    before = visited(tmp_path)
    assert len(before) < PAGES
    assert crawl(site, tmp_path).wait(WAIT) == 0
    pages = visited(tmp_path)
    assert set(pages) == set(range(PAGES))
    assert max(Counter(page for page in pages if page).values()) == 1


@one_of_them(2)
@pytest.mark.rotates(2)
def test_requests_whose_callback_is_gone_are_set_aside_and_tried_again(
    site: str, tmp_path: Path
) -> None:
    """They raised out of the scheduler at every start, and the crawl could not go on."""
    child = crawl(site, tmp_path)
    deadline = time.monotonic() + WAIT
    while len(visited(tmp_path)) < 30:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.kill()
    child.wait()
    assert len(set(visited(tmp_path))) < PAGES
    for _ in range(2):
        assert crawl(site, tmp_path, "old").wait(WAIT) == 0
        lost = left(tmp_path).pop("requests.unreadable")
        log = (tmp_path / "scrapy.log").read_text()
        assert lost > 0
        assert log.count("moved to the queue 'requests.unreadable'") == lost
        assert "ValueError: Method 'parse_third' not found" in log
    assert "can't be revived: they are in the queue" in log
    assert crawl(site, tmp_path).wait(WAIT) == 0
    assert "unreadable requests are scheduled again" in (tmp_path / "scrapy.log").read_text()
    assert set(visited(tmp_path)) == set(range(PAGES))
    assert left(tmp_path) == {"requests.seen": PAGES, "requests.unreadable": 0} | {
        "requests.waiting": 0
    }
