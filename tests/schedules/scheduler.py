"""Threads that run one at a time, and every choice of who goes on is the explorer's.

:func:`install` puts locks, events, threads and a clock of this module in the place of Python's; it
is called in a process of its own, before anything is imported that is to be explored. A
:class:`Run` then runs a body under one schedule.

*Switch points* are: before a lock is taken and after it was released, events, starts and ends of
threads, naps, calls of the file seam, and stores into a mapped file (``kinds``). At each of them
another thread that can run may go on instead: that is a *delay*, and so is each choice but the
first of who goes on where a thread has to wait. A schedule names its delays: the number of a
decision, and which of the options was taken there. All others take option 0.

*Handlers.* A signal's handler or a finalizer is one more option at each point of the threads that
it may interrupt; it runs once.

*Time* passes when nobody else can run. A nap or a wait that is short (a poll) looks again whenever
a lock is released.
"""

from __future__ import annotations

import _thread
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

__all__ = ["EVERYTHING", "Failure", "Handler", "Run", "Schedule", "install", "point", "running"]

Schedule = dict[int, int]

EVERYTHING = frozenset(("acquire", "release", "event", "thread", "file", "nap", "store", "loop"))

_READY, _WAITING, _DONE = "ready", "waiting", "done"
_POLL = 0.005
_MAX_POINTS = 20_000
_MAX_TIMES = 500
_REAL_SECONDS = 60.0

_real_lock = _thread.allocate_lock
_real_start = _thread.start_new_thread

_running: Run | None = None


class _Abort(BaseException):
    """Ends the threads of a run that is over."""


@dataclass(frozen=True)
class Handler:
    """What may interrupt threads of these names, once, at any point."""

    threads: frozenset[str]
    call: Callable[[], None]


@dataclass(frozen=True)
class Failure:
    """Why a run came to no end: a deadlock, say; ``stacks``: where each thread stood."""

    kind: str
    stacks: dict[str, tuple[str, list[str]]]


@dataclass
class _Task:
    """One thread of a run."""

    run: Run
    name: str
    call: Callable[[], object]
    thread: Thread | None = None
    state: str = _READY
    waits_for: object = None
    deadline: float | None = None
    polls: bool = False
    timed_out: bool = False
    aborts: int = 0
    ident: int = 0
    turn: Any = field(default_factory=_real_lock)

    def begin(self) -> None:
        self.turn.acquire()
        _real_start(self._main, ())

    def _main(self) -> None:
        self.ident = _thread.get_ident()
        self.turn.acquire()
        try:
            if not self.run.over:
                self.call()
        except _Abort:
            pass
        except BaseException as error:
            self.run.errors.append((self.name, error))
        if self.state is not _DONE:
            self.run.finish(self)


