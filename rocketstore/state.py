"""The state that the parts of one open store share, and the rule for calls that are cut short.

A signal's handler may raise in the middle of a call (Ctrl-C), and memory may run out. The commit
log is the truth. So a call that changes the store marks it before its first change
(``changing``), and takes the mark away after its last. A call that finds the mark when it has
taken the lock reads the store again from its files first, by recovery's own code, as after a crash
at that point. A put that returned is there; a record that is not whole is not; the store goes on.
"""

from __future__ import annotations

import errno
from array import array
from dataclasses import replace
from enum import IntEnum

from journal.errors import ClosedError, StorageError, StoreError
from journal.findings import Cause
from journal.locks.patience import PatientLock
from journal.poison import Poison
from rocketstore.format import words
from rocketstore.layout import Paths
from rocketstore.log.commitlog import CommitLog
from rocketstore.log.dispatch import QueueKey
from rocketstore.log.store_clock import StoreClock
from rocketstore.options import Options
from rocketstore.parts import Parts
from rocketstore.queues.route import Route
from rocketstore.repair.full_recovery import Rebuilt
from rocketstore.repair.opening import open_parts


class Place(IntEnum):
    """The order in which a thread takes the locks of a store (:mod:`journal.locks.lock_order`)."""

    GROUP = 0
    """Leading a group commit."""
    CHECKPOINT = 1
    SYNC = 2
    """Held while the disk works."""
    STORE = 3


class Pending:
    """Messages in the log that queues and index do not have yet.

    ``offsets`` says where their records are in the last file of the log. Queues and index are
    made from the records, as after a crash. Two facts are not in them and are noted by offset:
    ``queues`` gives the queue of the messages from there on, up to the next one named, and
    ``codes`` the tagsCodes that are not tags'. ``route`` is the last put's, ``None`` at first.
    """

    __slots__ = ("codes", "offsets", "queues", "route")

    def __init__(self) -> None:
        self.route: Route | None = None
        self.queues: dict[int, QueueKey] = {}
        self.codes: dict[int, int] = {}
        self.offsets: array[int] = array("q")

    def note(self, offset: int, route: Route, code: int) -> None:
        """Add one message; ``code`` is its tagsCode, if that is not its tags'."""
        if route is not self.route:
            self.route = route
            self.queues[offset] = route.key
        if code:
            self.codes[offset] = code
        words.push(self.offsets, offset)

    def clear(self) -> None:
        """Forget all messages: they were dispatched, or will be found in the log."""
        self.route = None
        self.queues.clear()
        self.codes.clear()
        del self.offsets[:]


