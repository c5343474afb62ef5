"""The two stores that the tests of the tools damage copies of, made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.faults import State
from tests.tools.stores import Content, content_of, killed_store, make_store


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[State, Path]:
    base = tmp_path_factory.mktemp("originals")
    return {"clean": make_store(base / "clean"), "killed": killed_store(base / "killed")}


@pytest.fixture(scope="session")
def contents(originals: dict[State, Path]) -> dict[State, Content]:
    return {state: content_of(path) for state, path in originals.items()}


@pytest.fixture
def copy_of(originals: dict[State, Path], tmp_path: Path) -> Callable[[State], Path]:
    def copy(state: State) -> Path:
        return Path(shutil.copytree(originals[state], tmp_path / state))

    return copy
