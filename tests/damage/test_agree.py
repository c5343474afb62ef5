"""Whoever reads a store finds the same messages, whatever harm it has come to.

Without the snapshot of a clean close, which knows more than the files: what ``cat`` shows is what
``open(repair=True)`` delivers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from journal.errors import StoreError
from qindex.engine.opening import open_store
from qindex.format.layout import LOCK, MARKER, QUEUE_NAME
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from qindex.view.reader import StoreReader
from tests.damage.harms import Harm, flips, others
from tests.damage.samples import SAMPLES, STORE, Sample
from tests.effort import SEED, by_tier
from tests.memory_fs import MemoryFileSystem

SHARE = by_tier(quick=997, all=199, nightly=7)
_NAMING = (LOCK, MARKER, QUEUE_NAME)
"""Files whose harm changes names, and no message."""

Found = dict[str, dict[int, bytes]]


def harms_of(sample: Sample) -> Iterator[Harm]:
    yield Harm("", 0, 0, "nothing", sample.files)
    for path in sorted(sample.files):
        if not path.endswith((*_NAMING, SNAPSHOT)):
            yield from flips(sample.files, path, share=SHARE, seed=SEED)
            yield from others(sample.files, path, share=SHARE, seed=SEED)


def shown(fs: MemoryFileSystem) -> Found:
    return {
        queue.name: {row.seq_id: row.body for row in queue if row.body is not None}
        for queue in StoreReader(STORE, fs).readers()
    }


def delivered(fs: MemoryFileSystem) -> Found:
    found: Found = {}
    with open_store(STORE, fs=fs, background=False, repair=True) as engine:
        for name in engine.queue_names():
            queue, bodies = engine.queue(name), found.setdefault(name, {})
            while True:
                try:
                    batch = queue.get_many(100)
                except StoreError:
                    continue  # a message is lost; asking again goes on after it
                if not batch:
                    break
                bodies.update(zip(batch.seq_ids, batch.bodies, strict=True))
                queue.ack_many(batch)
    return found


@pytest.mark.parametrize("name", [*SAMPLES])
def test_all_readers_find_the_same(name: str) -> None:
    sample = SAMPLES[name]()
    for harm in harms_of(sample):
        files = {path: data for path, data in harm.files.items() if not path.endswith(SNAPSHOT)}
        found = shown(sample.file_system(files))
        assert found == delivered(sample.file_system(files)), harm
