"""The store against a plain model: puts, batches, reads, deletion, clean reopen and crash."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rocketstore import GetStatus, Store
from tests.effort import examples
from tests.rocketstore.support import Clock, open_tiny

TOPICS = st.sampled_from(["A", "Longer-topic", "%RETRY%g"])
KEYS = st.sampled_from(["", "k", "k1 k2", "Aa", "BB", "AaBB", "BBAa", "标签 😀", "k k"])
TAGS = st.sampled_from([None, "t1", "t2", "标签"])
BODIES = st.binary(max_size=300)


class StoreMachine(RuleBasedStateMachine):
    """``rows`` are what was put: (topic, queue, body, keys, unique key, tags, offset, time)."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="rocketmodel-"))
        self.rows: list[dict[str, Any]] = []
        self.clock = Clock(step=137)
        self.store: Store | None = None

    @initialize()
    def open(self) -> None:
        self.store = open_tiny(self.root / "s", clock=self.clock)

    @property
    def opened(self) -> Store:
        assert self.store is not None
        return self.store

    def note(self, topic: str, queue_id: int, put: Any, body: bytes, **more: Any) -> None:
        row = {"topic": topic, "queue": queue_id, "body": body, "offset": put.offset, **more}
        assert put.queue_offset == sum(
            (one["topic"], one["queue"]) == (topic, queue_id) for one in self.rows
        )
        self.rows.append({**row, "ordinal": put.queue_offset, "time": put.store_timestamp})

    @rule(topic=TOPICS, queue_id=st.integers(0, 1), body=BODIES, keys=KEYS, tags=TAGS)
    def put(self, topic: str, queue_id: int, body: bytes, keys: str, tags: str | None) -> None:
        unique = f"U{len(self.rows)}" if len(self.rows) % 3 else None
        put = self.opened.put(
            topic, body, queue_id=queue_id, keys=keys or None, tags=tags, unique_key=unique
        )
        self.note(topic, queue_id, put, body, keys=keys, tags=tags, unique=unique)

    @rule(
        topic=TOPICS,
        bodies=st.lists(BODIES, max_size=30),
        keys=KEYS.filter(bool) | st.none(),
        distinct=st.booleans(),
    )
    def put_many(self, topic: str, bodies: list[bytes], keys: str | None, distinct: bool) -> None:
        unique = [f"M{len(self.rows) + at}" for at in range(len(bodies))] if distinct else None
        puts = self.opened.put_many(topic, bodies, keys=keys, unique_keys=unique)
        for number, (put, body) in enumerate(zip(puts, bodies, strict=True)):
            one = unique[number] if unique else None
            self.note(topic, 0, put, body, keys=keys or "", tags=None, unique=one)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if clean:
            self.opened.close()
        else:
            # A copy of the files as they are is what the death of the process leaves.
            shutil.copytree(self.root / "s", self.root / "copy")
            self.opened.close()
            shutil.rmtree(self.root / "s")
            (self.root / "copy").rename(self.root / "s")
        self.store = open_tiny(self.root / "s", clock=self.clock)

    @rule(index=st.booleans())
    def lose_derived_files(self, index: bool) -> None:
        self.opened.close()
        shutil.rmtree(self.root / "s" / ("index" if index else "consumequeue"))
        self.store = open_tiny(self.root / "s", clock=self.clock)

    @rule(topic=TOPICS, key=KEYS.flatmap(lambda keys: st.sampled_from(keys.split(" ") or [""])))
    def query(self, topic: str, key: str) -> None:
        if not key:
            return
        expected = [
            row["offset"]
            for row in self.rows
            if row["topic"] == topic and (key in row["keys"].split(" ") or row["unique"] == key)
        ]
        found = self.opened.query(topic, key, 1000)
        assert [message.offset for message in found] == expected

    @rule(topic=TOPICS, key=st.sampled_from(["k", "Aa"]), data=st.data())
    def query_by_time(self, topic: str, key: str, data: st.DataObject) -> None:
        if not self.rows:
            return
        times = st.sampled_from([row["time"] for row in self.rows])
        begin, end = sorted((data.draw(times), data.draw(times)))
        expected = [
            row["offset"]
            for row in self.rows
            if row["topic"] == topic
            and key in row["keys"].split(" ")
            and begin <= row["time"] <= end
        ]
        found = self.opened.query(topic, key, 1000, begin, end)
        assert [message.offset for message in found] == expected

    @rule(topic=TOPICS, queue_id=st.integers(0, 1), start=st.integers(-1, 20))
    def get(self, topic: str, queue_id: int, start: int) -> None:
        rows = self.queue_rows(topic, queue_id)
        result = self.opened.get(topic, queue_id, start, 32)
        if not rows:
            assert result.status is GetStatus.NO_MESSAGE_IN_QUEUE
        elif 0 <= start < len(rows):
            assert result.status is GetStatus.FOUND
            got = [message.body for message in result.messages]
            assert got == [row["body"] for row in rows[start : start + len(got)]]
            assert result.next_offset == start + len(got)
        else:
            assert result.messages == []

    @rule(topic=TOPICS, tag=st.sampled_from(["t1", "t2", "标签", "t1 || 标签"]))
    def get_by_tag(self, topic: str, tag: str) -> None:
        wanted = [part.strip() for part in tag.split("||")]
        expected = [row["offset"] for row in self.queue_rows(topic, 0) if row["tags"] in wanted]
        got: list[int] = []
        at = 0
        while True:
            result = self.opened.get(topic, 0, at, 32, tag)
            got += [message.offset for message in result.messages]
            if result.next_offset <= at:
                break
            at = result.next_offset
        assert got == expected

    @rule(topic=TOPICS, data=st.data())
    def by_time(self, topic: str, data: st.DataObject) -> None:
        rows = self.queue_rows(topic, 0)
        if not rows:
            return
        moment = data.draw(st.sampled_from([row["time"] for row in rows]))
        moment += data.draw(st.integers(-1, 1))
        expected = next((row["ordinal"] for row in rows if row["time"] >= moment), len(rows))
        assert self.opened.offset_by_time(topic, 0, moment) == expected

    def queue_rows(self, topic: str, queue_id: int) -> list[dict[str, Any]]:
        return [row for row in self.rows if (row["topic"], row["queue"]) == (topic, queue_id)]

    @invariant()
    def last_message_is_there(self) -> None:
        if self.store is None or not self.rows:
            return
        row = self.rows[-1]
        message = self.opened.at(row["topic"], row["queue"], row["ordinal"])
        assert message is not None
        assert (message.offset, message.body) == (row["offset"], row["body"])

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
        shutil.rmtree(self.root)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
