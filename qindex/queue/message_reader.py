"""Read the messages of a queue that are in the message store, and set damaged ones aside."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

import numpy as np

from journal.errors import DamageError
from journal.findings import Cause, Finding, Kind
from msgstore.errors import MissingMessageError
from qindex.format.entries import EXPIRED_LONG_AGO, Entry, make_entry
from qindex.index.quarantine import quarantine
from qindex.queue.state import QueueState

_log = logging.getLogger("qindex.queue")


class MessageReader:
    """Reads the messages of one queue; its lock is held for every call."""

    def __init__(self, state: QueueState) -> None:
        self._state = state

    def with_message(self, entry: Entry) -> Entry:
        """Read the message of an entry from the message store, if it is there; where it can't be
        read, ``damage`` tells why. Raises :class:`StorageError`."""
        if not entry.stored or entry.message is not None or entry.damage:
            return entry
        messages = self._state.messages
        if messages is None:
            what, kind = "it is in a message store, and there is none", Kind.ENTRY_WITHOUT_MESSAGE
            return replace(entry, damage=what, kind=kind)
        msg_id = entry.msg_id
        try:
            message = messages.read(msg_id)
        except MissingMessageError as error:
            return replace(entry, damage=str(error), kind=Kind.ENTRY_WITHOUT_MESSAGE)
        except DamageError as error:
            return replace(entry, damage=str(error), kind=Kind.CHECKSUM)
        return make_entry(msg_id, entry.expiry, entry.size, message, stored=True)

    def without_flipped_bits(self, seq: int, entry: Entry) -> Entry:
        """Return an entry without the bits that were flipped in it, or the fields that can't be
        true, and report them."""
        index = self._state.index
        if entry.corrected:
            path, offset = index.where(seq)
            what, consequence = "one flipped bit", "corrected from the checksum: none lost"
            kind = Kind.CORRECTED
            index.report([Finding(path, offset, 1, Cause.DAMAGE, what, consequence, kind)])
            entry = replace(entry, corrected=False)
        if entry.expired_long_ago:
            path, offset = index.where(seq)
            index.report([Finding(path, offset, 8, Cause.DAMAGE, *EXPIRED_LONG_AGO)])
            entry = replace(entry, expiry=0)
        return entry

    def set_aside(self, seq: int, entry: Entry) -> tuple[str, int]:
        """Copy the bytes of a damaged message into a quarantine file; return its file and
        offset."""
        index, messages = self._state.index, self._state.messages
        path, offset = index.where(seq)
        data = index.bytes_of(seq)
        if entry.stored and messages is not None:
            # A message that is gone leaves its entry alone to be set aside.
            with suppress(MissingMessageError):
                try:
                    path, offset, data = messages.raw(entry.msg_id)
                except DamageError as error:
                    path, offset, data = error.path, error.offset, b""
        if data:  # else it was set aside when the file was read
            quarantine(index.fs, path, offset, data)
        return path, offset

    def drop(self, seq: int, entry: Entry) -> None:
        """Drop an entry that is ready, and that no consumer gets."""
        state = self._state
        state.index.drop(np.array([seq]))
        state.went_out(1, entry.size)
        if entry.stored:
            state.note(seq).msg_id = entry.msg_id
        state.forget((seq,))

    def drop_damaged(self, seq: int, entry: Entry) -> DamageError:
        """Set a damaged entry aside, report it, and drop it; return the error to be raised."""
        path, offset = self.set_aside(seq, entry)
        self.drop(seq, entry)
        if entry.stored and self._state.messages is not None:
            # The message that the entry named may be another than the one it names now.
            self._state.messages.miscounted = True
        what = f"the message with seq_id {self._state.base + seq} is damaged: {entry.damage}"
        aside = "set aside in quarantine"
        finding = Finding(path, offset, 0, Cause.DAMAGE, what, aside, entry.kind)
        self._state.index.report([finding])
        error = DamageError(path, offset, what)
        _log.error("%s", error)
        return error
