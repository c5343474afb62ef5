"""Inputs to start from: files of our own store, and of the nodes in ``tests/data``."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

import qindex
from tests.golden import golden, synthetic

__all__ = ["files_named", "node_files", "own_store"]

_BODIES = (b"", b"one", b"two " * 40, b"large " * 1000)


@cache
def own_store() -> Path:
    """Make a store of ours with a journal, segments and stored messages, left as a kill does."""
    base = tempfile.TemporaryDirectory(prefix="qindex-fuzz-")
    atexit.register(base.cleanup)
    store = Path(base.name) / "store"
    for record_format in ("qindex", "rabbitmq"):
        directory = store / record_format
        with qindex.open(
            directory,
            background=False,
            segment_entry_count=16,
            record_format=record_format,
            embed_below=4096,
        ) as engine:
            queue = engine.queue("q", message_ttl=1e6)
            headers = (
                None if record_format == "rabbitmq" else {"kind": "new", "n": [1, {"a": None}]}
            )
            for number in range(24):
                body = _BODIES[number % len(_BODIES)]
                queue.publish(body, key=f"k{number}", headers=headers, ttl=1e5)
                if number % 3 == 0:
                    queue.get_many(2)
                if number == 17:
                    queue.ack_up_to(9)
                    queue.flush()
            _keep(directory, directory.with_name(record_format + "-live"))
    return store


def _keep(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            # The end of a mapped journal is zeros, of which a few say all.
            data = path.read_bytes()
            copy.write_bytes(data.rstrip(b"\0") + bytes(min(64, len(data))))


@cache
def node_files() -> tuple[Path, ...]:
    """Give the files of some vhosts of RabbitMQ nodes."""
    directories = [golden(name).vhost_dir for name in ("a_clean_embedded", "g1_props_ttl_clean")]
    directories += [
        synthetic(case).vhost_dir
        for case in ("03_journal_zero_tail", "07b_seg_cut_header", "11_rdq_bad_marker")
    ]
    return tuple(path for one in directories for path in sorted(one.rglob("*")) if path.is_file())


def files_named(*patterns: str) -> list[bytes]:
    """Give the contents of all files, ours and the nodes', whose name matches one of these."""
    paths = [*sorted(own_store().rglob("*")), *node_files()]
    return [
        path.read_bytes()
        for path in paths
        if path.is_file() and any(path.match(pattern) for pattern in patterns)
    ]
