"""A small store under the scheduler, what its users were promised, and the verdict at the end.

The store is in memory; each call of the file seam is a switch point before it, and so is each store
into a mapped file. The file system knows what was synced: what a loss of power would leave, if it
took all the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import qindex
from journal.errors import StoreError
from journal.findings import Cause
from qindex.engine.opening import open_store
from qindex.tools.verify import verify_store
from tests.memory_fs import FileMap, Inode, MemoryFileSystem
from tests.schedules.scheduler import Run, point

__all__ = ["LARGE", "SMALL", "Image", "PointedFileSystem", "World", "judge_with", "stack_tops"]

SMALL, LARGE = 20, 20_000

Image = tuple[dict[str, bytes], frozenset[str]]
"""Files and directories of a store."""

_CALLS = {"open", "close", "write", "pwrite", "pread", "truncate", "fallocate", "rename", "unlink"}
_CALLS |= {"mkdir", "rmdir"}
_HEX = re.compile(r"[0-9a-f]{32}")


class _PointedMap(FileMap):
    """A map with a switch point before each store."""

    def __setitem__(self, key: Any, value: Any, /) -> None:
        point("store")
        super().__setitem__(key, value)

    def write(self, data: Any, /) -> int:
        point("store")
        return super().write(data)


class PointedFileSystem:
    """A file system in memory, one thread at a time, whose calls are switch points."""

    def __init__(self, memory: MemoryFileSystem) -> None:
        self.memory = memory
        self._safe: dict[int, bytes] = {}
        self._names: dict[int, dict[str, Inode]] = {}
        for name in dir(memory):
            if name.startswith("_"):
                continue
            method = getattr(memory, name)
            if name in _CALLS and name not in self.__class__.__dict__:
                method = self._pointed(name, method)
            if name not in self.__class__.__dict__:
                setattr(self, name, method)

    @staticmethod
    def _pointed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            point("file", name)
            return method(*args)

        return call

    def mmap(self, fd: int, length: int, writable: bool, /) -> Any:
        point("file", "mmap")
        if not writable:
            return self.memory.mmap(fd, length, False)
        mapped = _PointedMap(-1, length)
        self.memory.adopt_map(fd, mapped)
        return mapped

    def fdatasync(self, fd: int, /) -> None:
        point("file", "fdatasync")
        inode = self.memory.inode(fd)
        self._safe[inode.number] = inode.content()
        point("file", "behind fdatasync")

    fsync = fdatasync

    def sync_dir(self, path: Any, /) -> None:
        point("file", "sync_dir")
        inode = self.memory.find(path)
        assert inode.entries is not None
        self._names[inode.number] = dict(inode.entries)

    def make_safe(self) -> None:
        """All there is is on disk."""
        root = self.memory.find("/")
        for inode in (root, *(inode for _, inode in self.memory.tree())):
            if inode.entries is None:
                self._safe[inode.number] = inode.content()
            else:
                self._names[inode.number] = dict(inode.entries)

    def without_power(self) -> list[Image]:
        """What may be left: nothing that was not synced; all names, and of bytes those synced."""
        return [self._left(self._names), self._left(None)]

    def _left(self, names: dict[int, dict[str, Inode]] | None) -> Image:
        files: dict[str, bytes] = {}
        directories: set[str] = set()
        waiting = [("", self.memory.find("/"))]
        while waiting:
            prefix, directory = waiting.pop()
            entries = directory.entries if names is None else names.get(directory.number)
            for name, inode in (entries or {}).items():
                if inode.entries is None:
                    files[prefix + name] = self._safe.get(inode.number, b"")
                else:
                    directories.add(prefix + name)
                    waiting.append((f"{prefix}{name}/", inode))
        return files, frozenset(directories)


class World:
    """One engine in memory, and its users.

    ``there``: messages whose publish has returned; ``maybe``: those that may be there or not;
    ``gone``: acknowledged; ``refused``: their publish has raised. Each by its first six bytes.
    """

    def __init__(self, run: Run, queue: dict[str, Any] | None = None, **options: Any) -> None:
        self.run = run
        self.fs = PointedFileSystem(MemoryFileSystem())
        self.options: dict[str, Any] = {"background": False, **options}
        seam: Any = self.fs
        self.engine = open_store("/q", fs=seam, **self.options)
        self.queue = self.engine.queue("a", **(queue or {}))
        self.there: set[bytes] = set()
        self.maybe: set[bytes] = set()
        self.acking: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.raised: list[str] = []
        self.twice_is_right = False
        self.images: list[Image] = []
        self.durable: tuple[set[bytes], set[bytes]] = set(), set()
        self.wrong: str | None = None
        self.handle: Callable[[], object] = lambda: None
        self._count = 0
        run.world = self  # type: ignore[attr-defined]

    def race(self, **calls: Callable[[], object]) -> None:
        """Run these at the same time; each may raise errors of ours."""
        self.run.race(**{name: lambda call=call: self.guard(call) for name, call in calls.items()})

    def guard(self, call: Callable[[], object]) -> bool:
        """Call it; false when it has raised what its user may see."""
        try:
            call()
        except StoreError as error:
            self.raised.append(type(error).__name__)
            return False
        return True

    # -- what users do --------------------------------------------------------------------------

    def body(self, size: int) -> bytes:
        self._count += 1
        return (b"%06d" % self._count).ljust(size, b".")

    def publish(self, size: int = SMALL, queue: qindex.Queue | None = None, **options: Any) -> None:
        body = self.body(size)
        self.publishing([body], lambda: (queue or self.queue).publish(body, **options))

    def publish_many(self, *sizes: int) -> None:
        bodies = [self.body(size) for size in sizes]
        self.publishing(bodies, lambda: self.queue.publish_many(bodies))

    def publishing(self, bodies: Iterable[bytes], call: Callable[[], object]) -> None:
        """Publish: what returns is there, what raises is not."""
        names = {one[:6] for one in bodies}
        self.maybe |= names
        if self.guard(call):
            # It may be with a consumer by now, who acknowledges it.
            self.there |= names - self.acking
        else:
            self.refused |= names
        self.maybe -= names - self.acking

    def ack(self, *deliveries: qindex.Delivery) -> None:
        names = {one.body[:6] for one in deliveries}
        self.acking |= names
        self.there -= names
        self.maybe |= names

        def call() -> None:
            if len(deliveries) == 1:
                deliveries[0].ack()
            else:
                self.queue.ack_many(deliveries)

        if self.guard(call):
            self.gone |= names
            self.maybe -= names

    def transact(self, queues: str, *deliveries: qindex.Delivery) -> None:
        """Publish to each of these queues, and acknowledge, as one."""
        bodies = [self.body(SMALL) for _ in queues]
        published = {one[:6] for one in bodies}
        acked = {one.body[:6] for one in deliveries}
        self.there -= acked
        self.maybe |= published | acked

        def call() -> None:
            with self.engine.transaction() as transaction:
                for queue, body in zip(queues, bodies, strict=True):
                    transaction.publish(queue, body)
                for delivery in deliveries:
                    transaction.ack(delivery)

        if self.guard(call):
            self.there |= published
            self.gone |= acked
            self.maybe -= published | acked
        else:
            self.refused |= published
            self.there |= acked
            self.maybe -= published | acked

    def get(self, timeout: float | None = 0) -> qindex.Delivery | None:
        delivery: qindex.Delivery | None = self.queue.get(timeout)
        return delivery

    def got(self, count: int) -> list[qindex.Delivery]:
        """Take so many messages, before the race."""
        return list(self.queue.get_many(count))

    def take_one(self, timeout: float | None = None) -> None:
        """Take a message, and acknowledge it."""
        delivery = self.get(timeout)
        if delivery is not None:
            self.ack(delivery)

    def close(self) -> None:
        self.guard(self.engine.close)

    # -- ends -----------------------------------------------------------------------------------

    def make_safe(self) -> None:
        """All that was done so far survives a loss of power."""
        self.engine.sync()
        self.fs.make_safe()

    def lose_power(self) -> None:
        """Keep what a loss of power would leave now: what has returned has to be there."""
        self.images = self.fs.without_power()
        self.durable = set(self.there), set(self.gone)

    def end(self) -> None:
        """Close, if nobody has."""
        self.close()

    def state(self) -> object:
        """Give what tells one end from another."""
        return _state(self)

    def verdict(self) -> str | None:
        """Tell which promise was broken, or ``None``."""
        return _verdict(self)


def judge_with(seen: dict[object, str | None]) -> Callable[[Run], str | None]:
    """Give what tells what is wrong after a run; ``seen``: verdicts by end states."""

    def judge(run: Run) -> str | None:
        if run.failure is not None:
            return f"{run.failure.kind}: {stack_tops(run)}"
        if run.errors:
            name, error = run.errors[0]
            return f"{name} raised {type(error).__name__}: {error}"[:300]
        world: Any = run.world  # type: ignore[attr-defined]
        if world.wrong is not None:
            return str(world.wrong)
        key = world.state()
        if key not in seen:
            seen[key] = world.verdict()
        return seen[key]

    return judge


def stack_tops(run: Run) -> str:
    """Say where each thread of a run stands that came to no end."""
    assert run.failure is not None
    tops = (
        f"{name} is {state} at {lines[0] if lines else '?'}"
        for name, (state, lines) in sorted(run.failure.stacks.items())
    )
    return "; ".join(tops)


def _state(world: World) -> object:
    files, directories = world.fs.memory.contents()
    return hash(
        (
            frozenset(files.items()),
            directories,
            *(frozenset(image[0].items()) for image in world.images),
            *map(frozenset, (world.there, world.maybe, world.gone, world.refused)),
            *map(frozenset, world.durable),
        )
    )


def _verdict(world: World) -> str | None:
    files, directories = world.fs.memory.contents()
    report = verify_store("/q", fs=MemoryFileSystem(files, directories))
    if report.findings:
        return f"verify: {_HEX.sub('ID', report.findings[0].what)}"[:200]
    wrong = _reopened(world, MemoryFileSystem(files, directories), world.there, world.gone, False)
    for image in world.images if wrong is None else ():
        memory = MemoryFileSystem(*image, boot=b"another boot")
        wrong = _reopened(world, memory, *world.durable, True)
        if wrong is not None:
            return f"after a loss of power: {wrong}"
    return wrong


def _reopened(
    world: World, memory: MemoryFileSystem, there: set[bytes], gone: set[bytes], crashed: bool
) -> str | None:
    try:
        with open_store("/q", fs=memory, background=False) as engine:
            findings = [one for one in engine.findings if not crashed or one.cause is Cause.DAMAGE]
            if findings:
                return f"open finds: {_HEX.sub('ID', findings[0].what)}"[:200]
            got: list[bytes] = []
            done: set[str] = set()
            # Messages may move to the dead-letter queue, which may be made by that: it comes last.
            while left := set(engine.queue_names()) - done:
                name = min(left, key=lambda one: (one == "dead", one))
                done.add(name)
                while batch := engine.queue(name).get_many(100):
                    got += [one[:6] for one in batch.bodies]
    except Exception as error:
        return f"open raises {type(error).__name__}: {error}"[:200]
    count = Counter(got)
    if not world.twice_is_right and max(count.values(), default=0) > 1:
        return "a message is there twice"
    if there - set(got):
        return "LOST: a publish that returned is not there"
    if gone & set(got):
        return "BACK: an acknowledged message is there"
    if world.refused & set(got) and not crashed:
        return "a publish that raised is there"
    return None
