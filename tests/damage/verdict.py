"""Open a harmed store as a user would, and say what that user gets, and is told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import qindex
from journal.errors import StoreError
from journal.findings import Cause, Finding
from qindex.engine.opening import open_store
from qindex.tools.verify import Verification
from tests.damage.harms import Harm
from tests.damage.mending import Mended, mend
from tests.damage.samples import STORE, Message, Sample
from tests.memory_fs import MemoryFileSystem

__all__ = ["SECONDS", "Verdict", "judge"]

SECONDS = 5.0
"""Of processor time that one harmed store may take."""


@dataclass(slots=True)
class Verdict:
    """What a user gets: ``missing``: messages that are not delivered, ``back``: that come although
    acknowledged, ``other``: with another key, other headers or another ``redelivered``, and queues
    that are not listed; ``astray``: messages of this store in another place or queue than they
    were published to; ``again``: queues that give seq_ids of messages that are gone out a second
    time; ``refused``: the store does not open even with ``repair=True``.

    And is told: ``told``: paths that errors and findings of damage named; ``logged``: those of
    findings that a crash may have left; ``verified``, ``verify_logged``: the same of verify.
    ``found``: what was delivered, by queue and seq_id; ``mended``: what a user has after repair
    into a new store.
    """

    missing: int = 0
    back: int = 0
    other: int = 0
    astray: int = 0
    again: int = 0
    refused: bool = False
    told: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    verify_logged: list[str] = field(default_factory=list)
    found: dict[str, dict[int, Message]] = field(default_factory=dict)
    mended: Mended | None = None

    @property
    def seen(self) -> bool:
        """Whether a user sees something else than with a sound store."""
        return any((self.missing, self.back, self.other, self.astray, self.again, self.refused))

    @property
    def reported(self) -> bool:
        """Whether the user is told of damage."""
        return bool(self.told or self.refused)


def judge(sample: Sample, harm: Harm, *, again: bool = True, repairs: bool = True) -> Verdict:
    """Verify, open, drain, and (``again``, or if damage was told of) close and open again; then
    (``repairs``) repair into a new store.

    Raises :class:`AssertionError` for a broken promise: a body that was not published, messages
    out of order, a seq_id given twice, a store that needs repair after it was repaired, too much
    time; what :func:`tests.damage.mending.mend` raises; and all that is no error of ours.
    """
    started = time.process_time()
    verdict = Verdict()
    _verify(sample, harm, verdict)
    fs = sample.file_system(harm.files)
    engine = _open(fs, verdict)
    if engine is not None:
        _look(sample, engine, harm, verdict)
        if verdict.reported or again:
            _again(fs, harm, verdict)
    took = time.process_time() - started
    assert took < SECONDS, f"{harm}: {took:.1f} seconds"
    if repairs:
        verdict.mended = mend(sample, harm, None if verdict.refused else verdict.found)
    return verdict


def _verify(sample: Sample, harm: Harm, verdict: Verdict) -> None:
    fs = sample.file_system(harm.files)
    try:
        for one in Verification(STORE, fs).findings():
            (verdict.verified if one.cause is Cause.DAMAGE else verdict.verify_logged).append(
                one.path
            )
    except StoreError as error:
        verdict.verified.append(str(error))
    assert fs.contents()[0] == harm.files, f"{harm}: verify has changed something"


def _open(fs: MemoryFileSystem, verdict: Verdict) -> qindex.Engine | None:
    for repair in (False, True):
        try:
            engine: qindex.Engine = open_store(STORE, fs=fs, background=False, repair=repair)
        except StoreError as error:
            verdict.told.append(str(error))
            fs.forget_descriptors()
        else:
            _take(engine.findings, verdict)
            return engine
    verdict.refused = True
    return None


def _take(findings: list[Finding], verdict: Verdict) -> None:
    for one in findings:
        (verdict.told if one.cause is Cause.DAMAGE else verdict.logged).append(one.path)


def _look(sample: Sample, engine: qindex.Engine, harm: Harm, verdict: Verdict) -> None:
    with engine:
        before = len(engine.findings)
        try:
            names = engine.queue_names()
        except StoreError as error:
            verdict.told.append(str(error))
            names = sorted(sample.queues)
        verdict.other += len(set(names) ^ set(sample.queues))
        for name in sample.queues:
            _drain(sample, name, engine, harm, verdict)
        _take(engine.findings[before:], verdict)


def _drain(sample: Sample, name: str, engine: qindex.Engine, harm: Harm, verdict: Verdict) -> None:
    truth = sample.queues[name]
    where = f"{harm}: queue {name}"
    try:
        queue = engine.queue(name)
    except StoreError as error:
        verdict.told.append(str(error))
        verdict.missing += len(truth.held)
        return
    bodies = {body for each in sample.queues.values() for body in each.published.values()}
    found = verdict.found.setdefault(name, {})
    for _ in range(200):
        try:
            batch = queue.get_many(100)
        except StoreError as error:
            verdict.told.append(str(error))
            continue
        if not batch:
            break
        for one in batch:
            assert one.seq_id > max(found, default=-1), f"{where}: out of order"
            if truth.published.get(one.seq_id) != one.body:
                assert one.body in bodies, f"{where}: {one.body!r} was never published"
                verdict.astray += 1
            found[one.seq_id] = Message(one.body, one.key, repr(dict(one.headers)), one.redelivered)
        queue.ack_many(batch)
    else:
        raise AssertionError(f"{where}: no end")
    verdict.missing += len(truth.held.keys() - found.keys())
    verdict.back += len(found.keys() - truth.held.keys())
    verdict.other += sum(truth.held.get(seq, one) != one for seq, one in found.items())
    next_seq = queue.publish(b"next")
    assert next_seq > max(found, default=-1), f"{where}: seq_id {next_seq} again"
    verdict.again += next_seq <= max(truth.published)


def _again(fs: MemoryFileSystem, harm: Harm, verdict: Verdict) -> None:
    """What was opened and closed in order opens; at the latest once it was repaired."""
    for attempt in ("after the first close", "after repair"):
        try:
            with open_store(STORE, fs=fs, background=False) as engine:
                damage = [one for one in engine.findings if one.cause is Cause.DAMAGE]
                assert not damage or attempt != "after repair", f"{harm}: {attempt}: {damage[0]}"
                return
        except StoreError as error:
            if attempt == "after repair" or not verdict.reported:
                raise AssertionError(f"{harm}: {attempt}: {error}") from error
            fs.forget_descriptors()
            open_store(STORE, fs=fs, background=False, repair=True).close()
