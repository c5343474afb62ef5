"""The table of the protocol's limits, and the check of a frame by it.

The server believes no number, time or count that comes over the socket before :func:`check` has
seen it. What a number means, such as a priority in its queue, is for the engine to check, which
says it in the same words in all processes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from reprlib import repr as short
from typing import Any

from journal.errors import UsageError
from qindex.format.settings import QueueSettings
from qindex.server import protocol as wire

Inside = Callable[[Any], bool]
_SETTING_NAMES = tuple(one.name for one in fields(QueueSettings))


def _any(_value: Any) -> bool:
    return True


class Kind:
    """The values that an argument may have. ``types``: for each type which of its values."""

    __slots__ = ("text", "types")

    def __init__(self, text: str, types: Mapping[type, Inside]) -> None:
        self.text: str = text
        self.types: dict[type, Inside] = dict(types)

    def __or__(self, other: Kind) -> Kind:
        text = self.text if other is NONE else f"{self.text} or {other.text}"
        return Kind(text, {**self.types, **other.types})

    def has(self, value: Any) -> bool:
        """Return whether a value is one of these."""
        inside = self.types.get(type(value))
        return inside is not None and inside(value)


def _integers(least: int, beyond: int) -> Kind:
    inside = range(least, beyond).__contains__
    return Kind(f"an integer from {least} to {beyond - 1}", {int: inside})


def _seconds(most: float) -> Kind:
    def inside(value: float) -> bool:
        return 0 <= value <= most  # false for NaN

    return Kind(f"seconds from 0 to {most:g}", {int: inside, float: inside})


def _given(text: str, most: int) -> Kind:
    """Return what a user may have given, where the engine has to say what is wrong with it: simple
    values, and numbers up to ``most``."""

    def inside(value: float) -> bool:
        return -most <= value <= most

    simple: dict[type, Inside] = dict.fromkeys((type(None), bool, str, bytes), _any)
    return Kind(text, {**simple, int: inside, float: inside})


def _list_of(kind: Kind, text: str) -> Kind:
    return Kind(text, {list: lambda values: all(map(kind.has, values))})


def _are_settings(names: Iterable[Any]) -> bool:
    for name in names:
        if name not in _SETTING_NAMES:
            raise UsageError(f"there is no setting {short(name)}")
    return True


def _are_numbers(values: list[Any]) -> bool:
    try:
        array("q", values)
    except (TypeError, OverflowError):
        return False
    return True


def _are_all(*rows: Kind) -> Inside:
    """Return whether each value of a list is bytes, or as one of these rows."""

    def inside(values: list[Any]) -> bool:
        types = set(map(type, values))
        return types <= {bytes} or (
            types <= {bytes, list}
            and all(type(one) is bytes or any(kind.has(one) for kind in rows) for one in values)
        )

    return inside


def _row(*kinds: Kind) -> Kind:
    """Return the lists with one value of each of these kinds."""

    def inside(values: list[Any]) -> bool:
        return len(values) == len(kinds) and all(
            kind.has(value) for kind, value in zip(kinds, values, strict=True)
        )

    return Kind(f"a list of {len(kinds)} values", {list: inside})


NONE = Kind("None", {type(None): _any})
FLAG = Kind("True or False", {bool: _any, int: range(2).__contains__, type(None): _any})
BYTES = Kind("bytes", {bytes: _any})
TEXT = Kind("a str", {str: _any})
TABLE = Kind("a mapping", {dict: _any})
SETTINGS = Kind("settings", {dict: _are_settings})
UNSET = Kind("names of settings", {list: _are_settings})
ID = _integers(0, 1 << 63)
NUMBER = _integers(-(1 << 63), 1 << 63)
COUNT = _integers(0, wire.MAX_MESSAGES + 1)
SOME = _integers(1, wire.MAX_MESSAGES + 1)
WAIT = _seconds(wire.LONGEST_WAIT) | NONE
SEQ_ID = _given("an integer of 64 bits", (1 << 63) - 1)
AMOUNT = _given("an integer of 64 bits", (1 << 63) - 1)
LEVEL = _given("an integer of 32 bits", (1 << 31) - 1)
LEASE = _given("seconds above 0 and at most 1e9", 10**12)
DELAY = _given("seconds from 0 to 1e10", 10**12)
WINDOW = _given("seconds above 0 and below 1e10", 10**12)
NAME = _given("a str", 10**12)
NAMES = _list_of(NAME, "a list of names")
NUMBERS = Kind("a list of integers of 64 bits", {list: _are_numbers})
MESSAGE = _row(BYTES, NAME, TABLE | NONE, TABLE | NONE, NUMBER)
_MOVED = _row(BYTES, BYTES | NONE, NUMBER | NONE, NUMBER | NONE, FLAG, FLAG)
MESSAGES = Kind("a list of messages", {list: _are_all(MESSAGE)})
MOVED = Kind("a list of moved messages", {list: _are_all(_MOVED)})
PARTS = Kind("a list of messages", {list: _are_all(MESSAGE, _MOVED)})
PAIRS = _list_of(_row(ID, NUMBER), "a list of tags and seq_ids")

_BATCH = {
    "ttl": DELAY,
    "persistent": FLAG,
    "delay": DELAY,
    "at": TEXT,
    "priority": LEVEL,
    "confirm": FLAG,
    "timeout": WAIT,
}
_UNIQUE = {"unique": NAME, "window": WINDOW, "until": NAME}
_PARTS = {"key": NAME, "headers": TABLE | NONE, "properties": TABLE | NONE}


def _options(known: Mapping[str, Kind]) -> Kind:
    """Return the tables of these options; another one is told of by its name."""

    def inside(given: dict[Any, Any]) -> bool:
        for name, value in given.items():
            kind = known.get(name)
            if kind is None:
                raise UsageError(f"there is no option {short(name)}")
            if not kind.has(value):
                raise _refusal(name, kind, value)
        return True

    return Kind("options", {dict: inside})


PUBLISH_OPTIONS = _options({**_BATCH, **_UNIQUE, **_PARTS})
BATCH_OPTIONS = _options(_BATCH)
FAN_OUT_OPTIONS = _options(
    {name: _BATCH[name] for name in ("ttl", "persistent", "confirm", "timeout")}
)
IN_OPTIONS = _options(
    {name: kind for name, kind in {**_BATCH, **_UNIQUE}.items() if name != "persistent"}
)

_QUEUE = ("queue", ID)
_DELIVERY = (_QUEUE, ("tag", ID), ("seq_id", NUMBER))
_ONE_QUEUE = (_QUEUE,)
_MOST = (("timeout", WAIT), ("lease", LEASE))

Arguments = tuple[tuple[str, Kind], ...]

_OF_VERBS: dict[int, tuple[Arguments, Arguments]] = {
    wire.HELLO: (
        (("protocol", TEXT), ("version", NUMBER), ("session", BYTES | NONE)),
        (),
    ),
    wire.BYE: ((), ()),
    wire.OPEN: (
        (("name", NAME), ("makes", FLAG), ("settings", SETTINGS), ("unset", UNSET)),
        (),
    ),
    wire.PUBLISH: ((_QUEUE, ("body", BYTES)), ()),
    wire.PUBLISH_WITH: ((_QUEUE, ("body", BYTES), ("options", PUBLISH_OPTIONS)), ()),
    wire.PUBLISH_MANY: (
        (_QUEUE, ("messages", MESSAGES), ("options", BATCH_OPTIONS)),
        (("before", COUNT),),
    ),
    wire.PART_OF_BATCH: (
        (("messages", PARTS),),
        (("before", COUNT),),
    ),
    wire.PUBLISH_TO: (
        (("queues", NAMES), ("message", MESSAGE), ("options", FAN_OUT_OPTIONS)),
        (),
    ),
    wire.RESERVE: ((_QUEUE, ("count", AMOUNT)), ()),
    wire.GET: ((_QUEUE, *_MOST), (("tag", ID), ("seq_id", NUMBER))),
    wire.GET_MANY: ((_QUEUE, ("max_messages", SOME), *_MOST), ()),
    wire.ACK: (_DELIVERY, ()),
    wire.ACK_MANY: ((_QUEUE, ("tags", NUMBERS), ("seq_ids", NUMBERS)), ()),
    wire.ACK_UP_TO: ((_QUEUE, ("seq_id", SEQ_ID)), ()),
    wire.NACK: (_DELIVERY, (("delay", DELAY), ("count", FLAG))),
    wire.REJECT: (_DELIVERY, (("reason", NAME),)),
    wire.TAKE_BACK: ((("deliveries", PAIRS),), ()),
    wire.EXTEND_LEASE: ((*_DELIVERY, ("seconds", LEASE)), ()),
    wire.IS_OUT: (_DELIVERY, ()),
    wire.CONSUME: ((_QUEUE, ("prefetch", SOME), ("lease", LEASE)), ()),
    wire.WANT: ((("reply", FLAG), ("tag", ID)), ()),
    wire.CANCEL: ((("tag", ID),), ()),
    wire.PEEK: ((_QUEUE, ("max_messages", COUNT)), ()),
    wire.PURGE: (_ONE_QUEUE, ()),
    wire.READY: (_ONE_QUEUE, ()),
    wire.SETTINGS: (_ONE_QUEUE, ()),
    wire.QUEUE_STATS: (_ONE_QUEUE, ()),
    wire.QUEUE_FLUSH: (_ONE_QUEUE, ()),
    wire.QUEUE_SYNC: (_ONE_QUEUE, ()),
    wire.QUEUE_NAMES: ((), ()),
    wire.DELETE_QUEUE: ((("name", NAME),), ()),
    wire.STATS: ((), ()),
    wire.FLUSH: ((), ()),
    wire.SYNC: ((), ()),
    wire.COMPACT: ((), ()),
    wire.HELD: ((), ()),
    wire.FINDINGS: ((), ()),
    wire.RETIRE: ((), ()),
    wire.DROP: ((("number", ID),), ()),
    wire.FORGET: ((("number", ID),), ()),
    wire.CANCEL_MESSAGE: ((_QUEUE, ("seq_id", SEQ_ID)), ()),
    wire.MOVE: (
        (*_DELIVERY, ("name", NAME), ("headers", TABLE | NONE), ("delay", DELAY)),
        (),
    ),
    wire.FIND: ((_QUEUE, ("key", TEXT), ("max_messages", COUNT)), ()),
    wire.GET_ONE: ((_QUEUE, ("seq_id", SEQ_ID), ("lease", LEASE)), ()),
    wire.BEGIN: ((), ()),
    wire.PUBLISH_IN: (
        (_QUEUE, ("transaction", ID), ("message", MESSAGE), ("options", IN_OPTIONS)),
        (),
    ),
    wire.ACK_IN: ((_QUEUE, ("transaction", ID), *_DELIVERY[1:]), ()),
    wire.END: ((("transaction", ID), ("commit", FLAG)), ()),
    wire.GET_FIRST: ((("queues", NUMBERS), *_MOST), ()),
    wire.TICKET: ((_QUEUE, ("priority", LEVEL), ("count", AMOUNT)), ()),
    wire.RESTORE: (
        (_QUEUE, ("ticket", BYTES | NONE), ("messages", MOVED | NONE)),
        (("before", COUNT),),
    ),
}
"""The arguments of each verb: those that it needs, and those that may follow them."""


class Limits:
    """The values that the requests of one verb may have."""

    __slots__ = ("kinds", "least", "most", "names")

    def __init__(self, needed: Arguments, more: Arguments) -> None:
        of_all: Arguments = (("number", ID), ("verb", ID), *needed, *more)
        self.names: tuple[str, ...] = tuple(name for name, _ in of_all)
        self.kinds: tuple[dict[type, Inside], ...] = tuple(kind.types for _, kind in of_all)
        self.least: int = 2 + len(needed)
        self.most: int = len(of_all)


LIMITS: dict[int, Limits] = {verb: Limits(*given) for verb, given in _OF_VERBS.items()}


def check(request: list[Any]) -> None:
    """Check a request by the table. Raises :class:`UsageError`."""
    verb = request[1]
    limits = LIMITS.get(verb) if type(verb) is int else None
    if limits is None:
        raise UsageError(f"there is no verb {short(verb)}")
    if not limits.least <= len(request) <= limits.most:
        raise UsageError(
            f"no such request: verb {verb} has {limits.least - 2} to {limits.most - 2} arguments, "
            f"not {len(request) - 2}"
        )
    # The types by themselves: this is done for each message.
    for kind, value in zip(limits.kinds, request, strict=False):
        inside = kind.get(type(value))
        if inside is None or not inside(value):
            _refuse(verb, request)


def _refuse(verb: int, request: list[Any]) -> None:
    needed, more = _OF_VERBS[verb]
    for (name, kind), value in zip((("number", ID), ("verb", ID), *needed, *more), request):  # noqa: B905
        if not kind.has(value):
            raise _refusal(name, kind, value)


def _refusal(name: str, kind: Kind, value: Any) -> UsageError:
    return UsageError(f"{name} must be {kind.text}, not {short(value)}")
