"""Unique keys: a publish is refused while an earlier message of the queue holds its key.

No key is ever freed. The table says which message took it last; the state of that message in the
index says whether it still has it. So a key is free in the same step in which its message is
acknowledged, dropped, purged or moved, whatever crashes.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

import numpy as np

from journal.errors import DuplicateError, StorageError, StoreError, UsageError
from journal.memory.arrays import I64
from qindex.format.entries import Entry
from qindex.format.headers import (
    BEGAN_AT,
    KEY_HEADER,
    KEYS_FILE,
    UNTIL_HEADER,
    WINDOW_AT,
    WINDOW_HEADER,
    Until,
    hash_in,
    hash_key,
    window_in,
)
from qindex.format.notes import pack_note
from qindex.index.messages import Messages
from qindex.index.queue_index import QueueIndex
from qindex.index.segment import ABSENT, ACKED, HELD, MOVING, OUT, PENDING, PUBLISHED
from qindex.queue.notes.delays import now_us
from qindex.queue.notes.notes_file import NotesFile
from qindex.queue.prepared_message import Prepared

_log = logging.getLogger("qindex.queue")

_MAX_SPARE = 1 << 14
_FREE = frozenset((ABSENT, ACKED, MOVING))
"""States of messages that hold no key any more: a dead letter does not, wherever it waits."""


class KeyTable:
    """The seq_id that each hash belongs to: 16 bytes a slot, at least a third of them free."""

    def __init__(self) -> None:
        self._room(64)

    def _room(self, slots: int) -> None:
        self._mask = slots - 1
        self._hashes = array("Q", bytes(8 * slots))
        self._seqs = array("q", bytes(8 * slots))
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def get(self, hashed: int) -> int | None:
        """Return the seq_id of a hash, or None. O(1)."""
        at = self._slot(hashed)
        return self._seqs[at] if self._hashes[at] else None

    def _slot(self, hashed: int) -> int:
        hashes, mask = self._hashes, self._mask
        at = hashed & mask
        while hashes[at] and hashes[at] != hashed:
            at = (at + 1) & mask
        return at

    def put(self, hashed: int, seq: int) -> None:
        """Let a hash belong to a seq_id. O(1), on average."""
        at = self._slot(hashed)
        if not self._hashes[at]:
            self._used += 1
        self._hashes[at] = hashed
        self._seqs[at] = seq

    def is_full(self) -> bool:
        """Return whether no more may be put in before :meth:`keep`."""
        return 3 * (self._used + 1) > 2 * (self._mask + 1)

    def all(self) -> tuple[I64, I64]:
        """Return all hashes and seq_ids. Shapes ``(n,)``."""
        hashes = np.array(self._hashes, np.int64)
        used = np.flatnonzero(hashes)
        return hashes[used], np.array(self._seqs, np.int64)[used]

    def keep(self, hashes: I64, seqs: I64) -> None:
        """Hold these, and nothing else, with room for as many more."""
        slots = 64
        while slots < 3 * len(hashes) + 2:
            slots *= 2
        self._room(slots)
        for hashed, seq in zip(hashes.tolist(), seqs.tolist(), strict=True):
            self.put(hashed, seq)


class UniqueKeys:
    """The unique keys of one queue, whose lock is held for every call."""

    def __init__(
        self,
        index: QueueIndex,
        messages: Messages | None,
        is_spent: Callable[[int], bool],
        base: int = 0,
    ) -> None:
        """``is_spent``: returns whether a ready message has had its last delivery. ``base``: added
        to a seq_id of the index it makes the seq_id that users get."""
        self._base = base
        self._is_spent = is_spent
        self._index = index
        self._messages = messages
        self._table = KeyTable()
        # When each window began and ends, in microseconds since 1970, by seq_id.
        self._windows: dict[int, tuple[int, int]] = {}
        self.is_unsynced: bool = False
        self._unnoted: list[tuple[int, int]] = []
        lost = "a window may end early"
        self._file = NotesFile(index, KEYS_FILE, "unique keys", lost)

    def begin(self, *, durably: bool) -> None:
        """Make the file. Raises :class:`StorageError`."""
        self._file.begin(durably=durably)

    # -- taking ---------------------------------------------------------------------------------

    def check(self, key: str) -> None:
        """Raise :class:`DuplicateError` if a message holds this key, or its window is open."""
        seq = self._table.get(hash_key(key))
        if seq is None or seq >= self._index.next_seq:
            return
        if seq in self._windows and self._is_open(key, seq):
            raise DuplicateError(self._base + seq, f"the window of unique key {key!r} is open")
        state = self._state_of(seq)
        if state not in _FREE and self._holds(seq, key, state):
            raise DuplicateError(self._base + seq, f"a message holds unique key {key!r}")

    def _is_open(self, key: str, seq: int) -> bool:
        """Return whether the window of a message is open. If the clock was ahead as it began, it
        begins now: it is never open for longer than it was asked for, once the clock is right."""
        began, ends = self._windows[seq]
        now = now_us()
        if now < began:
            began, ends = now, now + ends - began
            self.open_window(key, seq, began, ends)
        return now < ends

    def _state_of(self, seq: int) -> int:
        if seq // self._index.entry_count not in self._index.segments:
            return ABSENT
        return self._index.state_of(seq)

    def _holds(self, seq: int, key: str, state: int) -> bool:
        """Ask the message itself: another key may have the same hash."""
        _, extra = self._index.read_held(seq)
        if not isinstance(extra, Entry):
            return False
        if state not in (OUT, PENDING) and (0 < extra.expiry <= now_us() or self._is_spent(seq)):
            return False  # no consumer gets it any more: the next get drops it
        message = extra.message
        if message is None and extra.stored and self._messages is not None:
            try:
                message = self._messages.read(extra.msg_id)
            except StoreError:
                return False  # it is damaged: the consumer that takes it gets the error
        if message is None or message.headers.get(KEY_HEADER) != key:
            return False
        is_new = state in (PUBLISHED, HELD, PENDING)
        return is_new or message.headers.get(UNTIL_HEADER) != "delivered"

    def take(self, key: str, seq: int, began: int = 0, ends: int = 0) -> None:
        """Let the message that was just published hold a key; with ``ends`` at least from ``began``
        to ``ends``, in microseconds since 1970."""
        if self._table.is_full():
            self._forget_gone()
        hashed = hash_key(key)
        self._table.put(hashed, seq)
        if ends:
            self.open_window(key, seq, began, ends)
        else:
            self._unnoted.append((seq, hashed))

    def open_window(self, key: str, seq: int, began: int, ends: int) -> None:
        """Let a message hold its key at least between these times; see :meth:`take`."""
        hashed = hash_key(key)
        self._windows[seq] = began, ends
        self.is_unsynced = True
        try:
            self._file.append(
                pack_note(seq, hashed)
                + pack_note(seq + BEGAN_AT, began)
                + pack_note(seq + WINDOW_AT, ends)
            )
        except StorageError as error:
            # The message itself says it, as long as it is there.
            self._unnoted.append((seq, hashed))
            _log.warning("%s", error)

    def revoke(self, seqs: Iterable[int]) -> None:
        """End the windows of messages that were never published after all."""
        for seq in seqs:
            self._windows.pop(seq, None)

    def _forget_gone(self) -> None:
        now = now_us()
        self._windows = {seq: one for seq, one in self._windows.items() if one[1] > now}
        hashes, seqs = self._table.all()
        kept = self._index.are_there(seqs) | np.isin(seqs, list(self._windows))
        self._table.keep(hashes[kept], seqs[kept])

    # -- the file -------------------------------------------------------------------------------

    def note_published(self) -> None:
        """Write the notes that the file lacks; as
        :meth:`qindex.queue.notes.delays.DueTimes.note_published`."""
        try:
            if self._file.records > 2 * len(self._table) + 4 * len(self._windows) + _MAX_SPARE:
                self._rewrite()
            elif self._unnoted:
                pairs = np.array(self._unnoted, np.int64)
                self._file.note_published(pairs[:, 0], pairs[:, 1])
        except StorageError as error:
            _log.warning("%s", error)
            return
        self._unnoted = []

    def close(self) -> None:
        """Write the whole file, for a clean close. A failure costs the next open some time."""
        try:
            self._rewrite(closed=True)
        except StorageError as error:
            _log.warning("%s", error)

    def _rewrite(self, *, closed: bool = False) -> None:
        self._forget_gone()
        hashes, seqs = self._table.all()
        windows = np.array([(seq, *one) for seq, one in self._windows.items()], np.int64)
        windows = windows.reshape(-1, 3)
        seqs = np.concatenate((seqs, windows[:, 0] + BEGAN_AT, windows[:, 0] + WINDOW_AT))
        values = np.concatenate((hashes, windows[:, 1], windows[:, 2]))
        self._file.rewrite(seqs, values, closed=closed)
        self._unnoted = []

    def sync(self) -> None:
        """Make the windows durable that were noted since the last call, if any. Raises
        :class:`StorageError`."""
        if self.is_unsynced:
            self.is_unsynced = False
            try:
                self._file.sync()
            except BaseException:
                self.is_unsynced = True
                raise

    def load(self) -> None:
        """Take over what the file and the messages say. Raises :class:`StorageError`."""
        found, closed = self._file.read()
        # Files of earlier versions, and messages, say when windows end, and not when they began.
        began: dict[int, int] = {}
        ends: dict[int, int] = {}
        for at, windows in ((BEGAN_AT, began), (WINDOW_AT, ends)):
            those = (found.seq_ids >= at) & (found.seq_ids < at + BEGAN_AT)
            noted = found.seq_ids[those] - at, found.values[those]
            windows |= zip(*(column.tolist() for column in noted), strict=True)
        is_key = found.seq_ids < BEGAN_AT
        seqs, hashes = found.seq_ids[is_key], found.values[is_key]
        if not closed:
            stated = self._file.find(found.noted, self._messages, window_in)
            ends |= zip(*(column.tolist() for column in stated), strict=True)
        self._windows |= {seq: (began.get(seq, 0), end) for seq, end in ends.items()}
        if not closed:
            more = self._file.find(found.noted, self._messages, hash_in)
            self._unnoted += zip(*(column.tolist() for column in more), strict=True)
            seqs = np.concatenate((seqs, more[0]))
            hashes = np.concatenate((hashes, more[1]))
        # The latest message with a key has it.
        order = np.argsort(seqs, kind="stable")
        hashes, seqs = hashes[order], seqs[order]
        known = self._table.all()
        self._table.keep(np.concatenate((known[0], hashes)), np.concatenate((known[1], seqs)))


class Taking:
    """The key that a message is about to take: :class:`qindex.queue.prepared_message.Notes`.

    ``headers``: the headers that the message gets.
    """

    def __init__(
        self,
        keys: UniqueKeys,
        check: Callable[[str], None],
        unique: str,
        window: float | None,
        until: str,
        *,
        window_later: bool = False,
    ) -> None:
        """``check``: raises :class:`DuplicateError` for a key that is taken in any priority of the
        queue. ``window_later``: the window begins with :meth:`open_window`. Raises
        :class:`UsageError` for values that can't be right."""
        if not isinstance(unique, str) or not unique:
            raise UsageError(f"unique must be a str that is not empty, not {unique!r}")
        if window is not None and not _is_window(window):
            raise UsageError(f"window must be seconds above 0 and below 1e10, not {window!r}")
        if until not in get_args(Until):
            raise UsageError(f'until must be "acked" or "delivered", not {until!r}')
        self._keys = keys
        self._check = check
        self._key = unique
        self._seq = 0
        self._began = self._ends = 0
        self._window_later = window_later
        self.headers: dict[str, str | int] = {KEY_HEADER: unique}
        if until == "delivered":
            self.headers[UNTIL_HEADER] = until
        if window is not None:
            self._began = now_us()
            self._ends = self._began + int(window * 1e6)
            self.headers[WINDOW_HEADER] = self._ends

    def check(self) -> None:
        """Raise :class:`DuplicateError` if the key is taken."""
        self._check(self._key)

    def before(self, first: int, _items: Sequence[Prepared]) -> None:
        """The message is about to be appended: nobody else can take the key meanwhile."""
        self.check()
        self._seq = first

    def after(self) -> None:
        """It was appended."""
        self._keys.take(self._key, self._seq, self._began, 0 if self._window_later else self._ends)

    def open_window(self) -> None:
        """Its transaction is committed."""
        if self._ends:
            self._keys.open_window(self._key, self._seq, self._began, self._ends)


def _is_window(window: object) -> bool:
    is_number = isinstance(window, int | float) and not isinstance(window, bool)
    return is_number and 0 < window < 1e10  # type: ignore[operator]
