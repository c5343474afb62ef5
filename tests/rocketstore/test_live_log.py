"""Reading a CommitLog beside its writer: what is sound is never called damaged, and the end is that
of the moment when it was looked for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from journal.fs.files import REAL
from rocketstore.layout import Paths, look
from rocketstore.log import log_end as log_end_module
from rocketstore.log.commitlog import CommitLog
from rocketstore.log.log_end import log_end
from rocketstore.log.scan import Records, Stop
from rocketstore.log.walk import LogWalk, SkipDamage
from rocketstore.options import Options

FILE = 1 << 16


class Beside(LogWalk):
    """A walk with something that is done behind each look at the file."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def _scan(self, *given: Any) -> tuple[Records, int, Stop]:
        found = super()._scan(*given)
        self.meanwhile()
        return found


def open_log(path: Path) -> CommitLog:
    layout = look(REAL, Paths(str(path)), Options(read_only=True))
    log = CommitLog(REAL, Paths(str(path)).commitlog, layout.commitlog_file_size, writable=False)
    log.files.load(layout.readable, layout.short)
    return log


def offsets(walk: LogWalk) -> list[int]:
    return [base + at for base, records in walk for at in records.positions.tolist()]


def walk_of(log: CommitLog, skip: SkipDamage, offset: int = 0) -> Beside:
    return Beside(log, offset, strict=True, keep_bad_bodies=True, on_damage=skip)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_is_put_between_two_looks_is_not_damage(tmp_path: Path, count: int) -> None:
    with rocketstore.open(tmp_path, background=False, commitlog_file_size=FILE) as store:
        put = [store.put("t", b"body %d" % number).offset for number in range(20)]
        log = open_log(tmp_path)
        skip = SkipDamage(log)
        walk = walk_of(log, skip)

        def write() -> None:
            if len(put) < 200:
                put.extend(store.put("t", b"meanwhile").offset for _ in range(count))

        walk.meanwhile = write
        found = offsets(walk)
        assert found == put[: len(found)]
        assert len(found) >= 20
        assert walk.bad_bodies == []
        assert skip.skipped == [walk.end]  # where it ended
        log.files.close()


def test_what_is_put_while_a_batch_is_used_is_not_damage(tmp_path: Path) -> None:
    with rocketstore.open(tmp_path, background=False, commitlog_file_size=FILE) as store:
        put = [store.put("t", b"body").offset for _ in range(20)]
        log = open_log(tmp_path)
        skip = SkipDamage(log)
        walk = walk_of(log, skip)
        found = []
        for base, records in walk:
            found += [base + at for at in records.positions.tolist()]
            if len(put) < 100:
                put += [store.put("t", b"later").offset for _ in range(3)]
        assert found == put
        assert (walk.bad_bodies, skip.skipped) == ([], [walk.end])
        log.files.close()


def test_a_body_that_is_being_copied_is_read_again(tmp_path: Path) -> None:
    """A node's copy may show a record's head, and the next record, before we look at its body."""
    with rocketstore.open(tmp_path, background=False, commitlog_file_size=FILE) as store:
        put = [store.put("t", b"body" * 10).offset for _ in range(5)]
    path = tmp_path / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    at = put[2] + 88
    log = open_log(tmp_path)
    for looks in range(1, 6):
        path.write_bytes(whole[:at] + bytes(40) + whole[at + 40 :])
        walk = walk_of(log, SkipDamage(log))
        seen = itertools.count(1)

        def finish(looks: int = looks, seen: Iterator[int] = seen) -> None:
            if next(seen) == looks:
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(whole[at : at + 40])

        walk.meanwhile = finish
        assert offsets(walk) == put
        assert walk.bad_bodies == ([] if looks < 4 else [put[2]]), looks
    log.files.close()


def test_a_record_that_was_finished_before_the_one_behind_it_is_no_hole(tmp_path: Path) -> None:
    with rocketstore.open(tmp_path, background=False, commitlog_file_size=FILE) as store:
        put = [store.put("t", b"body" * 10).offset for _ in range(5)]
    path = tmp_path / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    path.write_bytes(whole[: put[2]] + b"\xff" * 30 + whole[put[2] + 30 :])
    log = open_log(tmp_path)
    skip = SkipDamage(log)
    walk = walk_of(log, skip)
    walk.meanwhile = lambda: path.open("r+b").write(whole)
    assert offsets(walk) == put
    assert skip.skipped == [walk.end]
    path.write_bytes(whole[: put[2]] + b"\xff" * 30 + whole[put[2] + 30 :])
    skip = SkipDamage(log)
    assert offsets(walk_of(log, skip)) == [*put[:2], *put[3:]]
    assert skip.skipped[0] == put[2]
    log.files.close()


@pytest.mark.parametrize("window", [200, 1000, 8 << 20])
@pytest.mark.parametrize("largest", [30, 3000])
def test_the_end_is_found_without_a_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, largest: int
) -> None:
    monkeypatch.setattr(log_end_module, "_WINDOW", window)
    dice = random.Random(window + largest)
    ends = []
    with rocketstore.open(tmp_path, background=False, commitlog_file_size=FILE) as store:
        assert log_end(open_log(tmp_path)) == 0
        for _ in range(120):
            store.put("t", dice.randbytes(dice.randint(0, largest)))
            ends.append(store.max_offset)
            log = open_log(tmp_path)
            assert log_end(log) == ends[-1]
            assert log_end(log, dice.choice(ends)) == ends[-1]
            log.files.close()


def test_the_end_behind_a_hole_and_before_files_made_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_end_module, "_WINDOW", 500)
    with rocketstore.open(tmp_path, background=False, commitlog_file_size=FILE) as store:
        put = [store.put("t", b"x" * 300).offset for _ in range(300)]
        end = store.max_offset
    first, second, *_ = sorted((tmp_path / "commitlog").iterdir())
    for path, at in ((first, put[3]), (second, 0), (second, put[-9] % FILE)):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes(1000))
    for start in (2 * FILE, 3 * FILE):
        with (tmp_path / "commitlog" / f"{start:020d}").open("wb") as file:
            file.truncate(FILE)
    log = open_log(tmp_path)
    assert log_end(log) == log_end(log, put[2]) == end
    log.files.close()
