"""The fixed workloads: each operation of engine, index, message store and compaction."""

from __future__ import annotations

from typing import Any

from tests.crash.driver import Step, Workload

__all__ = ["COMPACTION", "INDEX", "LIMITS", "STORE", "WORKLOADS"]

_OPEN: tuple[Step, ...] = (("open",), ("queue", "a"))
_FSYNC = {"durability": "fsync"}


def _busy(*numbers: int, kind: str = "small") -> tuple[Step, ...]:
    """Publish, take and acknowledge in turn."""
    return tuple(
        step for _ in numbers for step in (("publish", "a", kind), ("get", "a"), ("ack", "a"))
    )


def _many(prefix: str, steps: tuple[Step, ...], **more: Any) -> tuple[Workload, ...]:
    """The same steps in each durability."""
    options = more.pop("options", {})
    return (
        Workload(f"{prefix}, os", steps, options=options, **more),
        Workload(f"{prefix}, fsync", steps, options={**options, **_FSYNC}, **more),
    )


INDEX: tuple[Workload, ...] = (
    Workload(
        "creation",
        (("open",), ("queue", "a"), ("publish", "a"), ("queue", "b", 1e9), ("publish", "b", "ttl")),
        setup=(),
    ),
    *_many(
        "publish",
        (
            ("publish", "a"),
            ("publish", "a", "long"),
            ("publish", "a", "rich"),
            ("publish", "a", "ttl", True),
            ("publish", "a", "long"),
            ("publish_many", "a", 3),
            ("sync_queue", "a"),
            ("publish", "a", "expired"),
            ("publish_many", "a", 2, "ttl", True),
        ),
    ),
    *_many(
        "deliver and ack",
        (
            ("publish_many", "a", 6),
            ("get", "a"),
            ("get", "a", 3),
            ("sync",),
            ("ack", "a", 1),
            ("requeue", "a", 0),
            ("get", "a"),
            ("reject", "a", 0),
            ("ack_many", "a", 0, 2),
            ("get", "a", 5),
            ("ack_up_to", "a", 1),
            ("sync_queue", "a"),
        ),
    ),
    Workload(
        "transient and expired",
        (
            ("publish", "a", "transient"),
            ("publish", "a"),
            ("publish", "a", "expired"),
            ("publish", "a", "transient"),
            ("get", "a", 2),
            ("ack", "a"),
            ("publish", "a", "ttl"),
            ("flush", "a"),
            ("publish", "a", "transient"),
            ("sync",),
            ("get", "a", 4),
            ("reopen",),
            ("get", "a"),
        ),
    ),
    *_many(
        "flush",
        (
            ("publish_many", "a", 3),
            ("publish", "a", "long"),
            ("flush", "a"),
            ("get", "a", 2),
            ("ack", "a"),
            ("publish", "a"),
            ("flush_idle", "a"),
            ("sync",),
            ("ack", "a"),
            ("consume", "a", 2),
            ("publish_many", "a", 2, "long"),
            ("flush_budget", "a"),
            ("consume", "a"),
            ("flush", "a"),
        ),
    ),
    Workload(
        "flush by count",
        (*_busy(1, 2), ("publish_many", "a", 3), ("sync",), *_busy(3, 4), ("publish", "a", "long")),
        options={"max_journal_entries": 5},
    ),
    Workload(
        "flush and nothing left",
        (
            ("publish_many", "a", 3),
            ("sync",),
            ("consume", "a", 3),
            ("flush", "a"),
            ("publish", "a"),
            ("sync",),
            ("publish", "a"),
            ("consume", "a"),
            ("flush", "a"),
            ("sync",),
        ),
    ),
    *_many(
        "publish during a flush",
        (
            ("publish_many", "a", 3),
            ("meanwhile", ("flush", "a"), ("publish", "a"), ("get", "a"), ("publish", "a", "long")),
            ("ack", "a"),
            ("sync",),
            ("meanwhile", ("flush", "a"), ("consume", "a"), ("publish", "a", "small", True)),
            ("publish", "a"),
        ),
    ),
    Workload(
        "journal replaced",
        (
            ("publish_many", "a", 4),
            ("sync",),
            ("flush", "a"),
            ("publish", "a"),
            ("sync",),
            ("consume", "a", 2),
            ("flush", "a"),
            ("publish", "a", "long", True),
        ),
        patches={"journal.journal._IN_PLACE": 0},
    ),
    Workload(
        "growth",
        (
            ("publish_many", "a", 2, "long"),
            ("sync",),
            ("publish", "a", "long"),
            ("consume", "a", 17),
            ("publish", "a"),
        ),
        setup=(*_OPEN, ("publish_many", "a", 15, "long")),
        options={"segment_entry_count": 64},
    ),
    Workload(
        "bulk append",
        (
            ("publish_many", "a", 3, "long"),
            ("get", "a", 2),
            ("sync",),
            ("publish_many", "a", 3, "long"),
            ("ack_many", "a"),
            ("flush", "a"),
        ),
        patches={"journal.journal._BULK": 2048},
    ),
    Workload(
        "segment 1 begins",
        (
            ("publish", "a"),
            ("publish_many", "a", 2),
            ("sync",),
            ("flush", "a"),
            ("consume", "a", 2),
            ("publish", "a"),
        ),
        setup=(*_OPEN, ("publish_many", "a", 16_382), ("consume", "a", 16_381), ("flush", "a")),
        options={"segment_entry_count": None},
    ),
    *_many(
        "purge",
        (
            ("publish_many", "a", 9),
            ("flush", "a"),
            ("publish_many", "a", 2),
            ("get", "a", 1),
            ("sync",),
            ("purge", "a"),
            ("publish", "a"),
            ("sync",),
            ("purge", "a"),
            ("flush", "a"),
        ),
    ),
    Workload(
        "queues deleted",
        (
            ("publish_many", "a", 3),
            ("publish_to", "ab"),
            ("flush", "a"),
            ("sync",),
            ("delete", "a"),
            ("queue", "a"),
            ("publish", "a", "small", True),
            ("delete", "b"),
            ("queue", "c"),
            ("delete", "c"),
        ),
        setup=(*_OPEN, ("queue", "b")),
    ),
    Workload(
        "closed and opened",
        (
            ("publish_many", "a", 3),
            ("get", "a"),
            ("close",),
            ("open",),
            ("publish", "b"),
            ("consume", "a", 2),
            ("reopen",),
            ("consume", "a"),
            ("sync",),
            ("reopen",),
            ("publish", "a", "small", True),
        ),
        setup=(*_OPEN, ("queue", "b")),
    ),
    Workload(
        "consumed and closed",
        (
            ("publish_many", "a", 2),
            ("sync",),
            ("consume", "a", 1),
            ("close",),
            ("open",),
            ("publish", "a"),
            ("sync",),
            ("consume", "a"),
            ("close",),
        ),
    ),
    Workload(
        "killed and opened",
        (
            ("publish_many", "a", 5),
            ("get", "a", 2),
            ("ack", "a"),
            ("sync",),
            ("publish", "a", "long"),
            ("kill",),
            ("get", "a"),
            ("publish", "a"),
            ("flush", "a"),
            ("consume", "a", 2),
            ("kill",),
            ("publish", "a", "small", True),
        ),
    ),
)

