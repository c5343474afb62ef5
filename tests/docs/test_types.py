"""mypy and pyright, both strict, accept the examples of README.md, docs/, examples/ and of the
packages' docstrings, and refuse what is misspelled. To pyright the type of each public name is
known, and declared where types are inferred differently.

pyright is run as basedpyright, which brings its own Node.js.
"""

from __future__ import annotations

import ast
import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import not_quick

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PAGES = ["README.md", *(f"docs/{name}.md" for name in ("tutorial", "aio", "limits", "compat"))]
_PAGES += [f"docs/{name}.md" for name in ("watching", "processes", "operations", "schedules")]
_PAGES += [f"docs/{name}.md" for name in ("values", "worker")]

_OF_UNTYPED = {"celery_app.py", "huey_mails.py"}
"""Programs on libraries that have no types."""

WRONG = {
    "an option of open": 'import qindex\nqindex.open("data", durablity="fsync")\n',
    "a value of an option": 'import qindex\nqindex.open("data", durability="fsnyc")\n',
    "a setting": 'import qindex\nqindex.open("data").queue("q", max_lenght=5)\n',
    "a get that may give none": 'import qindex\nqindex.open("data").queue("q").get(1.0).ack()\n',
    "a text as body": 'import qindex\nqindex.open("data").queue("q").publish("text")\n',
}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for page in _PAGES:
        for number, block in enumerate(_BLOCK.findall((ROOT / page).read_text())):
            (folder / f"{Path(page).stem}_{number}.py").write_text(block)
    for package in ("qindex", "qindex/aio", "rocketstore"):
        text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
        script = doctest.script_from_examples(text)
        (folder / f"docstring_{package.replace('/', '_')}.py").write_text(script)
    for program in (ROOT / "examples").glob("*.py"):
        if program.name in _OF_UNTYPED:
            continue
        (folder / f"program_{program.name}").write_text(program.read_text())
    assert len(list(folder.iterdir())) > 20
    for number, text in enumerate(WRONG.values()):
        (folder / f"wrong_{number}.py").write_text(text)
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]})
    )
    return folder


def _refused(output: str, sign: str) -> dict[str, str]:
    """Give the files that have errors, each with its first."""
    found: dict[str, str] = {}
    for line in output.splitlines():
        if sign in line:
            found.setdefault(Path(re.split(r"[:]", line.strip())[0]).stem, line)
    return found


@not_quick("two type checkers")
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_examples_are_accepted_and_misspelled_options_refused(examples: Path, checker: str) -> None:
    files = sorted(str(one) for one in examples.glob("*.py"))
    cache = ROOT / ".mypy_cache"
    commands = {
        "mypy": [
            *("-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")),
            *("--scripts-are-modules", "--cache-dir", str(cache), "--no-error-summary", *files),
        ],
        "pyright": ["-m", "basedpyright", "--pythonpath", sys.executable, "-p", str(examples)],
    }
    done = subprocess.run(
        [sys.executable, *commands[checker]],
        cwd=examples,
        env={"MYPYPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(examples)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    refused = _refused(done.stdout, " error: ")
    wrong = {f"wrong_{number}" for number in range(len(WRONG))}
    assert wrong <= refused.keys(), done.stdout + done.stderr
    assert refused.keys() == wrong, "\n".join(refused.values())


@not_quick("pyright reads each package whole")
@pytest.mark.parametrize("package", ["qindex", "rocketstore", "msgstore"])
def test_the_type_of_each_public_name_is_known(tmp_path: Path, package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--verifytypes", package, "--ignoreexternal"]
        + ["--outputjson"],
        cwd=tmp_path,
        # It asks the first Python there for the places of packages.
        env={
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    found = json.loads(done.stdout)["typeCompleteness"]
    vague = [
        f"{one['name']}: {[seen['message'] for seen in one['diagnostics']]}"
        for one in found["symbols"]
        if one["isExported"]
        and (not one["isTypeKnown"] or one["isTypeAmbiguous"])
        # Their base classes are of libraries that have no types.
        and not re.match(r"qindex\.compat\.(django|huey|kombu)\b", one["name"])
    ]
    assert not vague, "\n".join(vague)
    assert found["exportedSymbolCounts"]["withKnownType"] > 200
