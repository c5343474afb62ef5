"""Commands, options and links that the documentation shows are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from qindex.cli.app import COMMAND_GROUPS, EXAMPLES, make_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CALL = re.compile(r"^(?:\$ .*?)?qindex (?!-)(.*?)(?: +#.*)?$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def _calls(page: Path) -> list[str]:
    return [call for block in _BLOCK.findall(page.read_text()) for call in _CALL.findall(block)]


def _unknown(call: str) -> list[str]:
    """Give the words of a call that name no command, or none of its options."""
    words = shlex.split(re.split(r"[|;<]", call)[0])
    command: Any = get_command(make_app(asked=words[0]))
    while hasattr(command, "commands"):
        own = sum(parameter.param_type_name == "argument" for parameter in command.params)
        words = words[own:]  # a group's own arguments, as the directory of `schedule`
        if not words or words[0] not in command.commands:
            return words[:1]
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    return [word for word in words if word.startswith("--") and word not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_and_options_are_there(page: Path) -> None:
    assert [call for call in _calls(page) if _unknown(call)] == []


def test_a_command_that_is_not_there_is_told() -> None:
    assert _unknown("lists data") == ["lists"]
    assert _unknown("cat data orders --jsn | head") == ["--jsn"]
    assert _unknown("rocket list store --json") == []
    assert _unknown("schedule data lists") == ["lists"]
    assert _unknown("schedule data list --json") == []


def test_each_command_of_the_help_has_a_group_and_an_example_that_is_there() -> None:
    grouped = [name for names in COMMAND_GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(EXAMPLES)
    assert sorted(grouped) == sorted(get_command(make_app()).commands)  # type: ignore[attr-defined]
    for name, example in EXAMPLES.items():
        assert example.startswith(f"qindex {name}")
        assert _unknown(example.removeprefix("qindex ")) == []


def test_commands_are_shown() -> None:
    shown = {call.split()[0] for page in PAGES for call in _calls(page)}
    assert {"list", "cat", "publish", "consume", "verify", "repair", "salvage", "export"} <= shown


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_lead_to_files(page: Path) -> None:
    links = _LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
