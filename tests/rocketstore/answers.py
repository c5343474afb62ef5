"""Ask a store every question of a golden directory's ``expected/``, and list the wrong answers.

No field of a row is passed over: a row with one that is not compared here is an error.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rocketstore import Store
from rocketstore.format.commitlog_format import START
from rocketstore.format.consumequeue_format import UNIT_SIZE
from rocketstore.format.javahash import index_hash
from tests.rocketstore.support import read_lines

QUESTIONS = ("messages", "queues", "queries", "gets", "times")

_QUEUE = {"topic", "queueId"}
_TIMES = [
    _QUEUE | {"timestamp", "offset"},
    _QUEUE | {"earliest"},
    _QUEUE | {"consumeOffset", "storeTimestamp", "commitLogOffset"},
]
_FIELDS: dict[str, list[set[str]]] = {
    "messages": [
        {"phyOffset", "blank", "magic"},
        _QUEUE
        | {"phyOffset", "size", "queueOffset", "flag", "sysFlag", "bornTimestamp"}
        | {"storeTimestamp", "bornHost", "storeHost", "reconsumeTimes"}
        | {"preparedTransactionOffset", "bodyCRC", "bodyLen", "bodySha256", "tags", "keys"}
        | {"uniqKey", "properties", "propertiesHex", "propertiesLen", "msgId", "recordSha256"},
    ],
    "queues": [
        _QUEUE
        | {"minOffset", "maxOffset", "maxPhysicOffset", "minLogicOffset", "lastOffset", "units"}
    ],
    "queries": [
        {"topic", "key", "maxNum", "begin", "end", "offsets", "indexOffsets"}
        | {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset", "bufferTotalSize"}
    ],
    "gets": [
        _QUEUE
        | {"offset", "maxMsgNums", "filter", "status", "nextBeginOffset", "minOffset", "maxOffset"}
        | {"bufferTotalSize", "phyOffsets"}
    ],
    "times": _TIMES,
}


def wrong_answers(store: Store, golden: Path, name: str) -> list[tuple[dict[str, Any], Any]]:
    """Rows of one file of questions that the store answers otherwise, with its answer."""
    ask = {
        "messages": _message,
        "queues": _queue,
        "queries": _query,
        "gets": _get,
        "times": _time,
    }[name]
    rows = read_lines(golden, name)
    assert rows
    wrong = []
    for row in rows:
        assert set(row) in _FIELDS[name], "a row has a field that is not compared"
        expected, got = ask(store, row)
        if got != expected:
            wrong.append((row, got))
    return wrong


def _message(store: Store, row: dict[str, Any]) -> tuple[Any, Any]:
    if "blank" in row:
        files = store._parts.commitlog.files
        file = files.find(row["phyOffset"])
        assert file is not None
        place = row["phyOffset"] - file.start
        blank = START.unpack(files.read(file, place, START.size))
        return (row["blank"], row["magic"]), (file.size - place, blank[1])
    message = store.lookup(row["phyOffset"])
    assert message is not None
    message.check()
    names = [
        *("size", "topic", "queueId", "queueOffset", "flag", "sysFlag", "bornTimestamp"),
        *("storeTimestamp", "reconsumeTimes", "preparedTransactionOffset", "bodyCRC"),
        *("msgId", "tags", "uniqKey", "keys", "bodyLen"),
    ]
    got = [
        message.size,
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        message.store_timestamp,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.body_crc,
        message.message_id,
        message.tags,
        message.unique_key,
        message.properties.get("KEYS"),
        len(message.body),
        message.fields[9].hex(),
        message.fields[11].hex(),
        message.properties or None,
        len(message.properties_bytes),
        # Long ones are given by their length alone.
        message.properties_bytes.hex() if row["propertiesHex"] else None,
        hashlib.sha256(message.body).hexdigest(),
        hashlib.sha256(message.raw).hexdigest(),
    ]
    expected = [
        *(row[name] for name in names),
        row["bornHost"],
        row["storeHost"],
        row["properties"] or None,
        row["propertiesLen"],
        row["propertiesHex"] or None,
        row["bodySha256"],
        row["recordSha256"],
    ]
    return expected, got


def _queue(store: Store, row: dict[str, Any]) -> tuple[Any, Any]:
    expected = [row["minOffset"], row["maxOffset"], row["minLogicOffset"], row["units"]]
    queue = store._parts.queues.get((row["topic"], row["queueId"]))
    if queue is None:
        return [*expected, row["lastOffset"]], [0, 0, 0, [], -1]
    units = queue.units(queue.min_offset, queue.max_offset)
    got = [
        queue.min_offset,
        queue.max_offset,
        queue.min_logic,
        [[int(value) for value in unit] for unit in units.tolist()],
    ]
    if queue.max_offset:
        expected.append(row["maxPhysicOffset"])
        got.append(queue.max_physical)
    last_offset = row["lastOffset"]
    if last_offset == "BufferUnderflowException":
        # What the real getLastOffset does when the last file is full. Ours knows the offset.
        assert queue.max_offset * UNIT_SIZE % queue.file_size == 0
        last_offset = row["maxPhysicOffset"]
    expected.append(last_offset)
    got.append(queue.max_physical if queue.max_offset else -1)
    return expected, got


def _query(store: Store, row: dict[str, Any]) -> tuple[Any, Any]:
    arguments = (row["maxNum"], row["begin"], row["end"])
    found = store.query(row["topic"], row["key"], *arguments, exact=False)
    key_hash = index_hash(f"{row['topic']}#{row['key']}")
    in_chains = store._parts.index.query_offsets(key_hash, *arguments)
    size = sum(message.size for message in found)
    index = store._parts.index
    names = ("offsets", "indexOffsets", "bufferTotalSize")
    newest = ("indexLastUpdateTimestamp", "indexLastUpdatePhyoffset")
    return (
        [*(row[name] for name in names), *(row[name] for name in newest)],
        [
            [message.offset for message in found],
            in_chains,
            size,
            index.end_timestamp,
            index.end_offset,
        ],
    )


def _get(store: Store, row: dict[str, Any]) -> tuple[Any, Any]:
    result = store.get(
        row["topic"], row["queueId"], row["offset"], row["maxMsgNums"], row["filter"]
    )
    names = ["status", "nextBeginOffset", "minOffset", "maxOffset", "phyOffsets", "bufferTotalSize"]
    return [row[name] for name in names], [
        result.status.value,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        [message.offset for message in result.messages],
        sum(message.size for message in result.messages),
    ]


def _time(store: Store, row: dict[str, Any]) -> tuple[Any, Any]:
    place = row["topic"], row["queueId"]
    if "timestamp" in row:
        return row["offset"], store.offset_by_time(*place, row["timestamp"], as_rocketmq=True)
    if "earliest" in row:
        queue = store.queues().get(place)
        first = store.at(*place, queue[0] if queue else 0)
        return row["earliest"], first.store_timestamp if first else -1
    message = store.at(*place, row["consumeOffset"])
    got = (message.store_timestamp, message.offset) if message else (-1, 0)
    return (row["storeTimestamp"], row["commitLogOffset"]), got
