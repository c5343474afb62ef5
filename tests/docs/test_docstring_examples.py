"""The docstrings of public names describe arguments; their examples run, each in a new store."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.worker
import rocketstore

pytestmark = pytest.mark.interpreted  # compiled functions have no sources to number their lines

ROOT = Path(__file__).parents[2]
MODULES = re.findall("^::: (.+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
"""The modules that programs import from."""
_BEGIN_EMPTY = ("Queue.publish", "Store.put")
"""Methods whose examples show the first seq_id, or offset, of all."""


_DESCRIBED_BY_OTHERS = {"AnyConsumer", "AnyEngine", "AnyQueue", "AnyTransaction"}
"""Protocols whose docstrings name the classes that describe the arguments."""


@dataclass
class Order:
    """The class of a value."""

    number: int


def _examples() -> Iterator[doctest.DocTest]:
    """Yield the examples of all public names, each once."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    seen = set()
    for module in map(importlib.import_module, MODULES):
        members = [getattr(module, name) for name in module.__all__]
        described = [one for one in members if inspect.isclass(one) or inspect.isroutine(one)]
        for found in [*described, module]:
            name = getattr(found, "__qualname__", module.__name__)
            for one in finder.find(found, name, module=inspect.getmodule(found)):
                where = (one.filename, one.lineno)
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


def _public_functions() -> Iterator[tuple[str, Any]]:
    """Yield the public functions and methods, by their names."""
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isroutine(found):
                yield f"{found.__module__}.{name}", found
            if not inspect.isclass(found) or found.__qualname__ in _DESCRIBED_BY_OTHERS:
                continue
            for member, value in vars(found).items():
                call = getattr(value, "__func__", value)
                is_public = not member.startswith("_") and inspect.isroutine(call)
                if is_public and call.__qualname__ == f"{found.__qualname__}.{member}":
                    yield f"{found.__module__}.{found.__qualname__}.{member}", call


def _arguments(call: Any) -> set[str]:
    """Return the names of its arguments, without those that nobody passes."""
    names = set(inspect.signature(call).parameters) - {"self", "cls"}
    return {name for name in names if not name.startswith("_")}


def test_public_docstrings_describe_each_argument() -> None:
    seen = 0
    for name, call in _public_functions():
        text = inspect.getdoc(call)
        assert text, f"{name} has no docstring"
        arguments = _arguments(call)
        described = set(re.findall(r"^ {4}(\w[\w, ]*): ", text, re.MULTILINE))
        named = {one for group in described for one in group.split(", ")}
        assert arguments <= named, f"{name} does not describe {arguments - named}"
        seen += bool(arguments)
    assert seen > 150