class Run:
    """One run of a body. ``decisions``: the number of options at each decision that could be
    taken otherwise; ``waits``: those that were taken for somebody had to wait; ``errors``: what
    threads raised; ``failure``: why it came to no end."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        kinds: frozenset[str] = EVERYTHING,
        handler: Handler | None = None,
        explains: bool = False,
    ) -> None:
        self.schedule = schedule
        self.kinds = kinds
        self.handler = handler
        self.explains = explains
        self.decisions: list[int] = []
        self.waits: set[int] = set()
        self.errors: list[tuple[str, BaseException]] = []
        self.failure: Failure | None = None
        self.story: list[str] = []
        self.over = False
        self.now = 0.0
        self.ids = 0
        self.tasks: list[_Task] = []
        self._interrupted = False
        self._watched = False
        self._points = self._times = 0
        self._end = _real_lock()
        self._end.acquire()

    def go(self, body: Callable[[Run], None]) -> Run:
        """Run it to its end."""
        global _running
        _running = self
        self.me = self._begin("main", lambda: body(self))
        self.me.turn.release()
        if not self._end.acquire(True, _REAL_SECONDS):
            self.failure = Failure("a thread waits for something that is not of this run", {})
        _running = None
        return self

    def _begin(self, name: str, call: Callable[[], object], thread: Thread | None = None) -> _Task:
        task = _Task(self, name, call, thread)
        self.tasks.append(task)
        task.begin()
        return task

    def race(self, **calls: Callable[[], object]) -> None:
        """Run these at the same time, each in a thread of its name: from here to their end the
        explorer decides."""
        threads = [Thread(target=call, name=name) for name, call in calls.items()]
        for thread in threads:
            thread.start()
        self._watched = True
        for thread in threads:
            thread.join()
        self._watched = False

    # -- decisions ------------------------------------------------------------------------------

    def _choose(self, options: int) -> int:
        number = len(self.decisions)
        self.decisions.append(options)
        taken = self.schedule.get(number, 0)
        if taken >= options:
            raise AssertionError(f"decision {number} has {options} options: not deterministic")
        return taken

    def _tell(self, what: str, who: str) -> None:
        if self.explains:
            number = len(self.decisions) - 1
            self.story.append(f"decision {number}: {self.me.name} stops {what}, {who} goes on")
            self.story += [f"    {line}" for line in _where(sys._getframe(1))]

    def at(self, kind: str, what: str = "") -> None:
        """Let another thread, or a handler, go on here instead, if the schedule says so."""
        me = self.me
        if self.over:
            self._unwind(me)
        if not self._watched or kind not in self.kinds:
            return
        self._points += 1
        if self._points > _MAX_POINTS:
            self._fail(f"no end after {_MAX_POINTS} points")
        others = [one for one in self.tasks if one.state is _READY and one is not me]
        handler = self.handler
        may_interrupt = handler is not None and not self._interrupted and me.name in handler.threads
        if not others and not may_interrupt:
            return
        taken = self._choose(1 + len(others) + may_interrupt)
        if taken > len(others):
            assert handler is not None
            self._tell(f"before {kind} {what}", "a handler in it")
            self._interrupted = True
            handler.call()
        elif taken:
            self._tell(f"before {kind} {what}", others[taken - 1].name)
            self._switch(me, others[taken - 1])

    def wait(self, what: object, seconds: float | None = None) -> bool:
        """Wait until somebody calls :meth:`wake`; false when the time is up."""
        me = self.me
        if self.over:
            self._unwind(me)
        me.state, me.waits_for, me.timed_out = _WAITING, what, False
        me.polls = seconds is not None and seconds <= _POLL
        me.deadline = None if seconds is None else self.now + seconds
        following = self._following()
        if following is not me:
            self._switch(me, following)
        return not me.timed_out

    def _following(self) -> _Task:
        """Give who goes on when the one that ran has to wait."""
        while True:
            ready = [one for one in self.tasks if one.state is _READY]
            if ready:
                if len(ready) == 1 or not self._watched:
                    return ready[0]
                self.waits.add(len(self.decisions))
                taken = self._choose(len(ready))
                if taken:
                    self._tell("for it has to wait", ready[taken].name)
                return ready[taken]
            waiting = [one for one in self.tasks if one.state is _WAITING]
            timed = [
                (one.deadline, at) for at, one in enumerate(waiting) if one.deadline is not None
            ]
            if not timed:
                self._fail("nobody can run")
            self._times += 1
            if self._times > _MAX_TIMES:
                self._fail("nothing but time passes")
            first = waiting[min(timed)[1]]
            self.now = max(self.now, first.deadline or 0.0)
            first.state, first.timed_out = _READY, True

    def wake(self, what: object, *, released: bool = False) -> None:
        """Let those go on that wait for this; ``released``: and those that poll."""
        for one in self.tasks:
            if one.state is _WAITING and (one.waits_for is what or (released and one.polls)):
                one.state, one.timed_out = _READY, one.waits_for is not what

    def _switch(self, me: _Task, other: _Task) -> None:
        self.me = other
        other.turn.release()
        me.turn.acquire()
        if self.over:
            self._unwind(me)

    # -- ends -----------------------------------------------------------------------------------

    def _fail(self, kind: str) -> None:
        if self.failure is None:
            self.failure = Failure(kind, self._stacks())
        self.over = True
        self._unwind(self.me)

    def _unwind(self, me: _Task) -> None:
        me.aborts += 1
        if me.aborts > 100:  # it handles what is raised: left behind
            self.finish(me)
            me.turn.acquire()
        raise _Abort

    def finish(self, me: _Task) -> None:
        """Take note that a thread has ended."""
        me.state = _DONE
        if me is self.tasks[0]:
            self.over = True
        if not self.over:
            self.wake(me)
            try:
                self.me = self._following()
            except _Abort:
                self.finish(me)
                return
            except AssertionError as error:
                self.errors.append((me.name, error))
                self.over = True
                self.finish(me)
                return
            self.me.turn.release()
            return
        left = [one for one in self.tasks if one.state is not _DONE]
        if left:
            self.me = left[0]
            self.me.turn.release()
        else:
            self._end.release()

    def _stacks(self) -> dict[str, tuple[str, list[str]]]:
        frames = sys._current_frames()
        alive = [one for one in self.tasks if one.state is not _DONE and one.ident in frames]
        return {one.name: (one.state, _where(frames[one.ident], 8)) for one in alive}


def _where(frame: FrameType | None, most: int = 4) -> list[str]:
    found: list[str] = []
    while frame is not None and len(found) < most:
        file = frame.f_code.co_filename
        if file not in (__file__, threading.__file__):
            short = "/".join(file.split("/")[-2:])
            found.append(f"{short}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return found


def point(kind: str, what: str = "") -> None:
    """A switch point, where a run is under way."""
    if _running is not None:
        _running.at(kind, what)


def running() -> Run:
    """Give the run that is under way."""
    assert _running is not None
    return _running


# -- in the place of Python's ---------------------------------------------------------------------


_SILENT = ("concurrent.futures", "queue", "asyncio")
"""Modules of Python's whose own locks are no switch points: what they do has others around it."""


