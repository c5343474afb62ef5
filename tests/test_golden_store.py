"""Stores that released versions wrote open for ever, with all that they held."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.view.reader import StoreReader

DATA = Path(__file__).parent / "data"
STORES = sorted(path.name for path in DATA.glob("store-[0-9]*.tar.xz"))


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("archive", STORES)
def test_a_store_of_an_earlier_version_opens(tmp_path: Path, archive: str, how: str) -> None:
    with tarfile.open(DATA / archive) as packed:
        packed.extractall(tmp_path, filter="data")
    truth: dict[str, list[Any]] = json.loads((tmp_path / "truth.json").read_text())[how]
    store = tmp_path / how
    if how == "clean":
        assert qindex.verify(store).sound
    read = {
        view.name: [row.body.hex() for row in view.entries() if row.body is not None]
        for view in StoreReader(store).readers()
    }
    assert read == {name: [row[3] for row in rows] for name, rows in truth.items()}
    with qindex.open(store) as engine:
        assert engine.queue_names() == sorted(truth)
        for name, rows in truth.items():
            found = [
                [
                    *(one.seq_id, one.redelivered, one.key, one.body.hex()),
                    dict(one.headers) if name != "dead" else None,
                ]
                for one in engine.queue(name).peek(10_000)
            ]
            assert found == rows
        assert engine.queue("orders").settings.dead_letter == "dead"
    assert qindex.verify(store).sound
