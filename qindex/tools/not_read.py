"""Queues in a RabbitMQ node's directory that are of other types than classic, and not read here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, names_in, read_optional

_CONFIG = "config"
_LARGEST_CONFIG = 1 << 20
_RESOURCE = re.compile(rb'\{resource,\s*<<"([^"]*)">>,\s*queue,\s*<<"([^"]*)"')
_LOST = "its messages are not saved; docs/rabbitmq.md says what the vendor offers"


def node_directories(vhosts: Iterable[str]) -> list[str]:
    """Return the nodes' directories that hold these virtual hosts', all relative to one
    directory."""
    found = dict.fromkeys(
        os.path.normpath(os.path.join(vhost, *[os.pardir] * 3))
        for vhost in vhosts
        if f"/{vhost}".endswith(f"/msg_stores/vhosts/{os.path.basename(vhost)}")
    )
    return list(found)


def queues_not_read(fs: FileSystem, node: str) -> Iterator[Finding]:
    """Yield a finding for each quorum queue and stream of a node. Raises :class:`OSError`."""
    quorum = os.path.join(node, "quorum")
    for system in _directories(fs, quorum):
        for name in _directories(fs, os.path.join(quorum, system)):
            path = os.path.join(quorum, system, name)
            config = read_optional(fs, os.path.join(path, _CONFIG)) or b""
            said = _RESOURCE.search(config[:_LARGEST_CONFIG])
            shown = name if said is None else said[2].decode("utf-8", "backslashreplace")
            yield _finding(path, f"quorum queue {shown!a}")
    streams = os.path.join(node, "stream")
    for name in _directories(fs, streams):
        yield _finding(os.path.join(streams, name), f"stream {name!a}")


def _finding(path: str, what: str) -> Finding:
    what = f"{what} is of a type that is not read here"
    return Finding(path, 0, 0, Cause.DAMAGE, what, _LOST, Kind.UNREADABLE)


def _directories(fs: FileSystem, path: str) -> list[str]:
    found = []
    for name in sorted(names_in(fs, path)):
        with suppress(OSError):
            fs.listdir(os.path.join(path, name))
            found.append(name)
    return found
