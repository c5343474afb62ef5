"""A queue of a shared store for coroutines: :class:`~qindex.client.shared_queue.SharedQueue`,
awaitable."""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

import qindex
from journal.errors import DisconnectedError
from qindex.aio.delivery import Batch, Delivery
from qindex.aio.wire import GONE, Caller, Wire
from qindex.client import calls
from qindex.client.calls import Ahead, BatchOptions, Owner, PublishOptions, Steps, owner_of
from qindex.client.link import ANY, Opens, UnsentError, closed, in_session
from qindex.format.message import Body, Message
from qindex.format.settings import QueueSettings, changeable
from qindex.format.values import Coder, Value, coded, encoded
from qindex.queue import delivery as plain
from qindex.queue.delivery import no_delivery
from qindex.queue.stats import QueueStats
from qindex.queue.wake_ups import deadline_after
from qindex.server import protocol as wire

if TYPE_CHECKING:
    from qindex.worker.outcomes import Figures, Handlers
    from qindex.worker.redriving import RedriveOptions, RedriveReport
    from qindex.worker.tasks import TaskOptions

T = TypeVar("T")


class LoopOwner(Owner):
    """An owner in an event loop, where nothing may wait for the server's word."""

    __slots__ = ()

    def take_back_uncounted(self, deliveries: Iterable[plain.Delivery], /) -> None:
        """Take back the unsettled deliveries, as if they had not been delivered."""
        pairs = self.marked_back(deliveries)
        link = cast("SharedQueue", self.queue)._engine._wire
        if pairs and link is not None and link.generation == self.generation:
            link.tell(wire.TAKE_BACK, pairs)


