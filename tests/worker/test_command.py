"""``qindex worker``, its signals and its exit codes; and kill -9 of workers again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import qindex
from tests.effort import by_tier, chance
from tests.server.support import end_store, server_pid
from tests.waiting import WAIT, wait_until
from tests.worker.support import letters, lines

ROOT = Path(__file__).parents[2]
KILLS = by_tier(quick=3, all=6, nightly=300)


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "qindex.cli", "worker", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, **options
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    errors = process.communicate(timeout=WAIT)[1]
    return process.returncode, errors


HANDLE = "tests.worker.handlers:handle"


def test_until_empty_with_a_module_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("def handle(one):\n    open('done', 'ab').write(one.body)\n")
    (tmp_path / "json.py").write_text("open('stolen', 'w')\n")
    with qindex.open(tmp_path / "data") as engine:
        engine.queue("q").publish_many([b"a", b"b"])
    process = start("shop:handle", "data", "q", "--until-empty", cwd=tmp_path)
    assert ended(process) == (0, "")
    assert (tmp_path / "done").read_bytes() == b"ab"
    assert not (tmp_path / "stolen").exists()
    end_store(tmp_path / "data")


@pytest.mark.parametrize("kind", [[], ["--processes", 2]])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_for_the_handler_and_a_second_one_does_not(
    tmp_path: Path, kind: list[object], number: int
) -> None:
    out, data = tmp_path / "out", tmp_path / "data"
    with qindex.open(data, shared=True) as engine:
        queue = engine.queue("q")
        queue.publish(f"write {out} slowly".encode())
        process = start(HANDLE, data, "q", *kind, "--grace", 600)
        wait_until(lambda: lines(out))
        process.send_signal(number)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(number)
        code, errors = ended(process)
        assert code == 1
        assert "given back" in errors
        again = queue.get(timeout=WAIT)
        assert again is not None
        assert again.delivery_count == 1
        again.ack()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["tests.worker.handlers:nothing"], "has no 'nothing'"),
        ([HANDLE, "--timeout", 3], "a thread can't be ended"),
    ],
)
def test_wrong_use(tmp_path: Path, arguments: list[object], text: str) -> None:
    with qindex.open(tmp_path / "data") as engine:
        engine.queue("q")
    code, errors = ended(start(*arguments, tmp_path / "data", "q"))
    assert code == 2
    assert text in errors
    assert errors.count("\n") == 1
    if "--timeout" in arguments:
        end_store(tmp_path / "data")


def is_empty(queue: qindex.AnyQueue) -> bool:
    try:
        return not queue.stats().messages
    except qindex.DisconnectedError:
        return False


def children_of(pid: int) -> list[int]:
    """Return the processes that run a worker's handlers. Each is its slot's thread's."""
    found = []
    for one in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += [int(child) for child in one.read_text().split()]
    return [one for one in found if is_handlers(one)]


def is_handlers(pid: int) -> bool:
    """Tell whether a process runs handlers, and is not, for example, multiprocessing's tracker."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("kind", [["--concurrency", 2], ["--processes", 2]])
def test_killed_again_and_again(tmp_path: Path, kind: list[object]) -> None:
    """No message is lost, and what was acknowledged does not run again. The worker, one of its
    processes, or the server is killed."""
    data, out = tmp_path / "data", tmp_path / "out"
    rng = chance("workers", *kind)
    count = 100 * KILLS
    with qindex.open(data, shared=True) as engine:
        queue = engine.queue("q", delivery_limit=1000, backoff="exponential:0.01:0.1")
        queue.publish_many([f"write {out} {at}".encode() for at in range(count)])
        workers = [start(HANDLE, data, "q", *kind) for _ in range(2)]
        try:
            for turn in range(KILLS):
                before = len(lines(out))
                at = rng.randrange(2)
                wait_until(lambda: len(lines(out)) > before or len(lines(out)) >= count)  # noqa: B023
                pids = children_of(workers[at].pid)
                if turn % 3 == 2:
                    os.kill(server_pid(data), signal.SIGKILL)
                elif turn % 3 and pids:
                    os.kill(rng.choice(pids), signal.SIGKILL)
                else:
                    workers[at].kill()
                    workers[at].communicate()
                    workers[at] = start(HANDLE, data, "q", *kind)
            wait_until(lambda: len({one[0] for one in lines(out)}) == count)
            wait_until(lambda: is_empty(queue))
        finally:
            for worker in workers:
                worker.terminate()
                ended(worker)
        runs = Counter(one[0] for one in lines(out))
        # A kill cuts short the handlers that run, of both workers at most, behind their lines.
        assert sum(runs.values()) - count <= 4 * KILLS
        assert not letters(engine)
    end_store(data)
