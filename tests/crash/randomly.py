"""Workloads made up from a seed: any steps in any order."""

from __future__ import annotations

import random
from typing import Any

from tests.crash.driver import KINDS, Step, Workload

__all__ = ["random_workload"]

_QUEUES = ("a", "b", "c")


def random_workload(seed: int) -> Workload:
    """Give the workload of a seed: 8 to 20 steps on up to three queues."""
    chance = random.Random(seed)
    queues = _QUEUES[: chance.choice((1, 1, 2, 3))]
    kinds = chance.sample(sorted(KINDS), chance.randint(1, 4))
    options: dict[str, Any] = {
        "segment_entry_count": chance.choice((1, 2, 4, 8)),
        "max_journal_entries": chance.choice((3, 8, 1000)),
        "durability": chance.choice(("os", "os", "fsync")),
    }
    patches: dict[str, Any] = {}
    if chance.random() < 0.25:
        patches["journal.journal._IN_PLACE"] = 0
    if chance.random() < 0.25:
        patches["journal.journal._BULK"] = 2048
    setup: list[Step] = [("open",), *(("queue", name) for name in queues)]
    steps = [_step(chance, queues, kinds) for _ in range(chance.randint(8, 20))]
    if options["durability"] == "fsync":
        steps = [step for step in steps if step[0] != "meanwhile" or step[1][0] == "flush"]
    name = f"seed {seed}"
    return Workload(name, tuple(steps), tuple(setup), options, patches)


def _step(chance: random.Random, queues: tuple[str, ...], kinds: list[str]) -> Step:
    name = chance.choice(queues)
    kind = chance.choice(kinds)
    confirm = chance.random() < 0.2
    choices: list[tuple[int, Step]] = [
        (10, ("publish", name, kind, confirm)),
        (6, ("publish_many", name, chance.randint(1, 6), kind, confirm)),
        (4 if len(queues) > 1 else 0, ("publish_to", "".join(queues), kind, confirm)),
        (6, ("get", name, chance.randint(1, 5))),
        (5, ("ack", name, chance.randint(0, 1), chance.randint(1, 2))),
        (3, ("ack_many", name, chance.randint(0, 1))),
        (2, ("ack_up_to", name, chance.randint(1, 3))),
        (2, ("requeue", name, chance.randint(0, 1))),
        (1, ("reject", name)),
        (3, ("consume", name, chance.randint(1, 4))),
        (4, ("flush", name)),
        (1, ("flush_idle", name)),
        (2, ("rest", name)),
        (3, ("sync",)),
        (2, ("sync_queue", name)),
        (4, ("compact",)),
        (1, ("purge", name)),
        (1, ("delete", name)),
        (2, ("reopen",)),
        (2, ("kill",)),
    ]
    if chance.random() < 0.15:
        outer: Step = chance.choice((("flush", name), ("compact",), ("sync",)))
        # Within a sync its own thread can't ask for another.
        confirm &= outer[0] == "flush"
        inner: list[Step] = [("publish", name, kind, confirm), ("consume", name, 1), ("get", name)]
        return ("meanwhile", outer, *chance.sample(inner, chance.randint(1, 3)))
    weights = [weight for weight, _ in choices]
    steps = [step for _, step in choices]
    (step,) = chance.choices(steps, weights)
    return step
