"""The bytes between a server and its clients (docs/protocol.md). Opens no file and no socket.

::

    frame    size (4 bytes, big endian) | msgpack array of that many bytes
    request  [number, verb, argument, ...]
    reply    [number, 0, value, ...]                         done
             [number, 1, class, text, attributes]            an error
    push     [0, 2, tag, seq_ids, bodies, states, extras, counts]   messages for a consumer

A client numbers its requests from 1 on; the first one is HELLO.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

import msgpack

from journal import errors
from journal.errors import StoreError, UsageError
from journal.packed import unpack
from qindex.server import frames

VERSION = 1
"""Of this protocol: server and client have the same."""
INODE = "directory_inode"
"""In the reply to a hello, beside the options: the number of the directory that the server has. A
directory has no second name, as a socket may have."""
CAPABILITIES = ("consume", "get-ack", "get-first", "parts", "restore", "transactions")

HEAD = Struct(">I")
HEAD_SIZE = HEAD.size
OVERHEAD = 16 << 20
"""Bytes of a frame beside the largest body."""
PART = 4 << 20
"""Bytes of bodies in a frame after which a batch goes on in another one."""
MAX_BODIES = 1 << 28
"""Bytes of bodies in a frame of the server, after which no other message follows."""
HELLO_SIZE = 64 << 10
"""Bytes that the first frame of a connection may have."""
MAX_PARTS = 1 << 30
"""Bytes of one batch."""
MAX_ACKS = 1 << 19
"""Deliveries that one frame acknowledges."""
MAX_MESSAGES = (1 << 31) - 1
"""The most messages that one call can ask for."""
LONGEST_WAIT = 1e8
"""Seconds. A client that waits for longer waits for ever."""

DONE, ERROR, PUSH = 0, 1, 2

(
    HELLO,
    BYE,
    OPEN,
    PUBLISH,
    PUBLISH_WITH,
    PUBLISH_MANY,
    PART_OF_BATCH,
    PUBLISH_TO,
    RESERVE,
    GET,
    GET_MANY,
    ACK,
    ACK_MANY,
    ACK_UP_TO,
    NACK,
    REJECT,
    TAKE_BACK,
    EXTEND_LEASE,
    IS_OUT,
    CONSUME,
    WANT,
    CANCEL,
    PEEK,
    PURGE,
    READY,
    SETTINGS,
    QUEUE_STATS,
    QUEUE_FLUSH,
    QUEUE_SYNC,
    QUEUE_NAMES,
    DELETE_QUEUE,
    STATS,
    FLUSH,
    SYNC,
    COMPACT,
    HELD,
    FINDINGS,
    DROP,
    FORGET,
    CANCEL_MESSAGE,
    MOVE,
    FIND,
    GET_ONE,
    BEGIN,
    PUBLISH_IN,
    ACK_IN,
    END,
    GET_FIRST,
    TICKET,
    RESTORE,
    RETIRE,
) = range(51)

LARGE = 1 << 20
"""Bytes of a body that is not copied into its frame."""
_KEPT = 1 << 20
"""Bytes that a packer keeps in memory for the next frame."""


def frame(*values: Any) -> bytes:
    """Return the frame of an array. Raises :class:`UsageError` for values that msgpack can't pack.

    >>> frame(1, 0, 7).hex(" ")
    '00 00 00 04 93 01 00 07'
    """
    try:
        packed: bytes = msgpack.packb(values)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"key, headers or properties can't be stored: {error}") from error
    return head_of(len(packed)) + packed


def around(
    before: Sequence[Any], size: int, behind: Sequence[Any], *, in_list: bool = False
) -> tuple[bytes, bytes]:
    """Return the bytes of a frame before a body of this size, and those after it. ``in_list``: the
    body is in an array of its own. Raises as :func:`frame`.

    >>> front, back = around((1, 0), 4, (7,))
    >>> decode((front + b"body" + back)[4:])
    [1, 0, b'body', 7]
    """
    values = [*before, [b""] if in_list else b"", *behind]
    whole = frame(*values)
    rest = frame(*behind)[HEAD_SIZE + 1 :]
    # An empty body is two bytes. Arrays of up to 15 values have one byte before them.
    front = whole[HEAD_SIZE : len(whole) - len(rest) - 2] + b"\xc6" + head_of(size)
    return head_of(len(front) + size + len(rest)) + front, rest


def head_of(size: int) -> bytes:
    """Return the head of a frame. Raises :class:`UsageError` if it is too large."""
    if size >= 1 << 32:
        raise UsageError(f"{size} bytes are too many for one call")
    return HEAD.pack(size)


class Framer:
    """Makes frames as :func:`frame` does, in half the time; for one thread at a time."""

    __slots__ = ("_pack",)

    def __init__(self) -> None:
        self._pack = msgpack.Packer().pack

    def __call__(self, *values: Any) -> bytes:
        """Return the frame of an array. Raises :class:`UsageError`."""
        return self.of(values)

    def of(self, values: tuple[Any, ...]) -> bytes:
        """Return the frame of an array. Raises :class:`UsageError`."""
        simple = frames.frame_of(values[0], None, values)
        if simple is not None:
            return simple
        try:
            packed: bytes = self._pack(values)
        except (TypeError, ValueError, OverflowError, RecursionError):
            self._pack = msgpack.Packer().pack
            return frame(*values)  # it raises the right error
        size = len(packed)
        if size > _KEPT:
            self._pack = msgpack.Packer().pack
        return head_of(size) + packed


def table(values: Mapping[str, Any] | None, what: str) -> dict[str, Any] | None:
    """Return a table of headers or properties as a dict. Raises :class:`UsageError`."""
    if values is None or type(values) is dict:
        return values
    if not isinstance(values, Mapping):
        raise UsageError(f"{what} must be a mapping with str keys")
    return dict(values)


def decode(data: bytes | memoryview) -> list[Any]:
    """Return the array of a frame. Raises :class:`ValueError` for anything else; takes memory in
    proportion to the bytes."""
    found = frames.values_of(data, 0) if type(data) is bytes else None
    if found is None:
        found = unpack(data)
    if type(found) is not list or len(found) < 2 or type(found[0]) is not int:
        raise ValueError("no frame of this protocol")
    return found


# -- errors ---------------------------------------------------------------------------------------

_SIMPLE = (str, int, float, bool, type(None))


def error_values(error: BaseException) -> tuple[str, str, dict[str, Any]]:
    """Return the parts of an error that are sent: its class, its text, and its attributes."""
    kind = next(
        (one for one in type(error).__mro__ if getattr(errors, one.__name__, None) is one), None
    )
    name = kind.__name__ if kind is not None else "StoreError"
    text = str(error) if kind is not None else f"{type(error).__name__}: {error}"
    known = {key: one for key, one in vars(error).items() if isinstance(one, _SIMPLE)}
    return name, text, known if kind is not None else {}


def error_of(name: Any, text: Any, attributes: Any) -> StoreError:
    """Return the error that a reply tells of."""
    kind = getattr(errors, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, StoreError)):
        kind = StoreError
    error: StoreError = kind.__new__(kind, str(text))
    error.args = (str(text),)
    if isinstance(attributes, dict):
        error.__dict__.update({str(key): value for key, value in attributes.items()})
    return error


# -- figures --------------------------------------------------------------------------------------

_RECORDS = {
    "QueueStats": "qindex.queue.stats",
    "EngineStats": "qindex.queue.stats",
    "ByReason": "qindex.queue.stats",
    "QueueSettings": "qindex.format.settings",
    "Durations": "journal.durations",
    "StoreStats": "msgstore",
    "CompactionReport": "msgstore",
    "Finding": "journal.findings",
    "Cause": "journal.findings",
    "Kind": "journal.findings",
}
"""Classes of values that go over the wire by name, and where they are."""
_CLASS = "="
_TUPLE = "("


def as_plain(value: Any) -> Any:
    """Return figures as values that msgpack knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: as_plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return {_CLASS: type(value).__name__, **fields}
    if type(value).__name__ in ("Cause", "Kind"):
        return {_CLASS: type(value).__name__, "value": value.value}
    if isinstance(value, tuple):
        return {_TUPLE: [as_plain(one) for one in value]}
    if isinstance(value, list):
        return [as_plain(one) for one in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def from_plain(value: Any) -> Any:
    """Return the figures of :func:`as_plain`."""
    if isinstance(value, list):
        return [from_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if _TUPLE in value:
        return tuple(from_plain(one) for one in value[_TUPLE])
    if _CLASS not in value:
        return {key: from_plain(one) for key, one in value.items()}
    fields = {key: from_plain(one) for key, one in value.items() if key != _CLASS}
    kind = getattr(importlib.import_module(_RECORDS[value[_CLASS]]), value[_CLASS])
    return kind(**fields)
