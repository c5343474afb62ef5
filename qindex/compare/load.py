"""The load itself: publishing and consuming threads on one contender, and what they measure.

Two phases, in two fresh stores. At *full speed* all threads go as fast as they can: that gives
rates, CPU, bytes and space. *Paced*, messages come at the workload's rate: only so do latencies
tell about the store, and not about how long the queue was.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from journal.errors import StoreError
from qindex.compare.contender import Receiver, Store
from qindex.compare.workload import HEADER_BYTES, Workload

_HEADER = struct.Struct("<QQ")
_FILLER_BYTES = 1 << 20
_TIMEOUT = 0.05
_DRAIN_PATIENCE = 60.0
_SIZES_DRAWN = 4096


class LoadError(StoreError):
    """A contender lost, altered or repeated a message, or stopped giving any."""


class Bodies:
    """Bodies of one seed's sizes: time due (ns) and number, then bytes that the number picks."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._sizes = workload.draw_sizes(_SIZES_DRAWN, seed)
        piece = np.random.default_rng(1).bytes(_FILLER_BYTES)
        self._filler = piece * (max(self._sizes) // _FILLER_BYTES + 2)

    def make(self, number: int, due: int) -> bytes:
        """One body."""
        start = number * 7919 % _FILLER_BYTES
        size = self._sizes[number % _SIZES_DRAWN] - HEADER_BYTES
        return _HEADER.pack(due, number) + self._filler[start : start + size]

    def check(self, body: bytes) -> int:
        """Return the time it was due (ns). Raises :class:`LoadError` if the body was altered."""
        due, number = _HEADER.unpack_from(body)
        if body != self.make(number, due):
            raise LoadError(f"message {number} was altered")
        return int(due)


@dataclass
class Tally:
    """Counts and times of one thread; read by the sampler while it runs."""

    messages: int = 0
    bytes: int = 0
    first: int = 0
    last: int = 0
    calls: list[int] = field(default_factory=list)


class Run:
    """One phase on one store."""

    def __init__(self, store: Store, workload: Workload, *, paced: bool) -> None:
        self._store = store
        self._workload = workload
        self._paced = paced
        self._bodies = Bodies(workload, 7)
        self._publishers = [Tally() for _ in range(workload.publishers)]
        self._consumers = [Tally() for _ in range(workload.consumers)]
        self._published = threading.Event()
        self._failure: BaseException | None = None
        self._numbers = count()
        self._started = 0
        self._drained = False

    def run(self, sample: Callable[[int, int], None], every: float) -> dict[str, Any]:
        """Run it to the last delivery; ``sample(published, delivered)`` is called ``every``
        seconds. Raises :class:`LoadError`, and whatever the contender raised."""
        publishers = self._threads(self._publish, self._publishers)
        consumers = self._threads(self._consume, self._consumers)
        cpu = time.process_time()
        self._started = time.perf_counter_ns()
        for thread in consumers + publishers:
            thread.start()
        while any(thread.is_alive() for thread in publishers):
            sample(*self._counts())
            publishers[-1].join(every)
        published, _ = self._counts()
        self._published.set()
        self._drain(sample, every)
        for thread in consumers:
            thread.join()
        if self._failure is not None:
            raise self._failure
        sample(*self._counts())
        cpu = time.process_time() - cpu
        return self._result(published, cpu)

    def _threads(
        self, work: Callable[[int, Tally], None], tallies: list[Tally]
    ) -> list[threading.Thread]:
        def guarded(number: int, tally: Tally) -> None:
            try:
                work(number, tally)
            except BaseException as error:
                # Handed to the thread that waits; the others end when they see it.
                self._failure = error

        return [
            threading.Thread(target=guarded, args=(number, tally), daemon=True)
            for number, tally in enumerate(tallies)
        ]

    def _counts(self) -> tuple[int, int]:
        return (
            sum(tally.messages for tally in self._publishers),
            sum(tally.messages for tally in self._consumers),
        )

    def _drain(self, sample: Callable[[int, int], None], every: float) -> None:
        before, since = -1, time.monotonic()
        while self._failure is None:
            published, delivered = self._counts()
            missing = published * self._workload.groups - delivered
            if missing < 0:
                self._failure = LoadError(f"{-missing} messages were delivered twice")
            if missing <= 0:
                break
            sample(published, delivered)
            if delivered != before:
                before, since = delivered, time.monotonic()
            elif time.monotonic() - since > _DRAIN_PATIENCE:
                self._failure = LoadError(f"{missing} messages were never delivered")
            time.sleep(min(every, 0.01))
        self._drained = True

    def _publish(self, number: int, tally: Tally) -> None:
        load, publish, make = self._workload, self._store.publish, self._bodies.make
        size, clock = load.batch, time.perf_counter_ns
        calls, after = tally.calls, 0
        tally.first = clock()
        for turn, due in enumerate(self._moments(number)):
            early = due - clock()
            if early > 0:
                time.sleep(early / 1e9)
            # Late because the store held up the call before: that time counts. Late because the
            # system woke this thread late: that doesn't.
            start = due if self._paced and after > due else clock()
            numbers = [next(self._numbers) for _ in range(size)]
            bodies = [make(one, start) for one in numbers]
            keys = [f"k{one}" for one in numbers] if load.lookups else []
            called = clock()
            publish((number + turn) % load.queues, bodies, keys)
            after = clock()
            calls.append(after - called)
            tally.bytes += sum(map(len, bodies))
            tally.messages += size
            if self._failure is not None:
                return
        tally.last = clock()

    def _moments(self, number: int) -> Iterator[int]:
        """When a publisher's calls are due, in ns of the performance counter; 0 is at once."""
        load = self._workload
        share = load.publishers
        seconds = load.seconds
        start = time.perf_counter_ns()
        if self._paced:
            gap = 1e9 * load.batch * share / load.rate
            calls = max(1, int(seconds * 1e9 / gap))
            first = start + gap * number / share
            yield from (int(first + gap * turn) for turn in range(calls))
        elif load.messages:
            for _ in range(max(1, load.messages // load.batch // share)):
                yield 0
        else:
            end = start + seconds * 1e9
            while time.perf_counter_ns() < end:
                yield 0

    def _receivers(self, number: int) -> list[Receiver]:
        load = self._workload
        pairs = [(queue, group) for queue in range(load.queues) for group in range(load.groups)]
        if load.consumers <= len(pairs):
            mine = [(pair, 0) for pair in pairs[number :: load.consumers]]
        else:
            # All pairs have the same number of consumers at most: the rest of the threads help
            # the first pairs, and read what falls to them.
            mine = [(pairs[number % len(pairs)], number // len(pairs))]
            spread = -(-load.consumers // len(pairs))
            helpers = len(range(number % len(pairs), load.consumers, len(pairs)))
            if number // len(pairs) == helpers - 1:
                mine += [(mine[0][0], turn) for turn in range(helpers, spread)]
        return [self._store.receiver(*pair, turn) for pair, turn in mine]

    def _consume(self, number: int, tally: Tally) -> None:
        load, check, clock = self._workload, self._bodies.check, time.perf_counter_ns
        receivers = self._receivers(number)
        held = [0] * len(receivers)
        timeout = _TIMEOUT if len(receivers) == 1 else 0.0
        latencies, idle = tally.calls, 0
        while not self._drained:
            for place, receiver in enumerate(receivers):
                bodies = receiver.take(load.batch, timeout)
                if not bodies:
                    idle += 1
                    continue
                idle = 0
                now = clock()
                for body in bodies:
                    latencies.append(now - check(body))
                if load.think_us and not self._published.is_set():
                    time.sleep(load.think_us * len(bodies) / 1e6)
                held[place] += len(bodies)
                over = held[place] - load.ack_lag
                if over > 0:
                    receiver.settle(over)
                    held[place] -= over
                tally.last = clock()
                tally.messages += len(bodies)
            if idle >= len(receivers) > 1:
                time.sleep(0.0005)
        for receiver, left in zip(receivers, held, strict=True):
            if left:
                receiver.settle(left)

    def _result(self, published: int, cpu: float) -> dict[str, Any]:
        publishing = max(tally.last for tally in self._publishers) - self._started
        done = max(tally.last for tally in self._consumers) - self._started
        calls = np.concatenate([np.array(one.calls, np.int64) for one in self._publishers])
        latencies = np.concatenate([np.array(one.calls, np.int64) for one in self._consumers])
        return {
            "messages": published,
            "bytes": sum(tally.bytes for tally in self._publishers),
            "publish_rate": published / publishing * 1e9,
            "rate": published / done * 1e9,
            "cpu_us": cpu / published * 1e6,
            "publish_us": _curve(calls),
            "delivery_us": _curve(latencies),
        }


QUANTILES = (
    0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 1.0,
)  # fmt: skip
"""The points of a latency distribution that are kept."""


def _curve(nanoseconds: Any) -> list[float]:
    """Latencies in microseconds at :data:`QUANTILES`."""
    return [float(one) / 1e3 for one in np.quantile(nanoseconds, QUANTILES)]
