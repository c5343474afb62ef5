"""The examples in the docstrings of public names run, in a store that each finds anew."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.worker
import rocketstore

pytestmark = pytest.mark.interpreted  # compiled functions have no sources to number their lines

_MODULES = [
    "qindex",
    "qindex.aio",
    "qindex.worker",
    "qindex.metrics",
    "qindex.transfer",
    "qindex.transfer.brokers",
    "rocketstore",
    "msgstore",
    "journal.findings",
]
_BEGIN_EMPTY = ("Queue.publish", "Store.put")
"""Methods whose examples show the first seq_id, or offset, of all."""


@dataclass
class Order:
    """The class of a value."""

    number: int


def _examples() -> Iterator[doctest.DocTest]:
    """Yield the examples of all public names, each once."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    seen = set()
    for module in map(importlib.import_module, _MODULES):
        for name in module.__all__:
            found = getattr(module, name)
            if not inspect.isclass(found) and not inspect.isroutine(found):
                continue
            home = inspect.getmodule(found)
            for one in finder.find(found, found.__qualname__, module=home):
                where = f"{found.__module__}.{one.name}"
                if one.examples and where not in seen:
                    seen.add(where)
                    yield one


_EXAMPLES = list(_examples())


def _names(engine: qindex.Engine, store: rocketstore.Store, *, is_empty: bool) -> dict[str, Any]:
    """Return what the examples call by name."""
    orders = engine.queue("orders", dead_letter="failed")
    orders.publish_many([qindex.Message(b"late", key=f"o-{number}") for number in (17, 18, 19)])
    for delivery in orders.consume(timeout=0):
        delivery.reject()
    mails = engine.queue("mails")
    mails.publish(b"hello")
    engine.queue("mail").publish(b"hello")
    values = engine.queue("values", serializer="json")
    values.publish({"number": 17})
    if is_empty:
        engine.delete_queue("orders")
        orders = engine.queue("orders")
    else:
        orders.publish(b"paid")
        store.put("orders", b"paid")
    return {
        "qindex": qindex,
        "rocketstore": rocketstore,
        "engine": engine,
        "orders": orders,
        "mails": mails,
        "failed": engine.queue("failed"),
        "delivery": values.get(),
        "Order": Order,
        "pulse": engine.schedule("pulse", every=60, queue="jobs"),
        "worker": qindex.worker.Worker(mails, print),
        "store": store,
    }


@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda one: one.name)
def test_an_example_runs(example: doctest.DocTest, tmp_path: Path) -> None:
    with qindex.open(tmp_path / "store") as engine, rocketstore.open(tmp_path / "log") as store:
        example.globs |= _names(engine, store, is_empty=example.name in _BEGIN_EMPTY)
        told: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        result = runner.run(example, out=told.append)
    assert result.failed == 0, "".join(told)


def test_there_are_examples() -> None:
    assert len(_EXAMPLES) > 25
