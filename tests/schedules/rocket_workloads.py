"""Workloads of rocketstore: puts, reads, syncs and its background work beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rocketstore
from journal.errors import StoreError, UsageError
from rocketstore.verify import verify
from tests.memory_fs import MemoryFileSystem
from tests.schedules.registry import workload
from tests.schedules.scheduler import Run
from tests.schedules.world import Image, PointedFileSystem

_SMALL: dict[str, Any] = {
    "commitlog_file_size": 4096,
    "consumequeue_file_size": 400,
    "index_slots": 7,
    "index_entries": 50,
}


class _RocketWorld:
    """One store in memory. ``there``: what was put; ``maybe``: what a put that raised may have
    put; ``durable``: what a loss of power may not take."""

    def __init__(self, run: Run, **options: Any) -> None:
        self.run = run
        self.fs = PointedFileSystem(MemoryFileSystem())
        self.options = {**_SMALL, "background": False, **options}
        self.store = rocketstore.open("/r", fs=self.fs, **self.options)
        self.there: set[bytes] = set()
        self.maybe: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.images: list[Image] = []
        self.durable: set[bytes] = set()
        self.wrong: str | None = None
        self.handle: Callable[[], object] = lambda: None
        self._count = 0
        run.world = self  # type: ignore[attr-defined]

    def race(self, **calls: Callable[[], object]) -> None:
        self.run.race(**{name: lambda call=call: self.guard(call) for name, call in calls.items()})

    def guard(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except StoreError as error:
            self.refusal = error
            return False
        return True

    def put(self, size: int = 20) -> None:
        self._count += 1
        body = (b"%06d" % self._count).ljust(size, b".")
        name = body[:6]
        self.maybe.add(name)
        if self.guard(lambda: self.store.put("T", body, keys=name.decode())):
            self.there.add(name)
        elif isinstance(self.refusal, UsageError):
            self.refused.add(name)
        else:
            return
        self.maybe.discard(name)

    def close(self) -> None:
        self.guard(self.store.close)

    def lose_power(self) -> None:
        self.images = self.fs.without_power()
        self.durable = set(self.there)

    def state(self) -> object:
        files, directories = self.fs.memory.contents()
        images = [frozenset(image[0].items()) for image in self.images]
        sets = map(frozenset, (self.there, self.maybe, self.refused, self.durable))
        return hash((frozenset(files.items()), directories, *images, *sets))

    def verdict(self) -> str | None:
        files, directories = self.fs.memory.contents()
        findings = verify("/r", fs=MemoryFileSystem(files, directories), **_SMALL)
        if findings:
            return f"verify: {findings[0]}"[:200]
        wrong = self._reopened(MemoryFileSystem(files, directories), self.there)
        for image in self.images if wrong is None else ():
            memory = MemoryFileSystem(*image, boot=b"another boot")
            wrong = self._reopened(memory, self.durable)
            if wrong is not None:
                return f"after a loss of power: {wrong}"
        return wrong

    def _reopened(self, memory: MemoryFileSystem, there: set[bytes]) -> str | None:
        try:
            options = {**self.options, "background": False}
            with rocketstore.open("/r", fs=memory, **options) as store:
                got = [one.body[:6] for one in store.messages("T", 0)]
                found = {one for one in there if store.query("T", one.decode())}
        except Exception as error:
            return f"open raises {type(error).__name__}: {error}"[:200]
        if len(set(got)) < len(got):
            return "a message is there twice"
        if there - found:
            return "LOST: a put that returned is not there"
        if self.refused & set(got):
            return "a put that was refused is there"
        return None


@workload(stores=True)
def rocket_put_close(run: Run) -> None:
    w = _RocketWorld(run)
    w.put()
    w.race(putter=w.put, closer=w.close)
    w.close()


@workload()
def rocket_put_put_roll(run: Run) -> None:
    """Both need the next file."""
    w = _RocketWorld(run)
    w.put(2000)
    w.race(one=lambda: w.put(1800), other=lambda: w.put(1800))
    w.close()


@workload()
def rocket_fsync_put_put(run: Run) -> None:
    w = _RocketWorld(run, durability="fsync")
    w.put()
    w.fs.make_safe()
    w.race(one=w.put, other=w.put, checkpointer=w.store.checkpoint)
    w.lose_power()
    w.close()


@workload()
def rocket_checkpoint_close(run: Run) -> None:
    w = _RocketWorld(run)
    w.put()
    w.race(checkpointer=w.store.checkpoint, closer=w.close)
    w.close()


@workload()
def rocket_background_close(run: Run) -> None:
    w = _RocketWorld(run, background=True, flush_interval=0.001, checkpoint_interval=0.002)
    w.put()
    w.race(putter=w.put, closer=w.close)
    w.close()


@workload()
def rocket_close_close(run: Run) -> None:
    w = _RocketWorld(run)
    w.put()
    w.race(one=w.close, other=w.close)
    w.close()


@workload()
def rocket_put_query(run: Run) -> None:
    w = _RocketWorld(run)
    w.put()

    def ask() -> None:
        if not w.store.query("T", "000001"):
            w.wrong = "a key is not found beside a put"

    w.race(putter=w.put, asker=ask)
    w.close()


@workload(interrupts="caller")
def rocket_handler_in_sync(run: Run) -> None:
    w = _RocketWorld(run)
    w.put()
    w.handle = w.put
    w.race(caller=w.store.sync, closer=w.close)
    w.close()


@workload(interrupts="caller")
def rocket_handler_in_fsync_put(run: Run) -> None:
    w = _RocketWorld(run, durability="fsync")
    w.handle = w.put
    w.race(caller=w.put, other=w.put)
    w.close()


@workload(interrupts="caller")
def rocket_handler_in_checkpoint(run: Run) -> None:
    w = _RocketWorld(run)
    w.put()
    w.handle = w.put
    w.race(caller=w.store.checkpoint, other=w.store.checkpoint)
    w.close()


@workload(interrupts="caller")
def rocket_handler_checkpoints_in_sync(run: Run) -> None:
    """It wants what the other checkpoint has, which waits for the sync."""
    w = _RocketWorld(run)
    w.put()
    w.handle = lambda: w.guard(w.store.checkpoint)
    w.race(caller=w.store.sync, other=w.store.checkpoint)
    w.close()


@workload(interrupts="caller")
def rocket_handler_closes_in_put(run: Run) -> None:
    w = _RocketWorld(run, durability="fsync")
    w.handle = w.close
    w.race(caller=w.put)
    w.close()
