"""CPU of today's sources and of an earlier commit, compiled both, in turns of one run.

One run on a busy machine may differ from the next by half. Turns of a few hundred milliseconds, of
which the quickest counts, differ by one or two percent: enough to see what a change costs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.program import common_parser, parse_common, reporting

ROOT = Path(__file__).resolve().parents[1]
BUILDS = ROOT / "build" / "against"
TODAY = "today"
FIGURES = ("publish", "get + ack", "publish_many", "get_many + ack_many")

_LOAD = """
import gc, json, os, sys, tempfile, time
import qindex
from journal.compiled import build
assert build() == "compiled", build()
COUNT, BATCH, BODY = 60_000, 1_000, bytes(100)
clock = time.process_time_ns
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as place:
    with qindex.open(place, max_journal_entries=2_000_000, background=False) as engine:
        queue = engine.queue("q")
        publish, get, ack = queue.publish, queue.get, queue.ack
        for _ in range(2_000):
            publish(BODY)
            ack(get())
        gc.collect()
        gc.disable()
        found = []
        began = clock()
        for _ in range(COUNT):
            publish(BODY)
        found.append(clock() - began)
        began = clock()
        for _ in range(COUNT):
            ack(get())
        found.append(clock() - began)
        bodies = [BODY] * BATCH
        began = clock()
        for _ in range(COUNT // BATCH * 4):
            queue.publish_many(bodies)
        found.append((clock() - began) / 4)
        began = clock()
        for _ in range(COUNT // BATCH * 4):
            queue.ack_many(queue.get_many(BATCH))
        found.append((clock() - began) / 4)
        print(json.dumps([one / COUNT for one in found]))
"""


def main(arguments: Iterable[str] | None = None) -> int:
    """Print nanoseconds of CPU an operation of both, and the ratio: above 1, today is quicker."""
    parser = common_parser("against", __doc__, rounds=15)
    parser.add_argument("commit", help="the earlier commit, as git names it")
    options = parse_common(parser, arguments)
    name = _git("rev-parse", "--short", "--verify", f"{options.commit}^{{commit}}").strip()
    with reporting(options) as (report, place):
        builds = {name: _built(name), TODAY: _built(TODAY)}
        best = {each: [float("inf")] * len(FIGURES) for each in builds}
        ratios: list[list[float]] = [[] for _ in FIGURES]
        for _ in range(options.rounds):
            turn = {each: _measured(path, place) for each, path in builds.items()}
            for at in range(len(FIGURES)):
                ratios[at].append(turn[name][at] / turn[TODAY][at])
                for each in builds:
                    best[each][at] = min(best[each][at], turn[each][at])
        for at, figure in enumerate(FIGURES):
            middle = sorted(ratios[at])[len(ratios[at]) // 2]
            line = {
                "figure": figure,
                "ns": {each: round(best[each][at], 1) for each in builds},
                "ratio_of_best": round(best[name][at] / best[TODAY][at], 3),
                "ratio_median": round(middle, 3),
            }
            print(json.dumps(line), file=report.output, flush=True)
    return 0


def _built(name: str) -> Path:
    """Compile a commit, or the sources as they are; one of a commit is kept for the next run."""
    place = BUILDS / name
    if name != TODAY and (place / "journal" / "_compiled").is_dir():
        return place
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(parents=True)
    if name == TODAY:
        listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for each in filter(None, listed.split("\0")):
            if (ROOT / each).is_file():
                (place / each).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / each, place / each)
    else:
        packed = subprocess.run(
            ["git", "archive", name], cwd=ROOT, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(place)], input=packed.stdout, check=True)
    print(f"compiling {name} ...", file=sys.stderr)
    with tempfile.TemporaryDirectory() as site:
        _run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, "."],
            place,
            QINDEX_COMPILE="require",
        )
        shutil.move(Path(site) / "journal" / "_compiled", place / "journal")
    return place


def _measured(build: Path, place: Path) -> list[float]:
    """Return the nanoseconds of CPU of each figure, in a process of its own."""
    found = _run([sys.executable, "-c", _LOAD, str(place)], build, PYTHONPATH=str(build))
    measured: list[float] = json.loads(found)
    return measured


def _git(*arguments: str) -> str:
    return _run(["git", *arguments], ROOT)


def _run(command: Sequence[str], place: Path, **environment: str) -> str:
    run = subprocess.run(
        command,
        cwd=place,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return run.stdout


if __name__ == "__main__":
    sys.exit(main())
