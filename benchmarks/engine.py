"""The engine beside its peers and the floor, in one run.

* 100-byte bodies, all distinct; every contender in its own process and in fresh directories on
  one disk; rounds (floor, ours, each peer in turn) repeated, medians shown, the spread beside
  them; every delivered body is compared with the one that was published, outside the clock.
* ``floor``: a Python loop of one ``os.write`` for each message, of as many bytes as a journal
  record has; in batch figures one write for all.
* Peers run in the fastest mode that keeps what returned through a SIGKILL. Those that can't
  (queuelib) are shown, and are never the "best peer".
* A peer that is not installed is left out, with a line that says so. ``pip install .[bench]``
  installs them all.

The exit status is 0 when everything asked for was measured, 1 when a contender failed, 2 on wrong
use. A bar that does not hold is in the output and does not change the status.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.figures import GROUPS
from benchmarks.peers import CONTENDERS
from benchmarks.program import common_parser, installed, parse_common, reporting
from benchmarks.session import Session


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common_parser("engine", __doc__, rounds=3)
    for option, names, what in (
        ("--only", GROUPS, "group of figures"),
        ("--who", CONTENDERS, "contender"),
    ):
        parser.add_argument(
            option,
            action="append",
            choices=sorted(names),
            metavar="NAME",
            help=f"measure this {what} only (may be repeated): {', '.join(names)}",
        )
    parser.add_argument("--quick", action="store_true", help="small counts: shows that all works")
    options = parse_common(parser, arguments)
    groups = {name: run for name, run in GROUPS.items() if not options.only or name in options.only}
    with reporting(options) as (report, directory):
        wanted = [kind for name, kind in CONTENDERS.items() if name in (options.who or CONTENDERS)]
        chosen = installed(wanted, report)
        session = Session(chosen, directory, options.rounds, report, quick=options.quick)
        if options.quick:
            report.say("--quick is too short to judge by: bars show their form only")
        for name, run in groups.items():
            start = time.monotonic()
            run(session)
            report.say(f"{name}: {time.monotonic() - start:.1f} s")
    return 1 if session.failed else 0


if __name__ == "__main__":
    sys.exit(main())