class StoreState:
    """Files, tables and locks of one open store. ``lock`` is held while any of it is used.

    ``refusal``: the error that every call raises that writes (closed, forked, read-only).
    ``full``: the disk is used beyond the retention's ``full_ratio``.
    ``behind``: the error when queues or index had no room for the pending messages, which are
    tried again, else ``None``.
    ``refused``: puts are refused, by one of these or by the poison.
    ``broken``: queues or index could not be written; they are not read before the next open.
    ``changing``: a call changes the store, or was cut short while it did.
    """

    __slots__ = (
        "__weakref__",
        "_opened",
        "behind",
        "broken",
        "changing",
        "clock",
        "commitlog",
        "full",
        "lock",
        "options",
        "parts",
        "paths",
        "pending",
        "poison",
        "recovered",
        "refusal",
        "refused",
        "routes",
    )

    parts: Parts
    commitlog: CommitLog
    recovered: Rebuilt
    clock: StoreClock

    def __init__(self, options: Options, paths: Paths) -> None:
        self.options: Options = options
        self.paths: Paths = paths
        self.lock: PatientLock = PatientLock(paths.root, shared=True)
        self.poison: Poison = Poison()
        order = self.poison.order
        self.lock.before_waiting = order.add(Place.STORE, self.lock.is_used_here)
        self.refusal: StoreError | None = None
        self.full: bool = False
        self.behind: StorageError | None = None
        self.refused: bool = False
        self.poison.watch(self)
        self.broken: StoreError | None = None
        self.changing: bool = False
        self.pending: Pending = Pending()
        self.routes: dict[QueueKey, Route] = {}
        self._opened: list[Parts] = []  # the last ones are in use

    def open(self) -> None:
        """Open the files and recover. Raises as
        :func:`rocketstore.repair.opening.open_parts` does."""
        self._use(*open_parts(self.options, self.paths, again=False))
        self.clock = StoreClock(self.options, self._newest_time())

    def _use(self, parts: Parts, recovered: Rebuilt) -> None:
        self._opened.append(parts)
        self.parts = parts
        self.commitlog = parts.commitlog
        self.recovered = recovered

    def _newest_time(self) -> int:
        offset, size = self.recovered.last
        if size:
            return max(self.commitlog.store_time(offset, size), 0)
        return max(self.parts.checkpoint.logical, 0)

    # Checks

    def take(self) -> None:
        """Take the lock, for the calls for single messages: a ``with`` costs them twice as much.
        They ask before whether it is their thread's already (:func:`refuse_twice`), and end with
        ``release``; after an exception, one from here too, with ``let_go``."""
        lock = self.lock
        if not lock.take():
            lock.wait_for_turn()

    def check_open(self) -> None:
        """Raise :class:`ClosedError` after a close, and :class:`ForkedError` in a forked child."""
        self.lock.check()
        if isinstance(self.refusal, ClosedError):
            raise self.refusal

    def check_writable(self) -> None:
        """Raise the refusal of writes, if there is one, and :class:`ForkedError` in a forked
        child."""
        self.lock.check()
        if self.refusal is not None:
            raise self.refusal
        self.poison.check()

    def begin_put(self) -> None:
        """As :meth:`begin_write`, and raise :class:`StorageError` while the disk is too full."""
        if self.changing or self.refused:
            self.begin_write()
        if self.full:
            cause = OSError(errno.ENOSPC, "the disk is used beyond the retention's full_ratio")
            raise StorageError(self.paths.root, "no more messages are taken", cause)

    def begin_write(self) -> None:
        """Raise the refusal of writes, and read the store again if a call was cut short. With the
        lock held."""
        self.check_writable()
        if self.changing:
            self.read_again()

    def begin_read(self) -> None:
        """Raise :class:`ClosedError` after a close, and read the store again if a call was cut
        short. With the lock held."""
        self.check_open()
        if self.changing:
            self.read_again()

    # Failures

    def refuse(self, error: StoreError | None = None) -> None:
        """Refuse writes with this error, or (``None``) as the poison says."""
        if error is not None:
            self.refusal = error
        self.refused = True

    def refuse_full(self, full: bool) -> None:
        """Refuse puts while the disk is too full."""
        self.full = full
        self._look_at_refusals()

    def fall_behind(self, error: StorageError | None) -> None:
        """Note why queues and index lack the pending messages; ``None``: they have them."""
        self.behind = error
        self._look_at_refusals()

    def _look_at_refusals(self) -> None:
        self.refused = self.full or self.behind is not None
        # In this order: another thread may poison the store meanwhile.
        if self.refusal is not None or self.poison.reason is not None:
            self.refused = True

    def broke(self, error: StoreError) -> None:
        """Refuse writes, and questions to queues and index, up to the next open."""
        self.broken = error
        self.poison.set(error)

    def read_again(self) -> None:
        """Read the store again from its files: a call was cut short. O(bytes of the log since the
        last checkpoint).

        Consumer offsets, the routes' identity and the clock survive. Raises :class:`StoreError`
        when the files can't be read; the store is then broken.
        """
        if self.poison.reason is not None:
            # Recovery writes, and no more writes are taken.
            self.broken = StoreError(
                f"{self.paths.root}: a call was cut short, and an earlier write failed "
                f"({self.poison.reason}); close, and open again"
            )
            raise self.broken
        try:
            parts, recovered = open_parts(self._options_as_found(), self.paths, again=True)
        except OSError as error:
            failure = StorageError(
                error.filename or self.paths.root, "can't be read again after a call", error
            )
            self.broke(failure)
            raise failure from error
        except StoreError as error:
            self.broke(error)
            raise
        # The traces of the call that was cut short are only logged: the user knows of it.
        damage = [one for one in parts.findings if one.cause is not Cause.CRASH]
        parts.findings[:] = self.parts.findings + damage
        self._use(parts, recovered)
        self.pending.clear()
        self.fall_behind(None)
        for route in list(self.routes.values()):
            queue = parts.queues.get(route.key)
            route.ordinal = queue.max_offset if queue is not None else 0
        self.clock.restart(self._newest_time())
        self.changing = False

    def _options_as_found(self) -> Options:
        # A file that was begun need not tell its size any more.
        parts = self.parts
        return replace(
            self.options,
            commitlog_file_size=parts.commitlog.file_size,
            consumequeue_file_size=parts.consumequeue_file_size,
            index_slots=parts.index.slots,
            index_entries=parts.index.entries,
        )

    def close_replaced(self) -> None:
        """Close the files that :meth:`read_again` has replaced. It does not do so itself: their
        descriptors may be synced meanwhile. Called while no sync runs."""
        while len(self._opened) > 1:
            self._opened.pop(0).close()

    def close_files(self) -> None:
        """Close all files. Can be repeated."""
        for parts in self._opened:
            parts.close()

    # Queues

    def route(self, topic: str, queue_id: int) -> Route:
        """The route of a queue, made at its first put; of two threads' one is taken by both."""
        key = (topic, queue_id)
        route = self.routes.get(key)
        if route is None:
            queue = self.parts.queues.get(key)
            made = Route(topic, queue_id, queue.max_offset if queue is not None else 0)
            route = self.routes.setdefault(key, made)
        return route


class Change:
    """A section of a call that changes the store, with the lock held. A context manager.

    It ends by its last statement, or by an error of the store's own, which leaves the store as it
    says. Any other exception leaves the mark, and the next call reads the store again.
    """

    __slots__ = ("_outer", "_state")

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self._outer = state.changing

    def __enter__(self) -> None:
        self._state.changing = True

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, StoreError | OSError):
            self._state.changing = self._outer
