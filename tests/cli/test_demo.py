"""The demo, and above all that it can't be made to say that all is well when it is not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qindex.cli.demo import child, command
from qindex.cli.demo import run as run_of_demo
from qindex.cli.demo.books import Balance, Books, Drained
from qindex.cli.demo.log import ACKED, ACKING, DELIVERED, PUBLISHED, RECORD, Log, body_of
from qindex.compare.child import ChildError
from tests.cli.support import run
from tests.waiting import WAIT

Entry = tuple[int, int, int, int, int]


def log(*entries: Entry) -> Log:
    return np.array(list(entries), RECORD)


def published(number: int, seq: int, thread: int = 0) -> Entry:
    return (PUBLISHED, thread, 0, number, seq)


def taken(kind: int, number: int, seq: int, consumer: int = 0, again: int = 0) -> Entry:
    return (kind, 0, consumer << 1 | again, number, seq)


def left(number: int, seq: int, again: bool = False, body: bytes | None = None) -> Drained:
    return (0, number, seq, again, body_of(0, number) if body is None else body)


def balance(runs: list[Log], drained: list[Drained]) -> Balance:
    books = Books()
    for one in runs:
        books.add_run(one)
    return books.balance(drained)


THREE = (published(0, 0), published(1, 1), published(2, 2))


def test_books_that_balance() -> None:
    first = log(*THREE, *(taken(kind, 0, 0) for kind in (DELIVERED, ACKING, ACKED)))
    second = log(taken(DELIVERED, 1, 1, again=1), taken(ACKING, 1, 1), published(5, 4))
    found = balance([first, second], [left(2, 2), left(4, 3), left(5, 4)])
    assert found == Balance(
        published=4,
        acknowledged=1,
        drained=3,
        redelivered=1,
        in_doubt=1,
        unnoted=1,
        lost=0,
        back=0,
        disorder=0,
        altered=0,
        repeated=0,
    )
    assert found.holds


def test_an_ack_in_doubt_may_be_lost_or_not() -> None:
    run = log(*THREE, taken(DELIVERED, 0, 0), taken(ACKING, 0, 0))
    assert balance([run], [left(1, 1), left(2, 2)]).holds
    assert balance([run], [left(0, 0, True), left(1, 1), left(2, 2)]).holds


@pytest.mark.parametrize(
    ("runs", "drained", "fault"),
    [
        ([log(*THREE)], [left(0, 0), left(2, 2)], "lost"),
        ([log(*THREE)], [], "lost"),
        (
            [log(*THREE, taken(ACKING, 0, 0), taken(ACKED, 0, 0))],
            [left(n, n) for n in range(3)],
            "back",
        ),
        (
            [
                log(*THREE, taken(ACKING, 0, 0), taken(ACKED, 0, 0)),
                log(taken(DELIVERED, 0, 0, again=1)),
            ],
            [left(1, 1), left(2, 2)],
            "back",
        ),
        ([log(*THREE)], [left(1, 1), left(0, 0), left(2, 2)], "disorder"),
        ([log(*THREE)], [left(0, 0), left(1, 1), left(2, 2), left(2, 2)], "disorder"),
        ([log(published(0, 1), published(1, 0))], [left(1, 0), left(0, 1)], "disorder"),
        (
            [log(*THREE, taken(DELIVERED, 1, 1), taken(DELIVERED, 0, 0))],
            [left(n, n, True) for n in range(3)],
            "disorder",
        ),
        (
            [log(*THREE, taken(DELIVERED, 0, 0), taken(DELIVERED, 0, 0, consumer=1))],
            [left(n, n, True) for n in range(3)],
            "disorder",
        ),
        ([log(*THREE)], [left(0, 0), left(1, 1, body=b"x"), left(2, 2)], "altered"),
        ([log(*THREE), log(published(7, 2))], [left(0, 0), left(1, 1), left(7, 2)], "repeated"),
    ],
)
def test_books_that_do_not(runs: list[Log], drained: list[Drained], fault: str) -> None:
    found = balance(runs, drained)
    assert getattr(found, fault) > 0
    assert not found.holds


def test_two_consumers_may_note_in_any_order() -> None:
    run = log(*THREE, taken(DELIVERED, 1, 1, consumer=1), taken(DELIVERED, 0, 0))
    assert balance([run], [left(n, n, True) for n in range(3)]).holds


def test_the_demo_balances() -> None:
    result = run("demo", "--kills", "3", "--seconds", "0.3", "--json")
    assert result.code == 0, result.err
    (found,) = result.rows
    assert found["holds"] is True
    assert found["kills"] == 3
    assert found["published"] > found["acknowledged"] > 100
    assert found["redelivered"] > 0
    assert found["found_by_key"] is True
    assert found["lost"] == found["back"] == found["disorder"] == found["altered"] == 0
    assert "SIGKILL" in result.err


def test_the_demo_shows_it() -> None:
    result = run("demo", "--kills", "1", "--seconds", "0.2")
    assert result.code == 0
    for word in ("published", "acknowledged", "redelivered", "lost", "order violations", "key"):
        assert word in result.text
    assert "The books balance" in result.text


Tamper = Callable[[Log], Log]


def invent_a_publish(given: Log) -> Log:
    fake = np.array([published(999_999, 1 << 40)], RECORD)
    return np.concatenate((given, fake))


def claim_an_ack(given: Log) -> Log:
    """An ack noted of a message that is still there."""
    done = set(given[given["kind"] == ACKING]["seq"].tolist())
    waiting = [one for one in given if one["kind"] == PUBLISHED and one["seq"] not in done]
    assert waiting
    fake = waiting[-1].copy()
    fake["kind"] = ACKED
    return np.concatenate((given, np.array([fake], RECORD)))


@pytest.mark.parametrize(("tamper", "fault"), [(invent_a_publish, "lost"), (claim_an_ack, "back")])
def test_a_broken_log_is_shown_and_exits_1(
    monkeypatch: pytest.MonkeyPatch, tamper: Tamper, fault: str
) -> None:
    def tampered(
        directory: str, first: int, seconds: float, tell: Callable[[int, int], None]
    ) -> Log:
        return tamper(run_of_demo.run_and_kill(directory, first, seconds, tell))

    monkeypatch.setattr(command, "run_and_kill", tampered)
    result = run("demo", "--kills", "1", "--seconds", "0.2", "--json")
    assert result.code == 1
    assert result.rows[0][fault] == 1
    assert result.rows[0]["holds"] is False
    shown = run("demo", "--kills", "1", "--seconds", "0.2")
    assert shown.code == 1
    assert "The books do not balance" in shown.text


def test_a_child_that_ends_by_itself_is_no_kill(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("demo") / "file"
    path.write_bytes(b"")
    with pytest.raises(ChildError, match=r"ended by itself \(1\).*is a file"):
        run_of_demo.run_and_kill(str(path), 0, 1.0, lambda _published, _acked: None)


def test_a_child_without_its_parent_ends(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    reading, writing = os.pipe()
    directory = str(tmp_path_factory.mktemp("demo"))
    worker = threading.Thread(
        target=child.main, args=([directory, str(writing), "0"],), daemon=True
    )
    worker.start()
    assert os.read(reading, 1) == child.READY
    seen = b""
    while ACKED not in seen[::16]:
        seen += os.read(reading, 16)
    os.close(reading)
    worker.join(timeout=WAIT)
    assert not worker.is_alive()
    os.close(writing)


def test_a_child_runs_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    for name in ("json", "struct", "numpy", "qindex", "journal"):
        (planted / f"{name}.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(planted)
    seen = run_of_demo.run_and_kill("../store", 0, 0.05, lambda *_counts: None)
    assert len(seen)
    assert (tmp_path / "store").is_dir()
    assert sorted(path.suffix for path in planted.iterdir()) == [".py"] * 5
