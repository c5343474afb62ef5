"""Schemas of our small msgpack files: one for each, checked in one place.

A file that has its checksum need not be one that we wrote: its numbers become sizes, divisors and
loops, its texts names of files. So nothing of it is used before its shape has been checked.

>>> marker = Record({"version": Int(1, 9), "vhost": Text(255)})
>>> check({"version": 1, "vhost": "/"}, marker)
>>> check({"version": 0, "vhost": "/"}, marker)
Traceback (most recent call last):
ValueError: field 'version' is 0, not an integer from 1 to 9
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 60


class Shape:
    """The values that a field may have; ``wanted`` says them in words."""

    @property
    def wanted(self) -> str:
        """Say what is right, for an error."""
        raise NotImplementedError

    def fits(self, value: Any) -> bool:
        """Tell whether the value itself is right, whatever is in it."""
        raise NotImplementedError

    def inner(self, value: Any) -> list[tuple[str, Any, Shape]]:
        """Give what is in it: name, value, and shape of each part."""
        return []


@dataclass(frozen=True)
class Int(Shape):
    """An integer, both bounds included."""

    low: int
    high: int

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return f"an integer from {self.low} to {self.high}"

    def fits(self, value: Any) -> bool:
        """Tell whether it is one."""
        return isinstance(value, int) and not isinstance(value, bool) and self._in(value)

    def _in(self, value: int) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Number(Shape):
    """An integer or a float, from ``low`` on and below ``below``."""

    low: float
    below: float

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return f"a number from {self.low:g}, below {self.below:g}"

    def fits(self, value: Any) -> bool:
        """Tell whether it is one."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value < self.below


@dataclass(frozen=True)
class Text(Shape):
    """A text of ``least`` to ``most`` bytes as UTF-8, without NUL."""

    most: int
    least: int = 0

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return f"a text of {self.least} to {self.most} bytes without NUL"

    def fits(self, value: Any) -> bool:
        """Tell whether it is one."""
        if not isinstance(value, str) or "\0" in value:
            return False
        try:
            return self.least <= len(value.encode()) <= self.most
        except UnicodeEncodeError:
            return False


@dataclass(frozen=True)
class FileName(Text):
    """A text that is one name in a directory."""

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return "the name of a file"

    def fits(self, value: Any) -> bool:
        """Tell whether it is one."""
        return super().fits(value) and "/" not in value and value not in ("", ".", "..")


@dataclass(frozen=True)
class Bytes(Shape):
    """Bytes of a length, both bounds included."""

    low: int
    high: int

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return f"{self.low} to {self.high} bytes"

    def fits(self, value: Any) -> bool:
        """Tell whether it is that."""
        return isinstance(value, bytes) and self.low <= len(value) <= self.high


@dataclass(frozen=True)
class OneOf(Shape):
    """One of some values."""

    values: tuple[Any, ...]

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return "one of " + ", ".join(map(repr, self.values))

    def fits(self, value: Any) -> bool:
        """Tell whether it is one."""
        return any(type(value) is type(one) and value == one for one in self.values)


@dataclass(frozen=True)
class Optional(Shape):
    """Nothing, or what ``shape`` says."""

    shape: Shape

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return f"nil or {self.shape.wanted}"

    def fits(self, value: Any) -> bool:
        """Tell whether it is that."""
        return value is None or self.shape.fits(value)

    def inner(self, value: Any) -> list[tuple[str, Any, Shape]]:
        """Give what is in it."""
        return [] if value is None else self.shape.inner(value)


@dataclass(frozen=True)
class ListOf(Shape):
    """A list of any length, each element of one shape."""

    shape: Shape

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return "a list"

    def fits(self, value: Any) -> bool:
        """Tell whether it is a list."""
        return isinstance(value, list)

    def inner(self, value: Any) -> list[tuple[str, Any, Shape]]:
        """Give its elements."""
        return [(f"[{at}]", one, self.shape) for at, one in enumerate(value)]


@dataclass(frozen=True)
class Row(Shape):
    """A list with one element of each of these shapes, in order."""

    shapes: tuple[Shape, ...]

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return f"a list of {len(self.shapes)}"

    def fits(self, value: Any) -> bool:
        """Tell whether it has the length."""
        return isinstance(value, list) and len(value) == len(self.shapes)

    def inner(self, value: Any) -> list[tuple[str, Any, Shape]]:
        """Give its elements."""
        parts = zip(value, self.shapes, strict=True)
        return [(f"[{at}]", one, shape) for at, (one, shape) in enumerate(parts)]


@dataclass(frozen=True)
class Record(Shape):
    """A map with these fields and no others; those in ``optional`` may be missing."""

    fields: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict)

    @property
    def wanted(self) -> str:
        """Say what is right."""
        return "a map with " + ", ".join(self.fields or self.optional)

    def fits(self, value: Any) -> bool:
        """Tell whether it is a map with all its fields."""
        return isinstance(value, dict) and self.fields.keys() <= value.keys()

    def inner(self, value: Any) -> list[tuple[str, Any, Shape]]:
        """Give its fields."""
        known = {**self.optional, **self.fields}
        return [(f".{name}", one, known.get(name, _NOTHING)) for name, one in value.items()]


class _Nothing(Shape):
    """No value is right here."""

    @property
    def wanted(self) -> str:
        """Say so."""
        return "a field that is known"

    def fits(self, value: Any) -> bool:
        """Refuse it."""
        return False


_NOTHING = _Nothing()


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
