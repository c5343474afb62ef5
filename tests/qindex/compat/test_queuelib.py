"""queuelib's face: its own tests, and what they can't ask of a queue that is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import qindex
from qindex.compat.queuelib import FifoDiskQueue, LifoDiskQueue
from tests.effort import not_quick

ROOT = Path(__file__).parents[3]


@not_quick("a source distribution that is downloaded")
def test_the_tests_of_queuelib_pass(tmp_path: Path) -> None:
    """From its source distribution, downloaded now: none of its text is kept here."""
    pytest.importorskip("queuelib")
    download = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
        + ["--disable-pip-version-check", "--timeout", "20"]
        + ["--retries", "0", "--dest", str(tmp_path), "queuelib"],
        capture_output=True,
        text=True,
        check=False,
    )
    archives = list(tmp_path.glob("queuelib-*.tar.gz"))
    if not archives:
        pytest.skip(f"no sdist of queuelib: {download.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(archives[0]) as archive:
        # Python before 3.11.4 has no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    # They open and close hundreds of stores, and ask nothing of the disk.
    memory = {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
        + ["-p", "tests.qindex.compat.queuelib_on_qindex", "--rootdir", str(source)]
        + ["queuelib/tests/test_queue.py", "queuelib/tests/test_pqueue.py"]
        + ["queuelib/tests/test_rrqueue.py"],
        cwd=source,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(ROOT))), **memory},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 150
    assert "failed" not in done.stdout


@pytest.mark.parametrize("kind", [FifoDiskQueue, LifoDiskQueue])
def test_what_was_pushed_and_popped_survives_a_kill(
    tmp_path: Path, kind: type[FifoDiskQueue]
) -> None:
    program = (
        "import sys\n"
        f"from qindex.compat.queuelib import {kind.__name__} as Q\n"
        "q = Q(sys.argv[1])\n"
        "n = 0\n"
        "while True:\n"
        "    q.push(b'%d' % n); print('+', n, flush=True); n += 1\n"
        "    if n % 3 == 0:\n"
        "        print('-', int(q.pop()), flush=True)\n"
    )
    path = tmp_path / "deep" / "queue"
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(1500)]
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().splitlines(keepends=True)
    child.wait()
    child.stdout.close()
    told = [line.split() for line in lines if line.endswith("\n")]
    pushed = {int(n) for sign, n in told if sign == "+"}
    popped = {int(n) for sign, n in told if sign == "-"}
    queue = kind(path)
    left = []
    while (body := queue.pop()) is not None:
        left.append(int(body))
    queue.close()
    assert left == sorted(left, reverse=kind is LifoDiskQueue)
    assert not path.exists()
    # One push, or one pop, may have been made whose line was not written.
    assert pushed - popped <= {*left} | {min(left, default=0) - 1} | {max(left, default=0) + 1}
    assert len((pushed - popped) - set(left)) <= 1
    assert len(set(left) - (pushed - popped)) <= 1
    assert len(pushed) >= 1000


def test_a_stack_over_many_segments_and_flushes(tmp_path: Path) -> None:
    from qindex.queue.plain_queue import peek_last, take_last

    with qindex.open(tmp_path, segment_entry_count=16, max_journal_entries=40) as engine:
        queue = engine.queue("stack")
        model: list[bytes] = []
        for n in range(3000):
            body = b"%d" % n + b"." * (20_000 if n % 50 == 0 else 0)
            queue.publish(body, key="k" if n % 7 == 0 else None)
            model.append(body)
            for _ in range(0 if n % 5 else 4):
                assert peek_last(queue) == model[-1]
                delivery = take_last(queue)
                assert delivery is not None
                assert delivery.body == model.pop()
                if n % 11 == 0:
                    delivery.nack()
                    model.append(delivery.body)
                else:
                    delivery.ack()
            assert len(queue) == len(model)
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("stack")
        while (delivery := take_last(queue)) is not None:
            assert delivery.body == model.pop()
            delivery.ack()
        assert not model
        assert peek_last(queue) is None


def test_a_stack_passes_over_what_has_expired(tmp_path: Path) -> None:
    from qindex.queue.plain_queue import peek_last, take_last

    with qindex.open(tmp_path) as engine:
        queue = engine.queue("stack")
        queue.publish_many([b"a", b"b"])
        assert queue.get_many(1).bodies == [b"a"]  # reads ahead
        queue.publish(b"gone", ttl=0)
        assert peek_last(queue) == b"b"
        delivery = take_last(queue)
        assert delivery is not None
        assert delivery.body == b"b"
        assert queue.get(0) is None
        assert len(queue) == 0
        delivery.nack()
        again = queue.get(0)
        assert again is not None
        assert again.redelivered


def test_queues_side_by_side_share_an_engine(tmp_path: Path) -> None:
    queues = [FifoDiskQueue(tmp_path / f"q{n}") for n in range(30)]
    assert len({id(queue._engine) for queue in queues}) == 1
    for n, queue in enumerate(queues):
        queue.push(b"%d" % n)
    for queue in queues:
        queue.close()
        queue.close()
    with qindex.open(tmp_path / ".qindex") as engine:
        assert len(engine.queue_names()) == 30


def test_a_path_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "info.json").write_text("{}")
    for name in ("file", "full"):
        with pytest.raises(qindex.UsageError, match=name):
            FifoDiskQueue(tmp_path / name)
    queue, text = FifoDiskQueue(tmp_path / "q"), "text"
    with pytest.raises(TypeError):
        queue.push(text)  # type: ignore[arg-type]
    queue.close()


def test_the_order_of_a_path_stays(tmp_path: Path) -> None:
    path = tmp_path / "q"
    queue = FifoDiskQueue(path)
    with pytest.raises(qindex.UsageError, match="open in this process as fifo; it can't be lifo"):
        LifoDiskQueue(path)
    queue.push(b"a")
    queue.close()
    for _ in range(2):
        with pytest.raises(qindex.UsageError, match=r"was filled as qindex\.fifo"):
            LifoDiskQueue(path)
    queue = FifoDiskQueue(path)
    assert queue.pop() == b"a"
    queue.close()
    stack = LifoDiskQueue(path)
    stack.push(b"b")
    stack.close()
    (path / "qindex.lifo").unlink()  # a queue from before there were marks
    queue = FifoDiskQueue(path)
    assert queue.pop() == b"b"
    queue.push(b"c")
    queue.close()
    assert (path / "qindex.fifo").exists()


def test_use_after_close_is_refused(tmp_path: Path) -> None:
    queue, sibling = FifoDiskQueue(tmp_path / "q"), FifoDiskQueue(tmp_path / "sibling")
    queue.push(b"a")
    queue.close()
    for call in (lambda: queue.push(b"b"), queue.pop, queue.peek, queue.clear):
        with pytest.raises(qindex.ClosedError, match="q: the queue is closed"):
            call()
    again = FifoDiskQueue(tmp_path / "q")
    assert again.pop() == b"a"
    again.close()
    sibling.close()


def test_objects_of_one_path_are_one_queue(tmp_path: Path) -> None:
    one, other = FifoDiskQueue(tmp_path / "q"), FifoDiskQueue(tmp_path / "q")
    one.push(b"a")
    assert other.pop() == b"a"
    one.close()  # empty, and not removed: the other one uses it
    other.push(b"b")
    assert other.pop() == b"b"
    other.close()
    assert not (tmp_path / "q").exists()


def test_an_empty_queue_with_delayed_messages_is_not_removed(tmp_path: Path) -> None:
    queue = FifoDiskQueue(tmp_path / "q")
    queue.push(b"1")
    store = queue._engine.directory
    queue.close()
    with qindex.open(store) as engine:
        assert engine.queue("q").publish(b"2", delay=1000) == 1
    queue = FifoDiskQueue(tmp_path / "q")
    assert (queue.pop(), len(queue)) == (b"1", 0)
    queue.close()
    with qindex.open(store) as engine:
        assert engine.queue("q").stats().delayed == 1
        assert engine.queue("q").cancel(1)
    FifoDiskQueue(tmp_path / "q").close()
    with qindex.open(store) as engine:
        assert "q" not in engine.queue_names()
