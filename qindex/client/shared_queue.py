"""A queue whose store a server has open: :class:`qindex.Queue` in another process."""

from __future__ import annotations

import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, cast, overload

from journal.arguments import refuse_pickling
from journal.errors import ClosedError, DisconnectedError, LeaseExpiredError
from qindex.client import calls
from qindex.client.calls import (
    Ahead,
    BatchOptions,
    Owner,
    PublishOptions,
    Request,
    begin,
    owner_of,
    received,
    run,
    seconds_to_wait,
)
from qindex.client.link import (
    ANY,
    Home,
    Link,
    Opens,
    UnsentError,
    in_session,
    result,
    went_back,
)
from qindex.format.message import Body, Message
from qindex.format.settings import QueueSettings, changeable
from qindex.format.values import Coder, Value, coded, encoded
from qindex.queue.delivery import Batch, Delivery
from qindex.queue.stats import QueueStats
from qindex.queue.wake_ups import deadline_after
from qindex.server import protocol as wire

if TYPE_CHECKING:
    from qindex.worker.outcomes import Figures, Handlers
    from qindex.worker.redriving import RedriveOptions, RedriveReport
    from qindex.worker.run import WorkerOptions

_PUBLISH, _GET, _ACK = wire.PUBLISH, wire.GET, wire.ACK


class SharedOwner(Owner):
    """An owner whose deliveries settle themselves. ``consumer``: the consumer that they were sent
    to. It ends with its loop, even if the program keeps some of its messages."""

    __slots__ = ("consumer",)

    def __init__(
        self,
        queue: SharedQueue,
        generation: int,
        lease: float | None = None,
        *,
        ahead: Ahead | None = None,
        is_batch: bool = False,
        consumer: weakref.ref[SharedConsumer] | None = None,
    ) -> None:
        super().__init__(queue, generation, lease, ahead=ahead, is_batch=is_batch)
        self.consumer: weakref.ref[SharedConsumer] | None = consumer

    def make(self, request: Request) -> list[Any]:
        """Make a request about a delivery."""
        if self.consumer is not None and len(request) == 4:
            its_consumer = self.consumer()
            found = None if its_consumer is None else its_consumer.make(request)
            if found is not None:
                return found
        return self.home.make(cast("SharedQueue", self.queue), request)

    def settle(self, delivery: Delivery, verb: int, values: Request = ()) -> list[Any]:
        """Settle a delivery, and return the values of the reply."""
        request = begin(self, delivery, verb, values)
        try:
            return self.make(request)
        except BaseException as error:
            calls.failed(self, delivery, error)
            raise

    def ack(self, delivery: Delivery, /) -> None:
        """Acknowledge it."""
        self.settle(delivery, _ACK)

    def nack(self, delivery: Delivery, delay: float | None = None, count: bool = True, /) -> None:
        """Requeue it, to be delivered again."""
        self.settle(delivery, wire.NACK, calls.nack_values(delay, count))

    def reject(self, delivery: Delivery, reason: str | None = None, /) -> None:
        """Refuse it for good."""
        self.settle(delivery, wire.REJECT, () if reason is None else (reason,))

    def move(
        self,
        delivery: Delivery,
        queue: str,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
        /,
    ) -> None:
        """Put it into another queue."""
        self.settle(delivery, wire.MOVE, calls.move_values(queue, headers, delay))

    def extend_lease(self, delivery: Delivery, seconds: float, /) -> None:
        """Let its lease end later."""
        self.make(calls.lease_request(self, delivery, seconds))

    def take_back_uncounted(self, deliveries: Iterable[Delivery], /) -> None:
        """Take back the unsettled deliveries, as if they had not been delivered."""
        pairs = self.marked_back(deliveries)
        if pairs:
            with suppress(LeaseExpiredError):  # they went back with their session
                self.home.call(None, self.generation, wire.TAKE_BACK, pairs)

    def is_out(self, seq_id: int, taken: int | None = None, /) -> bool:
        """Return whether an entry is still with this consumer. The server knows about leases."""
        return self._ask(seq_id, taken)[0]

    def has_lapsed(self, seq_id: int, taken: int, /) -> bool:
        """Return whether the message went back unsettled: its lease or its session ended."""
        return self._ask(seq_id, taken)[1]

    def _ask(self, seq_id: int, taken: int | None) -> tuple[bool, bool]:
        """Return whether it is outstanding, and whether it went back unsettled."""
        if self.settled is not None and seq_id in self.settled:
            return False, False
        if self.home.lives(self.generation):
            if self.ends is None:
                return True, False
            with suppress(DisconnectedError, LeaseExpiredError):
                request = (self.generation, wire.IS_OUT, taken, seq_id)
                is_out, has_lapsed = self.make(request)
                return is_out, has_lapsed
        return False, True


