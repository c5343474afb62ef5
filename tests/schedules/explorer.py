"""Every schedule of a body with so many delays."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from time import process_time

from tests.schedules.scheduler import EVERYTHING, Handler, Run, Schedule

__all__ = ["Exploration", "Found", "explore", "read_schedule", "written"]

Body = Callable[[Run], None]
_COLLECT_EVERY = 256


@dataclass
class Found:
    """One kind of failure: its shortest schedule, and how many schedules had it."""

    schedule: Schedule
    count: int = 1


@dataclass
class Exploration:
    """What came of it. ``runs``: schedules by their delays; ``is_whole``: all of them were run, or
    all of the slice that was asked for."""

    runs: list[int]
    is_whole: bool = False
    seconds: float = 0.0
    found: dict[str, Found] = field(default_factory=dict)


def explore(
    body: Body,
    judge: Callable[[Run], str | None],
    *,
    delays: int,
    seconds: float,
    kinds: frozenset[str] = EVERYTHING,
    handler: Handler | None = None,
    slices: int = 1,
    turn: int = 0,
    stop_at_first: bool = False,
    waits_are_free: bool = False,
) -> Exploration:
    """Run a body under each schedule with at most ``delays``, those with fewer first, for
    ``seconds`` of CPU time at most.

    ``judge`` tells what is wrong after a run, or ``None``. Of the schedules with most delays every
    ``slices``-th is run, from number ``turn`` on; of those with fewer, all. ``waits_are_free``:
    who goes on where a thread has to wait is no delay, whoever it is.
    """
    waiting: list[list[Schedule]] = [[{}], *([] for _ in range(delays))]
    result = Exploration([0] * (delays + 1))
    count = 0
    began = process_time()
    gc.disable()
    # What the first run in a process loads and makes would give it decisions that no other run has.
    Run({}, kinds=kinds, handler=handler).go(body)
    for cost, level in enumerate(waiting):
        while level:
            result.seconds = process_time() - began
            if result.seconds > seconds:
                return result
            schedule = level.pop()
            run = Run(schedule, kinds=kinds, handler=handler).go(body)
            result.runs[cost] += 1
            if result.runs[cost] % _COLLECT_EVERY == 0:
                gc.collect()
            wrong = judge(run)
            if wrong is not None:
                known = result.found.setdefault(wrong, Found(schedule, 0))
                known.count += 1
                if stop_at_first:
                    return result
            first = max(schedule, default=-1) + 1
            for number in range(len(run.decisions) - 1, first - 1, -1):
                following = cost + (not (waits_are_free and number in run.waits))
                if following > delays:
                    continue
                for taken in range(1, run.decisions[number]):
                    count += 1
                    if following < delays or count % slices == turn % slices:
                        waiting[following].append({**schedule, number: taken})
    result.is_whole = True
    result.seconds = process_time() - began
    return result


def written(schedule: Schedule) -> str:
    """Give a schedule as text; :func:`read_schedule` reads it."""
    return ",".join(f"{number}:{taken}" for number, taken in sorted(schedule.items())) or "none"


def read_schedule(text: str) -> Schedule:
    """Read a schedule that was written."""
    if text == "none":
        return {}
    pairs = (one.split(":") for one in text.split(","))
    return {int(number): int(taken) for number, taken in pairs}
