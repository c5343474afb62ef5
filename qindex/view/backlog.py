"""``ready`` and ``unacked`` of a queue, as far as its files tell.

The words mean the same everywhere: *ready* messages wait for a consumer, whether or not they were
delivered before; *unacked* ones are with a consumer of the process that has the store open, which
has neither acknowledged them nor given them back. Where no process has it open, nobody has any.

Files tell which messages were delivered, and not which of them were given back since: a process
that has the store open keeps that to itself.
"""

from __future__ import annotations

from collections.abc import Callable


def ready_and_unacked(
    messages: int, delivered_before: int | None, in_use: Callable[[], bool]
) -> tuple[int, int] | tuple[None, None]:
    """Return both, or ``None`` for both where only the process tells that has the store open.

    ``messages``: those in the queue; ``delivered_before``: those of them that were delivered, if
    that is known. ``in_use`` returns whether a process may have the store open. It is called after
    the look at the files, and only if it matters.
    """
    if delivered_before == 0 or not in_use():
        return messages, 0
    return None, None
