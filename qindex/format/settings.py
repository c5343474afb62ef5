"""The settings of a queue, checked, and the bytes of the file that keeps them: ``qindex.settings``
in the queue's directory, a checksummed msgpack map (:func:`qindex.format.layout.pack_checked`).

::

    {"message_ttl": 60.0, "max_length": 1000, ..., "dead_letter": "failed"} | xxh3 (8)

``message_ttl`` is in every file (``nil``: none), other settings where they are set. Files
with ``message_ttl`` alone are from before there were others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from typing import Any, Literal, get_args

from journal.errors import UsageError
from journal.schema import Int, Number, OneOf, Optional, Record, Text, check
from qindex.format import layout
from qindex.format.headers import parse_backoff
from qindex.format.rabbitmq.names import MAX_PRIORITY

Overflow = Literal["reject", "drop-head", "block"]


_ANY_NUMBER = Optional(Int(1, 1 << 60))
_SHAPES = {
    "message_ttl": Optional(Number(0, 1e10)),
    "max_length": _ANY_NUMBER,
    "max_bytes": _ANY_NUMBER,
    "overflow": OneOf(get_args(Overflow)),
    "delivery_limit": Optional(Int(1, (1 << 31) - 1)),
    "dead_letter": Optional(Text(layout.MAX_NAME_BYTES, least=1)),
    "backoff": Optional(Text(64, least=1)),
    "max_priority": Optional(Int(1, MAX_PRIORITY)),
}
_SHAPE = Record({"message_ttl": _SHAPES["message_ttl"]}, _SHAPES)


class Unset(Enum):
    """The type of :data:`UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "qindex.UNSET"


UNSET = Unset.UNSET
"""Given for a setting of a queue: take it away. (``None`` leaves it as it is.)"""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue; a setting that is ``None`` is not set.

    ``message_ttl``: seconds after which a message is dropped when it gets to the head.
    ``max_length``: messages that may be ready; ``max_bytes``: bytes of their bodies.
    ``overflow``: the outcome of a publish that would exceed one of these. ``delivery_limit``: the
    most deliveries of a message. ``dead_letter``: name of the queue that gets the messages that are
    rejected, expired, dropped from the head, or delivered too often. ``backoff``:
    ``exponential:BASE:CAP`` in seconds, the pause before a message whose delivery failed is
    delivered again; it doubles with each attempt from BASE up to CAP. ``max_priority``: the highest
    priority that a message may have; the queue has one directory for each.
    Raises :class:`UsageError` for a value that can't be right.
    """

    message_ttl: float | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = "reject"
    delivery_limit: int | None = None
    dead_letter: str | None = None
    backoff: str | None = None
    max_priority: int | None = None

    def __post_init__(self) -> None:
        """Check all values."""
        for name, shape in _SHAPES.items():
            value = getattr(self, name)
            if name != "dead_letter" and not shape.fits(value):
                form = "None or exponential:BASE:CAP, both in seconds"
                wanted = form if name == "backoff" else shape.wanted
                raise UsageError(f"{name} must be {wanted}, not {value!r}")
        if self.dead_letter is not None:
            checked_name(self.dead_letter)
        if self.backoff is not None:
            try:
                parse_backoff(self.backoff)
            except ValueError as error:
                raise UsageError(f"backoff {error}, not {self.backoff!r}") from None

    def check_overflow(self) -> None:
        """Raise :class:`UsageError` where `overflow` is set without a limit."""
        if self.overflow != "reject" and self.max_length is None and self.max_bytes is None:
            raise UsageError(
                f"overflow={self.overflow!r} needs a limit: set max_length or max_bytes also, "
                f"or take overflow away with qindex.UNSET"
            )

    def changed(self, **given: Any) -> QueueSettings:
        """Return these settings with some of them changed.

        Args:
            given: New values by name. None leaves a setting as it is, :data:`UNSET` removes it.

        Returns:
            The new settings.

        Raises:
            UsageError: A value is wrong.
        """
        asked = {name: value for name, value in given.items() if value is not None}
        if not asked:
            return self
        defaults: dict[str, Any] = {one.name: one.default for one in fields(self)}
        new: dict[str, Any] = {
            name: defaults[name] if value is UNSET else value for name, value in asked.items()
        }
        if new.get("message_ttl") == 0:
            raise UsageError("message_ttl must be above 0: with 0 no message would be delivered")
        return replace(self, **new)


NO_SETTINGS = QueueSettings()
"""The settings of a queue that has none."""


def changeable(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings that a queue in hand may be given. Raises :class:`UsageError`."""
    for name in given:
        if name == "max_priority":
            raise UsageError("ask the engine for the queue with max_priority= to change it")
        if name not in {one.name for one in fields(QueueSettings)}:
            raise UsageError(f"there is no setting {name!r}")
    return given


def checked_name(name: str) -> bytes:
    """Return the bytes of a queue's name. Raises :class:`UsageError` if it can't be a name."""
    if not isinstance(name, str):
        raise UsageError(f"a queue's name must be a str, not {type(name).__name__}")
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"a queue's name must be valid Unicode: {error}") from error
    if "\0" in name:
        raise UsageError(f"a queue's name must be without NUL, not {name!r}")
    if not 0 < len(raw) <= layout.MAX_NAME_BYTES:
        raise UsageError(
            f"a queue's name must have 1 to {layout.MAX_NAME_BYTES} bytes as UTF-8, not {len(raw)}"
        )
    return raw


def settings_values(settings: QueueSettings) -> dict[str, Any]:
    """Return the settings that a file keeps: `message_ttl`, and the others that are set."""
    return {
        name: value
        for name, value in asdict(settings).items()
        if name == "message_ttl" or value != getattr(NO_SETTINGS, name)
    }


def settings_of_values(value: Any) -> QueueSettings:
    """Return the settings that :func:`settings_values` kept. Raises :class:`ValueError`."""
    check(value, _SHAPE)
    return QueueSettings(**value)


def pack_settings(settings: QueueSettings) -> bytes:
    """Return the bytes of a settings file."""
    return layout.pack_checked(settings_values(settings))


def unpack_settings(data: bytes) -> QueueSettings:
    """Return what a settings file says. Raises :class:`ValueError` for a file of anything else."""
    return settings_of_values(layout.unpack_checked(data))


def differences(one: QueueSettings, other: QueueSettings) -> tuple[str, str]:
    """Name the settings that differ, as each of the two has them."""
    names = [
        item.name
        for item in fields(QueueSettings)
        if getattr(one, item.name) != getattr(other, item.name)
    ]
    there, asked = (
        ", ".join(f"{name}={getattr(which, name)!r}" for name in names) for which in (one, other)
    )
    return there, asked
