"""Tell whether an installed qindex works: both stores, before and behind a reopening.

``python scripts/smoke.py [compiled|interpreted]`` prints the build that runs and exits 0. It exits
1 and says why where something does not hold, as when another build runs than the one named. Run it
with the Python that qindex is installed into; nothing of the clone is imported.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import qindex
import rocketstore

BODIES = [b"first", b"second" * 1000, b"third"]
"""The second one goes into the message store."""


def main(wanted: str | None) -> None:
    """Work with both stores in a temporary directory; the caller sees what is raised."""
    with tempfile.TemporaryDirectory() as place:
        store = Path(place) / "store"
        with qindex.open(store) as engine:
            build = engine.stats().build
            if wanted not in (None, build):
                raise SystemExit(f"qindex runs {build}, and not {wanted}")
            queue = engine.queue("orders")
            queue.publish(BODIES[0], key="o-17", headers={"kind": "new"}, confirm=True)
            queue.publish_many(BODIES[1:])
            if queue.get(timeout=0) is None:  # it is not acknowledged: it comes again
                raise SystemExit("a published message is not delivered")
        with qindex.open(store) as engine:
            taken = engine.queue("orders").get_many(10)
            if [each.body for each in taken] != BODIES or not taken[0].redelivered:
                raise SystemExit("reopened, a queue does not deliver what was published")
            engine.queue("orders").ack_many(taken)
        if not qindex.verify(store).sound:
            raise SystemExit("verify finds something in a sound store")
        with rocketstore.open(Path(place) / "rocket") as log:
            log.put("orders", BODIES[0], keys="o-17")
            if log.query("orders", "o-17")[0].body != BODIES[0]:
                raise SystemExit("the RocketMQ store does not find a message by its key")
    print(f"qindex {qindex.__version__} works, {build}, from {Path(qindex.__file__).parent}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
