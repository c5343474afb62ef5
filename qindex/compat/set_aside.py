"""Items that can't be turned into an object again are set aside in a queue of their own.

A class was moved, a method renamed, a file came from a later version: such a message can't be used
now, but perhaps by the next version of the program. It must neither be lost nor come first for
ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from journal.errors import StoreError
from qindex.engine.engine import Engine
from qindex.queue.dead_letter import Letter, with_death
from qindex.queue.delivery import Delivery
from qindex.queue.plain_queue import Queue

EXCEPTION = "x-exception"
"""The header with the exception that was raised."""


class UnreadableItemError(StoreError):
    """An item can't be made of the bytes of a message; ``__cause__`` is the exception raised.

    ``delivery``: the message; ``body``: its bytes. It is settled: ``dead_letter`` is the name of
    the queue in the same store that has it now, or ``None`` where it was only looked at.
    """

    __module__ = "qindex.compat"

    def __init__(self, queue: str, delivery: Delivery, dead_letter: str | None, why: str) -> None:
        self.delivery = delivery
        self.body: bytes = delivery.body
        self.dead_letter = dead_letter
        where = f"; it is in queue {dead_letter!r}" if dead_letter is not None else ""
        super().__init__(
            f"queue {queue!r}: no item can be made of the message with seq_id {delivery.seq_id} "
            f"({why}){where}"
        )


def item_of(
    engine: Engine,
    delivery: Delivery,
    loads: Callable[[bytes], Any],
    source: str,
    target: str,
) -> Any:
    """Make an item of a message that was taken from ``source``. Raises
    :class:`UnreadableItemError` where that can't be: the message is in ``target`` then."""
    try:
        return loads(delivery.body)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        set_aside(engine, delivery, source, target, why)
        raise UnreadableItemError(source, delivery, target, why) from error


def set_aside(engine: Engine, delivery: Delivery, source: str, target: str, why: str) -> None:
    """Move a message that was taken from ``source`` to ``target``, with headers that tell why
    (those of a dead letter, and :data:`EXCEPTION`).

    It is there when it is acknowledged here: a crash in between leaves it in both. Raises
    :class:`StoreError`; it is given back to its queue then.
    """
    try:
        letter = Letter(delivery.seq_id, delivery.message, "rejected", True)
        message = with_death(letter, source)
        message = replace(message, headers={**message.headers, EXCEPTION: why})
        engine.queue(target).publish_many([message])
    except StoreError:
        delivery.nack()
        raise
    delivery.ack()


def bring_back(queue: Queue, put: Callable[[Delivery], bool]) -> int:
    """Try all that was set aside in ``queue`` once more: what ``put`` says true for has found its
    place, and is acknowledged here; the rest stays. Returns how many have."""
    done = 0
    kept: list[Delivery] = []
    try:
        while (delivery := queue.get(0)) is not None:
            if put(delivery):
                delivery.ack()
                done += 1
            else:
                kept.append(delivery)
    finally:
        for one in kept:
            one.nack()
    return done
