"""``python -m tests.damage``: harm small stores in every way, and print what users were told.

``--all``: every bit and every length of every file (an hour); else every ``--share``-th, from
``--seed`` on. Each harmed store is verified, opened in place, and repaired into a new one. Exit
code 1 for a broken promise: a wrong body, an error that is none of ours, a store that stays damaged
after repair, a message that open keeps and ``qindex repair`` loses, too much time or memory.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import time

from tests.damage.harms import flips, others
from tests.damage.samples import SAMPLES
from tests.damage.table import Table

_MEMORY = 512 << 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every bit, every length")
    parser.add_argument("--share", type=int, default=101, help="else every so-many-th")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", choices=SAMPLES, action="append", help="default: each")
    parser.add_argument("--silent", type=int, default=10, help="cases to name for each row")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    share = 1 if options.all else options.share
    whole = Table()
    for name in options.sample or SAMPLES:
        sample = SAMPLES[name]()
        table = Table()
        started = time.monotonic()
        for path in sorted(sample.files):
            table.run(sample, "flip", flips(sample.files, path, share=share, seed=options.seed))
            table.run(sample, "other", others(sample.files, path, share=share, seed=options.seed))
        count = sum(row.harms for row in table.rows.values())
        print(f"\n{name}: {count} harms in {time.monotonic() - started:.0f} s")
        print("\n".join(table.lines()))
        for (what, kind), row in sorted(table.rows.items()):
            for word in ("silent", "unsaid", "unnamed"):
                for case in getattr(row, word)[: options.silent]:
                    print(f"  {word}, {what} of {kind}: {case}")
        print("\n".join(f"  BROKEN {one}" for one in table.broken[:20]), flush=True)
        whole.broken += table.broken
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"\n{len(whole.broken)} broken promises; at most {peak >> 20} MiB of memory")
    return 1 if whole.broken or peak > _MEMORY else 0


if __name__ == "__main__":
    sys.exit(main())
