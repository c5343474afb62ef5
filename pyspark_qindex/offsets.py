"""The position of a stream: for each source (a queue, a CommitLog) the place it has read up to."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from journal.errors import UsageError

_SHOWN = 10
"""Names that an error lists."""

Places = dict[tuple[str, str], int]
"""By store and queue; the queue of a CommitLog is empty."""


def flatten(offsets: Mapping[str, object]) -> Places:
    """Return places from offsets as Spark keeps them: ``{store: {queue: seq_id}}``, or
    ``{store: physical offset}``. Raises :class:`UsageError`."""
    places: Places = {}
    for store, value in offsets.items():
        queues = value if isinstance(value, dict) else {"": value}
        for queue, place in queues.items():
            if not isinstance(place, int) or isinstance(place, bool) or place < 0:
                text = json.dumps(dict(offsets))[:200]
                raise UsageError(f"offsets must be numbers by store and queue, not {text}")
            places[(store, queue)] = place
    return places


def unflatten(places: Places) -> dict[str, object]:
    """Return offsets as Spark keeps them; equal places give equal JSON."""
    offsets: dict[str, object] = {}
    for (store, queue), place in sorted(places.items()):
        if not queue:
            offsets[store] = place
            continue
        queues = offsets.setdefault(store, {})
        assert isinstance(queues, dict)
        queues[queue] = place
    return offsets


def check_start(given: Places, stores: Collection[str], known: Collection[tuple[str, str]]) -> None:
    """See whether each place in ``startingPosition`` is of a source that is followed. ``stores``:
    that are; ``known``: sources of those that could be read. Raises :class:`UsageError`."""
    read = {store for store, _ in known}
    for store, queue in given:
        if store not in stores:
            what = f"startingPosition names {store}, which is not followed"
            raise UsageError(f"{what}; there are {_some(sorted(stores))}")
        if store in read and (store, queue) not in known:
            queues = sorted(name for one, name in known if one == store)
            what = f"startingPosition names {queue!r} of {store}, which is not followed"
            what += f"; there are {_some(queues)}" if any(queues) else ": a number is right"
            raise UsageError(what)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def share(waiting: Mapping[tuple[str, str], int], most: int) -> Places:
    """Share ``most`` messages out among sources that have ``waiting`` ones: equal shares, and
    what one does not need goes to the others."""
    given: Places = {}
    left = most
    order = sorted(waiting, key=lambda at: (waiting[at], at))
    for number, at in enumerate(order):
        given[at] = min(waiting[at], -(-left // (len(order) - number)))
        left -= given[at]
    return given
