"""What the core finds due it notes, and whoever made the call does it."""

from __future__ import annotations

from pathlib import Path

from tests.qindex.support import open_quietly


def test_a_publish_of_the_core_notes_the_flush_and_the_face_does_it(tmp_path: Path) -> None:
    with open_quietly(tmp_path, max_journal_entries=8) as engine:
        queue = engine.queue("q")
        for _ in range(100):
            queue._producer.publish(b"x")
        assert queue.stats().flushes == 0
        assert queue._state.owed == [queue._parts.flusher]
        queue.publish(b"x")
        assert queue.stats().flushes == 1
        assert not queue._state.owed


def test_the_flush_of_a_dead_letter_queue_is_owed_by_who_rejects(tmp_path: Path) -> None:
    with open_quietly(tmp_path, max_journal_entries=8) as engine:
        queue, dead = engine.queue("q", dead_letter="dead"), engine.queue("dead")
        queue.publish_many([b"x"] * 20)
        batch = list(queue.get_many(20))
        for delivery in batch[:12]:
            queue._settler.reject(delivery)
        assert dead._parts.flusher in queue._state.owed
        assert not dead._state.owed
        assert dead.stats().flushes == 0
        batch[12].reject()
        assert dead.stats().flushes == 1
        assert not queue._state.owed


def test_a_call_in_the_middle_of_another_one_pays_nothing(tmp_path: Path) -> None:
    with open_quietly(tmp_path, max_journal_entries=8) as engine:
        queue = engine.queue("q")
        with queue._state.calls.here():  # as a signal's handler in the middle of a call
            for _ in range(20):
                queue.publish(b"x")
            assert queue.stats().flushes == 0
        queue.publish(b"x")
        assert queue.stats().flushes == 1
