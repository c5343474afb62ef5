"""A place for a running handler: its thread takes messages, has them handled, and settles them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from journal.errors import (
    ClosedError,
    DamageError,
    DisconnectedError,
    LeaseExpiredError,
    QueueFullError,
    StoreError,
)
from qindex.queue.delivery import Delivery
from qindex.worker.outcomes import (
    DONE,
    FULL_PAUSE,
    GIVEN_BACK,
    LONGEST_PAUSE,
    SHORTEST_PAUSE,
    Outcome,
    log,
    log_cut,
)
from qindex.worker.runners import Runner

if TYPE_CHECKING:
    from qindex.client.faces import AnyConsumer, AnyQueue


class Owner(Protocol):
    """The part of a worker that its slots need."""

    queue: AnyQueue
    lease: float | None
    batch: int
    until_empty: bool
    stopping: threading.Event

    def judge(self, delivery: Delivery, attempt: int, error: BaseException | None) -> Outcome:
        """Say what becomes of a message."""

    def tell_ended(self) -> None:
        """Take note that a slot has ended."""

    def fail(self, error: BaseException) -> None:
        """End with an error."""


class Slot:
    """One place for a running handler, and its thread.

    ``batch``: the messages that are not settled, of which ``batch[at]`` is being handled, since
    ``since``.
    """

    def __init__(self, worker: Owner, make_runner: Callable[[], Runner]) -> None:
        self._worker = worker
        self._make_runner = make_runner
        self._lock = threading.Lock()
        self._consumer: AnyConsumer | None = None
        self._done: list[Delivery] = []
        self._is_cut = False
        self.runner: Runner | None = None
        self.batch: Sequence[Delivery] = ()
        self.at: int = 0
        self.since: float = 0.0
        self.is_reported: bool = False
        self.thread: threading.Thread = threading.Thread(
            target=self._run, name="qindex worker", daemon=True
        )

    @property
    def delivery(self) -> Delivery | None:
        """The message that is being handled."""
        batch, at = self.batch, self.at
        return batch[at] if at < len(batch) else None

    def stop(self) -> None:
        """Take no more messages."""
        if self._consumer is not None:
            self._consumer.stop()

    def cut(self) -> bool:
        """Requeue unsettled messages. Return whether a handler was running."""
        with self._lock:
            running = self.delivery
            self._is_cut = True
            if self.runner is not None:
                self.runner.cut()
            self._settle_done()
            self._give_back(self.batch[self.at :])
            self.batch = ()
            if running is not None:
                log_cut(self._worker.queue.name, running.seq_id)
            return running is not None

    def keep(self, seconds: float) -> None:
        """Extend the leases of the messages that it has."""
        with self._lock:
            for delivery in self.batch:
                with suppress(StoreError):
                    if not delivery.settled:
                        delivery.extend_lease(seconds)

    def _run(self) -> None:
        try:
            self.runner = self._make_runner()
            try:
                self._take()
            finally:
                self.runner.close()
        except BaseException as error:
            self._worker.fail(error)
        finally:
            self._worker.tell_ended()

    def _take(self) -> None:
        worker = self._worker
        pause = SHORTEST_PAUSE
        timeout = 0.0 if worker.until_empty else None
        while not worker.stopping.is_set():
            self._consumer = worker.queue.consume(prefetch=1, timeout=timeout, lease=worker.lease)
            if worker.stopping.is_set():
                return
            try:
                for delivery in self._consumer:
                    pause = SHORTEST_PAUSE
                    batch = [delivery]
                    if worker.batch > 1:
                        batch += worker.queue.get_many(worker.batch - 1, lease=worker.lease)
                    self._handle(batch)
                return
            except DamageError as error:
                log.error("queue=%s damaged message passed over: %s", worker.queue.name, error)
            except DisconnectedError as error:
                log.warning("queue=%s %s", worker.queue.name, error)
                worker.stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            except ClosedError:
                if not worker.stopping.is_set():
                    raise
            except BaseException:
                # The error keeps the consumer alive, and a server has sent messages ahead to it.
                self._consumer.stop()
                with suppress(StoreError):
                    next(self._consumer, None)
                raise

    def _handle(self, batch: Sequence[Delivery]) -> None:
        assert self.runner is not None
        with self._lock:
            if self._worker.stopping.is_set():  # they came as the worker ended
                self._give_back(batch)
                return
            self.batch, self.at, self._done = batch, 0, []
            self.since = monotonic()
            self.is_reported = False
        attempts = [one.delivery_count for one in batch]
        for error in self.runner.run(batch):
            if self._is_cut:
                return  # The error is that of the process, which the cut has killed.
            at = self.at
            outcome = self._worker.judge(batch[at], attempts[at], error)
            while not self._settle_one(batch[at], outcome):
                if self._worker.stopping.wait(FULL_PAUSE):
                    return  # the main loop gives it back
            if self._is_cut:
                return
        with self._lock:
            if not self._is_cut:
                self._settle_done()
                self._give_back(batch[self.at :])
                self.batch = ()

    def _settle_one(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Settle a message, or, if it is done, note it for the end of the batch. Return False where
        the dead-letter queue has no room."""
        with self._lock:
            if self._is_cut:
                return True
            try:
                if outcome is DONE:
                    self._done.append(delivery)
                else:
                    settle(delivery, outcome)
            except QueueFullError as full:
                if not self.is_reported:
                    self.is_reported = True
                    log.warning("queue=%s %s; waiting for room", delivery.queue_name, full)
                return False
            except (DisconnectedError, LeaseExpiredError) as lost:
                log.warning("queue=%s %s", self._worker.queue.name, lost)
            self.at += 1
            self.since = monotonic()
            self.is_reported = False
            if self.at == len(self.batch):
                self._settle_done()
            return True

    def _settle_done(self) -> None:
        """Acknowledge the messages that are done. Lock held."""
        done = [one for one in self._done if not one.settled]
        self._done = []
        try:
            if len(done) == 1:
                done[0].ack()
            elif done:
                self._worker.queue.ack_many(done)
        except (DisconnectedError, LeaseExpiredError) as lost:
            log.warning("queue=%s %s", self._worker.queue.name, lost)

    def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            with suppress(StoreError):
                settle(delivery, GIVEN_BACK)


def settle(delivery: Delivery, outcome: Outcome) -> None:
    """Settle a delivery, if its handler has not."""
    if not delivery.settled:
        getattr(delivery, outcome.verb)(**outcome.arguments)
