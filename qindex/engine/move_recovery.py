"""Finish, at the open of a store, the moves to dead-letter queues that a crash cut short.

For each message that an intent names and that its source still holds: is it in the target? In the
run of the operating system in which the intent was written nothing is lost, so an intent that is
noted as done is done: the message may have been consumed since. Otherwise (it is not noted, or
power was lost, or the target is damaged) an entry in the target decides, with the seq_id and the
message id of the intent. Messages that have arrived are acknowledged in the source, all others stay
there, so that a message is in one of the two queues.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

import numpy as np

from journal.errors import DamageError
from journal.fs.files import FileSystem, read_optional, unlink_if_there
from qindex.format import layout
from qindex.format.moves import Intent, sound_moves
from qindex.format.priorities import LOW, SHIFT
from qindex.format.segment import STEP_SIZE
from qindex.index.quarantine import quarantine
from qindex.index.queue_index import QueueIndex
from qindex.index.segment import ABSENT, ACKED
from qindex.queue.parts import QueueParts

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
        there = intent.seqs if certain else _arrived(intent, target)
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


def _levels_of(
    intent: Intent, queue_of: Callable[[str], QueueParts | None]
) -> tuple[QueueParts | None, QueueParts | None]:
    """Return the levels of the source and of the target; all messages are of one level in each."""
    source, target = queue_of(intent.source), queue_of(intent.target)
    first = intent.seqs[0] if intent.seqs else 0
    return (
        None if source is None else source.level_at(first),
        None if target is None else target.level_at(intent.first),
    )


def _in_levels(intent: Intent) -> Intent:
    """Return an intent with the seq_ids that the directories have; -1 for one that is of another
    directory than the first."""
    priority = intent.seqs[0] >> SHIFT if intent.seqs else 0
    seqs = [seq & LOW if seq >> SHIFT == priority else -1 for seq in intent.seqs]
    return replace(intent, first=intent.first & LOW, seqs=seqs)


def _remove(fs: FileSystem, path: str) -> None:
    if unlink_if_there(fs, path):
        fs.sync_dir(os.path.dirname(path))


def _arrived(intent: Intent, target: QueueParts) -> list[int]:
    """Give the seq_ids, in the source, of the messages that are found in the target."""
    found = (_message_id(target.state.index, intent.first + at) for at in range(len(intent.seqs)))
    return [
        seq
        for seq, wanted, there in zip(intent.seqs, intent.ids, found, strict=True)
        if wanted == there
    ]


def _message_id(index: QueueIndex, seq: int) -> bytes | None:
    """Give the message id of an entry that is not acknowledged."""
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
