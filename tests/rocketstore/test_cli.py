"""``qindex rocket``: what each command prints, and its exit status on wrong use and on damage."""

from __future__ import annotations

import base64
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import run as run_qindex
from tests.golden import golden, rocket_copy, rocket_golden
from tests.rocketstore.support import open_tiny, read_lines
from tests.waiting import WAIT


def run(*words: object, status: int = 0) -> list[dict[str, Any]]:
    result = run_qindex("rocket", *words, "--json")
    assert result.code == status, result.err
    return result.rows


def text_of(*words: object) -> str:
    result = run_qindex("rocket", *words)
    assert (result.code, result.complaints) == (0, [])
    return result.text


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
    plain = text_of("list", root)
    assert "topic=TopicA  queue_id=1  min_offset=0  max_offset=85  messages=85" in plain


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
    run("offset", root, row["offset"] + 1, status=2)


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
    assert text_of("verify", root) == f"{root}: sound\n"


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


COMMANDS = {
    "list": ("list", "{}"),
    "cat": ("cat", "{}", "TopicA"),
    "query": ("query", "{}", "TopicA", "lead"),
    "offset": ("offset", "{}", "0"),
    "consume": ("consume", "{}", "TopicA", "g"),
    "verify": ("verify", "{}"),
    "rebuild-index": ("rebuild-index", "{}"),
}
"""What each command that takes a store is called with."""


def complains(*words: object, code: int = 2) -> str:
    """Run a command that refuses: no output, one line, the exit code; gives the line."""
    result = run_qindex("rocket", *words)
    assert (result.code, result.out) == (code, b""), result.err
    (line,) = result.complaints
    return line


