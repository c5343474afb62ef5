"""Which build runs, and what it writes: both write what the interpreter's primitives say."""

from __future__ import annotations

import logging
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import setuptools
from setuptools.errors import CompileError
from xxhash import xxh3_64_intdigest

import qindex
from journal import compiled
from journal.compiled import COMPILED, INTERPRETED, MODULES, build
from journal.format import PUBLISH_HEAD
from journal.memory import words
from qindex._pyinstaller import hook_dirs
from qindex.format.message_record import row_sums, seal_embedded
from qindex.format.plain_record import CHECK_START, plain_parts
from qindex.format.publish_records import plain_batch, plain_record
from qindex.format.transactions import (
    Noted,
    Published,
    frames_of,
    pack_ack,
    pack_boot,
    pack_committed,
    pack_name,
    pack_published,
    read_transactions,
)
from qindex.queue.producing import Producer

ROOT = Path(compiled.__file__).parent.parent
SIZES = [*range(300), 4000]
PROGRAM = """
import sys, warnings
with warnings.catch_warnings(record=True) as met:
    warnings.simplefilter("always")
    import journal
from journal.compiled import build
print(build(), *(each.category.__name__ for each in met))
import qindex.queue.plain_queue
print(qindex.queue.plain_queue.__file__.rpartition(".")[2])
"""


def test_no_compiled_file_has_the_name_of_a_standard_one() -> None:
    """CPython finds the lines of a traceback by that name, and would show those of another."""
    assert not {one.rpartition(".")[2] for one in MODULES} & sys.stdlib_module_names


def run_program(root: Path, **environment: str) -> list[str]:
    """Give what a process says of the build in ``root``."""
    given = {**os.environ, "PYTHONPATH": str(root), **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=given, cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_build_that_runs_is_the_one_that_is_told(tmp_path: Path) -> None:
    is_source = Path(sys.modules[Producer.__module__].__file__ or "").suffix == ".py"
    assert build() == (INTERPRETED if is_source else COMPILED)
    with qindex.open(tmp_path / "store") as engine:
        assert engine.stats().build == build()


def test_plain_records_are_what_the_primitives_make(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "store", background=False) as engine:
        queue = engine.queue("q")
        bodies = [os.urandom(size) for size in SIZES]
        for body in bodies:
            queue.publish(body)
        journal = queue._parts.state.index.journal
        written, at = journal.map[: journal.end], 0
        id_high = queue._parts.state.id_high
        for seq, body in enumerate(bodies):
            word, *_, size, embedded = PUBLISH_HEAD.unpack_from(written, at)
            end = at + PUBLISH_HEAD.size + embedded
            assert (word, size) == (seq, len(body))
            stamp = int.from_bytes(written[at + 52 : at + 60], "big")
            expected = plain_record(seq, id_high, body, stamp)
            if size < 256:
                start, tail = written[at + 40 : at + 43] + bytes(8) + b"\xcf", plain_parts(size)[1]
                assert expected == words.join_record(
                    seq, id_high, 0, start, stamp, tail, body, CHECK_START
                )
            assert written[at:end] == expected
            at = end
        assert at == len(written)
        assert [queue.get(0).body for _ in bodies] == bodies  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0, 1, 100, 255, 256, 4000])
def test_a_batch_is_what_single_records_are(size: int) -> None:
    bodies = [os.urandom(size) for _ in range(70)]
    block, offsets = plain_batch(1 << 40, (1 << 64) - 5, bodies, 3)
    records = [
        plain_record((1 << 40) + at, (1 << 64) - 5, body, 3) for at, body in enumerate(bodies)
    ]
    assert bytes(block) == b"".join(records)
    assert offsets.tolist() == [at * len(records[0]) for at in range(70)]
    # And what the interpreter's primitives are.
    head = records[0][: len(records[0]) - size]
    head = head[:CHECK_START] + bytes(8) + head[CHECK_START + 8 :]
    rows = words.join_rows(head, 1 << 40, bodies, size, CHECK_START)
    assert bytes(rows) == bytes(block)


def test_frames_of_transactions_are_what_the_primitives_make() -> None:
    number, seq, msg_id, boot = (1 << 64) - 3, 1 << 50, os.urandom(16), b"b" * 36
    for queue in ("q", "\N{SNOWMAN}" * 60):
        packed = msgpack.packb(queue)
        before_seq, before_ack = pack_name(queue)
        published = pack_published(number, before_seq, seq, msg_id)
        assert published == words.join_frame(
            b"\x94\xcf", number, packed + b"\xcf", seq, b"\x91\xc4\x10", msg_id
        )
        one = pack_ack(number, pack_boot(boot), before_ack, seq)
        any_of_it = pack_committed(number, pack_boot(boot), [(queue, [seq])])
        none = pack_committed(5, pack_boot(b""), [])
        assert len(one) == len(any_of_it)
        for commit in (one, any_of_it):
            found, damaged = read_transactions(published + commit + none + bytes(50))
            assert damaged == []
            assert found[number] == Noted([Published(queue, seq, [msg_id])], boot, [(queue, [seq])])
            assert found[5] == Noted([], b"", [])
            assert frames_of(published + none + commit, {number}) == published + commit


def test_the_sums_of_rows_are_those_of_each() -> None:
    table = np.frombuffer(os.urandom(300 * 200), np.uint8).reshape(300, 200)
    for rows in (table, table[:, 7:], table[::3, :64], table[:0], table[:, :1]):
        assert row_sums(rows).tolist() == [xxh3_64_intdigest(row.tobytes()) for row in rows]