def _says_points() -> bool:
    """Tell whether a lock that is just being made is to be a switch point."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("threading", __name__):
        frame = frame.f_back
    name = "" if frame is None else frame.f_globals.get("__name__", "")
    return not name.startswith(_SILENT)


class Lock:
    """A lock."""

    __slots__ = ("__weakref__", "_holder", "_says")

    def __init__(self) -> None:
        self._holder: object = None
        self._says = _says_points()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        run = _running
        if run is None:
            if self._holder is not None and blocking:
                raise RuntimeError("it would wait for ever")
            taken = self._holder is None
            self._holder = self._holder or True
            return taken
        if self._says:
            run.at("acquire", "a lock")
        while self._holder is not None:
            if not blocking or not run.wait(self, None if timeout < 0 else timeout):
                return False
        self._holder = run.me
        return True

    def release(self) -> None:
        run = _running
        if self._holder is None and not (run and run.over):
            raise RuntimeError("release unlocked lock")
        self._holder = None
        if run is not None:
            run.wake(self)
            if self._says and not run.over:
                run.at("release", "a lock")

    def locked(self) -> bool:
        return self._holder is not None

    def _at_fork_reinit(self) -> None:
        self._holder = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Waiter(Lock):
    """What sleeps in a condition: those around it have points enough."""

    __slots__ = ()

    def __init__(self) -> None:
        self._holder = None
        self._says = False


class RLock:
    """A lock that its owner may take again. Subclasses have slots, and arguments of their own."""

    __slots__ = ("__weakref__", "_count", "_owner", "_says")

    _count: int
    _owner: object
    _says: bool

    def __new__(cls, *_args: object, **_named: object) -> RLock:
        made = object.__new__(cls)
        made._owner, made._count = None, 0
        made._says = _says_points()
        return made

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        run = _running
        me = True if run is None else run.me
        if self._owner is me:
            self._count += 1
            return True
        if run is None:
            if self._owner is not None:
                raise RuntimeError("it would wait for ever")
        else:
            if self._says:
                run.at("acquire", type(self).__name__)
            while self._owner is not None:
                if not blocking or not run.wait(self, None if timeout < 0 else timeout):
                    return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        run = _running
        if self._owner is not (True if run is None else run.me):
            if run is not None and run.over:
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._let_go(True)

    def _let_go(self, tells: bool) -> None:
        self._owner = None
        run = _running
        if run is not None:
            run.wake(self, released=True)
            if tells and self._says and not run.over:
                run.at("release", type(self).__name__)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner is not None and self._owner is (
            True if _running is None else _running.me
        )

    def _release_save(self) -> int:
        count, self._count = self._count, 0
        self._let_go(False)
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count

    def _at_fork_reinit(self) -> None:
        self._owner, self._count = None, 0


class Event:
    """An event."""

    def __init__(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        point("event", "set")
        self._flag = True
        if _running is not None:
            _running.wake(self)

    def clear(self) -> None:
        point("event", "clear")
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        point("event", "wait")
        while not self._flag:
            if timeout is not None and (timeout <= 0 or not running().wait(self, timeout)):
                break
            if timeout is None:
                running().wait(self)
        return self._flag


class Thread:
    """A thread of the run that is under way."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        assert target is not None
        self.name: str = name or str(getattr(target, "__name__", "thread"))
        self.daemon = daemon
        self._task: _Task | None = None
        self._call = lambda: target(*args, **(kwargs or {}))

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.ident

    def start(self) -> None:
        point("thread", "start")
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        self._task = running()._begin(self.name, self._call, self)

    def join(self, timeout: float | None = None) -> None:
        if self._task is None:
            raise RuntimeError("cannot join thread before it is started")
        point("thread", "join")
        while self._task.state is not _DONE:
            if not running().wait(self._task, timeout):
                return

    def is_alive(self) -> bool:
        return self._task is not None and self._task.state is not _DONE


def _nap(seconds: float) -> None:
    if _running is not None:
        _running.now += seconds
    point("nap")


def _urandom(size: int) -> bytes:
    if _running is not None:
        _running.ids += 1
        number = _running.ids
    else:
        number = 1 << 20
    if size > 64:
        return bytes(size)
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=size).digest()


def install() -> None:
    """Put what is above in the place of Python's, in this process, for good."""
    import queue

    patched: Any = threading
    beneath: Any = _thread
    clock: Any = time
    current = threading.current_thread

    def now() -> float:
        return 1000.0 + (_running.now if _running is not None else 0.0)

    beneath.allocate_lock = beneath.allocate = patched.Lock = Lock
    beneath.RLock = patched.RLock = patched._CRLock = patched._RLock = RLock
    patched._allocate_lock = _Waiter
    patched.Event, patched.Thread = Event, Thread
    patched.current_thread = lambda: (_running and _running.me.thread) or current()
    clock.monotonic = clock.perf_counter = now
    clock.time = lambda: 1.7e9 + now()
    clock.time_ns = lambda: 1_700_000_000_000_000_000 + int(now() * 1e9)
    clock.sleep = _nap
    os.urandom = _urandom
    # What executors hand their calls over with: the one in C waits where nobody sees it.
    queue.SimpleQueue = queue._PySimpleQueue  # type: ignore[attr-defined, misc]