STORE: tuple[Workload, ...] = (
    *_many(
        "stored",
        (
            ("publish", "a", "stored"),
            ("publish", "a", "stored_rich"),
            ("publish", "a"),
            ("publish", "a", "stored", True),
            ("get", "a", 2),
            ("publish_many", "a", 2, "stored_ttl"),
            ("ack_many", "a"),
            ("sync",),
            ("publish", "a", "stored"),
        ),
        setup=_OPEN,
    ),
    *_many(
        "fan-out",
        (
            ("publish_to", "ab", "stored"),
            ("publish_to", "ba"),
            ("sync",),
            ("consume", "a", 1),
            ("publish_to", "ab", "stored", True),
            ("consume", "b", 2),
            ("flush", "b"),
            ("consume", "a", 1),
            ("compact",),
        ),
        setup=(*_OPEN, ("queue", "b")),
    ),
    Workload(
        "roll",
        (
            ("publish_many", "a", 4, "stored"),
            ("sync_queue", "a"),
            ("publish", "a", "stored"),
            ("publish_many", "a", 3, "stored", True),
            ("flush", "a"),
            ("publish", "a", "stored"),
        ),
    ),
    Workload(
        "stored, transient and expired",
        (
            ("publish", "a", "stored_transient"),
            ("publish", "a", "stored"),
            ("publish", "a", "stored_expired"),
            ("publish_many", "a", 2, "stored_transient"),
            ("sync",),
            ("get", "a", 2),
            ("ack", "a"),
            ("flush", "a"),
            ("get", "a", 4),
            ("reject", "a"),
            ("reopen",),
            ("get", "a", 4),
        ),
    ),
    *_many(
        "stored and flushed",
        (
            ("publish", "a", "stored"),
            ("publish_many", "a", 2),
            ("publish", "a", "stored"),
            ("flush", "a"),
            ("sync",),
            ("consume", "a", 1),
            ("meanwhile", ("flush", "a"), ("publish", "a", "stored"), ("consume", "a", 1)),
            ("sync",),
            ("publish", "a", "stored"),
        ),
    ),
)

