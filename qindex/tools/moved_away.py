"""Moves and transactions that a crash cut short, in a copy of a store.

As :mod:`qindex.engine.move_recovery` at an open: an entry of the source is left out of the copy
when its message is in the dead-letter queue, or was, in this run of the operating system. A message
that was there counts only if the dead-letter queue has lost nothing else: otherwise its entry stays
in the source, so that each message that can be saved is in one of the two queues. What a
transaction without a commit has published is left out, and so is what a committed one acknowledges.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from journal.errors import UsageError
from journal.findings import Finding
from journal.fs.files import FileSystem, is_there, read_optional
from journal.memory.arrays import I64
from qindex.format import layout
from qindex.format.moves import Intent, sound_moves
from qindex.format.priorities import LOW, SHIFT
from qindex.format.rabbitmq.names import MAX_PRIORITY, directory_name
from qindex.format.settings import checked_name
from qindex.format.transactions import Noted, Published, read_transactions
from qindex.tools.saved import loses

Move = tuple[Intent, bool]
KeptEntries = Callable[[str], Iterable[tuple[int, bytes]]]


def read_moves(fs: FileSystem, directory: str) -> list[Move]:
    """Read the moves of the store in ``directory``, in order, up to what verify finds wrong. Raises
    :class:`OSError`."""
    data = read_optional(fs, os.path.join(directory, layout.MOVES))
    return [] if data is None else sound_moves(data)[0]


def names_of(moves: Iterable[Move]) -> list[str]:
    """Return the names of all queues that are named."""
    names = dict.fromkeys(name for one, _ in moves for name in (one.source, one.target))
    return [name for name in names if _can_be_one(name)]


def moved_away(
    fs: FileSystem,
    directory: str,
    vhost: str,
    moves: Iterable[Move],
    findings: Iterable[Finding],
    kept_entries: KeptEntries,
) -> dict[str, I64]:
    """Return the seq_ids that are to be left out, ascending, by queue directory.

    ``kept_entries`` gives seq_id and message id of the entries of a queue directory (none, where
    there is none) that go into the copy. ``findings``: all that is wrong with the store. Memory:
    40 bytes for each entry of a queue that was moved to.
    """
    boot = fs.boot_id()
    hurt = {_queue_directory(one, directory) for one in findings if loses(one)}
    there: dict[str, set[tuple[int, bytes]]] = {}
    gone: dict[str, set[int]] = {}
    for intent, is_done in moves:
        if not (_can_be_one(intent.source) and _can_be_one(intent.target)):
            continue
        first = intent.seqs[0] if intent.seqs else 0
        source = _directory_of(fs, directory, vhost, intent.source, first)
        target = _directory_of(fs, directory, vhost, intent.target, intent.first)
        seqs = [seq & LOW for seq in intent.seqs]
        intent = replace(intent, first=intent.first & LOW, seqs=seqs)
        if is_done and boot and intent.boot == boot and target not in hurt:
            known = is_there(fs, os.path.join(directory, layout.QUEUES, target))
            arrived = set(intent.seqs) if known else set()
        else:
            if target not in there:
                there[target] = set(kept_entries(target))
            arrived = set(_found(intent, there[target]))
        gone.setdefault(source, set()).update(arrived)
    return {name: np.array(sorted(seqs), np.int64) for name, seqs in gone.items()}


def read_noted(fs: FileSystem, directory: str) -> list[Noted]:
    """Read the transactions of the store in ``directory``; as :func:`read_moves`."""
    data = read_optional(fs, os.path.join(directory, layout.TRANSACTIONS))
    return list(read_transactions(data or b"")[0].values())


def names_in(noted: Iterable[Noted]) -> list[str]:
    """Return the names of all queues that transactions name."""
    names: dict[str, None] = {}
    for one in noted:
        names.update(dict.fromkeys(each.queue for each in one.published))
        names.update(dict.fromkeys(queue for queue, _ in one.acks))
    return [name for name in names if _can_be_one(name)]


def undone(
    fs: FileSystem,
    directory: str,
    vhost: str,
    noted: Iterable[Noted],
    findings: Iterable[Finding],
    kept_entries: KeptEntries,
) -> dict[str, I64]:
    """Return the seq_ids that are to be left out because of transactions; as :func:`moved_away`."""
    boot = fs.boot_id()
    hurt = {_queue_directory(one, directory) for one in findings if loses(one)}
    kept: dict[str, set[tuple[int, bytes]]] = {}
    gone: dict[str, set[int]] = {}

    def place_of(queue: str, seq_id: int) -> str:
        return _directory_of(fs, directory, vhost, queue, seq_id)

    def there(one: Published) -> set[int]:
        queue = place_of(one.queue, one.first)
        if queue not in kept:
            kept[queue] = set(kept_entries(queue))
        wanted = enumerate(one.ids, one.first & LOW)
        return {seq for seq, msg_id in wanted if (seq, msg_id) in kept[queue]}

    for each in noted:
        published = [one for one in each.published if _can_be_one(one.queue)]
        if each.boot is None:
            for one in published:
                gone.setdefault(place_of(one.queue, one.first), set()).update(there(one))
            continue
        targets = {place_of(one.queue, one.first) for one in published}
        certain = bool(boot) and each.boot == boot and hurt.isdisjoint(targets)
        if certain or all(len(there(one)) == len(one.ids) for one in published):
            for queue, seqs in each.acks:
                for seq in seqs if _can_be_one(queue) else ():
                    gone.setdefault(place_of(queue, seq), set()).add(seq & LOW)
    return {name: np.array(sorted(seqs), np.int64) for name, seqs in gone.items()}


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


def _found(intent: Intent, there: set[tuple[int, bytes]]) -> Iterator[int]:
    for at, (seq, msg_id) in enumerate(zip(intent.seqs, intent.ids, strict=True)):
        if (intent.first + at, msg_id) in there:
            yield seq


def _queue_directory(finding: Finding, directory: str) -> str:
    """Return the name of the queue directory that a finding is in, or something else."""
    inner = os.path.relpath(finding.path, os.path.join(directory, layout.QUEUES))
    return inner.split(os.sep, 1)[0]