class SharedQueue(Opens):
    """One durable queue of a shared store. Made by :meth:`SharedEngine.queue`.

    It has the methods of :class:`qindex.aio.queue.Queue`, and raises what
    :class:`qindex.client.shared_queue.SharedQueue` raises.
    """

    def __init__(self, engine: Caller, name: str, at: tuple[int, int]) -> None:
        super().__init__(engine._home, name, at)
        self._engine = engine
        self.directory: str = engine.directory
        self._coder: Coder | None = None

    async def _make_in(self, request: calls.Request) -> calls.Reply:
        """Make a request. Return the session that it was made in, and the values of its reply."""
        return await self._engine._call_together(self, (request,))

    async def _call(self, *request: Any) -> list[Any]:
        return (await self._make_in(request))[1]

    async def _run(self, steps: Steps[T]) -> T:
        """Make the requests of a call, and return its result."""
        try:
            request = next(steps)
            while True:
                try:
                    reply = await self._make_in(request)
                except BaseException as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(reply)
        except StopIteration as end:
            return cast("T", end.value)

    # -- publishing -----------------------------------------------------------------------------

    async def publish(self, body: Body | Message | Value, **options: Unpack[PublishOptions]) -> int:
        """Append a message and return its seq_id.

        Args:
            body: Bytes, a Message, or any value if the queue has a serializer.
            options: The keyword arguments of :meth:`qindex.aio.Queue.publish`.

        Returns:
            The seq_id, unique in this queue and never reused.

        Raises:
            DisconnectedError: The server died. The message may be published; see ``maybe_done``.
        """
        given: Any = body
        if self._coder is not None:
            given = encoded(self._coder, body, options)
        return await self._run(calls.publish(given, options))

    async def publish_many(
        self, messages: Iterable[Body | Message | Value], **options: Unpack[BatchOptions]
    ) -> range:
        """Append a batch with one write and return the range of its seq_ids.

        Args:
            messages: Bodies, Messages, or values if the queue has a serializer.
            options: The keyword arguments of :meth:`qindex.aio.Queue.publish_many`.

        Returns:
            The seq_ids, in the order of the messages.
        """
        requests = calls.batch_requests(coded(self._coder, messages), options)
        return range(*(await self._engine._call_together(self, requests))[1])

    async def reserve(self, count: int) -> int:
        """Reserve seq_ids for the next messages, durably on return.

        Args:
            count: The number of seq_ids.

        Returns:
            The first of them.
        """
        return int((await self._call(ANY, wire.RESERVE, count))[0])

    # -- delivering -----------------------------------------------------------------------------

    @overload
    async def get(
        self, timeout: None = None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery: ...
    @overload
    async def get(
        self, timeout: float | None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    @overload
    async def get(
        self, *, seq_id: int, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    async def get(
        self,
        timeout: float | None = None,
        *,
        lease: float | None = None,
        ack: Delivery | None = None,
        seq_id: int | None = None,
    ) -> Delivery | None:
        """Take the next message. It stays in the queue until it is acknowledged.

        Args:
            timeout: Seconds to wait for a message. None: forever.
            lease: Seconds in which to settle it. Then it returns to its place by itself.
            ack: A delivery of this queue to acknowledge first, in the same request.
            seq_id: Take this message, delayed or not, without waiting.

        Returns:
            The delivery. None if no message came in time, or message ``seq_id`` can't be taken.
        """
        self._engine._check_delivery()
        seconds = calls.seconds_to_wait(timeout)
        request: calls.Request = (ANY, wire.GET, seconds, lease)
        if seq_id is not None:
            request = (ANY, wire.GET_ONE, seq_id, lease)
        if ack is not None and seq_id is None and owner_of(self, _plain(ack)).ahead is None:
            generation, values = await self._settle(ack, wire.GET, seconds, lease)
        else:
            if ack is not None:
                await self.ack(ack)
            generation, values = await self._make_in(request)
        if not values:
            return None
        return Delivery(self, calls.received(LoopOwner(self, generation, lease), values))

    async def get_many(
        self, max_messages: int, timeout: float | None = 0, *, lease: float | None = None
    ) -> Batch:
        """Take several messages at once, in order.

        Args:
            max_messages: The most messages to take.
            timeout: Seconds to wait for the first one. 0 does not wait. None: forever.
            lease: Seconds in which to settle it. Then it returns to its place by itself.

        Returns:
            The batch. It is empty if no message came in time.
        """
        self._engine._check_delivery()
        steps = calls.get_many(self, max_messages, timeout, lease, LoopOwner)
        return Batch(self, await self._run(steps))

    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> SharedConsumer:
        """Yield messages as they come, until none came for ``timeout`` seconds.

        The server sends messages ahead. Messages that the loop did not reach go back when it ends,
        and do not count as delivered.

        Args:
            prefetch: The most messages that are sent ahead, or unacknowledged.
            timeout: Seconds without a message after which the loop ends. None: never.
            lease: Seconds in which to settle it. Then it returns to its place by itself.

        Returns:
            An async iterator with ``stop()`` and ``aclose()``; also an async context manager.
        """
        return SharedConsumer(self, prefetch, timeout, lease)

    async def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them.

        Args:
            max_messages: The most messages to return.

        Returns:
            Up to ``max_messages`` deliveries, which can't be settled.
        """
        return [Delivery(self, one) for one in await self._run(calls.peek(max_messages))]

    async def find(self, key: str, max_messages: int = 100) -> list[Delivery]:
        """Look at the messages with a key, without taking them.

        Args:
            key: The key that the messages were published with.
            max_messages: The most messages to return.

        Returns:
            The messages that are ready or delayed, in the order of their seq_ids.
        """
        found = await self._run(calls.find(key, max_messages))
        return [Delivery(self, one) for one in found]

    # -- settling -------------------------------------------------------------------------------

    async def _settle(self, delivery: Delivery, verb: int, *values: Any) -> calls.Reply:
        one = _plain(delivery)
        owner = owner_of(self, one)
        # A cancelled call stays settled: its request is on the way.
        request = calls.begin(owner, one, verb, values)
        try:
            return await self._make_in(request)
        except Exception as error:
            calls.failed(owner, one, error)
            raise

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery: its message never comes back.

        Args:
            delivery: A delivery of this queue that is not settled.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        await self._settle(delivery, wire.ACK)

    async def nack(
        self, delivery: Delivery, *, delay: float | None = None, count: bool = True
    ) -> None:
        """Requeue a message at its place, to be delivered again.

        Args:
            delivery: A delivery of this queue that is not settled.
            delay: Seconds before which it is not delivered again. None: the queue's ``backoff``.
            count: Whether this delivery counts towards the ``delivery_limit``.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        await self._settle(delivery, wire.NACK, *calls.nack_values(delay, count))

    async def cancel(self, seq_id: int) -> bool:
        """Drop a message that was never delivered, delayed or not.

        Args:
            seq_id: The seq_id that publishing the message returned.

        Returns:
            True if no consumer has had the message and none will. False if nothing changed.
        """
        return bool((await self._call(ANY, wire.CANCEL_MESSAGE, seq_id))[0])

    async def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a message for good: it becomes a dead letter, or is dropped.

        Args:
            delivery: A delivery of this queue that is not settled.
            reason: A text for the reader of the dead letter.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        await self._settle(delivery, wire.REJECT, *(() if reason is None else (reason,)))

    async def move(
        self,
        delivery: Delivery,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        """Put a message into another queue of the store, all or nothing.

        Args:
            delivery: A delivery of this queue that is not settled.
            queue: The name of the other queue, which is made if there is none.
            headers: The message's new headers. None: its present ones.
            delay: Seconds before which it is not delivered there.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        await self._settle(delivery, wire.MOVE, *calls.move_values(queue, headers, delay))

    async def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write.

        Args:
            deliveries: Deliveries of this queue that are not settled.

        Raises:
            StoreError: As :meth:`ack`. None was acknowledged.
        """
        if type(deliveries) is Batch:
            await self._run(calls.ack_many(self, deliveries._plain))
            return
        listed = [one._plain if isinstance(one, Delivery) else one for one in deliveries]
        await self._run(calls.ack_many(self, listed))

    async def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries, of all processes, up to a seq_id.

        Args:
            seq_id: The highest seq_id.

        Returns:
            The number of acknowledged deliveries.
        """
        return int((await self._call(ANY, wire.ACK_UP_TO, seq_id))[0])

    async def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now.

        Args:
            delivery: A delivery with a lease.
            seconds: The new time that is left.

        Raises:
            LeaseExpiredError: The lease has ended.
            UsageError: The delivery has no lease, or the lease would get shorter.
        """
        one = _plain(delivery)
        owner = owner_of(self, one)
        await self._call(*calls.lease_request(owner, one, seconds))
        owner.ends = monotonic() + seconds

    # -- the rest -------------------------------------------------------------------------------

    async def configure(self, **settings: Any) -> None:
        """Change settings of the queue. They are kept with it.

        Args:
            settings: The settings to change, by name. ``qindex.UNSET`` takes one away.

        Raises:
            UsageError: There is no such setting, or its value is wrong.
        """
        values, unset = calls.settings_of(changeable(settings))
        await self._call(ANY, wire.READY)  # not a queue that was deleted
        await self._engine._call(wire.OPEN, self.name, True, values, unset)

    async def run(self, handler: Handlers, **options: Unpack[TaskOptions]) -> Figures:
        """Run a coroutine function for each message.

        Args:
            handler: A coroutine function of a delivery, or a mapping from message types to such.
            options: The keyword arguments of :meth:`qindex.aio.Queue.run`.

        Returns:
            The worker's figures.
        """
        from qindex.worker.tasks import TaskWorker

        return await TaskWorker(self, handler, **options).run()

    async def redrive(self, **options: Unpack[RedriveOptions]) -> RedriveReport:
        """Put dead letters back into the queues that they died in.

        It works in a thread with a session of its own.

        Args:
            options: The keyword arguments of :func:`qindex.worker.redriving.redrive`.

        Returns:
            The numbers of moved and left messages.
        """

        def call() -> RedriveReport:
            with qindex.open(self.directory, shared=True) as engine:
                return engine.queue(self.name).redrive(**options)

        return await asyncio.to_thread(call)

    async def purge(self) -> int:
        """Drop all ready messages. Those with consumers stay.

        Returns:
            The number of dropped messages.
        """
        return int((await self._call(ANY, wire.PURGE))[0])

    async def flush(self) -> None:
        """Bring the journal into the segment files and empty it; durable on return."""
        await self._call(ANY, wire.QUEUE_FLUSH)

    async def sync(self) -> None:
        """Make all that returned before durable against power loss."""
        await self._call(ANY, wire.QUEUE_SYNC)

    async def settings(self) -> QueueSettings:
        """Return the queue's settings."""
        found: QueueSettings = wire.from_plain((await self._call(ANY, wire.SETTINGS))[0])
        return found

    async def stats(self) -> QueueStats:
        """Return the queue's figures at this moment."""
        found: QueueStats = wire.from_plain((await self._call(ANY, wire.QUEUE_STATS))[0])
        return found

    def __repr__(self) -> str:
        return f"<SharedQueue {self.name!r} of {self._engine.directory!r}>"


def _plain(delivery: Delivery) -> plain.Delivery:
    if not isinstance(delivery, Delivery):
        raise no_delivery(delivery)
    return delivery._plain


class SharedConsumer(AsyncIterator[Delivery]):
    """The iterator of :meth:`SharedQueue.consume`, and an async context manager that closes it.

    What the server has sent ahead of the loop goes back when the iterator is stopped or collected,
    or when the task that waits for it, or that has begun it, is cancelled.
    """

    _link: Wire | None = None

    def __init__(
        self, queue: SharedQueue, prefetch: int, timeout: float | None, lease: float | None
    ) -> None:
        self._queue = queue
        self._ahead = Ahead(queue, prefetch, lease)
        self._timeout = calls.seconds_to_wait(timeout)
        self._task: asyncio.Task[Any] | None = None
        self._at_end = partial(_cancelled, weakref.ref(self))
        self.stopped: bool = False

    def stop(self) -> None:
        """Deliver no more messages: the loop over this iterator ends.

        Messages that it gave can be settled as before. From any thread.
        """
        self.stopped = True
        self._leave()

    async def aclose(self) -> None:
        """Stop, and wait until the messages that were sent ahead have gone back."""
        self.stopped = True
        link = self._let_go()
        if link is not None and not link.is_lost:
            try:
                with suppress(DisconnectedError):
                    await link.request(wire.CANCEL, self._ahead.last_tag)
            finally:
                link.close()

    async def __aenter__(self) -> SharedConsumer:
        return self

    async def __aexit__(self, *_ended: object) -> None:
        await self.aclose()

    def _is_over(self) -> bool:
        return self.stopped or self._queue._engine._is_draining

    async def __anext__(self) -> Delivery:
        try:
            found = bool(self._ahead.ready) or await self._await_one(deadline_after(self._timeout))
        except (asyncio.CancelledError, GeneratorExit):
            self._leave()
            raise
        if not found or self._is_over():
            self._leave()
            raise StopAsyncIteration
        return Delivery(self._queue, self._ahead.hand_out())

    async def _await_one(self, deadline: float | None) -> bool:
        """Wait for a message. False when the time is up, or it was stopped."""
        if self._is_over():
            return False
        link = self._link
        try:
            if link is None or not self._queue._engine._is_usable(link):
                link = await self._begin()
            return await self._wait_on(link, deadline)
        except (DisconnectedError, UnsentError) as error:
            if self._is_over():
                return False
            self._leave()
            if self._queue._home.is_closed:
                raise closed(self._queue._home) from None
            if isinstance(error, UnsentError):
                raise DisconnectedError(GONE, maybe_done=False) from None
            raise

    async def _wait_on(self, link: Wire, deadline: float | None) -> bool:
        steps: Generator[Any, Any, bool] = self._ahead.await_one(link, link.generation, deadline)
        try:
            request = next(steps)
            while not self._is_over():
                if link.is_lost:
                    raise UnsentError
                if len(request) > 1:
                    request = steps.send(await link.request(*request[1:]))
                    continue
                if not link.pushed:
                    link.has_come.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(link.has_come.wait(), request[0])
                if not link.is_lost:
                    request = steps.send(bool(link.pushed))
        except StopIteration as end:
            return bool(end.value)
        return False

    async def _begin(self) -> Wire:
        queue = self._queue
        self._leave()
        self._ahead = ahead = Ahead(queue, self._ahead.prefetch, self._ahead.lease)
        ahead.owner = LoopOwner
        await queue._call(ANY, wire.READY)  # finds a server, and the queue
        link = await queue._engine._join()
        consume = (ANY, wire.CONSUME, ahead.prefetch, ahead.lease)
        try:
            await link.make_all(in_session(queue, (consume,), link.generation))
        except BaseException:
            link.close(wire.CANCEL, 0)  # the server may have begun to send
            raise
        self._link = link
        self._task = asyncio.current_task()
        if self._task is not None:
            self._task.add_done_callback(self._at_end)
        return link

    def _leave(self) -> None:
        """Return to the server the messages that were not handed out."""
        link = self._let_go()
        if link is not None and not link.is_lost:
            link.close(wire.CANCEL, self._ahead.last_tag)

    def _let_go(self) -> Wire | None:
        link, self._link = self._link, None
        task, self._task = self._task, None
        if task is not None:
            task.remove_done_callback(self._at_end)
        self._ahead.ready.clear()
        return link

    def __del__(self) -> None:
        if not sys.is_finalizing() and self._link is not None:
            self._leave()


def _cancelled(consumer: weakref.ref[SharedConsumer], task: asyncio.Task[Any]) -> None:
    """A task has ended. Its traceback may keep its consumer, which nobody goes on with."""
    its_own = consumer()
    if its_own is not None and task.cancelled():
        its_own._leave()
