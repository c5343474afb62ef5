"""Finish, at the open of a store, the moves and the transactions that a crash cut short.

For each message that an intent names and that its source still holds: is it in the target? In the
run of the operating system in which the intent was written nothing is lost, so an intent that is
noted as done is done: the message may have been consumed since. Otherwise (it is not noted, or
power was lost, or the target is damaged) an entry in the target decides, with the seq_id and the
message id of the intent. Messages that have arrived are acknowledged in the source, all others stay
there, so that a message is in one of the two queues.

A transaction that was not committed never was: what it has published is dropped. The acks of one
that was committed are made as those of moves are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from journal.errors import DamageError
from journal.findings import Finding
from journal.fs.files import FileSystem, read_optional, unlink_if_there
from qindex.format import layout
from qindex.format.moves import Intent, sound_moves
from qindex.format.priorities import LOW, SHIFT
from qindex.format.segment import STEP_SIZE
from qindex.format.transactions import Noted, Published, damage_in, read_transactions
from qindex.index.quarantine import quarantine
from qindex.index.queue_index import QueueIndex
from qindex.index.segment import ABSENT, ACKED
from qindex.queue.parts import QueueParts
from qindex.recovery.damage import report

_log = logging.getLogger("qindex.moves")

_ID_SIZE = 16
_WORD_SIZE = 8


def finish_moves(
    fs: FileSystem,
    directory: str,
    queue_of: Callable[[str], QueueParts | None],
    hurt: Collection[str] = (),
    *,
    repair: bool = False,
) -> Callable[[], None] | None:
    """Finish the moves of the last run; ``queue_of`` gives a queue that there is, ``hurt`` are
    directories of queues in which damage was found: missing messages may have been in them.

    Gives the function that removes the file, to be called when the queues that were touched are
    durable; ``None`` where there was no file. Raises :class:`StorageError`, :class:`OSError`, and
    :class:`DamageError` for a file that is none of ours, unless ``repair``: then it is set aside,
    and its records before the damage count.
    """
    path = os.path.join(directory, layout.MOVES)
    data = read_optional(fs, path)
    if data is None:
        return None
    boot = fs.boot_id()
    moves, wrong = sound_moves(data)
    if wrong is not None:
        damage = DamageError(path, 0, f"moves to dead-letter queues: {wrong}")
        if not repair:
            raise damage
        _log.error("%s: set aside", damage)
        quarantine(fs, path, 0, data)
    for intent, is_done in moves:
        source, target = _levels_of(intent, queue_of)
        if source is None or target is None:
            continue  # deleted: with what was in it, or without ever getting the message
        certain = is_done and bool(boot) and intent.boot == boot
        certain &= target.state.index.directory not in hurt
        intent = _in_levels(intent)
        there = intent.seqs if certain else _moved(intent, target)
        done = [seq for seq in there if _holds(source.state.index, seq)]
        if done:
            _log.info(
                "queue %r: %d messages had been moved to %r",
                source.state.name,
                len(done),
                target.state.name,
            )
            source.letters.drop_moved(done)
    return lambda: _remove(fs, path)


def finish_transactions(
    fs: FileSystem,
    directory: str,
    queue_of: Callable[[str], QueueParts | None],
    hurt: Collection[str],
    findings: list[Finding],
) -> Callable[[], None] | None:
    """Finish the transactions of the last run; as :func:`finish_moves`. Damage, which is added to
    ``findings``, is no error: the file is copied to quarantine."""
    path = os.path.join(directory, layout.TRANSACTIONS)
    data = read_optional(fs, path)
    if data is None:
        return None
    boot = fs.boot_id()
    damage = damage_in(path, data)
    if damage:
        for one in damage:
            report(one)
        quarantine(fs, path, 0, data)
        findings += damage
    acked: dict[QueueParts, dict[int, None]] = {}
    for noted in read_transactions(data)[0].values():
        if noted.boot is None:
            _undo(noted, queue_of)
        else:
            same_run = bool(boot) and noted.boot == boot
            for source, seq in _acked_by(noted, queue_of, hurt, same_run=same_run):
                acked.setdefault(source, {})[seq] = None
    for source, seqs in acked.items():
        source.letters.drop_moved(list(seqs))
    return lambda: _remove(fs, path)


def _undo(noted: Noted, queue_of: Callable[[str], QueueParts | None]) -> None:
    for one in noted.published:
        target = _level(queue_of(one.queue), one.first)
        undone = [] if target is None else list(_arrived(one, target.state.index))
        if target is not None and undone:
            _log.info(
                "queue %r: %d messages of a transaction that was not committed are dropped",
                one.queue,
                len(undone),
            )
            target.letters.drop_moved(undone)
            if target.state.keys is not None:
                target.state.keys.revoke(undone)


def _acked_by(
    noted: Noted,
    queue_of: Callable[[str], QueueParts | None],
    hurt: Collection[str],
    *,
    same_run: bool,
) -> Iterator[tuple[QueueParts, int]]:
    """Yield the entries that a committed transaction acknowledges: level and seq_id in it."""
    for one in noted.published if noted.acks else ():
        target = _level(queue_of(one.queue), one.first)
        if target is None:
            continue  # it was deleted, with what was in it
        index = target.state.index
        certain = same_run and index.directory not in hurt
        if not certain and len(list(_arrived(one, index))) < len(one.ids):
            return  # power was lost, and so were messages: those that are acknowledged stay
    for name, seqs in noted.acks:
        for seq in seqs:
            source = _level(queue_of(name), seq)
            if source is not None and _holds(source.state.index, seq & LOW):
                yield source, seq & LOW


def _arrived(published: Published, index: QueueIndex) -> Iterator[int]:
    """Yield the seq_ids that messages of a transaction have in their level, if they are there."""
    for seq, wanted in enumerate(published.ids, published.first & LOW):
        if _message_id(index, seq) == wanted:
            yield seq


def _levels_of(
    intent: Intent, queue_of: Callable[[str], QueueParts | None]
) -> tuple[QueueParts | None, QueueParts | None]:
    """Return the levels of the source and of the target; all messages are of one level in each."""
    first = intent.seqs[0] if intent.seqs else 0
    source, target = queue_of(intent.source), queue_of(intent.target)
    return _level(source, first), _level(target, intent.first)


def _level(queue: QueueParts | None, seq_id: int) -> QueueParts | None:
    return None if queue is None else queue.level_at(seq_id)


def _in_levels(intent: Intent) -> Intent:
    """Return an intent with the seq_ids that the directories have; -1 for one that is of another
    directory than the first."""
    priority = intent.seqs[0] >> SHIFT if intent.seqs else 0
    seqs = [seq & LOW if seq >> SHIFT == priority else -1 for seq in intent.seqs]
    return replace(intent, first=intent.first & LOW, seqs=seqs)


def _remove(fs: FileSystem, path: str) -> None:
    if unlink_if_there(fs, path):
        fs.sync_dir(os.path.dirname(path))


def _moved(intent: Intent, target: QueueParts) -> list[int]:
    """Return the seq_ids, in the source, of the messages that are found in the target."""
    found = (_message_id(target.state.index, intent.first + at) for at in range(len(intent.seqs)))
    return [
        seq
        for seq, wanted, there in zip(intent.seqs, intent.ids, found, strict=True)
        if wanted == there
    ]


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
