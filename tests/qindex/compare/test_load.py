"""The load: both designs hand over what was published, and a store that does not is caught."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from qindex.compare import load as load_module
from qindex.compare.contender import Contender, Fifo, Receiver, Store
from qindex.compare.load import Bodies, LoadError, Run
from qindex.compare.peers import CONTENDERS, DESIGNS
from qindex.compare.workload import Workload

_SHAPES = [
    Workload(messages=60, queues=3, groups=2, publishers=2, consumers=4, batch=5, lookups=1),
    Workload(messages=50, consumers=3, ack_lag=7, batch=2),
    Workload(messages=50, queues=2, consumers=5, sizes="uniform:16:20000"),
    Workload(messages=0, seconds=0.1, durability="fsync"),
]


_FIFOS = [kind for kind in CONTENDERS.values() if issubclass(kind, Fifo)]


def _no_sample(_published: int, _delivered: int) -> None:
    """Samples are not looked at here."""


@pytest.mark.parametrize("kind", DESIGNS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", _SHAPES, ids=range(len(_SHAPES)))
def test_both_designs_deliver_each_message_to_each_group(
    tmp_path: Path, kind: type[Contender], shape: Workload
) -> None:
    contender = kind.store(tmp_path, shape)
    result = Run(contender, shape, paced=False).run(_no_sample, 0.01)
    contender.close()
    if shape.messages:
        assert result["messages"] == shape.messages
    assert result["bytes"] >= 16 * result["messages"]
    for name in ("publish_us", "delivery_us"):
        assert result[name] == sorted(result[name])
    # All is acknowledged: after a reopening nobody is given anything.
    again = kind.store(tmp_path, shape)
    assert not again.receiver(0, 0, 0).take(1, 0)
    again.close()


@pytest.mark.parametrize("name", [name for name in CONTENDERS if name not in ("qindex",)])
def test_a_paced_run_keeps_the_rate(tmp_path: Path, name: str) -> None:
    kind = CONTENDERS[name]
    if not kind.is_installed():
        pytest.skip(f"{name} is not installed")
    load = Workload(seconds=0.3, rate=200, publishers=2)
    contender = kind.store(tmp_path, load)
    result = Run(contender, load, paced=True).run(_no_sample, 0.01)
    contender.close()
    assert result["messages"] == 60


@pytest.mark.parametrize("kind", _FIFOS, ids=lambda kind: kind.name)
def test_a_queue_by_itself_is_first_in_first_out(tmp_path: Path, kind: type[Fifo]) -> None:
    if not kind.is_installed():
        pytest.skip(f"{kind.name} is not installed")
    queue = kind(tmp_path, "os")
    bodies = [b"%03d" % number for number in range(20)]
    queue.publish_each(bodies[:5])
    queue.publish_many(bodies[5:])
    taken = queue.get_each(3)
    assert [body for _, body in taken] == bodies[:3]
    queue.ack_each(taken)
    assert queue.get_ack_each(7) == bodies[3:10]
    assert queue.get_ack_many(9) == bodies[10:19]
    last = queue.take()
    assert last is not None
    queue.ack(last[0])
    assert queue.take() is None
    queue.close()


@pytest.mark.parametrize("kind", DESIGNS, ids=lambda kind: kind.name)
def test_a_lookup_gives_the_message_with_the_key(tmp_path: Path, kind: type[Contender]) -> None:
    load = Workload(lookups=1)
    contender = kind.store(tmp_path, load)
    contender.publish(0, [b"%03d" % one for one in range(600)], [f"k{one}" for one in range(600)])
    assert contender.find(0, "k0") == b"000"
    assert contender.find(0, "k599") == b"599"
    assert contender.find(0, "k600") is None
    contender.close()


class _Faulty(Store):
    """A queue in memory that does one thing wrong."""

    def __init__(self, directory: Path, workload: Workload, fault: str = "") -> None:
        self.waiting: list[bytes] = []
        self._fault = fault

    def publish(self, queue: int, bodies: list[bytes], keys: list[str]) -> None:
        for body in bodies:
            if self._fault == "full" and len(self.waiting) > 20:
                raise OSError(28, "No space left on device")
            if self._fault == "loses" and body[8] == 9:
                continue
            wrong = body[:-1] + bytes([body[-1] ^ 1]) if self._fault == "alters" else body
            self.waiting += [wrong] * (2 if self._fault == "repeats" and body[8] == 9 else 1)

    def receiver(self, queue: int, group: int, number: int) -> Receiver:
        return _FromList(self.waiting)

    def close(self) -> None:
        self.waiting.clear()


class _FromList(Receiver):
    def __init__(self, waiting: list[bytes]) -> None:
        self._waiting = waiting

    def take(self, most: int, timeout: float) -> Sequence[bytes]:
        taken, self._waiting[:most] = self._waiting[:most], []
        return taken

    def settle(self, count: int) -> None:
        assert count > 0


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("loses", "never delivered"),
        ("alters", "altered"),
        ("repeats", "delivered twice"),
        ("full", "No space left"),
    ],
)
def test_a_store_that_does_wrong_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, complaint: str
) -> None:
    monkeypatch.setattr(load_module, "_DRAIN_PATIENCE", 0.1)
    load = Workload(messages=100)
    with pytest.raises((LoadError, OSError), match=complaint):
        Run(_Faulty(tmp_path, load, fault), load, paced=False).run(_no_sample, 0.01)


def test_bodies_have_the_drawn_sizes_and_are_checked_whole() -> None:
    load = Workload(sizes="uniform:16:5000")
    bodies = Bodies(load, 7)
    made = [bodies.make(number, 5) for number in range(300)]
    assert list(map(len, made)) == load.draw_sizes(4096, 7)[:300]
    assert {bodies.check(one) for one in made} == {5}
    for place in range(0, len(made[1]), 97):
        flipped = bytearray(made[1])
        flipped[place] ^= 4
        if place >= 8:  # the time itself is not checked: it is what is asked for
            with pytest.raises(LoadError):
                bodies.check(bytes(flipped))
