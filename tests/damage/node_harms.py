"""Harm the files of directories that nodes wrote, and compare what salvage saves with the whole.

A harm that costs a message, changes one or adds one must be told of: with a finding, and where a
message is missing ``complete`` must be false. A RocketMQ store is read with a read-only engine.
:func:`is_knowable` says which harms nobody can tell from what a node leaves.

``python -m tests.damage.node_harms [NAME ...] [--part K/N]`` runs all of it, which takes hours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import qindex
import rocketstore
from journal.errors import StoreError
from journal.findings import Finding
from journal.format import MAX_SEQ_ID
from journal.replay import Ending
from qindex.format.record_layouts import journal_layout, segment_layout
from qindex.format.resynchronise import Layout
from qindex.view.reader import StoreReader
from rocketstore.verify import verify as verify_rocket
from tests import golden, golden_v2

Messages = Counter[tuple[str, str]]
"""Queue and digest of a body, and how often it is there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``messages`` that can be read; what is told: ``complete``, ``findings`` and ``verified``, and
    ``error`` where nothing is read."""

    messages: Messages
    complete: bool
    findings: tuple[Finding, ...] = ()
    verified: tuple[Finding, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Harm:
    """``what`` is done to the file ``path`` (relative): it then holds ``data``, None for removed;
    ``other``: a second file that is harmed, and its new bytes."""

    path: str
    what: str
    data: bytes | None
    other: tuple[str, bytes] | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"

    def outcome(self, root: Path, read: Callable[[Path], Outcome]) -> Outcome:
        """Harm the directory ``root``, read it, and undo the harm."""
        changed = [(self.path, self.data), *([self.other] if self.other else [])]
        before = {name: (root / name).read_bytes() for name, _ in changed}
        try:
            for name, data in changed:
                if data is None:
                    (root / name).unlink()
                else:
                    (root / name).write_bytes(data)
            return read(root)
        finally:
            for name, data in before.items():
                (root / name).write_bytes(data)


def harms(root: Path) -> Iterator[Harm]:
    """Yield the harms of every file below ``root``, in a fixed order."""
    names = sorted(str(one.relative_to(root)) for one in root.rglob("*") if one.is_file())
    for name in names:
        data = (root / name).read_bytes()
        size = len(data)
        yield Harm(name, "removed", None)
        if not size:
            continue
        yield Harm(name, "emptied", b"")
        used = len(data.rstrip(b"\0"))
        for at in sorted({size // 3, size // 2 + 1, used * 2 // 3 + 1, used - 17, used - 1}):
            if 0 < at < size:
                yield Harm(name, f"cut at {at} of {size}", data[:at])
        for at in sorted({0, 5, used // 3, used // 2 + 1, used * 3 // 4, used - 40}):
            if 0 <= at < used:
                yield Harm(name, f"zero from {at} of {size}", data[:at] + bytes(size - at))
        for at in sorted({0, used // 2 // 512 * 512, max(used - 1024, 0) // 512 * 512}):
            block = min(512, size - at)
            if any(data[at : at + block]):
                changed = data[:at] + bytes(block) + data[at + block :]
                yield Harm(name, f"512 bytes zero at {at} of {size}", changed)
        for share in range(1, 12):
            at = min(used * share // 12 + share, size - 1)
            for mask in (0x01, 0xA9):
                changed = data[:at] + bytes((data[at] ^ mask,)) + data[at + 1 :]
                yield Harm(name, f"byte {at} of {size} xor {mask:#x}", changed)
        suffix = os.path.splitext(name)[1]
        later = [one for one in names if one > name and os.path.splitext(one)[1] == suffix]
        for other in later[:1]:
            its = (root / other).read_bytes()
            if its != data:
                yield Harm(name, f"swapped with {other}", its, (other, data))


# -- what is there --------------------------------------------------------------------------------


def salvaged(root: Path) -> Outcome:
    """Salvage a virtual host's directory, read the copy, and verify the original."""
    out = Path(tempfile.mkdtemp(prefix="saved-", dir=root.parent))
    try:
        report = qindex.salvage(root, out / "new")
        verified = qindex.verify(root).findings
        found: Messages = Counter()
        for queue in StoreReader(out / "new").readers():
            for row in queue:
                found[queue.name, golden.sha16(row.body or b"")] += 1
        return Outcome(found, report.complete, tuple(report.findings), tuple(verified))
    except StoreError as error:
        return Outcome(Counter(), False, error=f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(out)


def rocket_read(root: Path) -> Outcome:
    """Read a RocketMQ store with an engine that is read-only, and verify it."""
    found: Messages = Counter()
    try:
        verified = tuple(verify_rocket(root))
        with rocketstore.open(root, read_only=True) as store:
            for topic, queue_id in sorted(store.queues()):
                for one in store.messages(topic, queue_id):
                    found[f"{topic}/{queue_id}", golden.sha16(one.body)] += 1
            findings = tuple(store.findings)
    except StoreError as error:
        return Outcome(Counter(), False, error=f"{type(error).__name__}: {error}")
    return Outcome(found, not findings, findings, verified)


# -- the rule -------------------------------------------------------------------------------------


def is_knowable(root: Path, harm: Harm) -> bool:
    """Return whether the files tell that something is missing after ``harm`` of the sound
    directory ``root``."""
    suffix, what = os.path.splitext(harm.path)[1], harm.what.split()[0]
    before = (root / harm.path).read_bytes()
    data = b"" if harm.data is None else harm.data
    if suffix in (".idx", ".jif", ".rdq") and (what == "byte" or len(data) == len(before)):
        # No checksum covers a body, or an ack. Zeros are told of where they are not inside one.
        return what == "zero" and suffix != ".rdq"
    if suffix == ".idx":
        # A segment goes when all of it is acknowledged.
        return harm.data is not None and not _ends_whole(segment_layout(0, 1 << 14), data)
    if suffix == ".jif":
        # A flush empties the journal, and does not remove it.
        return harm.data is None or not _ends_whole(journal_layout(MAX_SEQ_ID), data)
    if suffix == ".qi" and harm.data is None:
        # It goes, and then its messages, when all is acknowledged. Large ones are elsewhere.
        return (root / harm.path).with_suffix(".qs").exists()
    if suffix == ".qi" and what != "swapped":
        # A slot without a status was acknowledged.
        slots = [(data[at : at + 32], before[at : at + 32]) for at in range(64, len(data), 32)]
        torn = len(data) % 32 != 0 or data[:64] != before[:64]
        return torn or any(now[0] and was[0] and now != was for now, was in slots)
    # RocketMQ deletes the first files of the log when they expire.
    return not (harm.data is None and os.path.dirname(harm.path) == "commitlog")


def _ends_whole(layout: Layout, data: bytes) -> bool:
    walk = layout.walk(data, 0, len(data), sys.maxsize)
    return bool(data or layout.step_size == 8) and walk.ending is Ending.END


def wrong(whole: Outcome, now: Outcome) -> str:
    """Say what is wrong with an outcome beside that of the whole directory; empty: nothing."""
    if now.error or now.messages == whole.messages:
        return ""
    missing = (whole.messages - now.messages).total()
    more = (now.messages - whole.messages).total()
    said = f"{missing} of {whole.messages.total()} missing, {more} others"
    if missing > more and now.complete:
        return f"{said}, complete"
    told = {*now.findings, *now.verified} - {*whole.findings, *whole.verified}
    return "" if told else f"{said}, no finding"


# -- by hand --------------------------------------------------------------------------------------


_ROCKET = {"gen": "store", "crash": "before", "delay": "store", "expire": "after"}
NAMES: tuple[str, ...] = (
    *golden.SCENARIOS,
    *golden_v2.SCENARIOS,
    *(f"rocket-{name}" for name in _ROCKET),
)
"""Every golden directory."""
HEAVY = frozenset(("c1_segments_dirty", "f1_lazy_transient_dirty", "h1_heavy_dirty"))
"""Directories that take more than half a second to read."""


def directory(name: str) -> tuple[Path, Callable[[Path], Outcome]]:
    """Return a golden directory, and how it is read."""
    if name in golden.SCENARIOS:
        return golden.golden(name).vhost_dir, salvaged
    if name in golden_v2.SCENARIOS:
        return golden_v2.scenario(name).vhost_dir, salvaged
    name = name.removeprefix("rocket-")
    return golden.rocket_golden(name) / _ROCKET[name], rocket_read


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", default="0/1", help="every N-th harm, from K on")
    parser.add_argument("--only", default="", help="harms whose text has this")
    parser.add_argument("--all", action="store_true", help="also those that nobody can know")
    options = parser.parse_args()
    first, every = map(int, options.part.split("/"))
    bad = tried = 0
    for name in options.names or NAMES:
        source, read = directory(name)
        with tempfile.TemporaryDirectory(prefix="harms-") as box:
            root = Path(shutil.copytree(source, Path(box) / "root"))
            whole = read(root)
            for harm in list(harms(root))[first::every]:
                if options.only not in str(harm) or not (options.all or is_knowable(root, harm)):
                    continue
                now = harm.outcome(root, read)
                tried += 1
                if said := wrong(whole, now):
                    bad += 1
                    told = [f"{one.kind} {one.what}" for one in now.findings][:2]
                    print(f"{name} {harm}: {said} {told}", flush=True)
        print(f"-- {name}: {tried} harms so far, {bad} wrong", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
