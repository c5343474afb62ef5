"""The workloads by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.schedules.scheduler import EVERYTHING, Handler, Run, running

__all__ = ["WORKLOADS", "Workload", "workload"]


@dataclass(frozen=True)
class Workload:
    """A body to be run under every schedule with at most so many ``delays``.

    ``kinds``: the switch points; ``interrupts``: the threads that a handler may interrupt, which
    calls ``world.handle``; ``nightly``: too large for another tier.
    """

    name: str
    body: Callable[[Run], None]
    delays: int
    kinds: frozenset[str]
    interrupts: frozenset[str]
    nightly: bool

    @property
    def handler(self) -> Handler | None:
        """Give the handler, if there is one."""
        if not self.interrupts:
            return None
        return Handler(self.interrupts, lambda: running().world.handle())  # type: ignore[attr-defined]


WORKLOADS: dict[str, Workload] = {}


def workload(
    *,
    delays: int = 2,
    stores: bool = False,
    interrupts: str = "",
    nightly: bool = False,
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Take a body in. ``stores``: stores into mapped files are switch points."""
    kinds = EVERYTHING if stores else EVERYTHING - {"store"}

    def take_in(body: Callable[[Run], None]) -> Callable[[Run], None]:
        name = body.__name__
        threads = frozenset(interrupts.split())
        WORKLOADS[name] = Workload(name, body, delays, kinds, threads, nightly)
        return body

    return take_in
