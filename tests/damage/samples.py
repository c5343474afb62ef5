"""The stores that are harmed: in memory, a few kilobytes each, with the truth about them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import qindex
from qindex.engine.opening import open_store
from tests.memory_fs import MemoryFileSystem

__all__ = ["SAMPLES", "STORE", "Message", "QueueTruth", "Sample", "longer"]

STORE = "/store"
_TTL = 1e8
_ZEROS = 256
"""Bytes of zeros that are kept behind the records of a journal: one is like the other."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a consumer sees of a message."""

    body: bytes
    key: str | None
    headers: str
    redelivered: bool


@dataclass(slots=True)
class QueueTruth:
    """``published``: all bodies by seq_id; ``held``: what a consumer is to get, by seq_id."""

    published: dict[int, bytes] = field(default_factory=dict)
    held: dict[int, Message] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One store: ``files`` by path below ``/``, and its queues."""

    name: str
    files: dict[str, bytes]
    directories: frozenset[str]
    queues: dict[str, QueueTruth]

    def file_system(self, files: dict[str, bytes] | None = None) -> MemoryFileSystem:
        """Give it a life of its own."""
        return MemoryFileSystem(self.files if files is None else files, self.directories)


class _Builder:
    """Publishes and consumes, and keeps the truth."""

    def __init__(self, **options: Any) -> None:
        self.fs = MemoryFileSystem()
        self.engine = open_store(
            STORE,
            fs=self.fs,
            background=False,
            **{
                "segment_entry_count": 8,
                "embed_below": 120,
                "store_file_bytes": 4096,
                **options,
            },
        )
        self.truths: dict[str, QueueTruth] = {}
        self._out: dict[tuple[str, int], qindex.Delivery] = {}

    def truth(self, name: str) -> QueueTruth:
        return self.truths.setdefault(name, QueueTruth())

    def publish(self, names: list[str], body: bytes, **how: Any) -> None:
        seqs = self.engine.publish_to(names, body, **how)
        ours = self.engine.options.record_format == "qindex"
        key = how.get("key", None if ours else names[0])
        message = Message(body, key, repr(how.get("headers", {})), False)
        for name, seq in zip(names, seqs, strict=True):
            self.truth(name).published[seq] = body
            self.truth(name).held[seq] = message

    def take(self, name: str, count: int) -> list[int]:
        held = self.truth(name).held
        taken = []
        for one in self.engine.queue(name).get_many(count):
            old = held[one.seq_id]
            held[one.seq_id] = Message(old.body, old.key, old.headers, True)
            self._out[name, one.seq_id] = one
            taken.append(one.seq_id)
        return taken

    def ack(self, name: str, *seqs: int) -> None:
        for seq in seqs:
            self._out.pop((name, seq)).ack()
            del self.truth(name).held[seq]

    def finish(self, name: str, *, clean: bool) -> Sample:
        if clean:
            self.engine.close()
        files, directories = self.fs.contents()
        if not clean:
            self.engine.close()
            for path, data in files.items():
                if path.endswith(".jif"):
                    files[path] = data.rstrip(b"\0") + bytes(_ZEROS)
        return Sample(name, files, directories, self.truths)


def _embedded(builder: _Builder) -> None:
    """Small messages in three segments and, behind a flush, in the journal."""
    q = builder.engine.queue("orders", message_ttl=_TTL)
    for at in range(18):
        extra = {"key": f"k{at}", "headers": {"n": at}} if at % 5 == 0 else {}
        builder.publish(["orders"], b"body %d" % at * (at % 3), **extra)
        if at == 11:
            builder.take("orders", 7)
            builder.ack("orders", 0, 2, 3, 5)
            q.flush()
    builder.take("orders", 4)
    builder.ack("orders", 1, 6, 7)


def _stored(builder: _Builder) -> None:
    """Messages of the message store, one for two queues, one for one; small ones beside."""
    for at in range(3):
        builder.publish(["a", "b"], b"large %d " % at * (16 + at), key=f"k{at}")
    builder.publish(["b"], b"b's own " * 20)
    builder.publish(["a"], b"small")
    builder.take("a", 2)
    builder.ack("a", 0)
    builder.take("b", 3)
    builder.ack("b", 1)


def _synced(builder: _Builder) -> None:
    """The same, and a sync: the checksums of the journal are written."""
    _embedded(builder)
    builder.engine.sync()


def _flushed(builder: _Builder) -> None:
    """All in segments, nothing in journals; a queue that is empty."""
    _embedded(builder)
    builder.publish(["empty"], b"gone")
    builder.take("empty", 1)
    builder.ack("empty", 0)
    builder.engine.flush()


def _rolled(builder: _Builder) -> None:
    """Two files of the message store, a part of it garbage."""
    for at, size in enumerate((1900, 300, 1900, 200, 200)):
        builder.publish(["a"], bytes([at + 65]) * size)
    builder.take("a", 3)
    builder.ack("a", 0)


_KINDS: dict[str, tuple[Callable[[_Builder], None], bool]] = {
    "embedded, killed": (_embedded, False),
    "embedded, synced, killed": (_synced, False),
    "embedded, closed": (_embedded, True),
    "stored and fan-out, killed": (_stored, False),
    "stored and fan-out, closed": (_stored, True),
    "flushed, killed": (_flushed, False),
    "two store files, killed": (_rolled, False),
}


def _build(name: str) -> Sample:
    fill, clean = _KINDS[name]
    builder = _Builder()
    fill(builder)
    return builder.finish(name, clean=clean)


SAMPLES: dict[str, Callable[[], Sample]] = {
    name: (lambda name=name: _build(name))  # type: ignore[misc]
    for name in _KINDS
}


def longer(count: int, entry_count: int, *, clean: bool) -> Sample:
    """Make a store of ``count`` embedded messages in segments of ``entry_count``, some of them
    taken, acknowledged and flushed in turn; the last part stays in the journal."""
    builder = _Builder(segment_entry_count=entry_count, embed_below=4096)
    chance = random.Random(count)
    truth = builder.truth("q")
    while (number := len(truth.published)) < count:
        for at in range(number, min(number + 50, count)):
            body = chance.randbytes(chance.choice((0, 1, 20, 100, 100, 100, 300, 2000)))
            extra = (
                {"headers": {"n": at, "t": "x" * (at % 9)}, "key": f"k{at}"} if at % 4 == 0 else {}
            )
            builder.publish(["q"], body, **extra)
        taken = builder.take("q", 30)
        builder.ack("q", *(seq for seq in taken if chance.random() < 0.7))
        if chance.random() < 0.35 and number < count * 3 // 4:
            builder.engine.queue("q").flush()
    return builder.finish(f"{count} messages", clean=clean)
