"""A run of everything an engine does, on a file system of which one call fails."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import qindex
from journal.errors import ClosedError, StorageError, StoreError, WritesRefusedError
from journal.fs.files import PathLike
from qindex.engine.opening import open_store
from tests.faults.model import Fate, QueueModel
from tests.faulty_fs import FaultyFileSystem
from tests.memory_fs import MemoryFileSystem

__all__ = ["FAULTS", "Fault", "Run", "TracingFileSystem"]

T = TypeVar("T")
STORE = "/store"
_LARGE = 300


@dataclass(frozen=True, slots=True)
class Fault:
    """``error``: an errno, 0 for a short transfer that succeeds; ``short``: bytes transferred.

    ``lasting``: from that call on there is no room left on the disk.
    """

    error: int
    short: int | None = None
    lasting: bool = False

    def __str__(self) -> str:
        name = errno.errorcode[self.error] if self.error else "no error"
        short = f", {self.short} bytes done" if self.short is not None else ""
        return f"{name}{short}{', lasting' if self.lasting else ''}"


_WRITE = (
    Fault(errno.ENOSPC),
    Fault(errno.EIO),
    Fault(errno.ENOSPC, short=3),
    Fault(0, short=1),
    Fault(errno.EIO, short=9),
    Fault(errno.ENOSPC, lasting=True),
    Fault(errno.EINTR),
    Fault(errno.EDQUOT, short=30),
)
_READ = (Fault(errno.EIO), Fault(0, short=1), Fault(errno.EINTR))
_SYNC = (Fault(errno.EIO), Fault(errno.ENOSPC))
FAULTS: dict[str, tuple[Fault, ...]] = {
    "open": tuple(
        Fault(one)
        for one in (errno.EMFILE, errno.EACCES, errno.EIO, errno.ENFILE, errno.EROFS, errno.ENOSPC)
    ),
    "close": (Fault(errno.EIO), Fault(errno.EINTR)),
    "read": _READ,
    "pread": _READ,
    "write": _WRITE,
    "pwrite": _WRITE,
    "truncate": (Fault(errno.EIO), Fault(errno.EPERM), Fault(errno.EINTR)),
    "fallocate": (Fault(errno.ENOSPC), Fault(errno.EIO), Fault(errno.ENOSPC, lasting=True)),
    "mmap": (Fault(errno.ENOMEM), Fault(errno.EMFILE)),
    "fdatasync": _SYNC,
    "fsync": _SYNC,
    "sync_dir": (Fault(errno.EIO), Fault(errno.EMFILE), Fault(errno.EACCES)),
    "rename": (Fault(errno.EIO), Fault(errno.ENOSPC), Fault(errno.EACCES)),
    "unlink": (Fault(errno.EIO), Fault(errno.EACCES), Fault(errno.EROFS)),
    "mkdir": (Fault(errno.ENOSPC), Fault(errno.EACCES), Fault(errno.EROFS)),
    "rmdir": (Fault(errno.EIO), Fault(errno.EACCES)),
    "listdir": (Fault(errno.EIO), Fault(errno.EMFILE), Fault(errno.EACCES)),
    "stat": (Fault(errno.EIO), Fault(errno.EACCES)),
    "fstat": (Fault(errno.EIO),),
    "lock": (Fault(errno.ENOLCK), Fault(errno.EIO)),
    "unlock": (Fault(errno.ENOLCK), Fault(errno.EIO)),
}
"""What each call may fail with."""

_TAKES_ROOM = ("write", "pwrite", "fallocate", "mkdir")


class TracingFileSystem(FaultyFileSystem):
    """With faults, and a list of the calls: operation and path. ``hook`` is called before each."""

    def __init__(self, base: MemoryFileSystem) -> None:
        super().__init__(base)
        self.memory = base
        self.trace: list[tuple[str, str]] = []
        self.hook: Callable[[str, str], None] | None = None

    def _meet(self, operation: str, path: PathLike) -> Any:
        name = str(path)
        if self.hook is not None:
            self.hook(operation, name)
        self.trace.append((operation, name))
        return super()._meet(operation, path)

    def arm(self, trace: list[tuple[str, str]], number: int, fault: Fault) -> None:
        """Let call ``number`` of a run that went by ``trace`` fail."""
        if not fault.lasting:
            self.fail("", fault.error, after=number, short=fault.short)
            return
        before = Counter(operation for operation, _ in trace[:number])
        for operation in _TAKES_ROOM:
            self.fail(operation, fault.error, after=before[operation], times=None)


class Run:
    """One run of the workload; asserts what must hold while it goes."""

    def __init__(self, **options: Any) -> None:
        self.fs = TracingFileSystem(MemoryFileSystem())
        self.options: dict[str, Any] = {
            "background": False,
            "segment_entry_count": 4,
            "embed_below": 200,
            "store_file_bytes": 4096,
            **options,
        }
        self.models: dict[str, QueueModel] = {}
        self.errors: list[StoreError] = []
        self._number = 0
        self._engine: qindex.Engine | None = None

    # -- the workload -----------------------------------------------------------------------------

    def whole(self) -> None:
        """Do everything once, whatever fails."""
        self.open()
        self.publishing()
        self.consuming()
        self.flush("a")
        self.flushing_while_in_use()
        self.rolling()
        self.ending_queues()
        self.close()
        self.open()
        self.consuming()
        self.publish("a", 2)
        self.die()
        self.open()
        self.consuming()
        self.engine_call(lambda engine: engine.compact())
        self.publish("b", 2, size=_LARGE)
        self.close()

    def publishing(self) -> None:
        for _ in range(3):
            self.publish("a", 1)
        self.publish("a", 5)
        self.publish("a", 1, key="k", headers={"n": 1}, ttl=1e6)
        self.publish("b", 3, size=_LARGE)
        self.publish("a", 1, size=_LARGE, confirm=True)
        self.publish_to(["a", "b"], 20)
        self.publish_to(["b", "c", "a"], _LARGE)
        self.publish("a", 2, persistent=False)
        self.publish("b", 1, size=_LARGE, persistent=False)
        self.engine_call(lambda engine: engine.sync())

    def consuming(self) -> None:
        taken = self.take("a", 5)
        self.settle("a", taken[:2], "ack_many")
        self.settle("a", taken[2:3], "nack")
        self.settle("a", taken[3:4], "ack")
        taken = self.take("b", 3)
        self.settle("b", taken[:2], "up_to")
        self.take_one("a")
        self.settle("b", taken[2:], "drop")

    def flushing_while_in_use(self) -> None:
        """A publish and a delivery come in the middle of a flush: the journal is replaced."""
        pending = ["a"]

        def meanwhile(operation: str, path: str) -> None:
            if pending and operation == "fdatasync" and path.endswith(".idx"):
                pending.clear()
                self.publish("a", 3)
                self.take("a", 1)

        self.publish("a", 2)
        self.fs.hook = meanwhile
        self.flush("a")
        self.fs.hook = None
        self.publish("a", 1)

    def rolling(self) -> None:
        """Files of the message store roll, and most of it becomes garbage; the journal grows."""
        self.publish("c", 20, size=900)
        self.publish("c", 40, size=2000, embedded=True)
        self.settle("c", self.take("c", 50), "ack_many")
        self.flush("c")
        self.settle("c", self.take("c", 6), "ack_many")
        self.engine_call(lambda engine: engine.compact())
        self.engine_call(lambda engine: engine.flush())

        for _ in range(2):
            # All of the tail is acknowledged: its file goes, and comes again with the next.
            self.publish("f", 1)
            self.flush("f")
            self.settle("f", self.take("f", 1), "ack_many")
            self.flush("f")

    def ending_queues(self) -> None:
        self.publish("d", 6)
        self.flush("d")
        self.publish("d", 2, size=_LARGE)
        self.purge("d")
        self.publish("d", 2)
        self.delete("d")
        self.publish("d", 1)
        self.publish("e", 5, size=_LARGE)
        self.delete("e")

    # -- single calls -----------------------------------------------------------------------------

    @property
    def engine(self) -> qindex.Engine:
        assert self._engine is not None
        return self._engine

    def attempt(self, call: Callable[[], T]) -> T | None:
        """Make a call; what it raises must be one of the few errors that are for this."""
        try:
            return call()
        except StoreError as error:
            known = isinstance(error, StorageError | WritesRefusedError)
            known |= isinstance(error, ClosedError) and any(m.failed for m in self.models.values())
            if not known:
                raise AssertionError(f"{type(error).__name__}: {error}") from error
            self.errors.append(error)
            return None

    def open(self) -> None:
        """Open; when that fails it goes well once the cause is gone."""
        for _ in range(2):
            engine: qindex.Engine | None = self.attempt(
                lambda: open_store(STORE, fs=self.fs, **self.options)
            )
            if engine is not None:
                self._engine = engine
                break
            self.fs.heal()
        for model in self.models.values():
            model.restarted()
            model.failed = False
        assert all(one.cause is qindex.Cause.CRASH for one in self.engine.findings)

    def close(self) -> None:
        self.attempt(self.engine.close)

    def die(self) -> None:
        """The process ends here; another opens what it left."""
        self.fs.memory.forget_descriptors()
        self._engine = None

    def queue(self, name: str) -> tuple[qindex.Queue | None, QueueModel]:
        model = self.models.setdefault(name, QueueModel(name))
        return self.attempt(lambda: self.engine.queue(name)), model

    def engine_call(self, call: Callable[[qindex.Engine], object]) -> None:
        self.attempt(lambda: call(self.engine))

    def bodies(self, count: int, size: int) -> list[bytes]:
        first = self._number
        self._number += count
        return [b"%06d" % number + b"." * size for number in range(first, first + count)]

    def publish(
        self, name: str, count: int, *, size: int = 10, embedded: bool = False, **how: Any
    ) -> None:
        queue, model = self.queue(name)
        if queue is None:
            return
        bodies = self.bodies(count, size)
        transient = not how.get("persistent", True)
        if embedded:
            # Records of any size in the index, as with a larger ``embed_below``.
            queue._parts.state.most_plain = size + 100
        if count == 1:
            one = self.attempt(lambda: queue.publish(bodies[0], **how))
            seqs = None if one is None else range(one, one + 1)
        else:
            seqs = self.attempt(lambda: queue.publish_many(bodies, **how))
        if seqs is None:
            model.may_have_published(bodies, transient=transient)
        else:
            model.published(bodies, seqs, transient=transient)

    def publish_to(self, names: list[str], size: int) -> None:
        models = [self.queue(name)[1] for name in names]
        [body] = self.bodies(1, size)
        seqs = self.attempt(lambda: self.engine.publish_to(names, body))
        for at, model in enumerate(models):
            if seqs is None:
                model.may_have_published([body], transient=False)
            else:
                model.published([body], [seqs[at]], transient=False)

    def take(self, name: str, most: int) -> list[qindex.Delivery]:
        queue, model = self.queue(name)
        if queue is None:
            return []
        batch = self.attempt(lambda: list(queue.get_many(most)))
        return self.taken(model, batch)

    def take_one(self, name: str) -> list[qindex.Delivery]:
        queue, model = self.queue(name)
        if queue is None:
            return []
        before = len(self.errors)
        one = self.attempt(lambda: queue.get(0))
        if one is None and len(self.errors) == before:
            return []
        return self.taken(model, None if one is None else [one])

    def taken(
        self, model: QueueModel, batch: list[qindex.Delivery] | None
    ) -> list[qindex.Delivery]:
        if batch is None:
            model.may_have_delivered()
            return []
        model.took(batch)
        return batch

    def settle(self, name: str, deliveries: list[qindex.Delivery], how: str) -> None:
        if not deliveries:
            return
        queue, model = self.queue(name)
        if queue is None:
            return
        before = len(self.errors)
        if how == "ack_many":
            self.attempt(lambda: queue.ack_many(deliveries))
        elif how == "up_to":
            self.attempt(lambda: queue.ack_up_to(deliveries[-1].seq_id))
        elif how == "ack":
            self.attempt(deliveries[0].ack)
        else:
            one = deliveries[0]
            self.attempt(one.nack if how == "nack" else one.reject)
        if how != "nack":
            done = Fate.MAYBE if len(self.errors) > before else Fate.YES
            model.settled([one.body for one in deliveries], done)

    def flush(self, name: str) -> None:
        queue, _ = self.queue(name)
        if queue is not None:
            self.attempt(queue.flush)

    def purge(self, name: str) -> None:
        queue, model = self.queue(name)
        if queue is None:
            return
        done = self.attempt(queue.purge)
        fate = Fate.MAYBE if done is None else Fate.YES
        model.settled([sent.body for sent in model.sent.values()], fate)

    def delete(self, name: str) -> None:
        queue, model = self.queue(name)
        if queue is None:
            return
        before = len(self.errors)
        self.attempt(lambda: self.engine.delete_queue(name))
        model.failed = len(self.errors) > before
        model.delete(Fate.MAYBE if model.failed else Fate.YES)
