"""Make deliveries of the entries that a follower has read, with messages of the message store."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat

from journal.errors import StoreError
from journal.fs.files import FileSystem
from qindex.following.gap import MISSING, Gap
from qindex.following.piece import Piece, decode
from qindex.format.entries import Entry, decode_any
from qindex.index.messages import PERSISTENT_DIRECTORY
from qindex.queue.delivery import LOOKED_AT, Delivery, make_delivery
from qindex.view.store_tail import StoreTail


class Giver:
    """Yields the messages of pieces. ``report`` is called for each unreadable one."""

    def __init__(self, fs: FileSystem, directory: str, report: Callable[[Gap], None]) -> None:
        self._store = StoreTail(fs, os.path.join(directory, PERSISTENT_DIRECTORY))
        self._report = report
        self._stopped = False
        self._plain: list[bytes] = []

    def stop(self) -> None:
        """Stop, also in the middle of a message. From any thread."""
        self._stopped = True
        self._plain.clear()

    def deliveries(self, piece: Piece) -> Iterator[Delivery]:
        """Return the messages of a piece whose records are sound, one by one."""
        found = decode(piece)
        if found.is_plain:
            # Nothing of ours runs between two of them: it would cost as much as they do.
            self._plain = found.bodies
            if self._stopped:
                self._plain.clear()
            return map(
                make_delivery, repeat(None), found.seqs, found.bodies, repeat(False), found.extras
            )
        rows = deque(zip(found.seqs, found.bodies, found.extras, strict=True))
        # Not a generator: after it raises it is at its end, and its remaining messages are lost.
        return iter(partial(self._next, rows), None)

    def _next(self, rows: deque[tuple[int, bytes, int | Entry]]) -> Delivery | None:
        """Return the delivery of the first row, or of the next that can be given; ``None`` at the
        end. A message that could not be given (the system refused) is tried again by the next
        call."""
        while rows and not self._stopped:
            seq, body, extra = rows[0]
            if isinstance(extra, Entry) and extra.stored:
                extra = self._fetch(extra)
                body = b"" if extra.message is None else extra.message.body
            rows.popleft()
            if not isinstance(extra, Entry) or extra.message is not None:
                return make_delivery(LOOKED_AT, seq, body, False, extra)
            self._report(Gap(seq, seq + 1, extra.damage))
        return None

    def _fetch(self, entry: Entry) -> Entry:
        """Read a message from the message store. If it is gone, damage says so."""
        record = self._store.read(entry.msg_id)
        damage = MISSING
        message = None
        if record is not None:
            try:
                message = decode_any(record, entry.msg_id)
            except StoreError as error:
                damage = str(error)
        if message is None:
            return Entry(entry.msg_id, entry.expiry, entry.size, None, damage=damage)
        return Entry(entry.msg_id, entry.expiry, entry.size, message)
