"""Follow one queue, from its files alone, as another process writes it.

A follower gives every message that is in the journal or in a segment file when it looks,
acknowledged or not, in order of seq_id, each once. Messages that it can't give any more are
a :class:`qindex.following.gap.Gap`. A flush comes in between like this:

1. The journal is read as it grows. When another file takes its name, the old one is read to its
   end: an open file stays there, and it is complete.
2. Then the new journal's first publish, *F*, is looked for. All before F had been flushed when
   this journal came, so the messages between the last one given and F are in the segment files,
   or gone.
3. A journal without any publish tells nothing. Then the segment files do: if they and the journal
   did not change while they were looked at, all messages are in them.

So as long as a follower is at most one journal behind, it reads no segment file.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from time import monotonic
from typing import Literal

from journal.errors import ClosedError, NotAStoreError, StorageError, StoreError, UsageError
from journal.fs.beneath import beneath
from journal.fs.files import FileSystem
from qindex.following.gap import GONE, UNSOUND, Gap
from qindex.following.giver import Giver
from qindex.following.journal_tail import Change, JournalTail
from qindex.following.piece import Piece
from qindex.following.segment_files import SegmentFiles
from qindex.following.waker import Waker
from qindex.format import layout
from qindex.queue.delivery import Delivery
from qindex.queue.wake_ups import deadline_after
from qindex.recovery import store_directory
from qindex.view.rabbitmq_vhost import QueueDirectory
from qindex.view.reader import StoreReader

_log = logging.getLogger("qindex.following")

Start = Literal["earliest", "latest"] | int

_LOOKS = 100
_DAMAGE_AFTER = 1.0
"""Seconds. What can't be read for so long is not being written any more."""


class QueueGoneError(StoreError):
    """The queue that was followed has been deleted, or its store."""

    __module__ = "qindex"


