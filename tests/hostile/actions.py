"""Everything a user may do with a directory that came from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import qindex
import rocketstore
from qindex.cli.top import Look
from qindex.tools.convert import convert
from qindex.tools.repair import repair
from qindex.tools.salvage import salvage
from qindex.transfer import export_messages, import_messages
from rocketstore.verify import verify as rocketstore_verify
from tests.hostile.stores import OURS, ROCKET

__all__ = ["actions_of"]

Action = Callable[[Path], int]
"""Does it to the store; gives the number of findings. Raises what it raises."""


def _use(engine: qindex.Engine) -> int:
    """Use an engine for what there is: its queues are read, written and emptied."""
    try:
        for name in engine.queue_names():
            queue = engine.queue(name)
            queue.publish(b"small")
            queue.publish(b"large" * 2000)
            queue.ack_many(queue.get_many(100))
            queue.flush()
        engine.compact()
        engine.sync()
        engine.stats()
        for name in engine.queue_names()[:1]:
            engine.delete_queue(name)
        return len(engine.findings)
    finally:
        engine.close()


def _open(store: Path) -> int:
    return _use(qindex.open(store, background=False))


def _open_to_repair(store: Path) -> int:
    return _use(qindex.open(store, background=False, repair=True))


def _compact(store: Path) -> int:
    with qindex.open(store, background=False) as engine:
        engine.compact()
        return len(engine.findings)


def _look(store: Path) -> int:
    with qindex.open(store, read_only=True) as engine:
        for name in engine.queue_names():
            queue = engine.queue(name)
            list(queue)
            queue.stats()
        engine.stats()
        engine.reader.message_store()
        return len(engine.findings)


def _figures(store: Path) -> int:
    look = Look.take(store)
    Look.take(store, look)
    return 0


def _verify(store: Path) -> int:
    return len(qindex.verify(store).findings)


def _repair(store: Path) -> int:
    return len(repair(store, store.with_name("out")).findings)


def _salvage(store: Path) -> int:
    return len(salvage(store, store.with_name("out")).findings)


def _export(store: Path) -> int:
    return len(export_messages(store, store.with_name("out.jsonl")).findings)


def _import(store: Path) -> int:
    source = store.with_name("in.jsonl")
    source.write_bytes(b'{"queue": "orders", "body": "x"}\n' * 3)
    return import_messages([source], store, background=False).messages


def _convert(store: Path) -> int:
    return len(convert(store, 2).findings)


def _follow(store: Path) -> int:
    for name in ("orders", "failed"):
        with qindex.follow(store, name, timeout=0, events=False) as follower:
            list(follower)
    return 0


def _spark(store: Path) -> int:
    from pyspark_qindex.options import TABLES, read_options
    from pyspark_qindex.reading.read_parts import TableReader

    for include in ("messages", "stored"):
        options = {"path": str(store), "include": include, "mode": "permissive"}
        _read_all(TableReader(read_options(options, TABLES)))
    return 0


def _spark_rocket(store: Path) -> int:
    from pyspark_qindex.options import ROCKET_TABLES, read_options
    from pyspark_qindex.reading.read_parts import TableReader

    for include in ROCKET_TABLES:
        options = {"path": str(store), "include": include, "mode": "permissive"}
        _read_all(TableReader(read_options(options, ROCKET_TABLES)))
    return 0


def _read_all(reader: Any) -> None:
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass


def _rocket(store: Path, **options: Any) -> int:
    with rocketstore.open(store, background=False, **options) as log:
        for topic, queue_id in sorted(log._parts.queues):
            log.get(topic, queue_id, 0, 100)
        list(log.query("T", "k3"))
        if not options.get("read_only"):
            log.put("T", b"new", keys="n")
            log.checkpoint()
            log.clean()
        return len(log.findings) if hasattr(log, "findings") else 0


def _rocket_verify(store: Path) -> int:
    return len(rocketstore_verify(store))


_COMMON: dict[str, Action] = {"look": _look, "figures": _figures, "verify": _verify}
_OURS: dict[str, Action] = {
    "open": _open,
    "open to repair": _open_to_repair,
    "compact": _compact,
    "repair": _repair,
    "follow": _follow,
    "export": _export,
    "import": _import,
}
_NODE: dict[str, Action] = {"salvage": _salvage, "convert": _convert, "export": _export}
_ROCKET: dict[str, Action] = {
    "open": _rocket,
    "open to repair": lambda store: _rocket(store, repair=True),
    "open as a broker does": lambda store: _rocket(store, recovery="compatible"),
    "look": lambda store: _rocket(store, read_only=True),
    "verify": _rocket_verify,
}


def actions_of(kind: str) -> dict[str, Action]:
    """Give what is done with stores of that kind, by name."""
    if kind in ROCKET:
        actions, spark = _ROCKET, _spark_rocket
    else:
        actions, spark = {**_COMMON, **(_OURS if kind in OURS else _NODE)}, _spark
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return actions
    return {**actions, "spark": spark}
