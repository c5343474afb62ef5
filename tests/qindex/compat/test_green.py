"""gevent, which exchanges Python's locks and queues: it works, or the open says why it can't."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gevent")

ROOT = Path(__file__).parents[3]
PATCH = "from gevent import monkey; monkey.patch_all()\n"
IMPORT = "import qindex, qindex.compat, rocketstore\n"
WORK = """
import sys
import gevent
directory = sys.argv[1]
jobs = qindex.compat.PersistentQueue(directory, maxsize=2)
worked = []
def work():
    while True:
        worked.append(jobs.get())
        gevent.sleep(0)
        jobs.task_done()
def put(first):
    for number in range(5):
        jobs.put(first + number)
workers = [gevent.spawn(work) for _ in range(3)]
putters = [gevent.spawn(put, 10 * number) for number in range(3)]
gevent.joinall(putters, timeout=20, raise_error=True)
gevent.spawn(jobs.join).get(timeout=20)
assert not [one.exception for one in workers if one.exception]
print(sorted(worked), jobs.unfinished_tasks)
gevent.killall(workers)
jobs.close()
with qindex.open(directory) as engine:
    queue = engine.queue("q")
    taken = gevent.spawn(queue.get, 20)
    gevent.sleep(0)
    queue.publish(b"woken")
    print(taken.get(timeout=20).body)
"""
REFUSED = """
import sys
for open_one in (qindex.open, qindex.compat.PersistentQueue, rocketstore.open):
    try:
        open_one(sys.argv[1])
    except qindex.UsageError as error:
        print(error)
"""


def run(program: str, directory: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_patched_before_the_import(tmp_path: Path) -> None:
    expected = [*range(5), *range(10, 15), *range(20, 25)]
    assert run(PATCH + IMPORT + WORK, tmp_path / "a") == [f"{expected} 0", "b'woken'"]


def test_patched_after_the_import(tmp_path: Path) -> None:
    lines = run(IMPORT + PATCH + REFUSED, tmp_path / "a")
    assert len(lines) == 3
    assert all("patch first" in line for line in lines)
    assert not (tmp_path / "a").exists()
