"""What a user publishes and reads, whatever bytes it is kept in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Message"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    ``key``: the routing key, or what an application looks a message up by. ``headers``: the
    application's own values. ``properties``: what the record format has beside headers (for
    RabbitMQ records content_type, correlation_id, ...). ``timestamp``: time of publishing in
    nanoseconds since 1970 UTC, 0 = the record keeps none (RabbitMQ's own).
    """

    body: bytes
    key: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    timestamp: int = 0
