"""Things that ``migrate`` does not carry over, a row for each.

==================  ===============================================================================
``what``            ``value``
==================  ===============================================================================
*a setting*         of a queue (``message_ttl``, ``dead_letter``, ...), as JSON: RocketMQ has none
                    that means the same
damaged settings    why they can't be read
deliveries          how often this message was delivered, where its queue has a ``delivery_limit``
empty queue         seq_id of its next publish: a RocketMQ queue comes with its first message
consumer offset     ``GROUP: OFFSET``, the queue offset that a consumer group would ask for next: a
                    queue has no groups, so it holds what they have read, too
==================  ===============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from pyspark_qindex.jobs.fleet import FleetStore
from pyspark_qindex.jobs.tasks import Row, run_tasks, tasks_wanted
from pyspark_qindex.jobs.transfer import queues_kept
from pyspark_qindex.stores import Store
from qindex.view.arrow import Table
from rocketstore.layout import Paths
from rocketstore.queues.offsets import ConsumerOffsets

DAMAGED: Final = "damaged settings"

LEFT_BEHIND: Final[Table] = {
    "store": "string",
    "queue": "string",
    "seq_id": "bigint",
    "what": "string",
    "value": "string",
}
"""``queue``: of RocketMQ ``TOPIC/QUEUEID``. ``seq_id``: of the message that it is about, if any."""


def left_behind(spark: SparkSession, fleet: list[FleetStore]) -> DataFrame:
    """Look through the stores (all of one kind) for the things that are not carried over."""
    most = tasks_wanted(spark)
    groups = [found for found in (fleet[at::most] for at in range(most)) if found]
    rows = _of_topics if fleet[0].is_rocket else _of_queues
    return run_tasks(spark, groups, rows, LEFT_BEHIND)


def _of_queues(one: FleetStore) -> Iterator[Row]:
    url = one.store.url
    for kept in queues_kept(one, permissive=True):
        if kept.error is not None:
            yield url, kept.name, None, DAMAGED, kept.error
        for name, value in (kept.settings or {}).items():
            if value is not None:
                yield url, kept.name, None, name, json.dumps(value)
        for seq_id, count in sorted(kept.deliveries.items()):
            yield url, kept.name, seq_id, "deliveries", str(count)
        if not kept.messages:
            yield url, kept.name, None, "empty queue", str(kept.next_seq_id)


def _of_topics(one: FleetStore) -> Iterator[Row]:
    for queue, consumer_group, offset in committed_offsets(one.store):
        yield one.store.url, queue, None, "consumer offset", f"{consumer_group}: {offset}"


def committed_offsets(store: Store) -> Iterator[tuple[str, str, int]]:
    """Yield queue (``TOPIC/QUEUEID``), consumer group, and the queue offset it asks for next."""
    fs = store.file_system()
    offsets = ConsumerOffsets(fs, Paths(store.path).consumer_offset, writable=False)
    for name, table in offsets.table.items():
        topic, _, consumer_group = name.partition("@")
        for queue_id, at in table.items():
            yield f"{topic}/{queue_id}", consumer_group, at