class SharedQueue(Opens):
    """One durable queue of a shared store. Made by
    :meth:`qindex.client.engine.SharedEngine.queue`.

    It has the methods of :class:`qindex.Queue`, with their errors and promises. All
    of them may also raise :class:`~journal.errors.DisconnectedError`, when the server goes in the
    middle of the call; the next call finds or starts one. Deliveries of the session that has ended
    raise :class:`~journal.errors.LeaseExpiredError` when they are settled.
    """

    __slots__ = ("__weakref__", "_call", "_coder", "_make", "_owner")

    def __init__(self, home: Home, name: str, at: tuple[int, int]) -> None:
        super().__init__(home, name, at)
        self._call: Callable[..., list[Any]] = partial(home.call, self)
        self._make: Callable[[Request], tuple[int, list[Any]]] = partial(home.make_in, self)
        self._owner = SharedOwner(self, at[0])
        self._coder: Coder | None = None

    def _own(
        self, queue: SharedQueue, generation: int, lease: float | None, **more: Any
    ) -> SharedOwner:
        """Return an owner; single deliveries without a lease share one."""
        if lease is not None or more:
            return SharedOwner(queue, generation, lease, **more)
        if self._owner.generation != generation:
            self._owner = SharedOwner(self, generation)
        return self._owner

    @property
    def directory(self) -> str:
        """The directory of its store."""
        return self._home.directory

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings, as they are now."""
        found: QueueSettings = wire.from_plain(self._call(ANY, wire.SETTINGS)[0])
        return found

    # -- publishing -----------------------------------------------------------------------------

    def publish(self, body: Body | Message | Value, **options: Unpack[PublishOptions]) -> int:
        """Append a message and return its seq_id.

        Args:
            body: Bytes, a Message, or any value if the queue has a serializer.
            options: The keyword arguments of :meth:`qindex.Queue.publish`.

        Returns:
            The seq_id, unique in this queue and never reused.

        Raises:
            DisconnectedError: The server died. The message may be published; see ``maybe_done``.
        """
        given: Any = body
        if self._coder is not None:
            given = encoded(self._coder, body, options)
        if not options and type(given) is bytes:
            seq: int = self._home.make_in(self, (ANY, _PUBLISH, given))[1][0]
            return seq
        return run(calls.publish(given, options), self._make)

    def publish_many(
        self, messages: Iterable[Body | Message | Value], **options: Unpack[BatchOptions]
    ) -> range:
        """Append a batch with one write and return the range of its seq_ids.

        Args:
            messages: Bodies, Messages, or values if the queue has a serializer.
            options: The keyword arguments of :meth:`qindex.Queue.publish_many`.

        Returns:
            The seq_ids, in the order of the messages.
        """
        requests = calls.batch_requests(coded(self._coder, messages), options)
        return range(*self._home.call_together(self, requests)[1])

    def reserve(self, count: int) -> int:
        """Reserve seq_ids for the next messages, durably on return.

        Args:
            count: The number of seq_ids.

        Returns:
            The first of them.
        """
        return int(self._call(ANY, wire.RESERVE, count)[0])

    # -- delivering -----------------------------------------------------------------------------

    @overload
    def get(
        self, timeout: None = None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery: ...
    @overload
    def get(
        self, timeout: float | None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    @overload
    def get(
        self, *, seq_id: int, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    def get(
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
        return self._get(timeout, lease, ack, seq_id)

    def _get(
        self,
        timeout: float | None,
        lease: float | None,
        ack: Delivery | None,
        seq_id: int | None,
    ) -> Delivery | None:
        home = self._home
        if home.is_draining:
            self._check_delivery()
        seconds = None if timeout is None else seconds_to_wait(timeout)
        request: Request = (ANY, _GET, seconds, lease)
        if seq_id is not None:
            request = (ANY, wire.GET_ONE, seq_id, lease)
        if ack is not None:
            its_owner = self._owner_of(ack)
            if seq_id is None and its_owner.ahead is None:
                generation = its_owner.generation
                values = its_owner.settle(ack, _GET, (seconds, lease))
            else:
                its_owner.ack(ack)  # the consumer that was sent it has a connection of its own
                generation, values = home.make_in(self, request)
        else:
            generation, values = home.make_in(self, request)
        if not values:
            return None
        owner = self._owner
        if lease is not None or owner.generation != generation:
            owner = self._own(self, generation, lease)
        return received(owner, values)

    def get_many(
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
        self._check_delivery()
        return run(calls.get_many(self, max_messages, timeout, lease, self._own), self._make)

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
            An iterator with a ``stop()`` method.
        """
        return SharedConsumer(self, prefetch, timeout, lease)

    def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them.

        Args:
            max_messages: The most messages to return.

        Returns:
            Up to ``max_messages`` deliveries, which can't be settled.
        """
        return list(run(calls.peek(max_messages), self._make))

    def find(self, key: str, max_messages: int = 100) -> list[Delivery]:
        """Look at the messages with a key, without taking them.

        Args:
            key: The key that the messages were published with.
            max_messages: The most messages to return.

        Returns:
            The messages that are ready or delayed, in the order of their seq_ids.
        """
        return list(run(calls.find(key, max_messages), self._make))

    def _check_delivery(self) -> None:
        if self._home.is_draining:
            raise ClosedError(f"{self._home.directory}: the engine is closing")

    # -- settling -------------------------------------------------------------------------------

    def _owner_of(self, delivery: Delivery) -> SharedOwner:
        return cast("SharedOwner", owner_of(self, delivery))

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery: its message never comes back.

        Args:
            delivery: A delivery of this queue that is not settled.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        self._owner_of(delivery).ack(delivery)

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write.

        Args:
            deliveries: Deliveries of this queue that are not settled.

        Raises:
            StoreError: As :meth:`ack`. None was acknowledged.
        """
        run(calls.ack_many(self, deliveries), self._make)

    def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries, of all processes, up to a seq_id.

        Args:
            seq_id: The highest seq_id.

        Returns:
            The number of acknowledged deliveries.
        """
        return int(self._call(ANY, wire.ACK_UP_TO, seq_id)[0])

    def nack(self, delivery: Delivery, *, delay: float | None = None, count: bool = True) -> None:
        """Requeue a message at its place, to be delivered again.

        Args:
            delivery: A delivery of this queue that is not settled.
            delay: Seconds before which it is not delivered again. None: the queue's ``backoff``.
            count: Whether this delivery counts towards the ``delivery_limit``.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        self._owner_of(delivery).nack(delivery, delay, count)

    def cancel(self, seq_id: int) -> bool:
        """Drop a message that was never delivered, delayed or not.

        Args:
            seq_id: The seq_id that publishing the message returned.

        Returns:
            True if no consumer has had the message and none will. False if nothing changed.
        """
        return bool(self._call(ANY, wire.CANCEL_MESSAGE, seq_id)[0])

    def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a message for good: it becomes a dead letter, or is dropped.

        Args:
            delivery: A delivery of this queue that is not settled.
            reason: A text for the reader of the dead letter.

        Raises:
            LeaseExpiredError: The lease or the session has ended, so the message went back.
            UsageError: The delivery was settled before.
        """
        self._owner_of(delivery).reject(delivery, reason)

    def move(
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
        self._owner_of(delivery).move(delivery, queue, headers, delay)

    def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now.

        Args:
            delivery: A delivery with a lease.
            seconds: The new time that is left.

        Raises:
            LeaseExpiredError: The lease has ended.
            UsageError: The delivery has no lease, or the lease would get shorter.
        """
        self._owner_of(delivery).extend_lease(delivery, seconds)

    # -- the whole queue ------------------------------------------------------------------------

    def configure(self, **settings: Any) -> None:
        """Change settings of the queue. They are kept with it.

        Args:
            settings: The settings to change, by name. ``qindex.UNSET`` takes one away.

        Raises:
            UsageError: There is no such setting, or its value is wrong.
        """
        values, unset = calls.settings_of(changeable(settings))
        self._home.call(self, ANY, wire.READY)  # not a queue that was deleted
        self._home.call_together(None, ((ANY, wire.OPEN, self.name, True, values, unset),))

    def run(self, handler: Handlers | str, **options: Unpack[WorkerOptions]) -> Figures:
        """Run a handler for each message until SIGTERM or SIGINT.

        Args:
            handler: A function of a delivery, its ``module:name``, or a mapping from message types.
            options: The keyword arguments of :class:`qindex.worker.Worker`.

        Returns:
            The worker's figures.
        """
        from qindex.worker.run import Worker

        return Worker(self, handler, **options).run()

    def redrive(self, **options: Unpack[RedriveOptions]) -> RedriveReport:
        """Put dead letters back into the queues that they died in.

        Args:
            options: The keyword arguments of :func:`qindex.worker.redriving.redrive`.

        Returns:
            The numbers of moved and left messages.
        """
        from qindex.worker.redriving import redrive

        return redrive(self, **options)

    def purge(self) -> int:
        """Drop all ready messages. Those with consumers stay.

        Returns:
            The number of dropped messages.
        """
        return int(self._call(ANY, wire.PURGE)[0])

    def flush(self) -> None:
        """Bring the journal into the segment files and empty it; durable on return."""
        self._call(ANY, wire.QUEUE_FLUSH)

    def sync(self) -> None:
        """Make all that returned before durable against power loss."""
        self._call(ANY, wire.QUEUE_SYNC)

    def stats(self) -> QueueStats:
        """Return the queue's figures at this moment."""
        found: QueueStats = wire.from_plain(self._call(ANY, wire.QUEUE_STATS)[0])
        return found

    def __len__(self) -> int:
        """Messages that are ready: waiting, not with a consumer."""
        return int(self._call(ANY, wire.READY)[0])

    def __bool__(self) -> bool:
        """A queue is true, empty or not."""
        return True

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        return f"<SharedQueue {self.name!r} of {self._home.directory!r}>"


