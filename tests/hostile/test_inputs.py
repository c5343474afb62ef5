"""Files to import, and the notes of an import, that somebody else made."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qindex
from journal.errors import StoreError
from qindex.transfer import import_messages
from qindex.transfer.importing import IMPORT_FILE
from tests.effort import by_tier, part
from tests.hostile.tampering import FILES, Outside
from tests.hostile.test_values import VALUES, _changed
from tests.hostile.trial import confined

SHARE = by_tier(quick=29, all=1, nightly=1)

_LINE: dict[str, Any] = {
    "queue": "orders",
    "persistent": True,
    "redelivered": False,
    "expiry": None,
    "timestamp": 1,
    "key": "k",
    "headers": {"kind": "new", "list": [1, {"$base64": "AA=="}]},
    "properties": {"a": {"$map": [["k", 1]]}},
    "body_base64": "aGVsbG8=",
}
_INNER: list[Any] = [
    [5, "AA=="],
    [1 << 70, "AA=="],
    [[1, 2], [1, 2]],
    [[[], 1]],
    [[{}, 1]],
    "nan",
    "9" * 5000,
    "1e999999999",
    "-1",
]
"""More than the usual values, for what has values inside."""


def _line(values: Any) -> bytes | None:
    """The line of JSON; ``None`` for what JSON has no words for."""
    try:
        return json.dumps(values, default=_as_base64).encode() + b"\n"
    except (TypeError, ValueError):
        return None


def _as_base64(value: Any) -> Any:
    if not isinstance(value, bytes):
        raise TypeError
    return {"$base64": base64.b64encode(value).decode()}


def _lines() -> Iterator[tuple[str, bytes]]:
    for case, changed in _changed(_LINE):
        if line := _line(changed):
            yield case, line
    for name in ("$base64", "$decimal", "$float", "$time", "$ext", "$map", "$text", "$more"):
        for value in [*VALUES, *_INNER]:
            if line := _line({**_LINE, "headers": {"h": {name: value}}}):
                yield f"{name}: {value!r:.40}", line
    deep = b"[" * 100_000 + b"]" * 100_000
    whole = json.dumps(_LINE).encode()
    for depth in (100, 400, 520, 900, 980, 5000):
        for kind, begin, end in (("maps", b'{"a":', b"}"), ("lists", b"[", b"]")):
            inner = b'{"x":' + begin * depth + b"1" + end * depth + b',"kind"'
            yield f"{kind} {depth} deep", whole.replace(b'{"kind"', inner) + b"\n"
    stamp = b'"timestamp": 1'
    for case, data in {
        "empty": b"",
        "deep": deep + b"\n",
        "deep, cut": b"[" * 10_000_000 + b"\n",
        "no end": whole,
        "cut": whole[:50] + b"\n",
        "bad UTF-8": whole.replace(b"new", b"\xff\xfe") + b"\n",
        "surrogates": whole.replace(b'"k"', b'"\\ud800"') + b"\n",
        "a body of surrogates": b'{"queue": "orders", "body": "\\ud800"}\n',
        "NUL": bytes(1000) + b"\n",
        "UTF-16": whole.decode().encode("utf-16") + b"\n",
        "a number of digits": whole.replace(b'"timestamp": 1', b'"timestamp": ' + b"9" * 5000)
        + b"\n",
        "a long float": whole.replace(stamp, b'"timestamp": 1e400') + b"\n",
        "NaN": whole.replace(stamp, b'"timestamp": NaN') + b"\n",
        "a count too many": b'{"qindex_messages": 1, "count": 99}\n' + whole + b"\n",
        "a giant count": b'{"qindex_messages": 1, "count": 1e400}\n' + whole + b"\n",
        "a negative count": b'{"qindex_messages": 1, "count": -1}\n' + whole + b"\n",
        "a version": b'{"qindex_messages": 999999999999, "count": 1}\n' + whole + b"\n",
        "the same key twice": b'{"queue": "orders", "queue": "..", "body": "x"}\n',
        "sound ones first": (whole + b"\n") * 3000 + b"{\n",
    }.items():
        yield case, data


def _try(source: Path, store: Path) -> str | None:
    """Import; gives what is wrong with the answer."""
    with qindex.open(store, read_only=True) as engine:
        before = len(engine.queue("orders"))
    try:
        import_messages([source], store)
        return None
    except StoreError as error:
        with qindex.open(store, read_only=True) as engine:
            after = len(engine.queue("orders"))
        if after == before and not (store / IMPORT_FILE).exists():
            return None
        (store / IMPORT_FILE).unlink()
        return f"it was begun, and then: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with qindex.open(tmp_path / "store", background=False) as engine:
        engine.queue("orders").publish(b"first")
    return tmp_path / "store"


def test_lines_of_any_kind(store: Path) -> None:
    """Each is imported, or refused before anything is done."""
    source = store.with_name("input.jsonl")
    wrong = []
    for case, data in part(list(_lines()), SHARE, "hostile lines"):
        source.write_bytes(data)
        answer = _try(source, store)
        if answer is not None:
            wrong.append(f"{case}: {answer:.200}")
    assert not wrong, "\n".join(wrong)


def test_notes_of_any_kind(store: Path) -> None:
    """The note of an import that is not finished is a file of the store, which may be anybody's."""
    source = store.with_name("input.jsonl")
    source.write_bytes(b'{"queue": "orders", "body": "x"}\n' * 3)
    status = source.stat()
    note = {
        "about": {"files": [[str(source), status.st_size, status.st_mtime_ns]], "queue": None},
        "total": 3,
        "done": 0,
        "at": [3, 3, 0, 0],
        "batch": ["orders", 1, 3],
    }
    wrong = []
    for case, changed in part(list(_changed(note)), SHARE, "hostile notes"):
        data = _line(changed)
        if data is None:
            continue
        (store / IMPORT_FILE).write_bytes(data)
        try:
            import_messages([source], store)
        except StoreError:
            continue
        except Exception as error:
            wrong.append(f"{case}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def _import(place: Path) -> int:
    (source,) = place.parent.glob("input.*")
    return import_messages([source], place / "store", queue="orders").messages


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("how", sorted(FILES))
def test_what_is_no_file_of_messages(tmp_path: Path, how: str, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow.parquet")
    source = tmp_path / f"input.{suffix}"
    source.write_bytes(b'{"body": "x"}\n')
    outside = Outside(tmp_path / "outside")
    outside.make(source)
    if how != "grown":
        source.unlink()
    FILES[how](source, outside)
    answer, broken = confined(_import, tmp_path / "place")
    assert broken is None, answer
    assert not outside.changed
    # A link that the user names is the file that it leads to.
    assert answer.startswith("ok") == (how == "link to a file" and suffix == "jsonl")
