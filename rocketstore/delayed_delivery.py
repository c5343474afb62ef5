"""Deliver delayed messages: when their time has come they are put where they belong."""

from __future__ import annotations

import logging
import re

from rocketstore.consumequeue_format import UNIT
from rocketstore.delay import MAX_LEVEL, SCHEDULE_TOPIC
from rocketstore.dispatcher import Dispatcher
from rocketstore.message import StoredMessage
from rocketstore.offsets import DelayOffsets
from rocketstore.properties import REAL_QUEUE_ID, REAL_TOPIC
from rocketstore.putter import Putter
from rocketstore.state import StoreState

_log = logging.getLogger("qindex.rocketstore")


class DelayedDelivery:
    """Delivery of the delayed messages of one store; ``offsets`` says how far each level is."""

    __slots__ = ("_dispatcher", "_putter", "_state", "offsets")

    def __init__(self, state: StoreState, dispatcher: Dispatcher, putter: Putter) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._putter = putter
        self.offsets: DelayOffsets = DelayOffsets(state.options.fs, state.paths.delay_offset)

    def deliver_due(self, now: int) -> int:
        """Put each delayed message that is due (``now`` in ms) where it belongs; gives their
        number.

        Raises :class:`ClosedError`, :class:`StorageError` and :class:`WritesRefusedError`.
        """
        state = self._state
        delivered = 0
        with state.lock:
            self._dispatcher.catch_up()  # the first message of a level makes its queue
        for level in range(1, MAX_LEVEL + 1):
            while self._deliver_next(level, now):
                delivered += 1
        return delivered

    def _deliver_next(self, level: int, now: int) -> bool:
        """Deliver the next message of a level, if it is due."""
        state = self._state
        with state.lock:
            state.begin_read()
            queue = state.parts.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is None:
                return False
            at = max(self.offsets.get(level), queue.min_offset)
            data = queue.read(at, 1)
            if not data:
                return False
            place, size, due = UNIT.unpack(data)
            if due > now:
                return False
            raw = state.commitlog.read(place, size)
            if raw is not None:
                self._put_where_it_belongs(StoredMessage(raw, place))
            # A crash before this is saved delivers the message again.
            self.offsets.set(level, at + 1)
        return True

    def _put_where_it_belongs(self, message: StoredMessage) -> None:
        """Store a delayed message again, in its own topic; its properties stay as they are."""
        properties = message.properties
        topic = properties.get(REAL_TOPIC)
        queue_id = properties.get(REAL_QUEUE_ID, "")
        if topic is None or not re.fullmatch("[0-9]{1,10}", queue_id):
            _log.warning("offset %d: delayed message without its topic, dropped", message.offset)
            return
        fields = message.fields
        self._putter.append(
            topic, int(queue_id), message.body, message.properties_bytes, message.flag,
            message.sys_flag, message.born_timestamp, fields[9], fields[11],
            message.reconsume_times, 0, 0,
        )  # fmt: skip
