"""Measure what a lookup costs by the size of the store, and what a range of times skips."""

from __future__ import annotations

import random
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import rocketstore
from benchmarks.counting import CountingFileSystem
from benchmarks.report import OURS, Report, Sample
from benchmarks.stopwatch import Stopwatch
from journal.fs.files import RealFileSystem

_BATCH = 1000
_SMALLEST = 1000
_LOOKUPS = 5000
_START = 1_700_000_000_000
_BATCH_MS = 100
"""The store's clock moves on by so much with each batch."""
_SPANS = 5
_FILES = 10


class _Reads(CountingFileSystem):
    """Remembers which files were read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: set[str] = set()

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        self.reads.add(self._paths[fd])
        return RealFileSystem.pread(fd, length, offset)


def lookups(report: Report, root: Path, largest: int) -> list[tuple[int, float]]:
    """One lookup by key in stores of 1,000 messages and ten times more up to ``largest``.

    Gives ``(messages, microseconds of CPU)``, the median of five rounds: one thread asks and waits
    for nobody, so that is its time on a machine that has nothing else to do.
    """
    rows: list[tuple[int, float]] = []
    chance = random.Random(3)
    now = [_START]
    path = root / "growing"
    with rocketstore.open(path, background=False, clock=lambda: now[0]) as store:
        count, size = 0, _SMALLEST
        while size <= largest:
            for keys in _keys(count, size):
                now[0] += _BATCH_MS
                store.put_many("G", [bytes(100)] * len(keys), keys=keys)
            count = size
            spans: list[dict[str, Sample]] = []
            for _ in range(_SPANS):
                wanted = [f"order-{chance.randrange(count)}" for _ in range(_LOOKUPS)]
                watch = Stopwatch()
                with watch.running():
                    hits = sum(len(store.query("G", key)) for key in wanted)
                assert hits == _LOOKUPS
                each = watch.wall / _LOOKUPS * 1e6
                spans.append({OURS: Sample(each, watch.cpu / _LOOKUPS * 1e6, count)})
            report.add(f"lookup_by_key_{size}", spans, unit="us", better="low")
            rows.append((size, statistics.median(span[OURS].cpu_us or 0.0 for span in spans)))
            size *= 10
    shutil.rmtree(path)
    return rows


def _keys(first: int, last: int) -> Iterator[list[str]]:
    for at in range(first, last, _BATCH):
        yield [f"order-{number}" for number in range(at, at + _BATCH)]


def files_walked(report: Report, root: Path, entries: int) -> None:
    """Count the files a query opens of ten index files with so many entries each: without a
    range of times, and with one second.

    Counted at the file seam: a read-only store reads an index file when it walks its chains.
    """
    path = root / "ranged"
    now = [_START]
    count = entries * _FILES - 2 * _BATCH
    options = {"background": False, "index_entries": entries, "index_slots": entries // 4}
    with rocketstore.open(path, clock=lambda: now[0], **options) as store:
        for keys in _keys(0, count):
            now[0] += _BATCH_MS
            store.put_many("G", [bytes(100)] * len(keys), keys=keys)
    middle = _START + count // 2 // _BATCH * _BATCH_MS
    ranges = {"index_files_walked": (0, now[0]), "index_files_walked_1s": (middle, middle + 1000)}
    for figure, (begin, end) in ranges.items():
        fs = _Reads()
        with rocketstore.open(path, read_only=True, fs=fs, **options) as store:
            fs.reads.clear()
            # A key of the oldest messages: without a range every file has to be asked for it.
            hits = store.query("G", f"order-{count // 2 if begin else 0}", 32, begin, end)
            assert len(hits) == 1
        walked = sum(Path(name).parent.name == "index" for name in fs.reads)
        files = len(list((path / "index").iterdir()))
        report.add_one(figure, walked, f"of {files} files")
    shutil.rmtree(path)


def text_plot(rows: list[tuple[int, float]]) -> str:
    """Lookup time over the size of the store, in letters."""
    highest = max(value for _, value in rows)
    lines = ["lookup by key, microseconds of CPU"]
    for size, value in rows:
        lines.append(f"{size:>12,} messages  {'#' * round(40 * value / highest):<40}  {value:.2f}")
    return "\n".join(lines)


def save_plot(rows: list[tuple[int, float]], path: Path) -> None:
    """The same as a picture; the file's suffix says of which kind (``.svg``, ``.png``).

    Needs matplotlib, of the extra ``bench``. Raises :class:`ImportError` without it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text stays text: the picture is small, and its words can be found.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rocketstore"}):
        figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
        axes.plot([size for size, _ in rows], [value for _, value in rows], marker="o")
        for size, value in rows:
            axes.annotate(
                f"{value:.1f}", (size, value), (0, 8), textcoords="offset points", ha="center"
            )
        axes.set_xscale("log")
        axes.set_xticks([size for size, _ in rows], [f"{size:,}" for size, _ in rows])
        axes.minorticks_off()
        axes.set_ylim(0, max(value for _, value in rows) * 1.6)
        axes.set_xlabel("messages in the store")
        axes.set_ylabel("microseconds of CPU")
        axes.set_title("One lookup by key, whatever the store's size")
        axes.grid(visible=True, axis="y", alpha=0.3)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)