class SharedConsumer:
    """The iterator of :meth:`SharedQueue.consume`. ``stopped``: it gives no more messages."""

    def __init__(
        self, queue: SharedQueue, prefetch: int, timeout: float | None, lease: float | None
    ) -> None:
        self._link: Link | None = None
        self._queue: SharedQueue = queue
        self._ahead: Ahead = Ahead(queue, prefetch, lease)
        self._timeout = seconds_to_wait(timeout)
        self.stopped: bool = False
        self._busy = threading.Lock()
        self._is_waiting = False

    def stop(self) -> None:
        """Deliver no more messages: the loop over this iterator ends.

        Messages that it gave can be settled as before. From any thread, and in a signal's handler.
        """
        self.stopped = True
        link = self._link
        if link is None:
            return
        if self._is_waiting:
            with suppress(OSError):
                link.sock.shutdown(socket.SHUT_RD)
        elif self._busy.acquire(False):
            # The loop's body runs. Otherwise the server would send this consumer messages that are
            # given back meanwhile, and no other one would get them before the body ends.
            try:
                self._link = None
                self._leave(link)
            finally:
                self._busy.release()

    def __iter__(self) -> SharedConsumer:
        return self

    def __next__(self) -> Delivery:
        if self._ahead.ready and not self.stopped:
            return self._ahead.hand_out()
        deadline = deadline_after(self._timeout)
        home = self._queue._home
        for _ in range(5):
            if home.is_draining:
                self.stopped = True
            if self.stopped:
                break
            try:
                if self._link is None:
                    self._begin()
                found = self._await_one(deadline)
            except UnsentError:
                self._lose()
                continue
            except DisconnectedError:
                if self.stopped:
                    break
                self._lose()
                raise
            if not found or self.stopped:
                break
            return self._ahead.hand_out()
        else:
            raise DisconnectedError(f"{home.directory}: servers end as soon as they begin")
        self._end()
        raise StopIteration

    def _begin(self) -> None:
        """Ask the server for messages, on a connection of its own."""
        queue, home = self._queue, self._queue._home
        self._ahead = ahead = Ahead(queue, self._ahead.prefetch, self._ahead.lease)
        ahead.owner = partial(SharedOwner, consumer=weakref.ref(self))
        home.call(queue, ANY, wire.READY)  # finds a server, and the queue
        link = home.take()
        consume = (ANY, wire.CONSUME, ahead.prefetch, ahead.lease)
        try:
            link.make_all(in_session(queue, (consume,), link.generation))
        except BaseException:
            link.close()
            raise
        self._link = link

    def _lose(self) -> None:
        link, self._link = self._link, None
        self._ahead.ready.clear()
        if link is not None:
            self._queue._home.lost(link)

    def _await_one(self, deadline: float | None) -> bool:
        """Wait for a message; false when the time is up, or it was stopped."""
        link = self._link
        if link is None:
            return False  # it was stopped at this moment

        def make(request: Request) -> Any:
            if len(request) > 1:
                return result(link.exchange(request))
            self._is_waiting = True
            try:
                if self.stopped:
                    raise DisconnectedError("the consumer was stopped")
                if not link.wait(request[0]):
                    return False
                found = link.read()
            finally:
                self._is_waiting = False
            link.pushed.append(found)
            return True

        with self._busy:
            return run(self._ahead.await_one(link, link.generation, deadline), make)

    def make(self, request: Request) -> list[Any] | None:
        """Settle a delivery through the connection of the consumer.

        The reply brings the next messages.

        Args:
            request: The request, whose deliveries came over this connection.

        Returns:
            The values of the reply. None if the request must go another way: the connection is
            another one by now, or a thread waits on it.
        """
        link, at = self._link, self._queue.at
        if link is None or not request[0] == at[0] == link.generation or not link.is_clean:
            return None
        if not self._busy.acquire(False):
            return None
        try:
            if self._link is not link:
                return None
            reply = link.exchange(request, at[1])
        except UnsentError:
            self._lose()
            raise went_back() from None
        except DisconnectedError:
            self._lose()
            raise
        finally:
            self._busy.release()
        return result(reply) if reply[1] else reply[2:]

    def _end(self) -> None:
        """Return to the server the messages that were not handed out."""
        link, self._link = self._link, None
        ahead = self._ahead
        ahead.ready.clear()
        if link is not None:
            home = self._queue._home
            if self.stopped or not link.is_clean:
                self._leave(link)
                return
            try:
                link.request(wire.CANCEL, ahead.last_tag)
            except (UnsentError, DisconnectedError):
                home.lost(link)
                return
            link.pushed.clear()
            home.give(link)

    def _leave(self, link: Link) -> None:
        """Return to the server the messages that were not handed out. Nothing more is read from
        the link."""
        with suppress(UnsentError):
            link.tell(wire.CANCEL, self._ahead.last_tag)
        link.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and getattr(self, "_link", None) is not None:
            self._end()
