"""The test of the test: defects planted in the engine, each of which the explorer must find.

Each mutation comes with a workload on which the sound engine passes. The quick tier plants every
fourth, and rotates.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import qindex.format.resynchronise
import qindex.index.flush
import qindex.index.queue_index
import qindex.queue.flushing
import qindex.recovery.store_recovery
import qindex.shelf.shelf
from journal.fs.files import FileSystem
from journal.journal import Journal, Retired
from journal.locks.lock_order import LockOrder
from journal.locks.sync import GroupCommit
from msgstore import compaction
from msgstore.writer import Writer
from qindex.engine import transactions
from qindex.engine.transaction_log import TransactionLog
from qindex.format.transactions import pack_committed
from qindex.index.flush import FlushPlan
from qindex.index.queue_index import QueueIndex
from qindex.index.segment import ACKED
from qindex.index.seq_ids import SeqFile
from qindex.queue.state import QueueState
from qindex.queue.timer import Alarm
from tests.crash.driver import Workload
from tests.crash.explorer import Explorer, Known, Limits, Report
from tests.crash.workloads import DELAYED
from tests.effort import by_tier, part

pytestmark = pytest.mark.interpreted  # parts of the engine are replaced

Patch = Callable[[pytest.MonkeyPatch], None]

_LIMITS = Limits(second=0)


class _Without:
    """A file system that leaves one kind of operation out."""

    def __init__(self, fs: FileSystem, operation: str) -> None:
        self._fs = fs
        self._operation = operation

    def __getattr__(self, name: str) -> Any:
        if name == self._operation:
            return lambda *_: None
        return getattr(self._fs, name)


@dataclass(frozen=True)
class Mutation:
    name: str
    plant: Patch
    workload: Workload


def _flush_without(operation: str) -> Patch:
    """The flush writes its segments without an operation."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = qindex.index.flush.write_plan

        def write_plan(fs: FileSystem, plan: FlushPlan) -> int:
            return real(_Without(fs, operation), plan)

        monkeypatch.setattr(qindex.queue.flushing, "write_plan", write_plan)

    return plant


def _journal_emptied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    real = qindex.index.flush.write_plan

    def write_plan(fs: FileSystem, plan: FlushPlan) -> int:
        plan.journal = bytes(memoryview(plan.journal))
        path = os.path.join(plan.directory, "journal.jif")
        fd = fs.open(path, os.O_RDWR)
        fs.pwrite(fd, bytes(plan.front), 0)
        fs.close(fd)
        return real(fs, plan)

    monkeypatch.setattr(qindex.queue.flushing, "write_plan", write_plan)


def _name_of_the_new_journal_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Journal.rebase

    def rebase(self: Journal, front: int, prepared: Retired | None) -> Retired | None:
        self.synced = 0
        old = real(self, front, prepared)
        self._name_synced = True
        return old

    monkeypatch.setattr(Journal, "rebase", rebase)


def _source_deleted_before_the_copy_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compaction._Copier.finish

    def finish(self: compaction._Copier) -> None:
        self._fs = _Without(self._fs, "fdatasync")
        real(self)

    monkeypatch.setattr(compaction._Copier, "finish", finish)


def _snapshot_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is removed when all is open, not before anything changes; and not durably."""
    monkeypatch.setattr(qindex.recovery.store_recovery, "remove_snapshot", lambda *_: None)


def _stale_snapshot_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qindex.recovery.store_recovery, "files_agree", lambda *_: True)
    monkeypatch.setattr(qindex.recovery.store_recovery, "remove_snapshot", lambda *_: None)


def _messages_not_synced_with_their_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueState, "sync_all", QueueState.sync_journal)


def _a_rolled_file_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Writer._roll

    def roll(self: Writer) -> None:
        self._state.unsynced.discard(self._state.current or 0)
        real(self)

    monkeypatch.setattr(Writer, "_roll", roll)


def _acks_forgotten_by_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of a segment that are acknowledged in the journal get no step record."""
    real = QueueIndex.plan

    def plan(self: QueueIndex) -> FlushPlan | None:
        made = real(self)
        for segment in made.segments if made is not None else ():
            for rel, (now, before) in enumerate(zip(segment.states, segment.filed, strict=True)):
                if before and now > before:
                    segment.states[rel] = before
        return made

    monkeypatch.setattr(QueueIndex, "plan", plan)


