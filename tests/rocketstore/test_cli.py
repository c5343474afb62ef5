"""``qindex rocket``: what each command prints, and its exit status on wrong use and on damage."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rocketstore.cli import rocket_app
from tests.golden import rocket_copy, rocket_golden
from tests.rocketstore.support import open_tiny, read_lines

runner = CliRunner()


def run(*words: object, status: int = 0) -> list[dict[str, Any]]:
    result = runner.invoke(rocket_app, [*map(str, words), "--json"])
    assert result.exit_code == status, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_list_and_cat() -> None:
    root = rocket_golden("gen") / "store"
    rows = run("list", root)
    expected = {
        (row["topic"], row["queueId"]): row["maxOffset"]
        for row in read_lines(rocket_golden("gen"), "queues")
        if row["maxOffset"]
    }
    assert {(row["topic"], row["queue_id"]): row["messages"] for row in rows} == expected
    messages = run("cat", root, "TopicA", "--queue", 1, "--from", 10, "--limit", 5)
    assert [row["queue_offset"] for row in messages] == [10, 11, 12, 13, 14]
    assert all(len(base64.b64decode(row["body_base64"])) <= row["size"] for row in messages)
    plain = runner.invoke(rocket_app, ["list", str(root)])
    assert "topic=TopicA  queue_id=1  min_offset=0  max_offset=85  messages=85" in plain.stdout


def test_query_and_offset() -> None:
    root = rocket_golden("gen") / "store"
    rows = run("query", root, "TopicA", "lead")
    assert len(rows) == 30
    assert all("lead" in row["properties"]["KEYS"].split(" ") for row in rows)
    begin, end = rows[10]["store_timestamp"], rows[12]["store_timestamp"]
    assert run("query", root, "TopicA", "lead", "--begin", begin, "--end", end) == rows[10:13]
    assert run("query", root, "TopicA", "lead", "--limit", 2) == rows[-2:]
    assert len(run("query", root, "TopicA", "Aa", "--raw")) >= len(
        run("query", root, "TopicA", "Aa")
    )
    row = rows[0]
    assert run("offset", root, row["offset"]) == [row]
    assert run("offset", root, row["message_id"]) == [row]
    by_time = run(
        "offset", root, "--topic", "TopicA", "--queue", row["queue_id"],
        "--time", row["store_timestamp"],
    )  # fmt: skip
    assert by_time[0]["queue_offset"] == row["queue_offset"]
    run("offset", root, row["offset"] + 1, status=1)


def test_consume_goes_on_where_it_was(tmp_path: Path) -> None:
    root = rocket_copy("gen", tmp_path) / "store"
    first = run("consume", root, "TopicB", "g", "--limit", 3)
    second = run("consume", root, "TopicB", "g", "--limit", 40)
    rest = run("consume", root, "TopicB", "g")
    assert [row["queue_offset"] for row in first + second + rest] == list(range(58))
    assert run("consume", root, "TopicB", "g") == []
    tagged = run("consume", root, "TopicB", "h", "--tags", "TagA")
    assert 0 < len(tagged) < 58
    assert {row["properties"]["TAGS"] for row in tagged} == {"TagA"}
    run("consume", root, "Nope", "g", status=2)


def test_verify_and_rebuild(tmp_path: Path) -> None:
    root = rocket_copy("gen", tmp_path) / "store"
    assert run("verify", root) == []
    entries = sum(
        row["header"][5] - 1
        for row in read_lines(rocket_golden("gen"), "files")
        if row["path"].startswith("index/")
    )
    names = sorted(path.name for path in (root / "index").iterdir())
    (root / "index" / names[2]).unlink()
    rows = run("verify", root, status=1)
    assert ["index does not agree" in row["what"] for row in rows] == [True]
    assert run("rebuild-index", root) == [
        {"index_files": 6, "entries": entries, "queues_repaired": 0}
    ]
    assert run("verify", root) == []
    assert "sound" in runner.invoke(rocket_app, ["verify", str(root)]).stdout


def test_inspect_every_file(tmp_path: Path) -> None:
    root = rocket_copy("gen", tmp_path) / "store"
    records = units = entries = 0
    for path in sorted(root.rglob("*")):
        if not path.is_file() or path.name == "lock":
            continue
        rows = run("inspect", path)
        assert not any("damage" in row for row in rows)
        kinds = [row["kind"] for row in rows]
        records += kinds.count("record")
        units += kinds.count("unit")
        entries += kinds.count("entry")
    assert (records, entries) == (941, 1675)
    assert units == sum(row["messages"] for row in run("list", root))
    log = root / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[318 + 92] ^= 1
    log.write_bytes(data)
    rows = run("inspect", log, status=1)
    assert rows[-1]["position"] == 318
    assert "damage" in rows[-1]


WRONG: list[tuple[str, ...]] = [
    ("list", "/nonexistent-store"),
    ("verify", "/nonexistent-store"),
    ("cat", "{root}", "Nope"),
    ("cat", "{root}", "TopicA", "--queue", "77"),
    ("offset", "{root}"),
    ("offset", "{root}", "12", "--time", "5"),
    ("offset", "{root}", "what"),
    ("query", "{root}", "TopicA", ""),
    ("inspect", "/nonexistent-file"),
    ("inspect", "{root}"),
    ("inspect", "{root}/lock"),
    ("consume", "{root}/commitlog", "T", "g"),
]


@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(words))
def test_wrong_use(words: tuple[str, ...]) -> None:
    root = str(rocket_golden("gen") / "store")
    result = runner.invoke(rocket_app, [word.format(root=root) for word in words])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ")


def test_damaged_body_is_told(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        store.put("T", b"first body")
        store.put("T", b"second")
    log = tmp_path / "s" / "commitlog" / ("0" * 20)
    log.write_bytes(log.read_bytes().replace(b"first", b"thirst"[:5]))
    rows = run("cat", tmp_path / "s", "T", status=1)
    assert "checksum" in rows[0]["damage"]
    assert rows[1]["body"] == "second"


def test_import_is_light() -> None:
    code = (
        "import sys, rocketstore;"
        "print([name for name in ('typer', 'rich', 'hypothesis', 'qindex') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "[]\n"
