"""Who can read, write and lock a store: nobody else, or a group, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qindex
import rocketstore
from journal.errors import UsageError
from journal.findings import Kind
from qindex.cli.app import main
from rocketstore.verify import verify as rocket_verify
from tests.hostile.second_user import OTHER, as_root, run_as, shared

GROUP = 54322
_SIZES = {
    "commitlog_file_size": 4096,
    "consumequeue_file_size": 400,
    "index_slots": 16,
    "index_entries": 16,
}


@pytest.fixture(params=[0o002, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def use(directory: Path, **options: Any) -> None:
    """Write each kind of file that a store can have."""
    with qindex.open(directory / "ours", max_journal_entries=4, **options) as engine:
        engine.queue("failed")
        jobs = engine.queue("jobs", dead_letter="failed", delivery_limit=1)
        for number in range(8):
            jobs.publish(b"x" * (5000 * (number % 2)))
        jobs.publish(b"t", persistent=False)
        delivery = jobs.get()
        assert delivery is not None
        delivery.nack()
        jobs.flush()
    with rocketstore.open(directory / "rocket", **{**_SIZES, **options}) as store:
        store.put("topic", b"body", keys="key")


def modes(directory: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in (directory, *directory.rglob("*")):
        mode = stat.S_IMODE(one.stat().st_mode)
        found.setdefault(f"{mode:o}", str(one.relative_to(directory.parent)))
    return found


@pytest.mark.usefixtures("umask")
def test_a_store_is_for_its_user_alone(tmp_path: Path) -> None:
    use(tmp_path / "data" / "store")
    (tmp_path / "ours").mkdir()
    use(tmp_path)
    assert qindex.repair(tmp_path / "ours", tmp_path / "copy").queues
    assert qindex.convert(tmp_path / "ours", 2, out=tmp_path / "vhost").queues
    assert modes(tmp_path).keys() == {"700", "600"}
    assert not qindex.verify(tmp_path / "ours").findings


@pytest.mark.usefixtures("umask")
def test_a_store_for_a_group(tmp_path: Path) -> None:
    use(tmp_path / "data" / "store", mode=0o660)
    use(tmp_path / "data" / "store")
    assert modes(tmp_path / "data").keys() == {"2770", "660"}


@as_root
@pytest.mark.usefixtures("umask")
def test_a_second_member_of_the_group(tmp_path: Path) -> None:
    place = shared(tmp_path)
    store = place / "store"
    for one in (store, store / "ours", store / "rocket"):
        one.mkdir()
        one.chmod(0o755)
        os.chown(one, 0, GROUP)
    use(store, mode=0o660)

    def again() -> str:
        use(store)
        return "done"

    assert run_as(again, groups=[GROUP]) == "done"
    assert modes(store).keys() == {"755", "2770", "660"}
    use(store)  # the first member, after the second
    assert run_as(again, user=OTHER + 1, groups=[GROUP]) == "done"
    assert "Permission denied" in run_as(again)


@as_root
def test_others_cannot_look_at_it(tmp_path: Path) -> None:
    use(shared(tmp_path))
    store = tmp_path / "shared" / "ours"
    lock = store / "qindex.lock"
    assert "PermissionError" in run_as(lambda: lock.read_bytes())
    assert "Permission denied" in run_as(lambda: qindex.open(store, read_only=True))


def test_a_store_that_is_there_keeps_its_modes(tmp_path: Path) -> None:
    use(tmp_path)
    for one in tmp_path.rglob("*"):
        one.chmod(0o755 if one.is_dir() else 0o644)
    use(tmp_path, mode=0o600)
    assert modes(tmp_path).keys() == {"700", "755", "644"}
    found = qindex.verify(tmp_path / "ours")
    assert found.sound
    assert [one.kind for one in found.findings] == [Kind.OPEN_TO_OTHERS]
    notes = rocket_verify(tmp_path / "rocket")
    assert [one.kind for one in notes] == [Kind.OPEN_TO_OTHERS]
    for store in ("ours", "rocket"):
        assert main(["verify", str(tmp_path / store)]) == 0
    assert main(["rocket", "verify", str(tmp_path / "rocket")]) == 0


def test_files_are_never_wider_than_those_that_are_there(tmp_path: Path) -> None:
    """A umask may have kept others from the files of a directory that they may list."""
    use(tmp_path)
    for store in ("ours", "rocket"):
        (tmp_path / store).chmod(0o755)
    use(tmp_path)
    assert modes(tmp_path).keys() == {"755", "700", "600"}


@pytest.mark.parametrize("mode", [0o666, 0o700, 0o400, 0, True, "0660", 384.0])
def test_no_such_mode(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(UsageError, match="0o660"):
        qindex.open(tmp_path / "store", mode=mode)
    with pytest.raises(UsageError, match="0o660"):
        rocketstore.open(tmp_path / "store", mode=mode)