def _ack_after_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ack that is a promise before it is in the journal: it is written with the next sync."""

    def acknowledge_many(self: QueueIndex, seqs: Any) -> None:
        self._set_states(seqs, ACKED)
        self.acks += len(seqs)

    monkeypatch.setattr(QueueIndex, "acknowledge_many", acknowledge_many)


def _seq_ids_not_reserved_durably(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SeqFile._put

    def put(self: SeqFile, slot: Any, numbers: list[int], *, durable: bool) -> None:
        real(self, slot, numbers, durable=False)

    monkeypatch.setattr(SeqFile, "_put", put)


def _floor_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeqFile, "raise_floor", lambda *_: None)


def _deletion_not_made_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    real = qindex.Engine.delete_queue

    def delete(self: qindex.Engine, name: str) -> None:
        fs = self._shelf._fs
        self._shelf._fs = _Without(fs, "sync_dir")
        try:
            real(self, name)
        finally:
            self._shelf._fs = fs

    monkeypatch.setattr(qindex.Engine, "delete_queue", delete)


def _journal_not_synced_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Journal.close

    def close(self: Journal, *, cut: bool = True) -> None:
        self.synced, self._rebases_synced = self.end, self._rebases
        real(self, cut=cut)

    monkeypatch.setattr(Journal, "close", close)
    monkeypatch.setattr(qindex.Engine, "_sync_queues", lambda self: None)


def _sync_passes_over_journals_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Journal.is_durable
    monkeypatch.setattr(Journal, "is_durable", lambda self: self.at_rest or real(self))


def _rest_forgets_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue wakes with another journal than it had before its rest."""
    real = Journal.rest

    def rest(self: Journal) -> None:
        real(self)
        self.end = self._mapped = 0

    monkeypatch.setattr(Journal, "rest", rest)


_FLUSHED = Workload(
    "flushed",
    (("publish_many", "a", 3), ("sync",), ("flush", "a"), ("sync",), ("publish", "a")),
)


def _publish_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def store(self: Journal, record: bytes) -> int:
        start = self.end
        self.end = self.highest = start + len(record)
        self.map[start : self.end] = record
        return start

    monkeypatch.setattr(Journal, "store", store)


def _rest_of_an_append_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        qindex.format.resynchronise._Reader, "_is_cut_short", lambda reader, offset: False
    )


def _journal_stays_after_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """The close does not remove the journal that recovery left: it only cuts it."""

    def cut(fs: FileSystem, directory: str, _: object) -> None:
        fd = fs.open(os.path.join(directory, "journal.jif"), os.O_WRONLY)
        fs.truncate(fd, 0)
        fs.close(fd)

    monkeypatch.setattr(qindex.shelf.shelf, "remove_journal", cut)


def _timer_fires_while_the_store_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Alarm.__init__

    def init(self: Alarm, order: LockOrder) -> None:
        real(self, order)
        self.begin()

    monkeypatch.setattr(Alarm, "__init__", init)


_ACKED = Workload(
    "acked in the segment",
    (
        ("publish_many", "a", 2),
        ("flush", "a"),
        ("get", "a", 2),
        ("ack_many", "a", 0, 1),
        ("sync",),
        ("flush", "a"),
        ("sync",),
    ),
)
_COMBINED = Workload(
    "combined",
    (
        ("publish_many", "a", 5, "stored"),
        ("sync",),
        ("get", "a", 5),
        ("ack", "a", 0, 3),
        ("sync",),
        ("compact",),
        ("publish", "a"),
    ),
)
_REOPENED = Workload(
    "reopened",
    (("publish", "a"), ("reopen",), ("publish", "a"), ("consume", "a", 1), ("sync",)),
)
_PURGED_AFTER_REOPENING = Workload(
    "consumed after reopening",
    (("publish", "a"), ("reopen",), ("consume", "a", 1), ("sync",), ("flush", "a"), ("sync",)),
)

