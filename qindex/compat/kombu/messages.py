"""Messages of kombu as messages of a queue, and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

from kombu.utils.json import dumps, loads

from qindex.format.headers import DUE_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qindex.queue.delivery import Delivery

__all__ = ["Stored", "options_of", "payload_of"]

_PLAIN = (str, int, float, bool, bytes, type(None))
_WRAPPED = "kombu-headers"
_EXCHANGE = "exchange"
_LARGEST = (1 << 63) - 1
_ITS_OWN = ("body_encoding", "delivery_info", "delivery_tag")
_TRANSIENT = (1, "1", "transient")


class Stored(TypedDict, total=False):
    """Arguments of :meth:`qindex.SharedQueue.publish` for a message, beside its body."""

    key: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    persistent: bool
    ttl: float
    at: datetime


def options_of(message: Mapping[str, Any], exchange: str, routing_key: str) -> tuple[bytes, Stored]:
    """Return the body of a message, and the other arguments that publish it.

    A message whose header `eta` says when it is due is kept in its queue until then.
    """
    body = message["body"]
    given = message["properties"]
    properties = {
        name: value if _is_plain(value) else str(value)
        for name, value in given.items()
        if name not in _ITS_OWN and value is not None
    }
    properties["content_type"] = message.get("content-type")
    properties["content_encoding"] = message.get("content-encoding")
    if exchange:
        properties[_EXCHANGE] = exchange
    priority = properties.pop("priority", None)
    if priority:
        properties["priority"] = max(int(priority), 0)
    headers = message.get("headers") or {}
    stored: Stored = {
        "key": routing_key,
        "headers": headers if _is_plain(headers) else {_WRAPPED: dumps(headers)},
        "properties": {name: one for name, one in properties.items() if one is not None},
        "persistent": given.get("delivery_mode") not in _TRANSIENT,
    }
    expiration = given.get("expiration")
    if expiration:
        stored["ttl"] = max(float(expiration), 0) / 1000
    due = due_of(headers)
    if due is not None:
        stored["at"] = due
    return body.encode() if isinstance(body, str) else bytes(body), stored


def due_of(headers: Mapping[str, Any]) -> datetime | None:
    """Return when a message is due: what Celery's header `eta` says, or None."""
    eta = headers.get("eta")
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None  # The worker, which gets it at once, reports the error.
    if not isinstance(eta, datetime):
        return None
    return eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)


def _is_plain(value: Any) -> bool:
    """Return whether a record of the store has this value, and gives it back the same."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(one) for key, one in value.items())
    if isinstance(value, int):
        return -_LARGEST <= value <= _LARGEST
    return isinstance(value, _PLAIN)


def payload_of(delivery: Delivery, tag: str) -> dict[str, Any]:
    """Return a message as :class:`kombu.transport.virtual.Message` takes it."""
    properties = dict(delivery.properties)
    headers = dict(delivery.headers)
    headers.pop(DUE_HEADER, None)  # the store's own
    wrapped = headers.pop(_WRAPPED, None)
    if wrapped is not None:
        headers = {**loads(wrapped), **headers}
    info = {
        "exchange": properties.pop(_EXCHANGE, ""),
        "routing_key": delivery.key or "",
        "redelivered": delivery.redelivered,
    }
    properties.setdefault("priority", 0)
    return {
        "body": delivery.body,
        "content-type": properties.pop("content_type", None),
        "content-encoding": properties.pop("content_encoding", None),
        "headers": headers,
        "properties": {**properties, "delivery_tag": tag, "delivery_info": info},
    }
