"""Golden fixtures: store directories that real servers wrote, and what they deliver from them.

Three families live under ``tests/data`` (its README says how each was made):

* RabbitMQ 3.10.8 scenarios: one vhost directory and its truth, see :func:`golden`;
* RabbitMQ 3.10.8 synthetic cases: small damaged or half-done states, see :func:`synthetic`;
* RocketMQ 4.9.3 stores, see :func:`rocket_golden`.

Each archive is unpacked once for each process into a temporary directory that is removed at exit.
What is handed out is shared by all tests and therefore read-only; ``copy`` gives a writable one.
"""

import atexit
import hashlib
import itertools
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
MessageState: TypeAlias = Literal["ready", "unacked", "acked", "ack_sent"]
Boot: TypeAlias = Literal["OK", "HANG", "VHOST_DOWN"]

DATA_DIR = Path(__file__).parent / "data"
VHOST_DIR_NAME = "628WB79CIFDYO9LJI6DKMI09L"
"""Base-36 MD5 of the vhost name "/", the one vhost of every RabbitMQ fixture."""

SCENARIOS: tuple[str, ...] = (
    "a_clean_embedded",
    "b_dirty_journal",
    "c1_segments_dirty",
    "d1_store_gc_clean_1mb",
    "d3_store_gc_16mb",
    "e1_fanout_clean",
    "f1_lazy_transient_dirty",
    "g1_props_ttl_clean",
    "h1_heavy_dirty",
)
SYNTHETIC_CASES: tuple[str, ...] = (
    "01_journal_cut_in_body",
    "02_journal_cut_in_header",
    "03_journal_zero_tail",
    "04_journal_del_ghost",
    "05_flush_crash_dup",
    "06_seg_deleted_journal_acks",
    "07_seg_cut",
    "07a_seg_cut_body",
    "07b_seg_cut_header",
    "07c_seg_cut_after_pub",
    "08_seg_one_byte",
    "09_seg_zeros",
    "09a_seg_all_zero",
    "10_rdq_torn",
    "11_rdq_bad_marker",
    "12_rdq_zero_hole",
    "13_combine_A_tmp_written",
    "14_combine_B_truncated_extended",
    "15_combine_B2_truncated_only",
    "16_combine_C_copied_back",
    "17_combine_D_source_left",
    "18_rdt_without_rdq",
    "19_missing_file",
    "20_dup_guid_in_file",
    "21_journal_pub_twice",
    "22_journal_ack_without_del",
    "23_seg_ack_before_pub",
    "24_seg_out_of_order",
    "25_size_mismatch",
    "26_persist_flags",
    "27_persist_flag_bad",
    "28_expired",
)
ROCKET_STORES: tuple[str, ...] = ("gen", "crash", "delay", "expire", "json")


def sha16(body: bytes) -> str:
    """First 16 hex digits of the SHA-256 of a body: how the truths name bodies."""
    return hashlib.sha256(body).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class GoldenMessage:
    """One message as the real node delivered it after a restart.

    ``props`` are the AMQP basic properties as the recording client (pika) decoded them: header
    values carry no types, floats lost their fraction, binaries are ``{"hex": ...}``, decimals
    ``{"dec": ...}``, timestamps ``{"ts": ...}``. What was sent, exactly, is in the manifest.
    ``publish_index`` points into ``manifest_messages``.
    """

    sha16: str
    body_len: int
    redelivered: bool
    exchange: str
    routing_key: str
    props: dict[str, JsonValue]
    publish_index: int


@dataclass(frozen=True, slots=True)
class ManifestMessage:
    """One message as the client published it, and its state when the node was stopped or killed.

    ``seq_id`` counts within the queue (within the sub-queue ``prio_queue`` of a priority queue).
    Messages with the same ``global_number`` are one publish that reached several queues.
    ``state`` "ack_sent" (scenario h1 only): an ack was sent, whether the node noted it before it
    was killed shows only in ``delivered``. ``expiration_ms`` and ``published_at_us`` (microseconds
    since 1970) are given where a message has a TTL of its own. ``properties_hex`` is AMQP's
    encoding of the properties as sent, ``props`` the same in words: header values are
    ``[type tag, value]`` pairs, binaries ``{"hex": ...}``; both None where unknown.
    """

    index: int
    seq_id: int
    global_number: int
    body_len: int
    state: MessageState
    deliveries: int
    persistent: bool
    confirmed: bool
    prio_queue: int | None
    expiration_ms: int | None
    published_at_us: int | None
    properties_hex: str | None
    props: dict[str, JsonValue] | None
    dead_lettered_to: str | None


