"""Frames of numbers and bodies, and their way through a socket, for the interpreter: it leaves them
to msgpack and to :mod:`socket`. The compiler's twins are in frames.pxd."""

from __future__ import annotations

from struct import Struct

_SIZE = Struct(">I").unpack_from


def frame_of(number: int, queue: object, request: tuple[object, ...]) -> bytes | None:
    """Return the frame of ``(number, *request[1:])``, with ``queue`` after the verb unless it is
    None.

    None: msgpack has to make it.
    """
    return None


def size_of(data: bytes, at: int) -> int:
    """Return the size that the head of a frame says; there are four bytes at ``at``."""
    size: int = _SIZE(data, at)[0]
    return size


def values_of(data: bytes, start: int) -> list[object] | None:
    """Return the values of an array that fills ``data`` from ``start`` on. None: msgpack has to
    look at it."""
    return None


def received(fd: int, may_wait: bool) -> bytes | None:
    """Return some bytes that have come. None: ask the socket, which knows about signals, errors and
    event loops."""
    return None


def sent(fd: int, data: bytes) -> int:
    """Send bytes, and return how many went without a wait. -1: ask the socket."""
    return -1
