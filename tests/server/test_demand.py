"""What users of other queues were bitten by, between processes: each row of the list of demands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import qindex
from qindex.server import spawn
from tests.effort import by_tier
from tests.server.support import WAIT, end_in_order, end_server, log_of, server_pid

COUNT = by_tier(quick=60, all=500, nightly=20_000)
PROCESSES = by_tier(quick=4, all=16, nightly=16)
DEATHS = by_tier(quick=1, all=4, nightly=20)
WORK = """
import signal, sys, qindex
directory, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
engine = qindex.open(directory, shared=True, linger=0)
queue, done = engine.queue("work"), engine.queue("done")
print("ready", flush=True)
sent = [f"{name}-{at}" for at in range(count)]
for at, what in enumerate(sent):
    if at % 3:
        queue.publish(what.encode(), key=what if at % 3 == 1 else None)
    else:
        queue.publish_many([what.encode()])
    delivery = queue.get()
    done.publish(delivery.body)
    if at % 7 == 0:
        queue.stats(), queue.peek(2), engine.queue("other", max_length=10)
    delivery.ack()
print("done", flush=True)
signal.pause()
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_no_error_of_a_lock_reaches_a_user_and_each_message_is_taken_once(tmp_path: Path) -> None:
    """Processes with mixed traffic, one of them stopped in the middle: the set received is the set
    sent."""
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        done = engine.queue("done")
        running = [start(WORK, tmp_path, name, COUNT) for name in range(PROCESSES)]
        stopped = running[0]
        try:
            assert line_of(stopped) == "ready"
            time.sleep(0.02)
            stopped.send_signal(signal.SIGSTOP)
            for one in running[1:]:
                assert [line_of(one), line_of(one)] == ["ready", "done"]
            stopped.send_signal(signal.SIGCONT)
            assert line_of(stopped) == "done"
            for one in running:
                end_in_order(one)
        finally:
            for one in running:
                one.kill()
                one.communicate()
        got = Counter(one.decode() for one in done.get_many(PROCESSES * COUNT + 1).bodies)
        assert got == Counter(f"{name}-{at}" for name in range(PROCESSES) for at in range(COUNT))
        assert len(engine.queue("work")) == 0
    end_server(tmp_path)
    assert "Traceback" not in log_of(tmp_path)


def test_the_server_does_not_outlive_everybody_and_what_was_sent_survives_it(
    tmp_path: Path,
) -> None:
    engine = qindex.open(tmp_path, shared=True, linger=0.2)
    sent = [engine.queue("q").publish(b"%d" % at) for at in range(5)]
    pid = server_pid(tmp_path)
    os.kill(pid, signal.SIGKILL)
    with suppress(qindex.DisconnectedError):
        engine.queue("q")  # it may be under way as the server dies
    assert [one.seq_id for one in engine.queue("q").peek(9)] == sent
    assert server_pid(tmp_path) != pid
    began = time.monotonic()
    engine.close()
    assert spawn.wait_until_gone(str(tmp_path), WAIT)
    assert time.monotonic() - began >= 0.2


def test_a_directory_of_300_bytes_works(tmp_path: Path) -> None:
    directory = tmp_path
    while len(str(directory)) < 300:
        directory /= "d" * min(300 - len(str(directory)), 100)
    with qindex.open(directory, shared=True, linger=0) as engine:
        engine.queue("q").publish(b"far away")
        assert engine.queue("q").get().body == b"far away"
    end_server(directory)


def test_workers_consume_again_after_each_death_of_the_server(tmp_path: Path) -> None:
    worker = (
        "import sys, qindex\n"
        "engine = qindex.open(sys.argv[1], shared=True, linger=1)\n"
        "messages = engine.queue('q').consume()\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    try:\n"
        "        delivery = next(messages)\n"
        "        print(delivery.body.decode(), flush=True)\n"
        "        delivery.ack()\n"
        "    except (qindex.DisconnectedError, qindex.LeaseExpiredError):\n"
        "        pass\n"
    )
    with qindex.open(tmp_path, shared=True, linger=1) as engine:
        queue = engine.queue("q")
        process = start(worker, tmp_path)
        try:
            assert line_of(process) == "ready"
            for number in range(DEATHS):
                os.kill(server_pid(tmp_path), signal.SIGKILL)
                while True:
                    try:
                        queue.publish(b"%d" % number)
                    except qindex.DisconnectedError:
                        continue
                    break
                while line_of(process) != str(number):
                    assert process.poll() is None
        finally:
            process.kill()
            process.communicate()
    end_server(tmp_path)


def test_a_process_is_known_by_a_random_identity(tmp_path: Path) -> None:
    """Not by its number or its host, which forks and containers repeat."""
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        engine.queue("q").publish_many([b"of the parent", b"of the child"])
        delivery = engine.queue("q").get()
        ours = engine._home._id
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                mine = engine.queue("q").get()
                same = engine._home._id == ours
                os.write(write, mine.body + (b"same" if same else b""))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 99) == b"of the child"
        delivery.ack()
        with engine.queue("q").get(WAIT) as again:  # type: ignore[union-attr]
            assert (again.body, again.redelivered) == (b"of the child", True)
        assert len({qindex.open(tmp_path, shared=True)._home._id for _ in range(20)}) == 20
        os.close(read)
        os.close(write)
    end_server(tmp_path)