@dataclass(frozen=True)
class GoldenQueue:
    """Truth about one queue.

    ``directory`` is the queue's directory name; a priority queue has one for each priority in
    ``priority_directories`` instead. ``survives`` is False for a queue that is gone after a
    restart (not durable): then ``delivered`` is empty.
    """

    name: str
    arguments: dict[str, JsonValue]
    durable: bool
    directory: str
    directory_exists: bool
    priority_directories: dict[int, str]
    survives: bool
    _published: int
    _columns: dict[str, Any] = field(repr=False)
    _delivered: dict[str, Any] | None = field(repr=False)

    @cached_property
    def delivered(self) -> list[GoldenMessage]:
        """What the real node delivers after a restart, in order of delivery."""
        if self._delivered is None:
            return []
        columns = self._delivered
        digests = columns["sha16"]
        return [
            GoldenMessage(*row)
            for row in zip(
                (digests[at : at + 16] for at in range(0, len(digests), 16)),
                _column(columns["body_len"]),
                _column(columns["redelivered"]),
                _column(columns["exchange"]),
                _column(columns["routing_key"]),
                _column(columns["props"]),
                _column(columns["index"]),
                strict=True,
            )
        ]

    @cached_property
    def manifest_messages(self) -> list[ManifestMessage]:
        """All messages ever published to the queue, in order of publishing."""
        names = (
            "seq g body_len state delivered persistent confirmed "
            "prio_queue expiration_ms published_at_us props_hex props dead_lettered_to"
        )
        absent = [[None, 0, self._published]]
        columns = [_column(self._columns.get(name, absent)) for name in names.split()]
        return [ManifestMessage(*row) for row in zip(range(self._published), *columns, strict=True)]


@dataclass(frozen=True)
class GoldenTruth:
    """Truth about one scenario.

    ``files`` maps each file of the vhost directory, relative to it, to its size in bytes when the
    node was stopped or killed; ``files_after_restart`` the same once the node had recovered it.
    ``gc_log`` has the node's own lines about combined message store files.
    """

    scenario: str
    description: str
    rabbitmq: str
    erlang: str
    clean_shutdown: bool
    advanced_config: str | None
    vhost: str
    gc_log: list[str]
    files: dict[str, int]
    files_after_restart: dict[str, int]
    queues: dict[str, GoldenQueue]


@dataclass(frozen=True)
class GoldenStore:
    """One RabbitMQ scenario. ``vhost_dir`` is shared by all tests: read it only, or ``copy`` it."""

    vhost_dir: Path
    truth: GoldenTruth

    @property
    def clean_shutdown(self) -> bool:
        """True when the node was stopped in order, False when it was killed."""
        return self.truth.clean_shutdown

    def copy(self, tmp_path: Path) -> Path:
        """Copy the vhost directory below ``tmp_path``; each call makes a fresh one."""
        return _fresh_copy(self.vhost_dir, tmp_path)


@dataclass(frozen=True, slots=True)
class SyntheticMessage:
    """A delivered message of a synthetic case: the body's start and its length in bytes."""

    prefix: str
    body_len: int
    redelivered: bool
    delivery_mode: int

    def matches(self, body: bytes) -> bool:
        """True when ``body`` can be this message's body."""
        return len(body) == self.body_len and body.startswith(self.prefix.encode())


@dataclass(frozen=True)
class SyntheticStore:
    """One synthetic case, and what a real node made of it.

    ``boot``: "HANG" = the node never came up; "VHOST_DOWN" = it came up and refused the vhost.
    ``delivered`` has the queues that could be read (none unless ``boot`` is "OK");
    ``dead_queues`` those whose process failed. ``queue_directories`` maps a queue's name to its
    directory name, which need not exist.
    """

    name: str
    description: str
    vhost_dir: Path
    boot: Boot
    delivered: dict[str, list[SyntheticMessage]]
    dead_queues: list[str]
    queue_directories: dict[str, str]
    files: dict[str, int]

    def copy(self, tmp_path: Path) -> Path:
        """Copy the vhost directory below ``tmp_path``; each call makes a fresh one."""
        return _fresh_copy(self.vhost_dir, tmp_path)