COMPACTION: tuple[Workload, ...] = (
    Workload(
        "drained",
        (
            ("publish_many", "a", 5, "stored"),
            ("sync",),
            ("consume", "a", 4),
            ("compact",),
            ("publish", "a", "stored"),
            ("consume", "a"),
            ("compact",),
            ("publish", "a", "stored", True),
        ),
    ),
    *_many(
        "combined",
        (
            ("publish_many", "a", 10, "stored"),
            ("sync",),
            ("get", "a", 9),
            ("ack", "a", 0, 2),
            ("ack", "a", 1, 2),
            ("ack", "a", 2, 3),
            ("compact",),
            ("publish", "a", "stored"),
            ("sync",),
            ("ack_many", "a"),
            ("compact",),
        ),
    ),
    Workload(
        "combined meanwhile",
        (
            ("publish_many", "a", 7, "stored"),
            ("flush", "a"),
            ("sync",),
            ("get", "a", 7),
            ("ack", "a", 0, 2),
            ("ack_many", "a", 1, 2),
            ("sync",),
            (
                "meanwhile",
                ("compact",),
                ("ack", "a"),
                ("publish", "a", "stored"),
                ("publish", "a", "stored", True),
            ),
            ("requeue", "a"),
            ("sync",),
        ),
    ),
    Workload(
        "stored and purged",
        (
            ("publish_to", "ab", "stored", True),
            ("publish_many", "a", 3, "stored", True),
            ("flush", "a"),
            ("publish", "a", "stored", True),
            ("sync",),
            ("purge", "a"),
            ("compact",),
            ("sync",),
            ("delete", "b"),
            ("compact",),
        ),
        setup=(*_OPEN, ("queue", "b")),
    ),
    Workload(
        "stored, closed and opened",
        (
            ("publish_to", "ab", "stored"),
            ("publish_many", "a", 3, "stored", True),
            ("reopen",),
            ("consume", "a", 3),
            ("sync",),
            ("publish", "b", "stored"),
            ("reopen",),
            ("compact",),
            ("publish", "a", "stored", True),
        ),
        setup=(*_OPEN, ("queue", "b")),
    ),
    Workload(
        "stored, killed and opened",
        (
            ("publish_to", "ab", "stored", True),
            ("publish_many", "a", 2, "stored", True),
            ("get", "a", 3),
            ("ack", "a", 0, 2),
            ("kill",),
            ("publish", "b", "stored"),
            ("sync",),
            ("consume", "a", 2),
            ("compact",),
            ("kill",),
            ("publish", "a", "stored"),
        ),
        setup=(*_OPEN, ("queue", "b")),
    ),
)

_DEAD: tuple[Step, ...] = (
    ("open",),
    ("limited", "a", (("dead_letter", "d"),)),
    ("queue", "d"),
)
_FULL = (("max_length", 3), ("overflow", "drop-head"), ("dead_letter", "d"))
_THRICE = (("delivery_limit", 3), ("dead_letter", "d"))

LIMITS: tuple[Workload, ...] = (
    *_many(
        "dead letters",
        (
            ("publish_many", "a", 6),
            ("sync",),
            ("get", "a", 3),
            ("dead", "a", "d", 0, 2),
            ("flush", "d"),
            ("consume", "d", 1),
            ("sync",),
            ("dead", "a", "d"),
            ("flush", "a"),
        ),
        setup=_DEAD,
    ),
    *_many(
        "large dead letters",
        (
            ("publish", "a", "stored"),
            ("publish", "a", "rich"),
            ("sync",),
            ("get", "a", 2),
            ("dead", "a", "d", 0, 2),
            ("sync_queue", "d"),
            ("compact",),
            ("consume", "d", 1),
        ),
        setup=_DEAD,
    ),
    Workload(
        "dead letters, killed and closed",
        (
            ("publish_many", "a", 5),
            ("get", "a", 3),
            ("dead", "a", "d"),
            ("kill",),
            ("get", "a", 2),
            ("dead", "a", "d"),
            ("consume", "d", 1),
            ("flush", "d"),
            ("kill",),
            ("dead", "a", "d"),
            ("reopen",),
        ),
        setup=_DEAD,
    ),
    *_many(
        "overflow",
        (
            ("publish_many", "a", 3),
            ("sync",),
            ("overflow", "a", "d"),
            ("overflow", "a", "d", 2),
            ("sync",),
            ("flush", "a"),
            ("overflow", "a", "d"),
        ),
        setup=(("open",), ("limited", "a", _FULL), ("queue", "d")),
    ),
    Workload(
        "delivery limit",
        (
            ("publish_many", "a", 2),
            ("sync",),
            ("get", "a"),
            ("requeue", "a"),
            ("get", "a"),
            ("requeue", "a"),
            ("flush", "a"),
            ("get_last", "a", "d"),
            ("give_up", "a", "d"),
            ("sync",),
            ("consume", "a", 1),
        ),
        setup=(("open",), ("limited", "a", _THRICE), ("queue", "d")),
    ),
    Workload(
        "leases",
        (
            ("publish_many", "a", 3),
            ("lease", "a"),
            ("sync",),
            ("lease", "a"),
            ("get", "a", 2),
            ("ack", "a"),
            ("flush", "a"),
            ("lease", "a"),
        ),
    ),
    Workload(
        "settings",
        (
            ("queue", "a"),
            ("limited", "b", _THRICE),
            ("publish", "b"),
            ("limited", "c", _FULL),
            ("close",),
            ("open",),
            ("limited", "a", _THRICE),
            ("publish", "a"),
        ),
        setup=(("open",),),
    ),
)

WORKLOADS = INDEX + STORE + COMPACTION + LIMITS