def everything_below(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return COMMANDS[request.param]


def with_store(command: tuple[str, ...], store: Path) -> list[str]:
    return [word.format(store) for word in command]


def test_what_is_no_store_is_refused_and_left_as_it_is(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    rabbit = golden("a_clean_embedded").vhost_dir
    shutil.copytree(rabbit, tmp_path / "rabbitmq")
    before = everything_below(tmp_path)
    for name, says in (
        ("missing", "there is no such directory"),
        ("empty", "holds no commitlog directory"),
        ("file", "is a file, not a store directory"),
        ("file/below", "Not a directory|can't be looked at"),
        ("rabbitmq", "holds no commitlog directory"),
    ):
        line = complains(*with_store(command, tmp_path / name))
        assert re.search(says, line), line
        assert str(tmp_path / name) in line
    assert everything_below(tmp_path) == before


def test_store_in_use(tmp_path: Path) -> None:
    """Those who only read go on beside a writer, verify too."""
    root = rocket_copy("gen", tmp_path) / "store"
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"open\n"
        for name, command in COMMANDS.items():
            if name in ("consume", "rebuild-index"):
                line = complains(*with_store(command, root))
                who = f"{root}/lock: is open for writing by process {child.pid}"
                assert line.startswith(f"qindex: {who}; wait until that one closes it")
            else:
                assert run_qindex("rocket", *with_store(command, root)).code == 0
    finally:
        child.stdin.close()
        assert child.wait(WAIT) == 0
        child.stdout.close()


HOLD = """
import sys, rocketstore
with rocketstore.open(sys.argv[1], background=False):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_damaged_log(command: tuple[str, ...], tmp_path: Path) -> None:
    """A broken frame in the middle: reading commands give what they find by queue and key, verify
    names the place, writing commands refuse, and repair goes on behind it."""
    root = rocket_copy("gen", tmp_path) / "store"
    log = root / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[318 + 4] ^= 1
    log.write_bytes(data)
    words = with_store(command, root)
    if command[0] == "verify":
        (row,) = run(*words, status=1)
        assert (row["path"], row["offset"], row["cause"]) == (str(log), 318, "damage")
    elif command[0] in ("consume", "rebuild-index"):
        line = complains(*words, code=1)
        assert f"{log}: at offset 318: there is no record here" in line
        assert len(line.splitlines()) == 1
    else:
        assert run_qindex("rocket", *words).code == 0
    result = run_qindex("rocket", "rebuild-index", root, "--repair", "--json")
    assert result.code == 1
    assert [f"{log}: at offset 318, 1207 bytes" in line for line in result.complaints] == [True]
    assert result.rows[0]["index_files"] == 6
    assert run("verify", root) == []
    assert run("offset", root, 318 + 1207)[0]["offset"] == 318 + 1207


def test_damaged_index(tmp_path: Path) -> None:
    root = rocket_copy("gen", tmp_path) / "store"
    index = sorted((root / "index").iterdir())[1]
    index.write_bytes(index.read_bytes()[:-1])
    assert "6439 bytes long, not 6440" in complains("rebuild-index", root, code=1)
    (first, *_) = run("verify", root, status=1)
    assert (first["path"], first["consequence"]) == (str(index), "not used")
    assert run_qindex("rocket", "rebuild-index", root, "--repair").code == 1
    assert run("verify", root) == []


def test_every_command_prints_json(command: tuple[str, ...], tmp_path: Path) -> None:
    root = rocket_copy("gen", tmp_path) / "store"
    rows = run(*with_store(command, root))
    assert all(isinstance(row, dict) for row in rows)
    assert rows or command[0] == "verify"


@pytest.fixture(scope="module")
def copy_of_gen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the wrong uses open it for writing before they refuse."""
    return rocket_copy("gen", tmp_path_factory.mktemp("wrong")) / "store"


WRONG: list[tuple[str, ...]] = [
    ("cat", "{}", "Nope"),
    ("cat", "{}", "TopicA", "--queue", "77"),
    ("cat", "{}", "TopicA", "--queue", "x"),
    ("cat", "{}", "TopicA", "--from", "-1"),
    ("cat", "{}", "TopicA", "--limit", "-1"),
    ("cat", "{}"),
    ("cat",),
    ("list",),
    ("list", "{}", "more"),
    ("list", "{}", "--nope"),
    ("offset", "{}"),
    ("offset", "{}", "12", "--time", "5"),
    ("offset", "{}", "--time", "5"),
    ("offset", "{}", "--time", "soon", "--topic", "T"),
    ("offset", "{}", "what"),
    ("offset", "{}", "\N{SUPERSCRIPT TWO}"),
    ("offset", "{}", "1"),
    ("offset", "{}", "-5"),
    ("offset", "{}", "9" * 31),
    ("offset", "{}", "Z" * 32),
    ("query", "{}", "TopicA", ""),
    ("query", "{}", "TopicA", "k1", "--limit", "0"),
    ("query", "{}", "TopicA", "k1", "--begin", "1" * 30),
    ("consume", "{}", "Nope", "g"),
    ("consume", "{}", "TopicA", "g@h"),
    ("consume", "{}", "TopicA", ""),
    ("consume", "{}", "TopicA", "g", "--queue", "-1"),
    ("rebuild-index", "{}", "--slots", "0"),
    ("inspect", "/nonexistent-file"),
    ("inspect", "{}"),
    ("inspect", "{}/lock"),
    ("inspect", "{}/index/x"),
    ("nope",),
]


@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(words)[:40])
def test_wrong_use(words: tuple[str, ...], copy_of_gen: Path) -> None:
    complains(*with_store(words, copy_of_gen))


def test_help() -> None:
    assert "Missing command" in complains()
    for name in [*COMMANDS, "inspect"]:
        assert name in text_of("--help")
        assert "Usage: qindex rocket" in text_of(name, "--help")


def test_empty_store(tmp_path: Path) -> None:
    root = tmp_path / "s"
    open_tiny(root).close()
    for words in (("list", root), ("query", root, "T", "k"), ("verify", root)):
        assert run(*words) == []
    assert run("rebuild-index", root) == [{"index_files": 0, "entries": 0, "queues_repaired": 0}]
    for other in (["cat", root, "T"], ["consume", root, "T", "g"], ["offset", root, "0"]):
        complains(*other)


def test_text_that_could_disturb_a_terminal(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        store.put("T", "\x1b[2J \x9b?".encode(), keys="k\x9b", properties={"p": "\x1b[2J\n"})
    for words in (("cat", tmp_path / "s", "T"), ("offset", tmp_path / "s", "0")):
        assert text_of(*words).rstrip("\n").isprintable()


MAIN = """
import signal, sys
from qindex.cli.app import main
# Where the tests run in the background of a shell, it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


def spawn(*words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "rocket", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )


def test_closed_pipe(tmp_path: Path) -> None:
    """``qindex rocket cat DIR TOPIC | head -1``; what was not read was not consumed."""
    root = tmp_path / "s"
    with open_tiny(root, commitlog_file_size=1 << 20) as store:
        store.put_many("T", [b"x" * 500] * 1000)
    for words in (("cat", root, "T"), ("consume", root, "T", "g")):
        with spawn(*words) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith(b"offset=0 ")
            process.stdout.close()
            assert (process.stderr.read(), process.wait(WAIT)) == (b"", 141)
    with open_tiny(root, commitlog_file_size=1 << 20) as store:
        assert store.fetch_offset("g", "T", 0) < 500


def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C while it prints: one line, and the store is closed in order."""
    root = tmp_path / "s"
    with open_tiny(root, commitlog_file_size=1 << 22) as store:
        store.put_many("T", [b"x" * 500] * 5000)
    with spawn("consume", root, "T", "g") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        while process.stdout.read(1 << 16):
            continue
        assert (process.stderr.read(), process.wait(WAIT)) == (b"qindex: interrupted\n", 130)
    assert not (root / "abort").exists()
    with open_tiny(root, commitlog_file_size=1 << 22) as store:
        assert store.fetch_offset("g", "T", 0) < 5000


AS_NOBODY = """
import json, os, sys
from tests.cli.support import run
commands = [["rocket", *words] for words in json.loads(sys.argv[1])]
if os.geteuid() == 0:
    # What the commands import may lie where nobody else can read.
    run(*commands[0]), run(*commands[1])
    os.setgid(65534)
    os.setuid(65534)
for words in commands:
    result = run(*words)
    print(json.dumps([result.code, len(result.out), result.err]))
"""


def test_directory_that_can_not_be_written(tmp_path: Path) -> None:
    """As another user, where we are root: the reading commands work, the others say so."""
    root = tmp_path / "s"
    with open_tiny(root) as store:
        store.put("TopicA", b"body", keys="lead")
    commands = [with_store(COMMANDS[name], root) for name in ("verify", *COMMANDS)]
    ours = [parent for parent in tmp_path.parents if parent.name.startswith(("pytest-", "popen-"))]
    places = [root, *root.rglob("*"), *ours, tmp_path]
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, json.dumps(commands)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
    finally:
        for path in places:
            path.chmod(0o755 if path.is_dir() else 0o644)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for name, (code, length, err) in zip(COMMANDS, answers[1:], strict=True):
        if name in ("consume", "rebuild-index"):
            assert (code, length) == (2, 0)
            assert err.startswith(f"qindex: {root}")
            assert err.endswith("Permission denied\n")
            assert err.count("\n") == 1
        else:
            assert (code, err) == (0, "")
            assert length > 0


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