class Follower:
    """An iterator of the messages of a queue, as deliveries that are settled from the start
    (``redelivered`` is false: a follower takes no part in delivering). Made by :func:`follow`.

    For one thread; :meth:`stop` may be called from any. ``missed``: seq_ids in gaps so far.
    Iteration raises :class:`QueueGoneError` when the queue is deleted, after what could still be
    read, and :class:`StorageError`.
    """

    def __init__(
        self,
        directory: str,
        queue: str,
        start: Start,
        *,
        timeout: float | None,
        wait: bool,
        waker: Waker,
        on_gap: Callable[[Gap], None] | None,
        fs: FileSystem,
    ) -> None:
        if not isinstance(queue, str) or not queue:
            raise UsageError(f"a queue's name must be a str, not {queue!r}")
        is_number = isinstance(start, int) and not isinstance(start, bool) and start >= 0
        if not is_number and start not in ("earliest", "latest"):
            raise UsageError(f'start must be "earliest", "latest" or a seq_id, not {start!r}')
        if deadline_after(timeout) is not None and timeout is not None and timeout < 0:
            raise UsageError(f"a timeout must be at least 0 seconds, not {timeout!r}")
        self.directory = directory
        self.name = queue
        self.missed: int = 0
        self._start = start
        self._timeout = timeout
        self._waker = waker
        self._on_gap = on_gap
        self._fs = fs = beneath(fs, directory)
        self._stopped = False
        self._giver = Giver(fs, directory, self._report)
        # Messages that were read and not given yet, and what comes after them.
        self._ready: Iterator[Delivery] = iter(())
        self._pieces: deque[Piece | Gap] = deque()
        self._queue_fd = -1
        self._path = ""
        self._next = 0
        # Before this, gaps were there before the follower was; but for these segments' files.
        self._silent_below = 0
        self._at_start: set[int] = set()
        # Read segment files up to here; then come the records read of the journal.
        self._behind_until = 0
        self._held: Piece | None = None
        self._last_chance = False
        self._stuck: tuple[bytes, float] | None = None
        self._failure: StoreError | None = None
        try:
            self._enter()
        except (UsageError, NotAStoreError) as error:
            if not wait or not self._may_come(error):
                raise
            if not isinstance(start, int):
                # The queue is made after this call: missing messages are counted from seq_id 0 on.
                self._start = 0

    # -- giving ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Delivery]:
        return chain.from_iterable(self._batches())

    def _batches(self) -> Iterator[Iterator[Delivery]]:
        while True:
            yield self._ready
            if not self._more(self._timeout):
                return

    def get(self, timeout: float | None = None) -> Delivery | None:
        """Return the next message, or None if none came in time or after :meth:`stop`.

        Args:
            timeout: Seconds to wait. None: forever.

        Returns:
            The message, or None.

        Raises:
            StoreError: As iteration does.
        """
        while not self._stopped:
            for delivery in self._ready:
                return delivery
            if not self._more(timeout):
                break
        return None

    def stop(self) -> None:
        """End iteration, and any wait that is under way. From any thread."""
        self._stopped = True
        self._giver.stop()
        self._waker.wake()

    def close(self) -> None:
        """Stop, and let go of the files. From the thread that reads."""
        self.stop()
        self._waker.close()
        self._leave()
        self._failure = ClosedError(f"{self.directory}: the follower of {self.name!r} is closed")

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Follower of {self.name!r} in {self.directory!r}>"

    def _more(self, timeout: float | None) -> bool:
        """Get more messages ready; false when none came within ``timeout`` seconds, or it was
        stopped."""
        deadline = deadline_after(timeout)
        if isinstance(self._failure, ClosedError):
            raise self._failure
        while not self._stopped:
            if self._pieces and not self._may_grow():
                piece = self._pieces.popleft()
                if isinstance(piece, Gap):
                    self._report(piece)
                    continue
                self._ready = self._giver.deliveries(piece)
                return True
            if self._failure is not None:
                raise self._failure
            if self._look():
                self._waker.news()
                continue
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                return False
            self._waker.wait(self._path or None, left)
        return False

    def _may_grow(self) -> bool:
        """Return whether only a gap is lined up that may go on in the next segment file."""
        is_gap = len(self._pieces) == 1 and isinstance(self._pieces[0], Gap)
        return is_gap and self._next < self._behind_until and self._failure is None

    def _report(self, gap: Gap) -> None:
        self.missed += len(gap)
        if self._on_gap is not None:
            self._on_gap(gap)
        else:
            _log.warning("%s: queue %r: %s", self.directory, self.name, gap)

    # -- looking --------------------------------------------------------------------------------

    def _may_come(self, error: StoreError) -> bool:
        """Return whether the queue that was not found may be made yet."""
        try:
            names = self._fs.listdir(self.directory)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        # A directory that is there and is something else will not become a store.
        known = layout.MARKER in names and not isinstance(error, NotAStoreError)
        return known or store_directory.is_empty_store(names)

    def _enter(self) -> None:
        """Find the queue, and where to start in it."""
        store = StoreReader(self.directory, self._fs)
        if store.marker is None:
            raise UsageError(
                f"{self.directory}: a RabbitMQ directory; only our queues are followed"
            )
        store_directory.refuse_version2(self.directory, store.marker)
        one = store.queue(self.name).directories[0]
        if one.priority is not None and self.name != one.directory:
            self._failure = UsageError(
                f"{self.directory}: queue {self.name!r} was made with priorities since it was "
                "waited for: follow it again"
            )
            return
        path = store.path_of(one)
        self._count = store.rules(one).entry_count
        try:
            self._queue_fd = self._fs.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._inode = self._fs.fstat(self._queue_fd).st_ino
                self._path = path
                self._journal = JournalTail(self._fs, path)
                self._segments = SegmentFiles(self._fs, path, self._count)
                self._begin(one, store)
            except BaseException:
                self._leave()
                raise
        except FileNotFoundError as error:
            raise UsageError(f"{self.directory}: queue {self.name!r} is gone") from error
        except OSError as error:
            raise StorageError(path, "the queue can't be followed", error) from error

    def _leave(self) -> None:
        fd, self._queue_fd = self._queue_fd, -1
        self._path = ""
        if fd >= 0:
            self._journal.close()
            self._fs.close(fd)

    def _begin(self, one: QueueDirectory, store: StoreReader) -> None:
        if isinstance(self._start, int):
            self._next = self._start
        elif self._start == "latest":
            self._next = self._published(one, store)
        self._attach()
        if self._start == "earliest":
            self._at_start = set(self._segments.sizes())
            if self._held is None:
                self._silent_below = self._published(one, store)
                self._attach()
            self._silent_below = max(self._silent_below, self._behind_until)

    def _published(self, one: QueueDirectory, store: StoreReader) -> int:
        """Return one above the highest seq_id that was given out, of about now."""
        self._journal.attach()
        seen = self._segments.end() or 0
        while (piece := self._journal.read()) is not None:
            if len(piece):
                seen = int(piece.seqs[-1]) + 1
        return store.next_seq(one, store.rules(one), seen)

    def _look(self) -> bool:
        """Look for news once. Return whether to look again at once."""
        if self._queue_fd < 0:
            try:
                self._enter()
            except (UsageError, NotAStoreError):
                return False
            return True
        try:
            if self._next < self._behind_until:
                self._read_segment()
                return True
            if self._held is not None:
                held, self._held = self._held, None
                self._take(held)
                return True
            piece = self._journal.read(self._next)
            if piece is not None:
                self._line_up(piece)
                return True
            return self._look_for_change()
        except FileNotFoundError:
            self._failure = QueueGoneError(f"{self.directory}: queue {self.name!r} was deleted")
            return True
        except OSError as error:
            raise StorageError(self._path, "the queue can't be followed", error) from error

    def _look_for_change(self) -> bool:
        change = self._journal.change()
        if change is Change.NONE:
            return self._look_at_damage()
        if change is Change.REPLACED and not self._last_chance:
            # The records that were appended before the other file came are complete now.
            self._last_chance = True
            return True
        self._attach()
        return True

    def _look_at_damage(self) -> bool:
        """See whether bytes that can't be read are here to stay."""
        unread = self._journal.unread()
        if not unread or self._stuck is None or self._stuck[0] != unread:
            self._stuck = (unread, monotonic()) if unread else None
            self._check_there()
            return False
        if monotonic() - self._stuck[1] < _DAMAGE_AFTER:
            return False
        self._stuck = unread, monotonic()
        piece = self._journal.skip_damage()
        if piece is None:
            return False
        self._take(piece, UNSOUND)
        return True

    def _check_there(self) -> None:
        """Raise :class:`FileNotFoundError` when the queue's directory is another one now."""
        if self._fs.stat(self._path).st_ino != self._inode:
            raise FileNotFoundError(self._path)

    def _attach(self) -> None:
        """Go on with the journal that there is now; see the module's text."""
        self._last_chance = False
        self._stuck = None
        for _ in range(_LOOKS):
            self._check_there()
            before = self._segments.sizes()
            self._journal.attach()
            if self._find_first():
                return
            end = self._segments.end()
            # It may be there by now; then again all before it is in the segment files.
            if self._find_first():
                return
            still = self._segments.sizes() == before and self._journal.change() is Change.NONE
            if still:
                self._behind_until = self._next if end is None else end
                return
        # A writer so busy will have a journal with something in it the next time.

    def _find_first(self) -> bool:
        """Read the journal up to its first publish records."""
        while (piece := self._journal.read()) is not None:
            if len(piece):
                self._held = piece
                self._behind_until = int(piece.seqs[0])
                return True
        return False

    def _line_up(self, piece: Piece) -> None:
        """Take a piece of the journal; where it does not follow on, segment files come first."""
        if len(piece) and piece.seqs[0] > self._next:
            self._held = piece
            self._behind_until = int(piece.seqs[0])
        else:
            self._take(piece)

    def _read_segment(self) -> None:
        """Read the missing messages of the next segment file."""
        number = self._next // self._count
        piece = self._segments.publishes(number)
        if piece is None:
            following = self._segments.next_number(number + 1)
            base = self._behind_until if following is None else following * self._count
            for lost in sorted(self._at_start):
                if lost * self._count < base:
                    self._note_lost(lost)
            self._skip_to(min(base, self._behind_until))
        else:
            self._take(piece.take(piece.seqs < self._behind_until))
            self._skip_to(min((number + 1) * self._count, self._behind_until))
        self._at_start.discard(number)

    def _note_lost(self, number: int) -> None:
        """Note that a segment file is gone that was there at the start."""
        self._at_start.remove(number)
        first = max(self._next, number * self._count)
        stop = min((number + 1) * self._count, self._silent_below)
        if first < stop:
            self._add_gap(first, stop, GONE)

    def _add_gap(self, first: int, stop: int, reason: str) -> None:
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, Gap) and (last.stop, last.reason) == (first, reason):
            self._pieces[-1] = Gap(last.first, stop, reason)
        else:
            self._pieces.append(Gap(first, stop, reason))

    def _take(self, piece: Piece, reason: str = GONE) -> None:
        """Line up the new messages of a piece, and the gaps before and in it."""
        if len(piece) and piece.seqs[0] < self._next:
            piece = piece.take(piece.seqs >= self._next)
        for part in piece.parts() if len(piece) else []:
            self._skip_to(int(part.seqs[0]), reason)
            self._pieces.append(part)
            self._next = int(part.seqs[-1]) + 1

    def _skip_to(self, seq: int, reason: str = GONE) -> None:
        """Note that no message before ``seq`` is left."""
        first = max(self._next, self._silent_below)
        if first < seq:
            self._add_gap(first, seq, reason)
        self._next = max(self._next, seq)
