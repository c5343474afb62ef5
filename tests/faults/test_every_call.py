"""Each call of the file system fails once, and each promise is kept.

The calls of a run without faults are numbered. Then the run is made once for each number, and that
call fails with one of the errors that it may meet (another one for the next number; they rotate).
Nightly it fails with each of them; the quick tier takes a slice of the numbers. Whatever fails:

* a call raises :class:`StorageError` or :class:`WritesRefusedError`, or does what it should;
* the engine is either as before, or takes no more writes and says why, and goes on reading;
* a kill after the last call, and a clean close, leave a directory that opens without damage;
* what was published is there, bit for bit, in order, with ``redelivered`` as it should be; what was
  acknowledged is not.
"""

from __future__ import annotations

from typing import Any

import pytest

import qindex
from journal.errors import WritesRefusedError
from qindex.engine.opening import open_store
from tests.effort import NIGHTLY, SEED, by_tier, part
from tests.faults.workload import FAULTS, STORE, Fault, Run
from tests.memory_fs import MemoryFileSystem

PARTS = 8
SLICES = by_tier(quick=16, all=1, nightly=1)
VARIANTS: dict[str, dict[str, Any]] = {
    "os": {},
    "fsync": {"durability": "fsync"},
    "rabbitmq": {"record_format": "rabbitmq"},
}


def check_promises(run: Run, memory: MemoryFileSystem) -> None:
    """Open what is there and compare all queues with the model."""
    engine = open_store(STORE, fs=memory, **run.options)
    with engine:
        assert all(one.cause is qindex.Cause.CRASH for one in engine.findings), engine.findings
        names = set(engine.queue_names())
        for model in run.models.values():
            found: list[tuple[int, bytes, bool]] = []
            if model.name in names:
                queue = engine.queue(model.name)
                while batch := queue.get_many(100):
                    found += [(one.seq_id, one.body, one.redelivered) for one in batch]
                    queue.ack_many(batch)
                seq = queue.publish(b"next")
                assert seq > max(model.highest, *(seq for seq, _, _ in found), -1)
            model.restarted()
            model.holds(found)


def check_engine(run: Run) -> None:
    """It works as before, or takes no writes and says why; reading goes on."""
    engine = run.engine
    if engine.closed:
        return
    reason = engine.stats().writes_refused
    queue = engine.queue("a") if reason is None or "a" in engine.queue_names() else None
    if queue is None:
        return
    peeked = queue.peek(1000)
    if reason is None:
        run.publish("a", 1)
    else:
        with pytest.raises(WritesRefusedError) as refused:
            queue.publish(b"no")
        assert reason in str(refused.value)
    for one in peeked:
        assert run.models["a"].sent[int(one.body[:6])].body == one.body


def run_with(number: int, fault: Fault, trace: list[tuple[str, str]], options: Any) -> Run:
    run = Run(**options)
    run.fs.arm(trace, number, fault)
    run.whole()
    return run


def check_fault(number: int, fault: Fault, trace: list[tuple[str, str]], options: Any) -> None:
    operation, path = trace[number]
    where = f"call {number}, {operation} of {path}: {fault}"
    try:
        run = run_with(number, fault, trace, options)
        run.fs.heal()
        check_engine(run)
        check_promises(run, MemoryFileSystem(*run.fs.memory.contents()))
        run.close()
        run.fs.memory.forget_descriptors()
        check_promises(run, run.fs.memory)
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error


def trace_of(options: Any) -> list[tuple[str, str]]:
    run = Run(**options)
    run.whole()
    assert run.errors == []
    return run.fs.trace


def cases(trace: list[tuple[str, str]], first: int) -> list[tuple[int, Fault]]:
    chosen = []
    for number in part(range(first, len(trace), PARTS), SLICES, f"faults {first}"):
        faults = FAULTS[trace[number][0]]
        some = faults if NIGHTLY else (faults[(number // PARTS + SEED) % len(faults)],)
        chosen += [(number, fault) for fault in some]
    return chosen


@pytest.mark.parametrize("variant", VARIANTS if NIGHTLY else ["os"])
def test_without_faults(variant: str) -> None:
    options = VARIANTS[variant]
    run = Run(**options)
    run.whole()
    assert run.errors == []
    assert {operation for operation, _ in run.fs.trace} == set(FAULTS) - {"read", "fsync"}
    check_promises(run, run.fs.memory)


@pytest.mark.rotates(2)
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(PARTS))
@pytest.mark.parametrize("variant", VARIANTS if NIGHTLY else ["os"])
def test_each_call_fails(variant: str, first: int) -> None:
    options = VARIANTS[variant]
    trace = trace_of(options)
    failures = []
    for number, fault in cases(trace, first):
        try:
            check_fault(number, fault, trace, options)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, f"{len(failures)} broken promises:\n" + "\n".join(failures)
