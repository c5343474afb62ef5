"""The background thread of a store: it delivers, deletes, syncs and writes checkpoints."""

from __future__ import annotations

import logging
import threading
import time

from journal import background as thread
from journal.errors import StoreError
from rocketstore.checkpointer import Checkpointer
from rocketstore.cleaner import Cleaner
from rocketstore.delayed_delivery import DelayedDelivery
from rocketstore.dispatcher import Dispatcher
from rocketstore.log_sync import LogSync
from rocketstore.state import StoreState

_log = logging.getLogger("qindex.rocketstore")
_CLEAN_SECONDS = 10.0


class Background:
    """A daemon thread that works until it is stopped, or until the store takes no writes."""

    def __init__(
        self,
        state: StoreState,
        dispatcher: Dispatcher,
        log_sync: LogSync,
        checkpointer: Checkpointer,
        delayed: DelayedDelivery,
        cleaner: Cleaner,
    ) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._log_sync = log_sync
        self._checkpointer = checkpointer
        self._delayed = delayed
        self._cleaner = cleaner
        self._stop = threading.Event()
        self._thread = thread.Background(self._run, "rocketstore")

    def start(self) -> None:
        """Start the thread. Where the system has none left, the store does without, and logs it."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after the round that is under way, and wait for it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        state, options = self._state, self._state.options
        checkpoint_at = clean_at = time.monotonic()
        vouched = -1
        while not self._stop.wait(options.flush_interval):
            if state.refusal is not None or state.poison.reason is not None:
                return
            try:
                self._delayed.deliver_due(options.clock())
                moment = time.monotonic()
                if options.retention is not None and moment - clean_at >= _CLEAN_SECONDS:
                    clean_at = moment
                    self._cleaner.clean(None, manual=False)
                    self._cleaner.look_at_disk()
                if moment - checkpoint_at >= options.checkpoint_interval:
                    checkpoint_at = moment
                    with state.lock:
                        end = state.commitlog.max_offset
                    if end != vouched or self._delayed.offsets.changed:
                        self._checkpointer.checkpoint()
                        vouched = end
                else:
                    with state.lock:
                        self._dispatcher.catch_up()
                    self._log_sync.sync()
            except (StoreError, OSError) as error:
                # The store refuses writes from here on; the next caller is told why.
                _log.error("%s: background work failed: %s", state.paths.root, error)
                state.poison.set(error)
                return
