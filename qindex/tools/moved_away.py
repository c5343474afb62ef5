"""Transactions and moves that a crash cut short, in a copy of a store.

As :mod:`qindex.engine.transaction_recovery` at an open: what a transaction without a commit has
published is left out of the copy, and so is what a committed one acknowledges. After damage, a
message that was moved counts as gone from its source only if it is in the target, so that each
message that can be saved is in one of the two queues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from functools import partial

import numpy as np

from journal.errors import UsageError
from journal.findings import Finding
from journal.fs.files import FileSystem, is_there, read_optional
from journal.memory.arrays import I64
from qindex.format import layout
from qindex.format.priorities import LOW, SHIFT
from qindex.format.rabbitmq.names import MAX_PRIORITY, directory_name
from qindex.format.settings import checked_name
from qindex.format.transactions import Noted, Published, read_noted
from qindex.tools.saved import loses

KeptEntries = Callable[[str], Iterable[tuple[int, bytes]]]


def noted_in(fs: FileSystem, directory: str) -> list[Noted]:
    """Read the transactions of the store in ``directory``. Raises :class:`OSError`."""
    data = read_optional(fs, os.path.join(directory, layout.TRANSACTIONS)) or b""
    moves = read_optional(fs, os.path.join(directory, layout.MOVES)) or b""
    return read_noted(data, moves)


def names_in(noted: Iterable[Noted]) -> list[str]:
    """Return the names of all queues that transactions name."""
    names: dict[str, None] = {}
    for one in noted:
        names.update(dict.fromkeys(each.queue for each in one.published))
        names.update(dict.fromkeys(queue for queue, _ in one.acks))
    return [name for name in names if _can_be_one(name)]


def left_out(
    fs: FileSystem,
    directory: str,
    vhost: str,
    noted: Iterable[Noted],
    findings: Iterable[Finding],
    kept_entries: KeptEntries,
) -> tuple[dict[str, I64], dict[str, I64]]:
    """Return the seq_ids to leave out because they are acknowledged, and the ones that are
    undone: ascending, by queue directory.

    ``kept_entries`` gives seq_id and message id of the entries of a queue directory (none, where
    there is none) that go into the copy. ``findings``: all that is wrong with the store. Memory:
    40 bytes for each entry of a queue that was published to.
    """
    boot = fs.boot_id()
    hurt = {_queue_directory(one, directory) for one in findings if loses(one)}
    kept: dict[str, set[tuple[int, bytes]]] = {}
    acked: dict[str, set[int]] = {}
    undone: dict[str, set[int]] = {}

    def arrived(is_certain: bool, one: Published) -> Collection[int]:
        if not _can_be_one(one.queue):
            return ()
        place = _directory_of(fs, directory, vhost, one.queue, one.first)
        if is_certain and place not in hurt:
            known = is_there(fs, os.path.join(directory, layout.QUEUES, place))
            return one.seqs if known else ()
        if place not in kept:
            kept[place] = set(kept_entries(place))
        wanted = zip(one.seqs, one.ids, strict=True)
        return {seq for seq, msg_id in wanted if (seq & LOW, msg_id) in kept[place]}

    def add(to: dict[str, set[int]], queue: str, seq_id: int) -> None:
        if _can_be_one(queue):
            place = _directory_of(fs, directory, vhost, queue, seq_id)
            to.setdefault(place, set()).add(seq_id & LOW)

    for each in noted:
        if each.boot is None:
            for one in each.published:
                for seq in arrived(False, one):
                    add(undone, one.queue, seq)
        else:
            for queue, seq in each.acked(partial(arrived, each.is_certain(boot))):
                add(acked, queue, seq)
    return _sorted(acked), _sorted(undone)


def _sorted(seqs: dict[str, set[int]]) -> dict[str, I64]:
    return {name: np.array(sorted(found), np.int64) for name, found in seqs.items()}


def _directory_of(fs: FileSystem, directory: str, vhost: str, name: str, seq_id: int) -> str:
    """Return the name of the directory that holds a message of a queue."""
    priority = seq_id >> SHIFT
    if priority <= MAX_PRIORITY:
        found = directory_name(vhost, name, priority)
        if priority or is_there(fs, os.path.join(directory, layout.QUEUES, found)):
            return found
    return directory_name(vhost, name)


def _can_be_one(name: str) -> bool:
    try:
        checked_name(name)
    except UsageError:
        return False
    return True


def _queue_directory(finding: Finding, directory: str) -> str:
    """Return the name of the queue directory that a finding is in, or something else."""
    inner = os.path.relpath(finding.path, os.path.join(directory, layout.QUEUES))
    return inner.split(os.sep, 1)[0]
