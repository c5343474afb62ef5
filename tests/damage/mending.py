"""Repair a harmed store into a new one, and hold that against what ``open`` made of it."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass, field

import qindex
from journal.errors import StoreError
from journal.findings import Finding
from qindex.engine.opening import open_store
from qindex.format.rabbitmq.names import directory_name
from qindex.tools.repair import NAMELESS, repair_store
from qindex.tools.saved import SaveReport
from qindex.tools.verify import verify_store
from tests.damage.harms import Harm
from tests.damage.samples import STORE, Message, Sample
from tests.memory_fs import MemoryFileSystem

__all__ = ["REPAIR_SECONDS", "Mended", "mend"]

REPAIR_SECONDS = 5.0
"""Of processor time that the repair of one harmed store, and a look at the new one, may take."""
_OUT = "/new"
_SUMS = ".sum"


@dataclass(slots=True)
class Mended:
    """What a user has after repair, told as :class:`tests.damage.verdict.Verdict` tells what one
    has after open: ``missing``, ``back``, ``other``, ``astray``, ``again``. ``refused``: repair
    raised an error of ours that says why, as open with ``repair=True`` did.

    ``told``: the report has a finding; ``named``: one of them names the harmed file.
    """

    missing: int = 0
    back: int = 0
    other: int = 0
    astray: int = 0
    again: int = 0
    refused: bool = False
    told: bool = False
    named: bool = False
    found: dict[str, dict[int, Message]] = field(default_factory=dict)

    @property
    def seen(self) -> bool:
        """Whether a user sees something else than in the copy of a sound store."""
        return any((self.missing, self.back, self.other, self.astray, self.again, self.refused))


def mend(sample: Sample, harm: Harm, kept: dict[str, dict[int, Message]] | None) -> Mended:
    """Repair a harmed store, look at the new one.

    ``kept``: what open gave of each queue, ``None`` if the store did not even open with
    ``repair=True``. Raises :class:`AssertionError` for a broken promise: a source that was
    changed, a new store with a finding, a body that was not published, messages out of order, one
    that open gave and repair lost, a refusal where open did its work, too much time; and whatever
    is raised that is no error of ours.
    """
    started = time.process_time()
    fs = sample.file_system(harm.files)
    mended = Mended()
    report = _repair(fs, harm, mended, kept)
    if report is not None:
        _verify_new(fs, harm)
    files, _ = fs.contents()
    new = os.path.join(_OUT, "").lstrip("/")
    left = {path: data for path, data in files.items() if not path.startswith(new)}
    assert left == harm.files, f"{harm}: repair changed, or left, {left.keys() ^ harm.files.keys()}"
    if report is not None:
        mended.told = bool(report.findings)
        mended.named = any(_is_of(one, harm) for one in report.findings)
        _look(sample, fs, harm, mended)
        _compare(sample, harm, mended, kept or {})
        saved = sum(len(queue) for queue in mended.found.values())
        assert report.messages == saved, f"{harm}: {report.messages} reported, {saved} there"
    took = time.process_time() - started
    assert took < REPAIR_SECONDS, f"{harm}: {took:.1f} seconds for repair"
    return mended


def _repair(
    fs: MemoryFileSystem, harm: Harm, mended: Mended, kept: dict[str, dict[int, Message]] | None
) -> SaveReport | None:
    try:
        return repair_store(STORE, _OUT, fs=fs)
    except StoreError as error:
        if kept is not None:
            raise AssertionError(f"{harm}: repair refuses, and open does not: {error}") from error
        mended.refused = mended.told = True
        mended.named = os.path.basename(harm.path) in str(error)
        return None


def _is_of(finding: Finding, harm: Harm) -> bool:
    """Tell whether a finding names the harmed file, or the directory or the file of checksums
    that vouch for it."""
    around = {"/" + os.path.dirname(harm.path)}
    for path in (harm.path, *harm.others):
        bare = "/" + path.removesuffix(_SUMS)
        around |= {bare, bare + _SUMS}
    return finding.path in around


def _verify_new(fs: MemoryFileSystem, harm: Harm) -> None:
    findings = verify_store(_OUT, fs=fs).findings
    assert not findings, f"{harm}: verify of the new store: {findings[0]}"


def _look(sample: Sample, fs: MemoryFileSystem, harm: Harm, mended: Mended) -> None:
    with open_store(_OUT, fs=fs, background=False) as engine:
        assert not engine.findings, f"{harm}: open of the new store: {engine.findings[0]}"
        names = engine.queue_names()
        for name in sample.queues:
            nameless = NAMELESS + directory_name("/", name)
            if nameless in names:
                mended.other += 1
                mended.found[name] = _drain(sample, name, engine.queue(nameless), harm, mended)
            elif name in names:
                mended.found[name] = _drain(sample, name, engine.queue(name), harm, mended)
            else:
                mended.missing += len(sample.queues[name].held)
        known = {*sample.queues, *(NAMELESS + directory_name("/", name) for name in sample.queues)}
        mended.other += len(set(names) - known)
        for name in set(names) - known:
            stray = [one.body for one in engine.queue(name).get_many(1000)]
            assert not stray, f"{harm}: queue {name} has {stray}"


def _drain(
    sample: Sample, name: str, queue: qindex.Queue, harm: Harm, mended: Mended
) -> dict[int, Message]:
    truth = sample.queues[name]
    bodies = {body for each in sample.queues.values() for body in each.published.values()}
    found: dict[int, Message] = {}
    some = itertools.chain.from_iterable(queue.get_many(1000) for _ in range(10))
    for one in some:
        assert one.seq_id > max(found, default=-1), f"{harm}: repaired queue {name}: out of order"
        if truth.published.get(one.seq_id) != one.body:
            assert one.body in bodies, f"{harm}: repaired {name}: {one.body!r} never published"
            mended.astray += 1
        found[one.seq_id] = Message(one.body, one.key, repr(dict(one.headers)), one.redelivered)
        one.ack()
    assert not queue.get_many(1), f"{harm}: repaired queue {name}: no end"
    mended.missing += len(truth.held.keys() - found.keys())
    mended.back += len(found.keys() - truth.held.keys())
    mended.other += sum(truth.held.get(seq, one) != one for seq, one in found.items())
    next_seq = queue.publish(b"next")
    assert next_seq > max(found, default=-1), f"{harm}: repaired {name}: seq_id {next_seq} again"
    mended.again += next_seq <= max(truth.published)
    return found


def _compare(
    sample: Sample, harm: Harm, mended: Mended, kept: dict[str, dict[int, Message]]
) -> None:
    """What open gave rightly, repair has saved."""
    for name, messages in kept.items():
        found = mended.found.get(name, {})
        held = sample.queues[name].held
        for seq, message in messages.items():
            if seq not in held or message.body != held[seq].body:
                continue
            assert seq in found, f"{harm}: repair lost seq_id {seq} of {name}, which open gave"
            assert found[seq].body == message.body, f"{harm}: {name} {seq}: another body"
