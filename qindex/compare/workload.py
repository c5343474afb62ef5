"""Workloads that run on every contender: presets, and workloads from a file."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from journal.errors import UsageError
from journal.fs.files import REAL, read_file

HEADER_BYTES = 16
"""Each body starts with the time it was due and its number: the smallest body there can be."""

_LARGEST_BODY = 64 << 20
_SPREADS = {"fixed": 1, "uniform": 2, "lognormal": 2}
_FREE_SPACE_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """A load on queues; :data:`PRESETS` has five, a JSON file or options change what differs.

    ``sizes``: of bodies, in bytes: ``fixed:N``, ``uniform:LOW:HIGH`` or ``lognormal:MEDIAN:SIGMA``
    (sigma of the natural logarithm; cut at 100 times the median). ``queues``: independent ones.
    ``groups``: how many groups of consumers each get every message. ``publishers`` and
    ``consumers``: threads. ``batch``: messages of one call, for publishing and for taking.
    ``ack_lag``: messages that a consumer holds before it acknowledges the oldest. ``think_us``:
    microseconds that a consumer takes for each message while publishers are at work.
    ``lookups``: lookups of a message by its key (0: messages have no keys). ``durability``:
    ``os`` or ``fsync``. ``messages``: published at full speed in each round; 0: as many as fit in
    ``seconds``. ``rate``: messages a second while latencies are measured, for ``seconds``.
    """

    name: str = "own"
    sizes: str = "fixed:256"
    queues: int = 1
    groups: int = 1
    publishers: int = 1
    consumers: int = 1
    batch: int = 1
    ack_lag: int = 0
    think_us: float = 0
    lookups: int = 0
    durability: str = "os"
    messages: int = 40_000
    seconds: float = 2.0
    rate: float = 2_000.0

    def __post_init__(self) -> None:
        """Raise :class:`UsageError` for a value that can't be run."""
        for field_name, low, high in _RANGES:
            value = getattr(self, field_name)
            kind = int if field_name in _WHOLE else int | float
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                raise UsageError(f"{field_name} must be from {low:,} to {high:,}, not {value!r}")
        if self.durability not in ("os", "fsync"):
            raise UsageError(f"durability must be os or fsync, not {self.durability!r}")
        if not isinstance(self.name, str) or not isinstance(self.sizes, str):
            raise UsageError("name and sizes must be text")
        self._spread()

    def _spread(self) -> tuple[str, list[float]]:
        kind, *given = self.sizes.split(":")
        try:
            numbers = [float(one) for one in given]
        except ValueError:
            numbers = []
        if len(numbers) != _SPREADS.get(kind) or not all(map(math.isfinite, numbers)):
            raise UsageError(
                f"sizes {self.sizes!r}: fixed:N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA"
            )
        smallest, largest = numbers[0], numbers[-1] if kind == "uniform" else numbers[0]
        if not HEADER_BYTES <= smallest <= largest <= _LARGEST_BODY:
            raise UsageError(f"sizes {self.sizes!r}: from {HEADER_BYTES} to {_LARGEST_BODY} bytes")
        if kind == "lognormal" and not 0 <= numbers[1] <= 4:
            raise UsageError(f"sizes {self.sizes!r}: sigma must be from 0 to 4")
        return kind, numbers

    def draw_sizes(self, count: int, seed: int) -> list[int]:
        """``count`` body sizes in bytes; the same for the same ``seed``."""
        kind, numbers = self._spread()
        if kind == "fixed":
            return [int(numbers[0])] * count
        chance = random.Random(seed)
        if kind == "uniform":
            return [chance.randint(int(numbers[0]), int(numbers[1])) for _ in range(count)]
        middle, sigma = math.log(numbers[0]), numbers[1]
        largest = min(int(numbers[0] * 100), _LARGEST_BODY)
        return [
            min(max(int(chance.lognormvariate(middle, sigma)), HEADER_BYTES), largest)
            for _ in range(count)
        ]

    @property
    def mean_bytes(self) -> float:
        """Mean size of a body, from a sample."""
        sample = self.draw_sizes(2_000, 0)
        return sum(sample) / len(sample)

    @property
    def space_bytes(self) -> int:
        """Bytes that should be free before it is run."""
        count = self.messages or 200_000 * self.seconds
        return int(_FREE_SPACE_FACTOR * count * (self.mean_bytes + 256)) + (256 << 20)

    @property
    def receivers(self) -> int:
        """Pairs of a queue and a group that reads it."""
        return self.queues * self.groups

    def quick(self) -> Workload:
        """The same load, a tenth of it."""
        return replace(
            self,
            messages=max(self.messages // 10, 200) if self.messages else 0,
            seconds=min(self.seconds, 0.5),
            lookups=min(self.lookups, 50),
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields, as a workload file has them."""
        return asdict(self)


_WHOLE = frozenset(
    ("queues", "groups", "publishers", "consumers", "batch", "ack_lag", "lookups", "messages")
)
_RANGES = (
    ("queues", 1, 10_000),
    ("groups", 1, 64),
    ("publishers", 1, 64),
    ("consumers", 1, 64),
    ("batch", 1, 10_000),
    ("ack_lag", 0, 100_000),
    ("think_us", 0, 1_000_000),
    ("lookups", 0, 100_000),
    ("messages", 0, 10_000_000),
    ("seconds", 0.1, 3_600),
    ("rate", 1, 1_000_000),
)

PRESETS: Mapping[str, Workload] = {
    one.name: one
    for one in (
        Workload(name="task-queue", sizes="lognormal:300:0.8", publishers=2, consumers=2,
                 ack_lag=10),
        Workload(name="event-log", sizes="uniform:100:1000", queues=4, publishers=2, consumers=2,
                 batch=100, lookups=500, messages=100_000, rate=20_000),
        Workload(name="fan-out", sizes="fixed:8192", groups=4, consumers=4, messages=8_000,
                 rate=500),
        Workload(name="large-bodies", sizes="uniform:65536:1048576", messages=400, rate=50),
        Workload(name="slow-consumer", sizes="fixed:512", publishers=2, think_us=200,
                 messages=60_000, rate=2_000),
    )
}  # fmt: skip


def make_workload(values: Mapping[str, Any], base: Workload | None = None) -> Workload:
    """A workload with some fields given. Raises :class:`UsageError` for an unknown one."""
    known = {one.name for one in fields(Workload)}
    for name in values:
        if name not in known:
            raise UsageError(f"a workload has no {name!r}; it has {', '.join(sorted(known))}")
    return replace(base or Workload(), **values)


def read_workload(path: Path) -> Workload:
    """Read a workload from a JSON object; ``"preset"`` in it names one to start from.

    Raises :class:`UsageError` for anything else, :class:`OSError` if it can't be read.
    """
    try:
        values = json.loads(read_file(REAL, path))
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: a workload is one JSON object")
    base = find_preset(str(values.pop("preset"))) if "preset" in values else None
    values.setdefault("name", base.name if base is not None else path.stem)
    try:
        return make_workload(values, base)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def find_preset(name: str) -> Workload:
    """The preset of a name. Raises :class:`UsageError` if there is none."""
    if name not in PRESETS:
        raise UsageError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