def golden(name: str) -> GoldenStore:
    """Return a RabbitMQ scenario by its name or by the part before the first ``_`` ("c1").

    Raises ``KeyError`` for an unknown name.
    """
    for scenario in SCENARIOS:
        if name in (scenario, scenario.partition("_")[0]):
            return _load_scenario(scenario)
    raise KeyError(f"no golden scenario {name!r}; there are {', '.join(SCENARIOS)}")


def synthetic(case: str) -> SyntheticStore:
    """Return a synthetic case by its name or by the part before the first ``_`` ("07a").

    Raises ``KeyError`` for an unknown name.
    """
    for full_name in SYNTHETIC_CASES:
        if case in (full_name, full_name.partition("_")[0]):
            return _load_synthetic(full_name)
    raise KeyError(f"no synthetic case {case!r}")


def rocket_golden(name: str) -> Path:
    """Return the directory of a RocketMQ fixture (one of ``ROCKET_STORES``). Read it only.

    Raises ``KeyError`` for an unknown name.
    """
    if name not in ROCKET_STORES:
        raise KeyError(f"no RocketMQ fixture {name!r}; there are {', '.join(ROCKET_STORES)}")
    return _unpack("rocketmq-4.9.3.tar.xz") / name


def rocket_copy(name: str, tmp_path: Path) -> Path:
    """Copy a RocketMQ fixture below ``tmp_path``; each call makes a fresh one."""
    return _fresh_copy(rocket_golden(name), tmp_path)


@cache
def _load_scenario(scenario: str) -> GoldenStore:
    directory = _unpack(f"rabbitmq-3.10/{scenario}.tar.xz")
    raw = json.loads((directory / "truth.json").read_bytes())
    raw["queues"] = {name: _queue(name, entry) for name, entry in raw["queues"].items()}
    return GoldenStore(directory / VHOST_DIR_NAME, GoldenTruth(**raw))


def _queue(name: str, entry: dict[str, Any]) -> GoldenQueue:
    priorities = entry.get("priority_dirs", {})
    return GoldenQueue(
        name=name,
        arguments=entry["arguments"],
        durable=entry["durable"],
        directory=entry["dir"],
        directory_exists=entry["dir_exists"],
        priority_directories={int(priority): at for priority, at in priorities.items()},
        survives=entry["delivered"] is not None,
        _published=entry["published"],
        _columns=entry["messages"],
        _delivered=entry["delivered"],
    )


@cache
def _synthetic_truth() -> dict[str, Any]:
    truth: dict[str, Any] = json.loads(
        (_unpack("rabbitmq-3.10/t_synthetic.tar.xz") / "truth.json").read_bytes()
    )
    return truth


@cache
def _load_synthetic(case: str) -> SyntheticStore:
    truth = _synthetic_truth()
    entry = truth["cases"][case]
    return SyntheticStore(
        name=case,
        description=entry["description"],
        vhost_dir=_unpack("rabbitmq-3.10/t_synthetic.tar.xz") / case / VHOST_DIR_NAME,
        boot=entry["boot"],
        delivered={
            queue: [SyntheticMessage(*message) for message in messages]
            for queue, messages in entry["delivered"].items()
        },
        dead_queues=entry["dead_queues"],
        queue_directories=truth["queue_dirs"],
        files=entry["files"],
    )


@cache
def _unpack(archive: str) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="golden-"))
    atexit.register(_remove, directory, os.getpid())
    with tarfile.open(DATA_DIR / archive, mode="r:xz") as tar:
        # Python before 3.11.4 has no filters.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(directory)
    for one in directory.rglob("*"):
        one.chmod(0o700 if one.is_dir() else 0o600)  # verify notes a store that is open to others
    return directory


def _remove(directory: Path, owner: int) -> None:
    # A forked child inherits the atexit list; its end must not take the parent's fixtures away.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def _fresh_copy(source: Path, tmp_path: Path) -> Path:
    target = Path(tempfile.mkdtemp(prefix="golden-", dir=tmp_path)) / source.name
    shutil.copytree(source, target)
    return target


def _column(runs: list[list[Any]]) -> Iterator[Any]:
    """Undo the runs ``[value, step, count]`` that truth.json stores a column in."""
    return itertools.chain.from_iterable(
        range(value, value + step * count, step) if step else itertools.repeat(value, count)
        for value, step, count in runs
    )
