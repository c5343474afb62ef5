"""The engine of a shared store: :class:`qindex.engine.engine.Engine` in another process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from time import monotonic, sleep, time_ns
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, overload

from journal.arguments import listed, refuse_pickling
from journal.errors import ClosedError, DisconnectedError, UsageError
from journal.fs.files import PathLike, checked_path
from journal.memory import forks
from qindex.client import calls
from qindex.client.calls import FanOutOptions, QueueOptions
from qindex.client.link import ANY, Home
from qindex.client.shared_queue import SharedQueue
from qindex.client.transaction import SharedTransaction
from qindex.format.message import Body, Message, message_of
from qindex.format.settings import checked_name
from qindex.options import Options
from qindex.queue.delivery import Delivery
from qindex.queue.wake_ups import has_time
from qindex.server import protocol as wire

if TYPE_CHECKING:
    from journal.findings import Finding
    from msgstore import CompactionReport
    from qindex.queue.stats import EngineStats
    from qindex.worker.schedules import Schedule, ScheduleOptions

_LOOK = 0.01


class SharedEngine:
    """A store that this process shares with others. Made by ``qindex.open(..., shared=True)``; a
    context manager that closes itself.

    It has the methods of :class:`qindex.engine.engine.Engine`, with their errors and promises. The
    store is open in a server, another process; this one has connections to it. A forked child gets
    a session of its own at its first call.
    """

    def __init__(self, directory: PathLike, options: dict[str, Any], linger: float) -> None:
        self.directory: str = os.path.abspath(checked_path(directory))
        self._home = Home(self.directory, options, linger)
        self._queues: dict[str, SharedQueue] = {}
        self._home.give(self._home.take())

    @property
    def options(self) -> Options:
        """The options that this process gave."""
        return self._home.options

    @property
    def findings(self) -> list[Finding]:
        """Findings of recovery when the server opened the store, and damage that was met since."""
        found: list[Finding] = wire.from_plain(self._home.call(None, ANY, wire.FINDINGS)[0])
        return found

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> SharedQueue:
        """Return the queue of this name, and make it if there is none.

        Args:
            name: The queue's name, up to 255 bytes.
            options: The keyword arguments of :meth:`qindex.Engine.queue`.

        Returns:
            The queue.

        Raises:
            UsageError: The name or a setting is wrong.
        """
        coder, values, unset = calls.opening(name, options)
        known = self._queues.get(name)
        if known is not None and not values and not unset and self._is_there(known):
            if coder is not None:
                known._coder = coder
            return known
        opening = (ANY, wire.OPEN, name, True, values, unset)
        generation, found = self._home.call_together(None, (opening,))
        known = self._queues.get(name)
        at = generation, found[0]
        if known is None or (known.at[0] == generation and known.at != at):
            known = self._queues[name] = SharedQueue(self._home, name, at)
        known.at = at
        if coder is not None:
            known._coder = coder
        return known

    def _is_there(self, queue: SharedQueue) -> bool:
        try:
            self._home.call(queue, ANY, wire.READY)
        except ClosedError:
            if self._home.is_closed:
                raise
            return False
        return True

    def queue_names(self) -> list[str]:
        """Return the names of all queues.

        Returns:
            The names, sorted.
        """
        names: list[str] = self._home.call(None, ANY, wire.QUEUE_NAMES)[0]
        return names

    def delete_queue(self, name: str) -> int:
        """Delete a queue and its messages.

        Args:
            name: The name of the queue.

        Returns:
            The number of messages it held, which are lost.

        Raises:
            UsageError: There is no such queue.
        """
        checked_name(name)
        count: int = self._home.call(None, ANY, wire.DELETE_QUEUE, name)[0]
        self._queues.pop(name, None)
        return count

    @overload
    def get(
        self,
        queues: Sequence[SharedQueue | str],
        timeout: None = None,
        *,
        lease: float | None = None,
    ) -> Delivery: ...
    @overload
    def get(
        self,
        queues: Sequence[SharedQueue | str],
        timeout: float | None,
        *,
        lease: float | None = None,
    ) -> Delivery | None: ...
    def get(
        self,
        queues: Sequence[SharedQueue | str],
        timeout: float | None = None,
        *,
        lease: float | None = None,
    ) -> Delivery | None:
        """Take the next message of the first of several queues that has one.

        Args:
            queues: Queues of this engine, or their names. A name costs one more round trip.
            timeout: Seconds to wait for a message. None: forever.
            lease: Seconds in which to settle it. Then it returns to its place by itself.

        Returns:
            The delivery, whose ``queue_name`` says where it is from. None if none came in time.
        """
        if isinstance(queues, SharedQueue):
            raise UsageError("queues must be a list, not a queue: use queue.get()")
        given = listed(queues, "queues")
        opened = [one if isinstance(one, SharedQueue) else self.queue(one) for one in given]
        home = self._home
        sources = calls.sources_of(home, opened)
        sources[0]._check_delivery()
        request = ANY, wire.GET_FIRST, calls.seconds_to_wait(timeout), lease
        generation, values = home.call_together(calls.Several(home, sources), (request,))
        if not values:
            return None
        queue = sources[values.pop()]
        return calls.received(queue._own(queue, generation, lease), values)

    def publish_to(
        self,
        queues: Sequence[str],
        body: Body | Message,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[FanOutOptions],
    ) -> list[int]:
        """Publish one message to several queues.

        Args:
            queues: The names of the queues, each once.
            body: Bytes, or a Message with its own key, headers and properties.
            key: A key for ``find`` and for consumers.
            headers: Headers, kept with their types.
            properties: RabbitMQ's properties.
            options: The keyword arguments of :meth:`qindex.Engine.publish_to`.

        Returns:
            Its seq_id in each queue, in their order.

        Raises:
            QueueFullError: One of the queues is full; none has the message.
            DisconnectedError: The server died. The message may be published; see ``maybe_done``.
        """
        message = message_of(body, key, headers, properties, time_ns())
        given = calls.options_of(options, FanOutOptions)
        names, parts = listed(queues, "queues"), calls.message_parts(message)
        seqs: list[int] = self._home.call(None, ANY, wire.PUBLISH_TO, names, parts, given)[0]
        return seqs

    def transaction(self) -> SharedTransaction:
        """Return a transaction, for a ``with`` block whose end commits it.

        Returns:
            A transaction, which is rolled back if the client or the server dies.
        """
        return SharedTransaction(self._home, self.queue)

    # -- schedules ------------------------------------------------------------------------------

    def schedule(
        self, name: str, cron: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Publish a message at set times, durably.

        Args:
            name: The name of the schedule, unique in the store.
            cron: A cron expression. None if ``every`` is given.
            options: The keyword arguments of :meth:`qindex.Engine.schedule`.

        Returns:
            The schedule.
        """
        from qindex.worker import schedules

        return schedules.schedule(self, name, cron, **options)

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of the store by name.

        Returns:
            The schedules as they are at this moment.
        """
        from qindex.worker import schedules

        return schedules.schedules(self)

    # -- the whole store ------------------------------------------------------------------------

    def sync(self) -> None:
        """Make all calls that returned before, on all queues, durable against power loss."""
        self._home.call(None, ANY, wire.SYNC)

    def flush(self) -> None:
        """Bring the journals of all queues into their segment files; durable on return."""
        self._home.call(None, ANY, wire.FLUSH)

    def stats(self) -> EngineStats:
        """Return the figures of the store, and of the queues that the server has used.

        Returns:
            The figures at this moment.
        """
        found: EngineStats = wire.from_plain(self._home.call(None, ANY, wire.STATS)[0])
        return found

    def compact(self) -> CompactionReport | None:
        """Reclaim the space of dead messages in the message store now.

        Returns:
            A report of the reclaimed space. None if there is no message store.
        """
        found: CompactionReport | None = wire.from_plain(
            self._home.call(None, ANY, wire.COMPACT)[0]
        )
        return found

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._home.is_closed

    def close(self, drain: float = 0) -> None:
        """End this process's session. Its unsettled deliveries go back, uncounted.

        The store stays open in the server while others use it, and ``linger`` seconds longer.

        Args:
            drain: Seconds to wait first until this process has settled its deliveries. Meanwhile
                ``get`` raises :class:`~journal.errors.ClosedError`, and ``consume`` ends.
        """
        home = self._home
        if home.is_closed:
            return
        if has_time(drain) and forks.stamp() == home._stamp:
            home.is_draining = True
            deadline = monotonic() + drain
            while monotonic() < deadline:
                try:
                    if not home.call(None, ANY, wire.HELD)[0]:
                        break
                except (DisconnectedError, ClosedError):
                    break
                sleep(_LOOK)
        home.close()

    def __enter__(self) -> SharedEngine:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        return f"<SharedEngine {self.directory!r}>"
