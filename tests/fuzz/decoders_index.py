"""The files of the queue index and of the store directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from xxhash import xxh3_64_digest

from journal.block_sums import heal
from journal.errors import DamageError, NotAStoreError
from journal.format import DELIVER, MAX_SEQ_ID
from journal.poison import Poison
from qindex.format.entries import journal_words, read_entry
from qindex.format.record_layouts import journal_layout, segment_layout
from qindex.format.resynchronise import Reading, read_soundly
from qindex.format.seq_ids import sound_slots
from qindex.format.settings import unpack_settings
from qindex.format.transactions import pack_batch, pack_boot, pack_committed, read_transactions
from qindex.index.segment_scan import scan_segment
from qindex.index.seq_ids import SeqFile
from qindex.queue.notes.delivery_counts import pack_count, unpack_counts
from qindex.recovery import store_directory
from qindex.recovery.snapshot import read_snapshot
from tests.fuzz.frame import Decoder
from tests.fuzz.one_file import OneFile
from tests.fuzz.seeds import files_named

__all__ = ["DECODERS"]

_COUNT = 16
_SUMS_SPLIT = b"\0the sums:\0"


def _entries(reading: Reading, payload_at: int) -> None:
    walk = reading.walk
    publishes = walk.kinds < DELIVER
    words = journal_words(walk.kinds[publishes], walk.seqs[publishes])
    offsets = walk.offsets[publishes] + payload_at
    for payload, word in zip(offsets.tolist(), words.tolist(), strict=True):
        read_entry(reading.data, payload, word)


def _journal(data: bytes) -> None:
    for limit in (MAX_SEQ_ID, 40):
        how = journal_layout(limit)
        _entries(read_soundly("journal.jif", data, how), how.payload_at)


def _segment(data: bytes) -> None:
    how = segment_layout(1, _COUNT)
    _entries(read_soundly("1.idx", data, how), how.payload_at)
    scan = scan_segment("1.idx", data, 1, _COUNT)
    again = scan_segment("1.idx", scan.sound_bytes(), 1, _COUNT)
    assert again.findings == []
    assert again.filed == scan.filed


def _sums(data: bytes) -> None:
    content, _, sums = data.partition(_SUMS_SPLIT)
    healed = heal(content, sums)
    assert len(healed.data) == len(content)


def _sums_seeds() -> Iterator[bytes]:
    contents = files_named("*.idx")[:2]
    for content, sums in zip(contents, files_named("*.idx.sum")[:2], strict=True):
        yield content[:2000] + _SUMS_SPLIT + sums
    yield _SUMS_SPLIT


def _sealed(data: bytes) -> bytes:
    """The bytes with a checksum that holds: a fuzzer does not find one."""
    return data + xxh3_64_digest(data)


def _snapshot(data: bytes) -> None:
    for content in (data, _sealed(data)):
        read_snapshot(OneFile(content), "store", "store/queues")


def _marker(data: bytes) -> None:
    for content in (data, _sealed(data)):
        try:
            store_directory.read_marker(OneFile(content), "store")
        except (NotAStoreError, DamageError):
            continue


def _settings(data: bytes) -> None:
    for content in (data, _sealed(data)):
        with suppress(ValueError):
            unpack_settings(content)


def _unsealed(pattern: str) -> list[bytes]:
    contents = files_named(pattern)
    return contents + [content[:-8] for content in contents]


def _seq_file(data: bytes) -> None:
    list(sound_slots(data))
    seq_file = SeqFile(OneFile(data), "qindex.seq", Poison())
    assert seq_file.next_after_crash(5) >= 5


def _transactions(data: bytes) -> None:
    for noted in read_transactions(data)[0].values():
        assert len(list(noted.acked(lambda one: one.seqs))) <= sum(
            len(seqs) for _, seqs in noted.acks
        )


def _transactions_seeds() -> list[bytes]:
    batches = [pack_batch(at, "b", at, [b"m" * 16] * at) for at in range(3)]
    commits = [pack_committed(at, pack_boot(b"run"), [("a", [at])]) for at in range(3)]
    return [batches[2], b"".join(batches + commits)]


def _counts(data: bytes) -> None:
    assert all(unpack_counts(data).values())


DECODERS = (
    Decoder("journal", _journal, lambda: files_named("*.jif")),
    Decoder("segment", _segment, lambda: files_named("*.idx")),
    Decoder("sums", _sums, _sums_seeds),
    Decoder("snapshot", _snapshot, lambda: _unsealed("qindex.clean")),
    Decoder("marker", _marker, lambda: _unsealed("qindex.store")),
    Decoder("settings", _settings, lambda: _unsealed("qindex.settings")),
    Decoder("transactions", _transactions, _transactions_seeds),
    Decoder("deliveries", _counts, lambda: [pack_count(1, 2) + pack_count(1, 0)]),
    Decoder("seq-file", _seq_file, lambda: files_named("qindex.seq")),
)
