"""``python -m tests.hostile``: put what does not belong there in the place of every file and
directory of every kind of store, do everything with it, and print what was broken.

``--share``: every so-many-th case, from ``--seed`` on. Exit code 1 when something was broken: a
file outside was changed, an error that is none of ours, too much time or memory.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.hostile.stores import KINDS, build
from tests.hostile.trial import cases, run_cases, settle


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: each")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose text contains this")
    parser.add_argument("--answers", action="store_true", help="print what users are told")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    settle(options.kind or KINDS)
    broken = count = 0
    for kind in options.kind or KINDS:
        scratch = Path(tempfile.mkdtemp(prefix="hostile-"))
        started = time.monotonic()
        answers: Counter[str] = Counter()
        try:
            store = build(kind, scratch / "listed")
            wanted = [one for one in cases(kind, store) if options.only in str(one)]
            for trial in run_cases(wanted[options.seed % options.share :: options.share], scratch):
                count += 1
                answers[trial.answer.split(":")[0].split(",")[0]] += 1
                if trial.broken:
                    broken += 1
                    print(f"BROKEN {trial.case}: {trial.broken}", flush=True)
                elif options.answers:
                    print(f"{trial.case}: {trial.answer}")
        finally:
            shutil.rmtree(scratch)
        print(f"{kind}: {dict(answers)} in {time.monotonic() - started:.0f} s", flush=True)
    print(f"{count} cases, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
