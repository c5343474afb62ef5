"""The ticker: takes schedules that are due, and publishes their messages."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from journal.background import Background
from journal.errors import ClosedError, DisconnectedError, StoreError
from journal.locks.flag import Flag
from qindex.format.message import Microseconds
from qindex.worker import schedules
from qindex.worker.cron import SECOND

if TYPE_CHECKING:
    from qindex.client.faces import AnyConsumer, AnyEngine, AnyQueue
    from qindex.engine.engine import Engine
    from qindex.queue.delivery import Delivery

_log = logging.getLogger("qindex.worker")

# It goes on while the machine sleeps, where the system has such a clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_LOOK = 60.0
"""The longest time, in seconds, until a clock that was set is noticed."""
_JUMP = SECOND
_OFTEN = 3600 * SECOND
"""All schedules are looked at so often. A server that was started anew measures delays by another
clock, which the ticker does not notice."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0


def _elapsed_us() -> Microseconds:
    return time.clock_gettime_ns(_CLOCK) // 1000


class Ticker:
    """Publishes the messages of a store's schedules when they are due.

    Any number of tickers, in any number of processes, may run on one store: each message is
    published once. A ticker that has nothing to do wakes up once a minute, to look at the clock.
    :meth:`start` runs it in a thread, and :meth:`run` in the calling one. It also is a context
    manager, which starts and stops it.

    Args:
        engine: An engine, or a shared one. It stays open when the ticker stops.

    Example:
        >>> with qindex.Ticker(engine):
        ...     pulse = engine.schedule("pulse", every=60, queue="jobs")
    """

    def __init__(self, engine: Engine | AnyEngine) -> None:
        self._engine: AnyEngine = engine
        self._stopped = Flag()
        self._thread = Background(self.run, "qindex-ticker")
        self._consumer: AnyConsumer | None = None
        self._clock: Microseconds | None = None
        self._looked: Microseconds = 0
        self._pause = _FIRST_PAUSE

    def start(self) -> None:
        """Run in a thread, until :meth:`stop` or until the engine is closed."""
        self._thread.start()

    def stop(self) -> None:
        """End it. Waits for the message that it publishes. It can't be started again."""
        self.ask_to_stop()
        self._thread.join()

    def ask_to_stop(self) -> None:
        """End it soon, without waiting. For handlers of signals."""
        self._stopped.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.stop()

    def __enter__(self) -> Ticker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self) -> None:
        """Run until :meth:`stop` is called elsewhere, or until the engine is closed.

        Errors are logged, and it goes on: with another server of a shared store as well.
        """
        while not self._stopped.is_set():
            try:
                self.turn(_LOOK)
                self._pause = _FIRST_PAUSE
            except StoreError as error:
                if self._engine.closed:
                    return
                _log.warning("schedules wait for %.1f s: %s", self._pause, error)
                self._clock = None
                self._stopped.wait(self._pause)
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def turn(self, timeout: float) -> None:
        """Publish due messages until none was due for ``timeout`` seconds.

        Args:
            timeout: Seconds without a due message.
        """
        queue = self._engine.queue(schedules.QUEUE)
        self._look(queue)
        self._consumer = consumer = queue.consume(1, timeout, lease=schedules.LEASE)
        if self._stopped.is_set():
            return
        for delivery in consumer:
            self._settle(delivery)
            # A turn does not end where a schedule is due more often than once a minute.
            self._pause = _FIRST_PAUSE
            self._look(queue)
        if consumer.stopped:
            self._stopped.set()  # the engine is about to close

    def _look(self, queue: AnyQueue) -> None:
        """Look at all schedules if the clock was set since the last time, or that is long ago."""
        elapsed = _elapsed_us()
        clock = schedules.wall_us() - elapsed
        is_old = self._clock is None or elapsed - self._looked > _OFTEN
        if self._clock is not None and abs(clock - self._clock) <= _JUMP and not is_old:
            return
        self._clock, self._looked = clock, elapsed
        for found in queue.find(schedules.KEY, 1 << 30):
            delivery = queue.get(seq_id=found.seq_id, lease=schedules.LEASE)
            if delivery is not None:
                self._settle(delivery)

    def _settle(self, delivery: Delivery) -> None:
        try:
            schedules.settle(self._engine, delivery)
        except (ClosedError, DisconnectedError):
            raise
        except StoreError as error:
            _log.warning("a schedule is tried again later: %s", error)
            with suppress(StoreError):
                delivery.nack(delay=schedules.RETRY / SECOND, count=False)