def test_the_try_out_of_a_wheel_tells_its_build() -> None:
    for wanted in (INTERPRETED, COMPILED):
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "smoke.py"), wanted],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert (done.returncode == 0) == (wanted == build()), done.stderr
        assert f"works, {wanted}" in done.stdout or f"and not {wanted}" in done.stderr


def test_a_sum_that_does_not_fit_is_refused() -> None:
    room = CHECK_START + 8
    assert len(seal_embedded(bytes(room))) == room
    with pytest.raises(IndexError):
        seal_embedded(bytes(room - 1))
    with pytest.raises(IndexError):
        words.seal(bytes(room - 1), CHECK_START)


@pytest.mark.skipif(build() != COMPILED, reason="nothing is compiled here (QINDEX_COMPILE)")
def test_a_build_of_other_sources_is_never_taken(tmp_path: Path) -> None:
    for package in ("journal", "msgstore", "qindex", "rocketstore"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    assert run_program(tmp_path) == [COMPILED, "so"]
    assert run_program(tmp_path, QINDEX_INTERPRETED="1") == [INTERPRETED, "py"]
    one = next(tmp_path.glob(f"journal/_compiled/*/{MODULES[-1]}.*"))
    one.rename(one.with_suffix(".away"))
    assert run_program(tmp_path) == [INTERPRETED, "RuntimeWarning", "py"]
    one.with_suffix(".away").rename(one)
    types = tmp_path / "qindex" / "index" / "segment.pxd"
    types.write_text(types.read_text() + "\n# Another one.\n")
    assert run_program(tmp_path) == [INTERPRETED, "RuntimeWarning", "py"]


@pytest.mark.parametrize(
    ("arguments", "mode", "is_compiled"),
    [
        (["bdist_wheel"], "", True),
        (["bdist_wheel"], "no", False),
        (["editable_wheel"], "", False),
        (["editable_wheel"], "yes", True),
        (["editable_wheel"], "require", True),
    ],
)
def test_what_an_install_compiles(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], mode: str, is_compiled: bool
) -> None:
    found = _setup(monkeypatch, arguments, mode)
    names = [each.name for each in found["ext_modules"]]
    assert names == ([*MODULES, compiled.SHARED] if is_compiled else [])


def _setup(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], mode: str, **environment: str
) -> dict[str, Any]:
    """Give what setup.py asks setuptools for."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: found.update(given))
    monkeypatch.setattr(sys, "argv", ["setup.py", *arguments])
    monkeypatch.setenv("QINDEX_COMPILE", mode)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    runpy.run_path(str(ROOT / "setup.py"), run_name="__main__")
    return found


@pytest.mark.parametrize("mode", ["", "require"])
def test_an_install_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    """Nothing is translated before a compiler was found, and one line says what is slower."""
    found = _setup(monkeypatch, ["bdist_wheel"], mode, CC="false")
    command = found["cmdclass"]["build_ext"](
        setuptools.Distribution({"ext_modules": found["ext_modules"]})
    )
    monkeypatch.chdir(tmp_path)
    command.build_lib, command.build_temp = str(tmp_path / "lib"), str(tmp_path / "temp")
    command.ensure_finalized()
    if mode == "require":
        with pytest.raises(CompileError):
            command.run()
        return
    command.run()
    assert command.extensions == command.get_outputs() == []
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "interpreted" in line]
    assert "a publish takes eight times the CPU" in said
    assert "false" in said


@pytest.mark.parametrize("chosen", [COMPILED, INTERPRETED])
def test_the_first_open_of_an_interpreted_engine_logs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, chosen: str
) -> None:
    assert qindex.__build__ == build()
    monkeypatch.setattr(compiled, "_CHOSEN", [chosen])
    with caplog.at_level(logging.INFO, "qindex"):
        for number in range(2):
            qindex.open(tmp_path / str(number), background=False).close()
    said = [one for one in caplog.records if "interpreted" in one.getMessage()]
    assert len(said) == (chosen == INTERPRETED)


def test_a_frozen_program_takes_the_build_that_is_there(tmp_path: Path) -> None:
    """It has no sources that a digest could be made of."""
    program = "import sys; sys.frozen = True; from journal import compiled; print(compiled.build())"
    shutil.copytree(
        ROOT / "journal", tmp_path / "journal", ignore=shutil.ignore_patterns("_compiled", "*.pxd")
    )
    built = tmp_path / "journal" / "_compiled" / "any"
    built.mkdir(parents=True)
    for wanted in (INTERPRETED, COMPILED):
        if wanted == COMPILED:
            for module in (*MODULES, compiled.SHARED):
                (built / compiled.file_name(module)).touch()
        done = subprocess.run(
            [sys.executable, "-c", program + "; sys.meta_path.pop(0)"],
            env={**os.environ, "PYTHONPATH": str(tmp_path), "QINDEX_INTERPRETED": "0"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == wanted, done.stderr


def test_pyinstaller_is_told_where_the_hook_is() -> None:
    (folder,) = hook_dirs()
    hook = runpy.run_path(str(Path(folder, "hook-journal.compiled.py")))
    assert {"qindex.cli.app", "qindex.engine.engine", *MODULES} <= set(hook["hiddenimports"])
    assert "journal.compiled" in hook["hiddenimports"]
    assert len(hook["binaries"]) == (len(MODULES) + 1 if build() == COMPILED else 0)
