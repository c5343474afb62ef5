"""docs/architecture.md tells the functions of a call; and the owner alone changes entries."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from qindex.engine.opening import open_store
from tests.memory_fs import MemoryFileSystem

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROOMS = ("qindex/queue/", "qindex/index/", "journal/journal.py")
OWNED = {
    *("states", "filed", "positions", "next_seq", "taken", "acks", "nacks", "dropped"),
    *("journal", "handing", "handing_one", "tail", "tail_end", "transient"),
}


def listed(call: str) -> list[str]:
    row = re.search(rf"^\| {re.escape(call)} \| (.*) \|$", PAGE, re.MULTILINE)
    assert row is not None
    return re.findall(r"`([^`]+)`", row[1])


def path_to_store(call: Callable[[], object]) -> list[str]:
    """Give the functions of ours that are on the stack at the first store into the journal."""
    found: list[str] = []

    def tracer(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or frame.f_code.co_name not in ("store", "store_word") or found:
            return
        step: FrameType | None = frame
        while step is not None:
            if any(room in step.f_code.co_filename for room in ROOMS):
                found.append(step.f_code.co_qualname)
            step = step.f_back

    sys.setprofile(tracer)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[::-1]


@pytest.mark.interpreted  # compiled functions leave no trace
@pytest.mark.parametrize("call", ["publish", "get, read ahead", "ack", "publish_many"])
def test_the_functions_of_a_call_are_those_of_the_page(call: str) -> None:
    with open_store("/s", fs=MemoryFileSystem(root="/"), background=False) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"a", b"b", b"c"])
        delivery = queue.get()
        calls: dict[str, Callable[[], Any]] = {
            "publish": lambda: queue.publish(b"d"),
            "get, read ahead": queue.get,
            "ack": lambda: queue.ack(delivery),
            "publish_many": lambda: queue.publish_many([b"e"]),
        }
        assert path_to_store(calls[call]) == listed(call)
        assert call == "publish_many" or len(listed(call)) <= 5


def test_the_owner_alone_changes_an_entry() -> None:
    """Outside qindex/index nobody assigns to a state, a position, a counter or the journal."""
    wrong = []
    for path in sorted((ROOT / "qindex").rglob("*.py")):
        if "index" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", 0)]
            for target in targets:
                place = target.value if isinstance(target, ast.Subscript) else target
                if not isinstance(place, ast.Attribute) or place.attr not in OWNED:
                    continue
                if re.search(r"(index|segment|journal)$", ast.unparse(place.value)):
                    wrong.append(f"{path.relative_to(ROOT)}:{place.lineno}: {ast.unparse(place)}")
    assert wrong == []


def test_the_house_is_drawn_as_its_imports_are_checked() -> None:
    drawn = re.findall(r"\w+", re.findall(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)[0])
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (rooms,) = (one for one in settings["contracts"] if one["id"] == "rooms")
    places = {name: at for at, row in enumerate(rooms["layers"]) for name in row.split(" : ")}
    found = [places[word] for word in drawn if word in places]
    assert {*places} - {*drawn} == {"metrics", "options"}
    steps = [place for at, place in enumerate(found) if place not in found[:at]]
    assert steps == sorted(steps)


def test_no_folder_has_more_than_25_files() -> None:
    """A reader who opens a folder sees all of it."""
    packages = ("journal", "msgstore", "pyspark_qindex", "qindex", "rocketstore")
    files = (path for name in packages for path in (ROOT / name).rglob("*.py"))
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in files)
    assert {folder: count for folder, count in counts.items() if count > 25} == {}
