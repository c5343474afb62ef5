"""Workloads of one engine: its calls beside each other, and beside its close."""

from __future__ import annotations

from qindex.engine.opening import open_store
from qindex.following.start import follow_store
from tests.schedules.registry import workload
from tests.schedules.scheduler import Run
from tests.schedules.world import LARGE, SMALL, World

# -- publish, get and settle beside close ---------------------------------------------------------


@workload()
def publish_stored_close(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    w.race(publisher=lambda: w.publish(LARGE), closer=w.close)
    w.end()


@workload()
def publish_first_stored_close(run: Run) -> None:
    w = World(run)
    w.race(publisher=lambda: w.publish(LARGE), closer=w.close)
    w.end()


@workload(stores=True)
def publish_small_close(run: Run) -> None:
    w = World(run)
    w.publish()
    w.race(publisher=w.publish, closer=w.close)
    w.end()


@workload()
def publish_transient_close(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    kept = set(w.there)
    w.race(publisher=lambda: w.publish(LARGE, persistent=False), closer=w.close)
    w.maybe |= w.there - kept
    w.there &= kept
    w.end()


@workload()
def publish_many_close(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    w.race(publisher=lambda: w.publish_many(LARGE, LARGE), closer=w.close)
    w.end()


@workload()
def publish_to_close(run: Run) -> None:
    w = World(run)
    w.engine.queue("b")
    w.publish(LARGE)
    body = w.body(LARGE)
    w.twice_is_right = True

    def publish() -> None:
        w.publishing([body], lambda: w.engine.publish_to(["a", "b"], body))

    w.race(publisher=publish, closer=w.close)
    w.end()


@workload()
def publish_fsync_close(run: Run) -> None:
    w = World(run, durability="fsync")
    w.publish()
    w.race(publisher=w.publish, closer=w.close)
    w.end()


def _ack_close(run: Run, size: int) -> None:
    w = World(run)
    w.publish(size)
    w.publish(size)
    one = w.got(1)
    w.race(acker=lambda: w.ack(*one), closer=w.close)
    w.end()


@workload(stores=True)
def ack_small_close(run: Run) -> None:
    _ack_close(run, SMALL)


@workload()
def ack_stored_close(run: Run) -> None:
    _ack_close(run, LARGE)


@workload()
def ack_many_close(run: Run) -> None:
    w = World(run)
    for _ in range(3):
        w.publish(LARGE)
    some = w.got(2)
    w.race(acker=lambda: w.ack(*some), closer=w.close)
    w.end()


@workload()
def get_ack_close(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    w.publish(SMALL)
    w.race(consumer=lambda: w.take_one(0), closer=w.close)
    w.end()


def _nack_close(run: Run, size: int) -> None:
    w = World(run)
    w.publish(size)
    w.publish(size)
    one = w.got(1)[0]
    w.race(consumer=one.nack, closer=w.close)
    w.end()


@workload()
def nack_small_close(run: Run) -> None:
    _nack_close(run, SMALL)


@workload()
def nack_stored_close(run: Run) -> None:
    _nack_close(run, LARGE)


@workload()
def dead_letter_close(run: Run) -> None:
    w = World(run, {"dead_letter": "dead", "delivery_limit": 1})
    w.publish(LARGE)
    one = w.got(1)[0]
    w.race(consumer=lambda: one.reject(), closer=w.close)
    w.end()


@workload()
def drop_head_close(run: Run) -> None:
    w = World(run, {"max_length": 1, "overflow": "drop-head", "dead_letter": "dead"})
    w.publish(LARGE)
    w.race(publisher=lambda: w.publish(LARGE), closer=w.close)
    w.end()


@workload()
def purge_close(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    w.maybe, w.there = set(w.there), set()
    w.race(purger=w.queue.purge, closer=w.close)
    w.end()


@workload()
def compact_close(run: Run) -> None:
    w = _with_garbage(run)
    w.race(compacter=w.engine.compact, closer=w.close)
    w.end()


@workload()
def sync_flush_close(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    w.race(flusher=w.engine.flush, closer=w.close)
    w.end()


@workload()
def background_ack_close(run: Run) -> None:
    w = World(run, background=True, store_file_bytes=12_000)
    for _ in range(4):
        w.publish(LARGE)
    some = w.got(4)
    w.ack(some[0])
    w.race(acker=lambda: w.ack(some[1]), closer=w.close)
    w.end()


@workload()
def queue_close(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    w.race(publisher=lambda: w.publish(queue=w.engine.queue("b")), closer=w.close)
    w.end()


@workload()
def delete_close(run: Run) -> None:
    w = World(run)
    other = w.engine.queue("b")
    other.publish(b"deleted".ljust(LARGE))
    w.publish(LARGE)
    w.maybe.add(b"delete")
    w.race(deleter=lambda: w.engine.delete_queue("b"), closer=w.close)
    w.end()


@workload(delays=3)
def close_close(run: Run) -> None:
    w = World(run)
    w.publish()
    w.race(one=w.close, other=w.close)
    w.end()


@workload()
def close_close_background(run: Run) -> None:
    w = World(run, background=True)
    w.publish(LARGE)
    w.race(one=w.close, other=w.close)
    w.end()


@workload(delays=3, nightly=True)
def close_close_background_three(run: Run) -> None:
    close_close_background(run)


# -- who waits ------------------------------------------------------------------------------------


@workload()
def get_waits_publish(run: Run) -> None:
    w = World(run)

    def publish() -> None:
        w.publish()
        w.publish(LARGE)

    w.race(one=w.take_one, other=w.take_one, publisher=publish)
    w.end()


@workload()
def get_waits_close(run: Run) -> None:
    w = World(run)
    w.race(consumer=w.take_one, closer=w.close)
    w.end()


@workload()
def two_gets_wait_close(run: Run) -> None:
    w = World(run)
    w.race(one=w.take_one, other=w.take_one, closer=w.close)
    w.end()


@workload()
def get_many_waits_close(run: Run) -> None:
    w = World(run)
    w.race(consumer=lambda: w.queue.get_many(2, None), closer=w.close)
    w.end()


@workload()
def prefetch_waits_close(run: Run) -> None:
    w = World(run)
    w.publish()
    w.publish()

    def consume() -> None:
        for _ in w.queue.consume(prefetch=1):
            pass

    w.race(consumer=consume, closer=w.close)
    w.end()


@workload()
def room_waits_ack(run: Run) -> None:
    w = World(run, {"max_length": 1, "overflow": "block"})
    w.publish()
    one = w.got(1)
    w.publish()

    def acknowledge() -> None:
        w.ack(*one)
        w.take_one()

    w.race(publisher=w.publish, acker=acknowledge)
    w.end()


@workload()
def room_waits_close(run: Run) -> None:
    w = World(run, {"max_length": 1, "overflow": "block"})
    w.publish()
    w.race(publisher=w.publish, closer=w.close)
    w.end()


@workload()
def get_waits_delete(run: Run) -> None:
    w = World(run)
    w.race(consumer=w.take_one, deleter=lambda: w.engine.delete_queue("a"))
    w.end()


# -- calls beside flush, sync, compaction, deletion -----------------------------------------------


@workload(stores=True)
def get_ack_flush(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    w.publish(SMALL)

    def consume() -> None:
        w.take_one(0)
        w.take_one(0)

    w.race(consumer=consume, flusher=w.engine.flush)
    w.end()


@workload()
def publish_fsync_sync(run: Run) -> None:
    w = World(run, durability="fsync")
    w.publish()
    w.make_safe()
    w.race(syncer=w.engine.sync, publisher=lambda: w.publish(LARGE))
    w.lose_power()
    w.end()


@workload(nightly=True)
def publish_fsync_two_sync(run: Run) -> None:
    w = World(run, durability="fsync")
    w.publish()
    w.make_safe()
    w.race(one=w.publish, other=lambda: w.publish(LARGE), syncer=w.engine.sync)
    w.lose_power()
    w.end()


@workload(stores=True)
def publish_fsync_flush(run: Run) -> None:
    w = World(run, durability="fsync")
    w.publish()
    w.make_safe()
    w.race(flusher=w.queue.flush, one=w.publish)
    w.lose_power()
    w.end()


@workload(nightly=True)
def publish_fsync_two_flush(run: Run) -> None:
    w = World(run, durability="fsync")
    w.publish()
    w.make_safe()
    w.race(flusher=w.queue.flush, one=w.publish, other=w.publish)
    w.lose_power()
    w.end()


@workload()
def ack_fsync_flush(run: Run) -> None:
    w = World(run, durability="fsync")
    w.publish()
    w.publish()
    one = w.got(1)
    w.make_safe()
    w.race(flusher=w.queue.flush, acker=lambda: w.ack(*one))
    w.lose_power()
    w.end()


@workload()
def publish_stored_flush(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    w.race(one=lambda: w.publish(LARGE), other=w.publish, flusher=w.engine.flush)
    w.end()


@workload()
def publish_while_journals_empty(run: Run) -> None:
    """Every publish flushes: max_journal_entries is 1."""
    w = World(run, max_journal_entries=1)
    w.race(one=lambda: w.publish_many(SMALL, SMALL), other=lambda: w.publish_many(SMALL, SMALL))
    w.end()


@workload()
def publish_ack_stored(run: Run) -> None:
    w = World(run)
    w.publish(LARGE)
    one = w.got(1)
    w.race(publisher=lambda: w.publish(LARGE), acker=lambda: w.ack(*one))
    w.end()


@workload()
def stats_delete_publish(run: Run) -> None:
    w = World(run)
    w.publish(LARGE, queue=w.engine.queue("b"))
    w.maybe, w.there = set(w.there), set()
    w.race(looker=w.engine.stats, deleter=lambda: w.engine.delete_queue("b"), publisher=w.publish)
    w.end()


def _with_garbage(run: Run) -> World:
    w = World(run, store_file_bytes=12_000)
    for _ in range(4):
        w.publish(LARGE)
    some = w.got(4)
    w.ack(some[0])
    w.ack(some[1])
    w.more = some[2:]  # type: ignore[attr-defined]
    return w


@workload()
def compact_publish_ack(run: Run) -> None:
    w = _with_garbage(run)
    acked = w.more[0]  # type: ignore[attr-defined]
    w.race(
        compacter=w.engine.compact, publisher=lambda: w.publish(LARGE), acker=lambda: w.ack(acked)
    )
    w.end()


@workload()
def compact_get(run: Run) -> None:
    w = World(run, store_file_bytes=12_000)
    for _ in range(4):
        w.publish(LARGE)
    some = w.got(2)
    w.ack(*some)
    w.race(compacter=w.engine.compact, consumer=lambda: w.take_one(0))
    w.end()


@workload()
def publish_delete(run: Run) -> None:
    w = World(run)
    other = w.engine.queue("b")
    w.publish(LARGE)
    other.publish(b"x" * LARGE)
    w.maybe.add(b"late..")

    def publish() -> None:
        other.publish(b"late..".ljust(LARGE))

    w.race(publisher=publish, deleter=lambda: w.engine.delete_queue("b"))
    w.end()


# -- leases, limits, moves, timers ----------------------------------------------------------------


@workload()
def lease_ends_ack(run: Run) -> None:
    w = World(run)
    w.publish()
    w.publish()
    one = w.queue.get(0, lease=0.01)
    assert one is not None
    w.maybe |= w.there
    w.there = set()

    def settle() -> None:
        one.ack()

    w.race(acker=settle, consumer=lambda: w.get(0.02))
    w.end()


@workload()
def lease_ends_close(run: Run) -> None:
    w = World(run)
    w.publish()
    w.queue.get(0, lease=0.01)
    w.race(consumer=lambda: w.get(None), closer=w.close)
    w.end()


@workload()
def reject_reject(run: Run) -> None:
    w = World(run, {"dead_letter": "dead"}, durability="fsync")
    w.publish()
    w.publish(LARGE)
    one, other = w.got(2)
    w.make_safe()
    w.race(one=lambda: one.reject(), other=lambda: other.reject())
    w.lose_power()
    w.end()


@workload()
def reject_flush(run: Run) -> None:
    w = World(run, {"dead_letter": "dead"})
    w.publish()
    w.publish()
    one, _ = w.got(2)
    w.race(consumer=lambda: one.reject(), flusher=w.queue.flush)
    w.end()


@workload()
def reject_delete(run: Run) -> None:
    """The dead-letter queue is deleted: with the letter, or it is made again."""
    w = World(run, {"dead_letter": "dead"})
    w.engine.queue("dead")
    w.publish()
    one = w.got(1)[0]
    w.maybe, w.there = set(w.there), set()
    w.race(consumer=lambda: one.reject(), deleter=lambda: w.engine.delete_queue("dead"))
    w.end()


@workload()
def expire_into_full_queue(run: Run) -> None:
    w = World(run, {"dead_letter": "dead"})
    dead = w.engine.queue("dead", max_length=1)
    w.publish(queue=dead)
    w.publish(ttl=0.0)
    one = dead.get(0)
    assert one is not None

    def make_room() -> None:
        w.ack(one)

    w.race(consumer=lambda: w.get(0.01), acker=make_room)
    w.end()


@workload()
def dead_letters_in_order(run: Run) -> None:
    """Two threads move the letters of one queue."""
    w = World(run, {"dead_letter": "dead"})
    dead = w.engine.queue("dead")
    w.publish(ttl=0.0)

    def another() -> None:
        w.publish(ttl=0.0)
        w.get(0.0)

    w.race(one=lambda: w.get(0.0), other=another)
    moved = [int(one.body[:6]) for one in dead.peek(9)]
    if moved != sorted(moved):
        w.wrong = f"moved in another order: {moved}"
    w.end()


# -- transactions ---------------------------------------------------------------------------------


@workload()
def transact_transact(run: Run) -> None:
    """Two threads need the same queues, in the other order."""
    w = World(run)
    w.engine.queue("b")
    w.publish()
    w.publish()
    one, other = w.got(2)
    w.race(
        one=lambda: w.transact("ab", one),
        other=lambda: w.transact("ba", other),
    )
    w.end()


@workload()
def transact_close(run: Run) -> None:
    w = World(run)
    w.engine.queue("b")
    w.publish()
    (one,) = w.got(1)
    w.race(worker=lambda: w.transact("ab", one), closer=w.close)
    w.end()


@workload()
def transact_flush_fsync(run: Run) -> None:
    w = World(run, durability="fsync")
    w.engine.queue("b")
    w.publish()
    (one,) = w.got(1)
    w.make_safe()
    w.race(worker=lambda: w.transact("b", one), flusher=w.queue.flush)
    w.lose_power()
    w.end()


@workload()
def transact_isolated(run: Run) -> None:
    """Who has a message of a transaction finds the other one."""
    w = World(run)
    other = w.engine.queue("b")

    def look() -> None:
        if other.get(timeout=0) is not None and not len(w.queue):
            w.wrong = "a part of a transaction is seen"

    w.race(worker=lambda: w.transact("ab"), reader=look)
    w.end()


@workload()
def transact_wakes(run: Run) -> None:
    w = World(run)

    def consume() -> None:
        if w.get(None) is None:
            w.wrong = "nothing came"

    w.race(worker=lambda: w.transact("a"), consumer=consume)
    w.end()


# -- priorities, and the first of several queues --------------------------------------------------


def _with_levels(run: Run, *priorities: int) -> World:
    """Make a priority queue that has these levels."""
    w = World(run, {"max_priority": 3})
    for priority in priorities:
        w.publish(priority=priority)
    w.ack(*w.got(len(priorities)))
    return w


@workload()
def priority_gets_wait_publish(run: Run) -> None:
    w = _with_levels(run, 0, 3)
    w.race(
        one=w.take_one,
        other=w.take_one,
        low=w.publish,
        high=lambda: w.publish(priority=3),
    )
    w.end()


@workload()
def priority_get_waits_close(run: Run) -> None:
    w = _with_levels(run, 3)
    w.race(consumer=w.take_one, closer=w.close)
    w.end()


@workload()
def priority_level_is_made_twice(run: Run) -> None:
    w = World(run, {"max_priority": 3})
    w.race(
        one=lambda: w.publish(priority=2),
        other=lambda: w.publish(LARGE, priority=2),
        consumer=w.take_one,
    )
    w.end()


@workload()
def priority_level_is_made_close(run: Run) -> None:
    w = World(run, {"max_priority": 3})
    w.publish()
    w.race(publisher=lambda: w.publish(priority=2), closer=w.close)
    w.end()


@workload()
def priority_ack_many_flush(run: Run) -> None:
    w = World(run, {"max_priority": 3})
    for priority in (0, 3, 3):
        w.publish(priority=priority)
    some = w.got(3)
    w.race(acker=lambda: w.ack(*some), flusher=w.queue.flush)
    w.end()


@workload()
def priority_transact_publish(run: Run) -> None:
    """A transaction over two levels, which share a lock."""
    w = _with_levels(run, 0, 3)
    w.publish(priority=3)
    w.publish()
    some = w.got(2)
    w.race(worker=lambda: w.transact("a", *some), publisher=lambda: w.publish(priority=3))
    w.end()


@workload()
def first_of_two_queues_waits_publish(run: Run) -> None:
    """Each of two messages wakes one of those who wait for both queues."""
    w = World(run)
    other = w.engine.queue("b")

    def take() -> None:
        delivery = w.engine.get([w.queue, other])
        w.ack(delivery)

    w.race(one=take, two=take, publisher=w.publish, another=lambda: w.publish(queue=other))
    w.end()


@workload()
def first_of_two_queues_shares(run: Run) -> None:
    """A ring that is not used wakes who waits for that queue alone."""
    w = World(run)
    other = w.engine.queue("b")

    def take_any() -> None:
        w.ack(w.engine.get([w.queue, other]))

    def take_other() -> None:
        w.ack(other.get())

    def publish() -> None:
        w.publish(queue=other)
        w.publish()
        w.publish(queue=other)

    w.race(any=take_any, other=take_other, publisher=publish)
    w.twice_is_right = True
    w.end()


@workload()
def first_of_two_queues_close(run: Run) -> None:
    w = World(run)
    other = w.engine.queue("b")
    w.race(consumer=lambda: w.engine.get([w.queue, other]), closer=w.close)
    w.end()


# -- a reader beside the writer -------------------------------------------------------------------


@workload(stores=True)
def look_publish_flush(run: Run) -> None:
    """A read-only engine sees what was there, whatever the writer does."""
    w = World(run)
    w.publish()
    w.publish()
    before = sorted(w.there)

    def look() -> None:
        with open_store("/q", fs=w.fs, read_only=True) as reader:  # type: ignore[call-overload]
            seen = [one.body[:6] for one in reader.queue("a")]
        if [one for one in seen if one in before] != before:
            w.wrong = f"a reader saw {seen}, not {before}"

    def write() -> None:
        w.publish()
        w.queue.flush()

    w.race(looker=look, writer=write)
    w.end()


@workload(stores=True)
def follow_publish_flush(run: Run) -> None:
    """A follower gives every message once, in order."""
    w = World(run)
    w.publish()
    seen: list[bytes] = []

    def follow() -> None:
        follower = follow_store(
            "/q",
            "a",
            timeout=1.0,
            events=False,
            fs=w.fs,  # type: ignore[arg-type]
        )
        for one in follower:
            seen.append(one.body[:6])
            if len(seen) == 3:
                break
        follower.close()

    def write() -> None:
        w.publish()
        w.queue.flush()
        w.publish()

    w.race(follower=follow, writer=write)
    if w.wrong is None and seen != sorted(w.there):
        w.wrong = f"a follower saw {seen}, not {sorted(w.there)}"
    w.end()
