"""Directory names: where a vhost and a queue are kept.

``<vhost>`` is base36(MD5(vhost)); a queue of it is ``queues/`` base36(MD5("queue" vhost queue)).
base36 prints the digest as one 128-bit number with the digits 0-9A-Z and no padding, so a name
has 25 characters or, seldom, fewer.

A priority queue (``x-max-priority`` P) is P + 1 queues on disk; for the hash their names are
followed by the two bytes ``00 pp``, pp being the priority.

A queue directory holds its name in ``.queue_name``, for people alone (a node never reads it)::

    VHOST: <vhost> LF QUEUE: <queue, of a priority queue with 00 pp> LF
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final, NamedTuple

from journal.errors import StoreError, UsageError

MAX_PRIORITY: Final = 255

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_VHOST: Final = b"VHOST: "
_QUEUE: Final = b"\nQUEUE: "
_VERSION_2: Final = b"\nINDEX: v2"
_SUFFIX_BYTES: Final = 2
_MAX_FILE: Final = len(_VHOST) + 255 + len(_QUEUE) + 255 + _SUFFIX_BYTES + 1  # AMQP short strings


class QueueNameError(StoreError):
    """A ``.queue_name`` that does not hold the name of the directory it is in."""


class QueueName(NamedTuple):
    """The queue that a directory is named for; ``priority`` is ``None`` unless it is a sub-queue.

    Names are bytes, as AMQP sends them: UTF-8 by custom, but no node insists on it.
    """

    vhost: bytes
    queue: bytes
    priority: int | None = None


def directory_name(vhost: str | bytes, queue: str | bytes, priority: int | None = None) -> str:
    """Name of a queue's directory below ``queues/``.

    >>> directory_name("/", "orders")
    'F0LI8Q2L5NQQX8KRJAO1AHU7J'

    ``priority`` (0 to 255) asks for that sub-queue of a priority queue. Raises
    :class:`UsageError` for a priority out of range.
    """
    return _base36_md5(b"queue" + _bytes(vhost) + _bytes(queue) + _suffix(priority))


def format_queue_name(
    vhost: str | bytes, queue: str | bytes, priority: int | None = None, *, version: int = 1
) -> bytes:
    """Content of the ``.queue_name`` file for that queue; one of version 2 says so.

    >>> format_queue_name("/", "orders"), format_queue_name("/", "orders", version=2)
    (b'VHOST: /\\nQUEUE: orders\\n', b'VHOST: /\\nQUEUE: orders\\nINDEX: v2\\n')
    """
    name = _VHOST + _bytes(vhost) + _QUEUE + _bytes(queue) + _suffix(priority)
    return name + (_VERSION_2 if version == 2 else b"") + b"\n"


def names_version_2(raw: bytes) -> bool:
    """Return whether a ``.queue_name`` says that the queue has files of version 2."""
    return raw.endswith(_VERSION_2 + b"\n")


def parse_queue_name(raw: bytes, directory: str) -> QueueName:
    """Read a ``.queue_name`` found in the directory of that name.

    The file marks no border that a name could not contain, so each reading of it is checked
    against the directory's name, which is a hash of vhost and queue; a name ending in ``00 pp``
    is taken for a sub-queue of a priority queue.

    Raises :class:`QueueNameError` if no reading fits: the file is damaged, cut off, or not of
    this directory.
    """
    if not raw.startswith(_VHOST) or not raw.endswith(b"\n") or len(raw) > _MAX_FILE:
        raise QueueNameError(f"{directory}: .queue_name is cut off or of another form")
    text = raw[len(_VHOST) : -1]
    border = text.find(_QUEUE)
    while border >= 0:
        vhost, rest = text[:border], text[border + len(_QUEUE) :]
        for queue in dict.fromkeys((rest, rest.removesuffix(_VERSION_2))):
            # The hash is over vhost and queue with nothing between them.
            if _base36_md5(b"queue" + vhost + queue) == directory:
                if len(queue) > _SUFFIX_BYTES and queue[-_SUFFIX_BYTES] == 0:
                    return QueueName(vhost, queue[:-_SUFFIX_BYTES], queue[-1])
                return QueueName(vhost, queue)
        border = text.find(_QUEUE, border + 1)
    raise QueueNameError(f"{directory}: .queue_name holds the name of another directory")


@lru_cache(maxsize=4096)
def _base36_md5(name: bytes) -> str:
    number = int.from_bytes(hashlib.md5(name, usedforsecurity=False).digest(), "big")
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)) or "0"


def _bytes(name: str | bytes) -> bytes:
    return name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name


def _suffix(priority: int | None) -> bytes:
    if priority is None:
        return b""
    if not 0 <= priority <= MAX_PRIORITY:
        raise UsageError(f"a priority is 0 to {MAX_PRIORITY}, not {priority}")
    return bytes((0, priority))
