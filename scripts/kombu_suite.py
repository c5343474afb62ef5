"""The tests that kombu has for any transport, on a store. `others-suites.sh` puts this file among
kombu's own, and runs it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kombu
import pytest

import qindex.compat.kombu  # noqa: F401

from .common import (
    BaseEventLoop,
    BaseExchangeTypes,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)


class Draining(kombu.Connection):
    """A connection that delivers all that is there at once, as one of AMQP does."""

    def drain_events(self, **options: Any) -> None:
        """Deliver what comes in time, and all that has come then."""
        super().drain_events(**options)
        while True:
            try:
                super().drain_events(timeout=0.01)
            except TimeoutError:
                return


@pytest.fixture
def connection(tmp_path: Path) -> kombu.Connection:
    """Return a connection to a new store."""
    return kombu.Connection(f"qindex://{tmp_path}/data", transport_options={"linger": 0})


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    """Return a connection to what can't be a store."""
    return kombu.Connection("qindex:///dev/null/data")


class TestBasicFunctionality(BasicFunctionality):
    """Connecting, publishing, consuming."""


class TestExchangeTypes(BaseExchangeTypes):
    """Routing."""


class TestTimeToLive(BaseTimeToLive):
    """Expiration."""


class TestPriority(BasePriority):
    """Priorities, higher numbers first."""

    @pytest.fixture
    def connection(self, tmp_path: Path) -> kombu.Connection:
        """Return a connection that delivers more than one message at a time."""
        return Draining(f"qindex://{tmp_path}/data", transport_options={"linger": 0})


class TestMessage(BaseMessage):
    """Settling."""


class TestEventLoop(BaseEventLoop):
    """Settling from another thread."""
