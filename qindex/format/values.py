"""Values as bodies: what turns them into bytes, and the content type that says how to read them.

The content type travels as RabbitMQ's property ``content_type``.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgpack

from journal.errors import UsageError
from qindex.format.message import Body, Message

T = TypeVar("T")


class _DataclassLike(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _ModelLike(Protocol):
    def model_dump(self) -> dict[str, Any]: ...


Value: TypeAlias = dict[str, Any] | list[Any] | int | float | _DataclassLike | _ModelLike
"""Values that a queue with a serializer takes, beside bytes, as far as a type can say it."""


@runtime_checkable
class Serializer(Protocol):
    """An object that turns values into bytes. An attribute ``content_type`` names what it writes;
    without it that is ``application/x-`` and the name of its class."""

    def dumps(self, value: Any, /) -> bytes:
        """Return the bytes of a value."""

    def loads(self, data: bytes, /) -> Any:
        """Return the value of these bytes."""


@dataclass(frozen=True, slots=True)
class Coder:
    """Encodes values as bodies of one content type."""

    content_type: str
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]

    def encode(
        self, value: Any, properties: Mapping[str, Any] | None
    ) -> tuple[Body | Message, Mapping[str, Any] | None]:
        """Return the body of a value and its properties; bytes and a message as they are. Raises
        :class:`UsageError`."""
        if isinstance(value, bytes | bytearray | memoryview | Message):
            return value, properties
        try:
            body = self.dumps(value)
        except Exception as error:
            what = f"{type(value).__name__} can't be encoded as {self.content_type}: {error}"
            raise UsageError(what) from error
        return body, {**(properties or {}), "content_type": self.content_type}

    def message(self, value: Any) -> Body | Message:
        """Return the message of a value. Raises :class:`UsageError`."""
        body, properties = self.encode(value, None)
        return body if properties is None else Message(bytes(body), properties=properties)  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """Return what JSON and msgpack can write of an object."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):  # pydantic's
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no form in it")


def _to_json(value: Any) -> bytes:
    text = json.dumps(
        value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return text.encode()


_NAMED = {
    "json": Coder("application/json", _to_json, json.loads),
    "msgpack": Coder(
        "application/msgpack",
        lambda value: bytes(msgpack.packb(value, default=_plain)),
        # Keys of maps that are not text are written, so they have to be read.
        lambda data: msgpack.unpackb(data, timestamp=3, strict_map_key=False),
    ),
    "unsafe-pickle": Coder("application/x-python-pickle", pickle.dumps, pickle.loads),
}
_KNOWN = {one.content_type: one for name, one in _NAMED.items() if name != "unsafe-pickle"}
"""The coders of this process. Opening a queue with another coder adds it."""


def coder_of(serializer: str | Serializer) -> Coder:
    """Return the coder of a serializer, whose messages this process can read from now on.

    ``"json"``, ``"msgpack"``, ``"unsafe-pickle"`` (whoever can write to the store can run code in
    the processes that ask for it), or an object. Raises :class:`UsageError`.
    """
    if isinstance(serializer, str):
        coder = _NAMED.get(serializer)
        if coder is None:
            raise UsageError(f"serializer is one of {', '.join(_NAMED)}, not {serializer!r}")
    elif isinstance(serializer, Serializer) and not isinstance(serializer, type):
        name = getattr(serializer, "content_type", None)
        name = name or f"application/x-{type(serializer).__name__.lower()}"
        coder = Coder(name, serializer.dumps, serializer.loads)
    else:
        raise UsageError("a serializer is a name, or an object with dumps and loads")
    _KNOWN[coder.content_type] = coder
    return coder


def encoded(coder: Coder, value: Any, options: Any) -> Body | Message:
    """Return the body of a value that is published with these options, which get its content type.
    Raises :class:`UsageError`."""
    body, properties = coder.encode(value, options.get("properties"))
    if properties is not None:
        options["properties"] = properties
    return body


def coded(coder: Coder | None, messages: Iterable[Any]) -> Iterable[Any]:
    """Return messages to publish, with values encoded."""
    return messages if coder is None else map(coder.message, messages)


def value_of(message: Message) -> Any:
    """Return the value of a message's body. Raises :class:`UsageError`."""
    kind = message.properties.get("content_type")
    coder = None
    if isinstance(kind, str):
        # A coder may name its parameters. Other ones, such as a charset, are not looked at.
        coder = _KNOWN.get(kind) or _KNOWN.get(kind.partition(";")[0].strip().lower())
    if coder is None:
        if kind is None:
            raise UsageError("the message has no content type: its body is bytes")
        raise UsageError(
            f"the content type {kind!r} is not known: ask for a queue with its serializer first"
        )
    try:
        return coder.loads(message.body)
    except Exception as error:
        raise UsageError(f"the body is not {coder.content_type}: {error}") from error


def value_as(message: Message, kind: type[T]) -> T:
    """Return the value of a message's body as a dataclass or a pydantic model. Pydantic checks it
    where it is installed. Raises :class:`UsageError`."""
    value = value_of(message)
    try:
        return _as(value, kind)
    except (TypeError, ValueError) as error:
        faults = _faults(error)
        raise UsageError(
            f"the body is not a valid {getattr(kind, '__name__', kind)}: {faults}"
        ) from error


def _faults(error: Exception) -> str:
    """Describe in a line the faults of a value: of pydantic's errors, each field and its fault."""
    if not hasattr(error, "errors"):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ")
        for one in error.errors(include_url=False, include_context=False)
    )


def _as(value: Any, kind: type[T]) -> T:
    try:
        from pydantic import TypeAdapter
    except ImportError:
        if not dataclasses.is_dataclass(kind):
            raise TypeError("without pydantic it has to be a dataclass") from None
        made: Any = kind(**value)
        return made  # type: ignore[no-any-return]
    return TypeAdapter(kind).validate_python(value)
