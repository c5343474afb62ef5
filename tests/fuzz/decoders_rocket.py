"""The files of a RocketMQ store: log records, queue units, index files, and the small ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from zlib import crc32

from journal.errors import DamageError, UsageError
from journal.findings import Cause
from rocketstore.format.checkpoint_format import Checkpoint
from rocketstore.format.commitlog_format import message_id, parse_message_id
from rocketstore.format.consumequeue_format import build_units, count_valid, parse_units
from rocketstore.format.delay import delay_level
from rocketstore.format.index_format import find_geometry
from rocketstore.format.javahash import hash_code, index_hash_many, tags_code
from rocketstore.format.message import StoredMessage
from rocketstore.format.properties import decode_properties, encode_properties, index_keys
from rocketstore.index.index_file import IndexFile
from rocketstore.layout import Paths
from rocketstore.log.dispatch import from_records
from rocketstore.log.dispatch_note import load_note
from rocketstore.log.filler_format import Fillers
from rocketstore.log.scan import Stop, scan_records
from rocketstore.queues.offsets import ConsumerOffsets, int_table, load_json, parse_fastjson
from rocketstore.repair.config_check import check_config, mend_config
from rocketstore.repair.inspection import inspect_file
from tests.fuzz.frame import Decoder
from tests.golden import rocket_golden
from tests.memory_fs import MemoryFileSystem

__all__ = ["DECODERS"]

_INDEX = "20260101000000000"
_LOG = "0" * 20


def _golden(*patterns: str) -> list[bytes]:
    """The contents of files of the golden stores, without the zeros at their ends."""
    found = []
    for name, store in (("gen", "store"), ("delay", "store"), ("crash", "before"), ("json", "")):
        root = rocket_golden(name) / store
        for pattern in patterns:
            for path in sorted(root.glob(pattern))[:4]:
                data = path.read_bytes()
                found.append(data.rstrip(b"\0") + bytes(min(64, len(data))))
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """The first records of a log file, one by one."""
    records, _, _ = scan_records(data, 0, 0, len(data), check_crc=True, limit=12)
    for at, size in zip(records.positions.tolist(), records.sizes.tolist(), strict=True):
        yield data[at : at + size]


def _record_seeds() -> list[bytes]:
    return [record for data in _golden("commitlog/*") for record in _records(data)]


def _record(data: bytes) -> None:
    message = StoredMessage(data, 0)
    with suppress(DamageError):
        message.check()
    asked: list[Callable[[], object]] = [
        message.to_dict,
        lambda: message.body,
        lambda: message.has_key("k"),
        lambda: (message.tags, message.keys, message.unique_key),
    ]
    for ask in asked:
        with suppress(DamageError):
            ask()
    message.check()


def _log(data: bytes) -> None:
    for strict in (False, True):
        position, stop, fillers = 0, Stop.LIMIT, Fillers()
        while stop is Stop.LIMIT:
            before = position
            records, position, stop = scan_records(
                data, 0, position, len(data), check_crc=strict, strict=strict, limit=7
            )
            assert position >= before + len(records)
            assert position <= len(data)
            fillers.see(records, 0)
            batch = from_records(records, 0)
            assert len(batch) == len(records)
            from_records(records, 0, delays=False)


def _units(data: bytes) -> None:
    units = parse_units(data)
    valid = count_valid(units)
    again = build_units(units["offset"], units["size"], units["tags_code"], len(units))
    assert again == data[: len(again)]
    assert 0 <= valid <= len(units)


def _index(data: bytes) -> None:
    fs = MemoryFileSystem({_INDEX: data})
    found = find_geometry(lambda at, size: data[at : at + size], len(data))
    slots, entries = found if found is not None else (1, max((len(data) - 44) // 20, 1))
    file = IndexFile(fs, f"/{_INDEX}", slots, entries, writable=False)
    file.load()
    file.chains_are_sound()
    file.slot_table()
    for key_hash in (0, 1, 5, 97, 2**31 - 1):
        out: list[int] = []
        file.select(out, key_hash, 64, 0, 2**63 - 1)
        assert len(out) <= 64
        assert len(file.candidates(key_hash, 0, 2**63 - 1)) <= entries
    file.close()


def _checkpoint(data: bytes) -> None:
    found = Checkpoint.parse(data)
    found.safe_time(with_index=True)
    assert Checkpoint.parse(found.to_bytes()) == found


def _json(data: bytes) -> None:
    fs = MemoryFileSystem({"config/consumerOffset.json": data, "other.bak": data})
    with suppress(ValueError):
        parse_fastjson(data.decode())
    int_table(load_json(fs, "/other").get("offsetTable"))
    path = "/config/consumerOffset.json"
    offsets = ConsumerOffsets(fs, path, writable=True)
    for name, table in offsets.table.items():
        assert isinstance(name, str)
        assert all(type(one) is int for pair in table.items() for one in pair)
    offsets.commit("g", "T", 0, 1)
    offsets.save()
    assert ConsumerOffsets(fs, path, writable=False).table == offsets.table


def _config(data: bytes) -> None:
    """What is mended makes sense, and is what was used before."""
    paths = Paths("/s")
    offsets = (paths.consumer_offset, paths.local_offset, paths.delay_offset)
    names = [*offsets, paths.dispatch_note, paths.checkpoint]
    fs = MemoryFileSystem({name.removeprefix("/"): data for name in names})
    found = list(check_config(fs, paths))

    def used_of(path: str) -> object:
        table = load_json(fs, path).get("offsetTable")
        if path == paths.delay_offset or not isinstance(table, dict):
            return int_table(table)
        return {name: int_table(inner) for name, inner in table.items()}

    used = [used_of(path) for path in offsets]
    mended = list(mend_config(fs, paths))
    assert [one.path for one in mended] == [one.path for one in found]
    assert not [one for one in check_config(fs, paths) if one.cause is Cause.DAMAGE]
    assert used == [used_of(path) for path in offsets]


def _properties(data: bytes) -> None:
    found = decode_properties(data)
    keys = index_keys(found)
    index_hash_many(keys, hash_code("T#"))
    tags_code(found.get("TAGS"))
    with suppress(UsageError):
        delay_level(found)
    with suppress(UsageError):
        assert decode_properties(encode_properties(found)) == found


def _property_seeds() -> list[bytes]:
    return [StoredMessage(record, 0).properties_bytes for record in _record_seeds()]


def _message_id(data: bytes) -> None:
    text = data.decode("latin-1")
    host, offset = parse_message_id(text)
    assert message_id(host, offset) == text.upper()


def _derived(data: bytes) -> None:
    """As it stands, and as content whose checksum is right."""
    load_note(MemoryFileSystem({"d": data}), "/d")
    with suppress(UnicodeDecodeError):
        text = data.decode()
        outer = json.dumps({"crc": crc32(data), "derived": text}).encode()
        found = load_note(MemoryFileSystem({"d": outer}), "/d")
        if found is not None:
            assert all(size > 0 for size in found.sizes)


def _derived_seeds() -> list[bytes]:
    content = {
        "version": 1,
        "offset": 1000,
        "boot": "b",
        "last": [900, 100, 5],
        "queues": [["T", 0, 0, 7]],
        "index": [[_INDEX, 1, 2, 0, 900, 3, 4]],
        "sizes": [4096, 200, 7, 12],
    }
    text = json.dumps(content)
    return [text.encode(), json.dumps({"crc": crc32(text.encode()), "derived": text}).encode()]


def _inspect(path: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        fs = MemoryFileSystem({path: data})
        for row in inspect_file(f"/{path}", fs=fs):
            json.dumps(row)

    return run


DECODERS = (
    Decoder("rocket-record", _record, _record_seeds),
    Decoder("rocket-log", _log, lambda: _golden("commitlog/*"), per_byte=1024),
    Decoder("rocket-units", _units, lambda: _golden("consumequeue/*/*/*")),
    Decoder("rocket-index", _index, lambda: _golden("index/*")),
    Decoder("rocket-checkpoint", _checkpoint, lambda: _golden("checkpoint")),
    Decoder("rocket-json", _json, lambda: _golden("*.json", "config/*.json"), per_byte=1024),
    Decoder("rocket-config", _config, lambda: _golden("*.json", "config/*.json"), per_byte=1024),
    Decoder("rocket-properties", _properties, _property_seeds, per_byte=1024),
    Decoder(
        "rocket-message-id",
        _message_id,
        lambda: [b"C0A8000700002A9F000000000000013E", b"0" * 56],
    ),
    Decoder("rocket-derived", _derived, _derived_seeds, per_byte=1024),
    *(
        Decoder(f"rocket-inspect-{kind}", _inspect(path), seeds, per_byte=1024)
        for kind, path, seeds in (
            ("log", f"commitlog/{_LOG}", lambda: _golden("commitlog/*")),
            ("queue", f"consumequeue/T/0/{_LOG}", lambda: _golden("consumequeue/*/*/*")),
            ("index", f"index/{_INDEX}", lambda: _golden("index/*")),
            ("json", "config/consumerOffset.json", lambda: _golden("*.json")),
        )
    ),
)
