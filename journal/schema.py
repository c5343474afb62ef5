"""Schemas of our small msgpack files: one for each, checked in one place.

We need not have written a file whose checksum is right. Its numbers become sizes, divisors and
loops, its texts names of files. So nothing of it is used before its shape has been checked.

>>> marker = Record({"version": Int(1, 9), "vhost": Text(255)})
>>> check({"version": 1, "vhost": "/"}, marker)
>>> check({"version": 0, "vhost": "/"}, marker)
Traceback (most recent call last):
ValueError: field 'version' is 0, not an integer from 1 to 9
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_SHOWN = 60


def _no_parts(_value: Any) -> list[tuple[str, Any, Shape]]:
    return []


@dataclass(frozen=True, slots=True)
class Shape:
    """The values that a field may have; ``wanted`` says them in words, for an error.

    ``fits`` checks a value itself, whatever its parts are; ``inner`` gives its
    parts: name, value, and shape of each.
    """

    wanted: str
    fits: Callable[[Any], bool]
    inner: Callable[[Any], list[tuple[str, Any, Shape]]] = _no_parts


def Int(low: int, high: int) -> Shape:
    """An integer, both bounds included."""

    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Shape(f"an integer from {low} to {high}", fits)


FILE_MODE = Shape(
    "0o600, 0o640, 0o644, 0o660, 0o664 or None",
    lambda value: (
        value is None or (type(value) is int and value in (0o600, 0o640, 0o644, 0o660, 0o664))
    ),
)
"""The mode of a store's files: no other user may write, or execute."""


def Number(low: float, below: float) -> Shape:
    """An integer or a float, from ``low`` on and below ``below``."""

    def fits(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and low <= value < below

    return Shape(f"a number from {low:g}, below {below:g}", fits)


def Text(most: int, least: int = 0) -> Shape:
    """A text of ``least`` to ``most`` bytes as UTF-8, without NUL."""

    def fits(value: Any) -> bool:
        if not isinstance(value, str) or "\0" in value:
            return False
        try:
            return least <= len(value.encode()) <= most
        except UnicodeEncodeError:
            return False

    return Shape(f"a text of {least} to {most} bytes without NUL", fits)


def FileName(most: int) -> Shape:
    """A text of at most this many bytes that is one name in a directory."""
    text = Text(most)

    def fits(value: Any) -> bool:
        return text.fits(value) and "/" not in value and value not in ("", ".", "..")

    return Shape("the name of a file", fits)


def Bytes(low: int, high: int) -> Shape:
    """Bytes of a length, both bounds included."""

    def fits(value: Any) -> bool:
        return isinstance(value, bytes) and low <= len(value) <= high

    return Shape(f"{low} to {high} bytes", fits)


def OneOf(values: tuple[Any, ...]) -> Shape:
    """One of some values."""

    def fits(value: Any) -> bool:
        return any(type(value) is type(one) and value == one for one in values)

    return Shape("one of " + ", ".join(map(repr, values)), fits)


def Optional(shape: Shape) -> Shape:
    """Nothing, or what ``shape`` says."""
    return Shape(
        f"None or {shape.wanted}",
        lambda value: value is None or shape.fits(value),
        lambda value: [] if value is None else shape.inner(value),
    )


def ListOf(shape: Shape) -> Shape:
    """A list of any length, each element of one shape."""
    return Shape(
        "a list",
        lambda value: isinstance(value, list),
        lambda value: [(f"[{at}]", one, shape) for at, one in enumerate(value)],
    )


def Row(shapes: tuple[Shape, ...]) -> Shape:
    """A list with one element of each of these shapes, in order."""

    def inner(value: Any) -> list[tuple[str, Any, Shape]]:
        parts = zip(value, shapes, strict=True)
        return [(f"[{at}]", one, shape) for at, (one, shape) in enumerate(parts)]

    return Shape(
        f"a list of {len(shapes)}",
        lambda value: isinstance(value, list) and len(value) == len(shapes),
        inner,
    )


def Record(fields: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """A map with these fields and no others; those in ``optional`` may be missing."""
    known = {**(optional or {}), **fields}
    return Shape(
        "a map with " + ", ".join(fields or known),
        lambda value: isinstance(value, dict) and fields.keys() <= value.keys(),
        lambda value: [(f".{name}", one, known.get(name, _NOTHING)) for name, one in value.items()],
    )


_NOTHING = Shape("a field that is known", lambda _value: False)


def check(value: Any, shape: Shape) -> None:
    """Raise :class:`ValueError`, which names the field, for a value of another shape. O(size)."""
    waiting = [("", value, shape)]
    while waiting:
        name, one, wanted = waiting.pop()
        if not wanted.fits(one):
            where = f"field {name.lstrip('.')!r}" if name else "the value"
            raise ValueError(f"{where} is {_shown(one)}, not {wanted.wanted}")
        waiting += [(name + part, value, inner) for part, value, inner in wanted.inner(one)]


def _shown(value: Any) -> str:
    """Show a value that may be of any kind and length."""
    if isinstance(value, list | dict | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str | bytes) and len(value) > _SHOWN:
        return f"{type(value).__name__} of {len(value)}"
    return ascii(value)