_TRANSACTED = Workload(
    "transacted",
    (("publish", "a"), ("get", "a"), ("transact", "bc", "a"), ("publish", "b")),
    setup=(("open",), ("queue", "a"), ("queue", "b"), ("queue", "c")),
)
_TRANSACTED_DURABLY = Workload(
    "transacted durably", _TRANSACTED.steps, _TRANSACTED.setup, {"durability": "fsync"}
)


_MOVED = Workload(
    "moved",
    (("publish", "a"), ("get", "a"), ("dead", "a", "d"), ("publish", "d")),
    setup=(("open",), ("queue", "d"), ("limited", "a", (("dead_letter", "d"),))),
)


def _move_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a move publishes is not noted before."""
    note = TransactionLog.note
    monkeypatch.setattr("qindex.engine.moves.pack_batch", lambda *_: b"")
    monkeypatch.setattr(TransactionLog, "note", lambda log, *one: one[1] and note(log, *one))


def _not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a transaction publishes is not noted before."""
    note = TransactionLog.note
    monkeypatch.setattr(transactions, "pack_published", lambda *_: b"")
    monkeypatch.setattr(TransactionLog, "note", lambda log, *one: one[1] and note(log, *one))


def _commit_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is noted without what it acknowledges."""
    monkeypatch.setattr(
        "qindex.engine.transactions.pack_committed",
        lambda number, boot, acks: pack_committed(number, boot, []),
    )
    monkeypatch.setattr(
        "qindex.engine.transactions.pack_ack",
        lambda number, boot, *ack: pack_committed(number, boot, []),
    )


def _targets_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is durable before what the transaction has published."""
    monkeypatch.setattr(QueueState, "sync_all", lambda _: None)


