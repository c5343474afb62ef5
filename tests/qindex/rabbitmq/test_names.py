"""Directory names, and the .queue_name file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.errors import StoreError, UsageError
from qindex.format.rabbitmq.names import (
    QueueName,
    QueueNameError,
    directory_name,
    format_queue_name,
    parse_queue_name,
)
from tests.golden import SCENARIOS, golden, synthetic

names = st.binary(max_size=255)


@pytest.mark.parametrize("name", SCENARIOS)
def test_queue_directories_of_a_real_node(name: str) -> None:
    for queue in golden(name).truth.queues.values():
        if not queue.priority_directories:
            assert directory_name("/", queue.name) == queue.directory
        for priority, directory in queue.priority_directories.items():
            assert directory_name("/", queue.name, priority) == directory


def test_queue_directories_of_the_synthetic_cases() -> None:
    for queue, directory in synthetic("01").queue_directories.items():
        assert directory_name(b"/", queue.encode()) == directory


def test_queue_name_files_of_a_real_node() -> None:
    seen: set[str] = set()
    priorities: dict[str, set[int]] = {}
    for scenario in SCENARIOS:
        store = golden(scenario)
        for path in store.vhost_dir.glob("queues/*/.queue_name"):
            raw, directory = path.read_bytes(), path.parent.name
            name = parse_queue_name(raw, directory)
            assert name.vhost == b"/"
            queue = name.queue.decode()
            assert queue in store.truth.queues
            assert directory_name(*name) == directory
            assert format_queue_name(*name) == raw
            seen.add(queue)
            if name.priority is not None:
                priorities.setdefault(queue, set()).add(name.priority)
    assert len(seen) > 10
    assert priorities == {"qg.prio": {0, 1, 2, 3, 4, 5}}


def test_a_name_has_a_seldom_leading_zero_less() -> None:
    lengths = {len(directory_name("/", str(number))) for number in range(2000)}
    assert 25 in lengths
    assert 24 in lengths
    assert max(lengths) == 25


@given(names, names, st.none() | st.integers(0, 255))
def test_round_trip(vhost: bytes, queue: bytes, priority: int | None) -> None:
    raw = format_queue_name(vhost, queue, priority)
    directory = directory_name(vhost, queue, priority)
    name = parse_queue_name(raw, directory)
    # Where a border inside of a name moves bytes from one name to the other, or a name itself
    # ends like a sub-queue's, the file can't tell; the directory is the same either way.
    assert directory_name(*name) == directory
    assert format_queue_name(*name) == raw
    if b"\nQUEUE: " not in vhost + b"\nQUEUE:" + queue and queue[-2:-1] != b"\0" and queue:
        assert name == (vhost, queue, priority)


def test_names_with_line_ends_and_borders() -> None:
    for vhost, queue in (
        ("a\nb", "c\nd\n"),
        ("v\nQUEUE: w", "q"),
        ("v", "q\nQUEUE: r"),
        ("v\nQUEUE: w", "q\nQUEUE: r"),
        ("", "q"),
    ):
        raw = format_queue_name(vhost, queue)
        name = parse_queue_name(raw, directory_name(vhost, queue))
        assert name == QueueName(vhost.encode(), queue.encode(), None)


def test_priority_ten_looks_like_a_line_end() -> None:
    raw = format_queue_name("/", "q", 10)
    assert raw.endswith(b"q\0\n\n")
    assert parse_queue_name(raw, directory_name("/", "q", 10)) == (b"/", b"q", 10)


def test_every_cut_is_refused() -> None:
    raw, directory = format_queue_name("/", "orders", 3), directory_name("/", "orders", 3)
    for cut in range(len(raw)):
        with pytest.raises(QueueNameError):
            parse_queue_name(raw[:cut], directory)


def test_every_flipped_byte_is_refused() -> None:
    raw, directory = format_queue_name("/", "orders", 3), directory_name("/", "orders", 3)
    for at in range(len(raw)):
        with pytest.raises(StoreError):
            parse_queue_name(raw[:at] + bytes((raw[at] ^ 1,)) + raw[at + 1 :], directory)


def test_a_file_of_another_directory_is_refused() -> None:
    with pytest.raises(QueueNameError, match="another directory"):
        parse_queue_name(format_queue_name("/", "a"), directory_name("/", "b"))
    with pytest.raises(QueueNameError, match="cut off or of another form"):
        parse_queue_name(b"VHOST: " + b"\nQUEUE: " * 1_000_000 + b"\n", directory_name("/", "b"))


def test_text_is_utf8_and_other_bytes_survive() -> None:
    assert directory_name("é", "ж") == directory_name("é".encode(), "ж".encode())
    odd = b"\xff\xfe"
    text = odd.decode("utf-8", "surrogateescape")
    assert directory_name("/", text) == directory_name(b"/", odd)


@pytest.mark.parametrize("priority", [-1, 256])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    with pytest.raises(UsageError):
        directory_name("/", "q", priority)
    with pytest.raises(UsageError):
        format_queue_name("/", "q", priority)
