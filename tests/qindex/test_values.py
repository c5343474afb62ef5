"""Values as bodies: JSON, msgpack, pickle by name, objects; the content type says which."""

from __future__ import annotations

import asyncio
import base64
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydantic
import pytest

import qindex
import qindex.aio
from qindex.format import values


@dataclass
class Address:
    city: str


@dataclass
class Order:
    number: int
    to: Address


class Model(pydantic.BaseModel):
    number: int
    at: datetime


class Base64:
    content_type = "text/base64"

    def dumps(self, value: Any) -> bytes:
        return base64.b64encode(str(value).encode())

    def loads(self, data: bytes) -> Any:
        return base64.b64decode(data, validate=True).decode()


@pytest.fixture(params=[False, True], ids=["own", "shared"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[qindex.AnyEngine]:
    shared: dict[str, Any] = {"shared": True, "linger": 0} if request.param else {}
    with qindex.open(tmp_path / "data", **shared) as opened:
        yield opened


@pytest.mark.parametrize(
    ("serializer", "content_type"),
    [
        ("json", "application/json"),
        ("msgpack", "application/msgpack"),
        ("unsafe-pickle", "application/x-python-pickle"),
    ],
)
def test_values_return_as_they_were(
    engine: qindex.AnyEngine, serializer: str, content_type: str
) -> None:
    queue = engine.queue("q", serializer=serializer)
    given: list[Any] = [{"id": 1, "é": [None, 1.5, "x"]}, [], 17, "text", None]
    if serializer != "json":  # whose keys are texts
        given.append({17: {b"raw": {None: 1.5}}})
    for value in given:
        queue.publish(value, key="k", properties={"type": "order"})
    queue.publish_many([*given, b"raw"])
    with engine.transaction() as tx:
        tx.publish(queue, {"in": "tx"})  # type: ignore[arg-type]
    found = queue.get_many(20)
    assert [one.value for one in found if one.body != b"raw"] == [*given, *given, {"in": "tx"}]
    assert {one.properties["content_type"] for one in found if one.body != b"raw"} == {content_type}
    assert found[0].properties["type"] == "order"
    assert found[0].key == "k"
    raw = next(one for one in found if one.body == b"raw")
    with pytest.raises(qindex.UsageError, match="no content type"):
        _ = raw.value
    queue.ack_many(found)
    assert found[0].value == given[0]


def test_dataclasses_and_models(engine: qindex.AnyEngine) -> None:
    for serializer in ("json", "msgpack"):
        queue = engine.queue(serializer, serializer=serializer)
        order, model = Order(17, Address("Delft")), Model(number=3, at=datetime.now(UTC))
        queue.publish(order)
        queue.publish(model)
        queue.publish({"many": [order]})
        first, second, third = queue.get_many(3)
        assert first.value == {"number": 17, "to": {"city": "Delft"}}
        assert first.value_as(Order) == order
        assert second.value_as(Model) == model
        assert third.value == {"many": [first.value]}
        with pytest.raises(
            qindex.UsageError, match=r"is not a valid Order: number: Field required; to: "
        ):
            third.value_as(Order)
    queue.publish(
        b'{"number": 1, "to": {}}', properties={"content_type": "application/json; charset=utf-8"}
    )
    assert queue.get().value == {"number": 1, "to": {}}


def test_a_dataclass_without_pydantic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydantic", None)
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", serializer="json")
        queue.publish(Address("Delft"))
        queue.publish({"x": 1})
        first, second = queue.get_many(2)
        assert first.value_as(Address) == Address("Delft")
        with pytest.raises(qindex.UsageError, match="is not a valid Address"):
            second.value_as(Address)
        with pytest.raises(qindex.UsageError, match="dataclass"):
            first.value_as(dict)


def test_an_object(engine: qindex.AnyEngine) -> None:
    queue = engine.queue("q", serializer=Base64())
    queue.publish("hello")  # type: ignore[arg-type]
    delivery = queue.get()
    assert (delivery.body, delivery.value) == (b"aGVsbG8=", "hello")
    assert delivery.properties["content_type"] == "text/base64"


def test_pickles_are_read_only_where_they_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "_KNOWN", dict(values._KNOWN))
    values._KNOWN.pop("application/x-python-pickle", None)
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", serializer="json")
        kind = {"content_type": "application/x-python-pickle"}
        queue.publish(pickle.dumps(1), properties=kind)
        delivery = queue.get()
        with pytest.raises(qindex.UsageError, match="is not known"):
            _ = delivery.value
        engine.queue("other", serializer="unsafe-pickle")
        assert delivery.value == 1


def test_what_can_not_be_encoded_or_read(engine: qindex.AnyEngine) -> None:
    queue = engine.queue("q", serializer="json")
    for value in (object(), {"x": float("nan")}, {1, 2}, {"x": b"bytes"}):
        with pytest.raises(qindex.UsageError, match="can't be encoded as application/json"):
            queue.publish(value)  # type: ignore[arg-type]
    with pytest.raises(qindex.UsageError, match="can't be encoded"):
        queue.publish_many([{"x": 1}, object()])  # type: ignore[list-item]
    assert len(queue) == 0
    queue.publish(b"{", properties={"content_type": "application/json"})
    with pytest.raises(qindex.UsageError, match="is not application/json"):
        _ = queue.get().value
    for wrong in ("yaml", 5, Base64):
        with pytest.raises(qindex.UsageError, match="serializer"):
            engine.queue("q", serializer=wrong)  # type: ignore[arg-type]
    with pytest.raises(qindex.UsageError, match="must be bytes"):
        engine.queue("plain").publish({"x": 1})


@pytest.mark.parametrize("shared", [False, True])
def test_coroutines(tmp_path: Path, shared: bool) -> None:
    async def main() -> None:
        more: dict[str, Any] = {"shared": True, "linger": 0} if shared else {}
        async with await qindex.aio.open(tmp_path / "data", **more) as engine:
            queue = await engine.queue("q", serializer="json")
            await queue.publish({"x": 1})
            await queue.publish({"x": 2}, confirm=True, properties={"type": "t"})
            await queue.publish_many([{"x": 3}, b"raw"])
            async with engine.transaction() as tx:
                await tx.publish(queue, Order(4, Address("Delft")))
            found = await queue.get_many(10)
            assert [one.value for one in found if one.body != b"raw"] == [
                {"x": 1},
                {"x": 2},
                {"x": 3},
                {"number": 4, "to": {"city": "Delft"}},
            ]
            assert found[-1].value_as(Order) == Order(4, Address("Delft"))

    asyncio.run(main())
