"""Kill -9 of a driver that ingests stores and follows a queue into another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.effort import by_tier

pytest.importorskip("pyspark")

import qindex
from qindex.format.layout import STAGING
from qindex.view.reader import StoreReader
from tests.spark.lakes import Beside, ingest_and_kill

if TYPE_CHECKING:
    from tests.spark.cluster import Driver

KILLS = by_tier(quick=1, all=2, nightly=50)
"""How often the driver is killed: each takes a JVM's start."""


class Following(Beside):
    """A query from a queue into another one. Messages are published before each kill, and some are
    consumed from the sink after the first."""

    def __init__(self, root: Path) -> None:
        self.sink, self._source, self._checkpoint = root / "sink", root / "source", root / "state"
        self._lake = root / "lake"
        self.published = self._before = 0
        self.rows: list[list[tuple[str, int]]] = []
        self.taken: list[int] = []

    def begin(self, driver: Driver) -> None:
        """Follow until the driver is killed."""
        with qindex.open(self._source, background=False, segment_entry_count=256) as engine:
            some = range(self.published, self.published + 200)
            engine.queue("q").publish_many([b"%d" % number for number in some])
        self.published += 200
        self._before = self._batches()
        driver.say("follow", self._source, self.sink, self._checkpoint)

    def has_moved(self) -> bool:
        """Return whether a batch has ended since :meth:`begin`."""
        return self._batches() > self._before

    def killed(self) -> None:
        """Take some messages, once."""
        if self.sink.exists() and not self.taken:
            with qindex.open(self.sink) as engine:
                some = engine.queue("sink").get_many(100)
                self.taken = [int(one.body) for one in some]
                engine.queue("sink").ack_many(some)

    def finish(self, driver: Driver) -> None:
        """Go on until nothing is left."""
        driver.say("finish", self._source, self.sink, self._checkpoint)
        driver.expect("done")
        driver.say("rows", self._lake, "messages", "messages_bad")
        self.rows = [[*map(tuple, rows)] for rows in json.loads(driver.answer())]

    def _batches(self) -> int:
        return sum(path.name.isdigit() for path in (self._checkpoint / "commits").glob("*"))


@pytest.mark.timeout(3600)  # by night fifty drivers, one after the other
@pytest.mark.usefixtures("java_home")
def test_kill_9_of_the_driver_at_any_moment(tmp_path: Path) -> None:
    """Each message is in its table once, as Spark reads it, and in the sink once, in order."""
    following = Following(tmp_path)
    expected = ingest_and_kill(tmp_path, "parquet", KILLS, following)
    assert following.rows == [expected["messages"], expected["messages_bad"]]
    found = [int(row.body or b"") for row in StoreReader(following.sink).queue("sink").entries()]
    assert following.taken + found == list(range(following.published))
    (query,) = (path for path in (following.sink / STAGING).iterdir() if path.is_dir())
    assert [path for path in query.rglob("*") if path.is_file()] == []
