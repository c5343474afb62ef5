"""What the tests hold queues against: plain lists, a clock that they set, a kill that they make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import qindex
from qindex.format.message import Message
from qindex.format.message_record import encode_record

__all__ = ["Clock", "Model", "Sent"]

_MODULES = (
    "queue.run_clock",
    "engine.transactions",
    "queue.producing",
    "view.queue_view",
)


class Clock:
    """Stands in for ``time_ns`` wherever the engine asks for the time; in use until closed."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * 10**9
        self._patches = ExitStack()
        for module in _MODULES:
            self._patches.enter_context(mock.patch(f"qindex.{module}.time_ns", self.read))

    def read(self) -> int:
        """Give the time, in nanoseconds since 1970."""
        return self.now

    def microseconds(self) -> int:
        return self.now // 1000

    def pass_by(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)

    def close(self) -> None:
        self._patches.close()


@dataclass
class Sent:
    """One message as the model knows it; ``expiry``: microseconds since 1970, 0 = never."""

    body: bytes
    key: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    transient: bool = False
    delivered: bool = False
    expiry: int = 0

    def is_stored(self, embed_below: int) -> bool:
        """Whether its record, in our format, goes to the message store."""
        message = Message(self.body, self.key, self.headers, {}, 1)
        return len(encode_record(message)) >= embed_below


@dataclass
class Model:
    """One queue: what is ready and what is out, by seq_id."""

    ready: dict[int, Sent] = field(default_factory=dict)
    out: dict[int, tuple[Sent, qindex.Delivery]] = field(default_factory=dict)
    next_seq: int = 0

    def published(self, seq: int, sent: Sent) -> None:
        assert seq == self.next_seq
        self.ready[seq] = sent
        self.next_seq += 1

    def restart(self) -> None:
        """Transient messages end; what was out is ready again."""
        for seq, (sent, _) in self.out.items():
            self.ready[seq] = sent
        self.out.clear()
        self.ready = {seq: one for seq, one in sorted(self.ready.items()) if not one.transient}

    def alive_at(self, now: int) -> Iterator[tuple[int, Sent]]:
        """Give what is ready and has not expired, in order."""
        for seq in sorted(self.ready):
            if not 0 < self.ready[seq].expiry <= now:
                yield seq, self.ready[seq]

    def drop_expired(self, now: int, before: int | None = None) -> None:
        """Those that a consumer has come by (in front of seq_id ``before``) are gone."""
        for seq in [seq for seq, sent in self.ready.items() if 0 < sent.expiry <= now]:
            if before is None or seq < before:
                del self.ready[seq]

    def everything(self) -> list[Sent]:
        return [*self.ready.values(), *(sent for sent, _ in self.out.values())]