MUTATIONS = [
    Mutation("transaction not announced", _not_announced, _TRANSACTED),
    Mutation("move not announced", _move_not_announced, _MOVED),
    Mutation("acks of a transaction not noted", _commit_not_noted, _TRANSACTED),
    Mutation("commit before its messages", _targets_not_synced, _TRANSACTED_DURABLY),
    Mutation(
        "segment not synced before the journal is emptied", _flush_without("fdatasync"), _FLUSHED
    ),
    Mutation("directory not synced after a segment is made", _flush_without("sync_dir"), _FLUSHED),
    Mutation("journal emptied before the segment is written", _journal_emptied_first, _FLUSHED),
    Mutation(
        "source deleted before the copy is synced",
        _source_deleted_before_the_copy_is_synced,
        _COMBINED,
    ),
    Mutation("snapshot removed too late", _snapshot_stays, _REOPENED),
    Mutation("stale snapshot trusted", _stale_snapshot_is_trusted, _PURGED_AFTER_REOPENING),
    Mutation(
        "entry durable before its message",
        _messages_not_synced_with_their_entries,
        Workload("confirmed", (("publish", "a", "stored", True), ("publish", "a"))),
    ),
    Mutation(
        "file not synced after the roll",
        _a_rolled_file_is_not_synced,
        Workload("rolled", (("publish_many", "a", 4, "stored"), ("sync",))),
    ),
    Mutation(
        "publish copied at once",
        _publish_copied_at_once,
        Workload("published as reserved", (("reserve", "a", 9), ("publish", "a"))),
    ),
    Mutation(
        "rest of an append kept without its start",
        _rest_of_an_append_kept,
        Workload("published together", (("publish_many", "a", 3),)),
    ),
    Mutation("acks forgotten by a flush", _acks_forgotten_by_a_flush, _ACKED),
    Mutation(
        "acks not in the journal",
        _ack_after_the_state,
        Workload("acked", (("publish_many", "a", 2), ("get", "a", 2), ("ack_many", "a", 0, 1))),
    ),
    Mutation(
        "seq_ids not reserved durably",
        _seq_ids_not_reserved_durably,
        Workload("reserved", (("publish", "a", "small", True), ("consume", "a"), ("flush", "a"))),
    ),
    Mutation(
        "floor of the seq_ids not written",
        _floor_not_written,
        Workload("emptied", (("publish", "a"), ("consume", "a"), ("flush", "a"))),
    ),
    Mutation(
        "journal not removed durably after recovery",
        _journal_stays_after_recovery,
        Workload(
            "flushed, killed and closed",
            (("publish", "a"), ("sync",), ("consume", "a"), ("flush", "a"), ("kill",), ("reopen",)),
        ),
    ),
    Mutation(
        "deletion of a queue not durable",
        _deletion_not_made_durable,
        Workload("deleted", (("publish", "a", "small", True), ("delete", "a"), ("queue", "b"))),
    ),
    Mutation(
        "name of the new journal not durable",
        _name_of_the_new_journal_not_synced,
        Workload(
            "confirmed after a flush",
            (
                ("publish", "a"),
                ("meanwhile", ("flush", "a"), ("publish", "a")),
                ("publish", "a", "small", True),
            ),
        ),
    ),
    Mutation(
        "journal not synced at the end",
        _journal_not_synced_at_the_end,
        Workload("closed", (("publish_many", "a", 2), ("sync",), ("consume", "a", 1), ("close",))),
    ),
    Mutation(
        "a sync passes over journals at rest",
        _sync_passes_over_journals_at_rest,
        Workload("rested and synced", (("publish", "a"), ("rest", "a"), ("sync",))),
    ),
    Mutation(
        "a close passes over journals at rest",
        _sync_passes_over_journals_at_rest,
        Workload("rested and closed", (("publish", "a"), ("rest", "a"), ("close",))),
    ),
    Mutation(
        "a rest forgets the journal",
        _rest_forgets_the_journal,
        Workload("rested and woken", (("publish", "a"), ("rest", "a"), ("publish", "a"))),
    ),
    Mutation(
        "timer fires while the store opens",
        _timer_fires_while_the_store_opens,
        Workload("expired", (("expire", "a", "d", 1), ("consume", "d")), setup=DELAYED),
    ),
]


PLANTED = part(MUTATIONS, by_tier(quick=4, all=1, nightly=1), "defects in the engine")
"""Those of this run."""


def _explore(workload: Workload) -> Report:
    return Explorer(_LIMITS).explore(workload)


@pytest.mark.parametrize("mutation", PLANTED, ids=lambda mutation: mutation.name)
def test_a_planted_defect_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.plant(monkeypatch)
    report = _explore(mutation.workload)
    assert report.failures, f"{report.opened} states, and nothing was found"


_SOUND = {mutation.workload.name: mutation.workload for mutation in PLANTED}


@pytest.mark.rotates(2)
@pytest.mark.parametrize("name", _SOUND)
def test_without_it_the_same_workload_passes(name: str) -> None:
    report = _explore(_SOUND[name])
    assert report.complete
    assert not report.failures, report.failures[0]


def test_what_was_opened_before_is_held_against_the_promises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its syncs a workload leaves what the same one leaves that promises less."""
    monkeypatch.setattr(GroupCommit, "commit", lambda self: None)
    known = Known()
    steps = (("publish", "a"), ("publish", "a"))
    before = Explorer(Limits(), known).explore(Workload("both", steps))
    assert not before.failures
    assert before.opened > 20
    report = Explorer(Limits(), known).explore(
        Workload("both", steps, options={"durability": "fsync"})
    )
    assert report.opened < before.opened // 10
    assert "lost [1]" in str(report.failures[0])
