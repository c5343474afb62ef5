"""Finish, at the open of a store, the transactions and the moves that a crash cut short.

What a transaction without a commit has published is dropped: it never was. What a committed one
acknowledges is acknowledged. Where power was lost, or a target is damaged, its messages must have
arrived for that, unless they were durable before the commit: an entry with the seq_id and the
message id that are noted tells. Otherwise what it acknowledges stays, so that a message that is
moved is always in one of its queues.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial

import numpy as np

from journal.errors import DamageError
from journal.findings import Finding
from journal.fs.files import FileSystem, read_optional, unlink_if_there
from qindex.format import layout
from qindex.format.priorities import LOW
from qindex.format.segment import STEP_SIZE
from qindex.format.transactions import Noted, Published, damage_in, read_noted
from qindex.index.quarantine import quarantine
from qindex.index.queue_index import QueueIndex
from qindex.index.segment import ABSENT, ACKED
from qindex.queue.parts import QueueParts
from qindex.recovery.damage import report

_log = logging.getLogger("qindex.transactions")

_ID_SIZE = 16
_WORD_SIZE = 8


def finish_transactions(
    fs: FileSystem,
    directory: str,
    queue_of: Callable[[str], QueueParts | None],
    hurt: Collection[str],
    findings: list[Finding],
) -> Callable[[], None] | None:
    """Finish the transactions of the last run; ``queue_of`` gives a queue that there is, ``hurt``
    are directories of queues in which damage was found: missing messages may have been in them.

    Return the function that removes the file, to be called when the queues that were touched are
    durable; None where there was no file. Raises :class:`StorageError`, :class:`OSError`. Damage
    is added to ``findings`` and not raised: the file is copied to quarantine.
    """
    path = os.path.join(directory, layout.TRANSACTIONS)
    old_path = os.path.join(directory, layout.MOVES)
    data, moves = read_optional(fs, path), read_optional(fs, old_path)
    if data is None and moves is None:
        return None
    data = data or b""
    boot = fs.boot_id()
    damage = damage_in(path, data)
    if damage:
        for one in damage:
            report(one)
        quarantine(fs, path, 0, data)
        findings += damage
    acked: dict[QueueParts, dict[int, None]] = {}
    for noted in read_noted(data, moves or b""):
        if noted.boot is None:
            _undo(noted, queue_of)
        else:
            there = partial(_there, queue_of, hurt, noted.is_certain(boot))
            for queue, seq in noted.acked(there):
                source = _level(queue_of(queue), seq)
                if source is not None and _holds(source.state.index, seq & LOW):
                    acked.setdefault(source, {})[seq & LOW] = None
    for source, seqs in acked.items():
        _log.info("queue %r: %d messages had been acknowledged", source.state.name, len(seqs))
        source.letters.drop_all(list(seqs))
    return lambda: _remove(fs, directory, (path, old_path))


def _undo(noted: Noted, queue_of: Callable[[str], QueueParts | None]) -> None:
    for one in noted.published:
        target = _level(queue_of(one.queue), one.first)
        if target is None:
            continue
        undone = sorted(seq & LOW for seq in _arrived(one, target.state.index))
        if undone:
            _log.info(
                "queue %r: %d messages of a transaction that was not committed are dropped",
                one.queue,
                len(undone),
            )
            target.letters.drop_all(undone)
            if target.state.keys is not None:
                target.state.keys.revoke(undone)


def _there(
    queue_of: Callable[[str], QueueParts | None],
    hurt: Collection[str],
    is_certain: bool,
    one: Published,
) -> Collection[int]:
    """Return which messages of a committed transaction have arrived."""
    target = _level(queue_of(one.queue), one.first)
    if target is None:
        return ()  # before it was deleted, all acknowledgements were made
    index = target.state.index
    return one.seqs if is_certain and index.directory not in hurt else _arrived(one, index)


def _arrived(one: Published, index: QueueIndex) -> Collection[int]:
    """Return which messages of a transaction are in their level."""
    wanted = zip(one.seqs, one.ids, strict=True)
    return {seq for seq, msg_id in wanted if _message_id(index, seq & LOW) == msg_id}


def _level(queue: QueueParts | None, seq_id: int) -> QueueParts | None:
    return None if queue is None else queue.level_at(seq_id)


def _remove(fs: FileSystem, directory: str, paths: Iterable[str]) -> None:
    removed = [unlink_if_there(fs, path) for path in paths]
    if any(removed):
        fs.sync_dir(directory)


def _message_id(index: QueueIndex, seq: int) -> bytes | None:
    """Return the message id of an entry that is not acknowledged."""
    if not _holds(index, seq):
        return None
    segment = index.segment_of(seq)
    head = STEP_SIZE if segment.filed[seq - segment.base] != ABSENT else _WORD_SIZE
    return index.bytes_of(seq)[head : head + _ID_SIZE]


def _holds(index: QueueIndex, seq: int) -> bool:
    if not 0 <= seq < index.next_seq or seq // index.entry_count not in index.segments:
        return False
    with suppress(DamageError):  # reported; the sound entries are loaded
        index.segment_of(seq)
    segment = index.segment_of(seq)
    state = int(np.frombuffer(segment.states, np.uint8)[seq - segment.base])
    return state not in (ABSENT, ACKED)
