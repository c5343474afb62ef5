"""The rows that an audit returns: each problem, and its place.

``kind`` is a word of :class:`journal.findings.Kind` (docs/operations.md explains each).
``cause`` is ``damage``, or ``crash`` for what the death of a process or a loss of power leaves and
the next open repairs without asking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from journal.findings import Cause, Finding, Kind
from pyspark_qindex.jobs.tasks import Row
from pyspark_qindex.stores import Store
from qindex.view.arrow import Table

FINDINGS: Final[Table] = {
    "store": "string",
    "store_kind": "string",
    "queue": "string",
    "file": "string",
    "offset": "bigint",
    "length": "bigint",
    "kind": "string",
    "cause": "string",
    "what": "string",
    "consequence": "string",
    "number": "bigint",
}
"""``store``: as it was given; ``file``: relative to it; ``offset``, ``length``: bytes in the
file. ``number``: places that the row covers. More than one if one file has many of a kind."""

_SHOWN: Final = 8
"""Findings of one kind and cause in one file that have rows of their own."""


@dataclass(slots=True)
class Several:
    """``number`` findings of one kind and cause in one file, the first and the last of them."""

    first: Finding
    last: Finding
    number: int = 1

    def told(self) -> Finding:
        """Return them as one finding."""
        if self.number == 1:
            return self.first
        what = f"{self.number} more of this kind, up to offset {self.last.offset}, the first: "
        return replace(self.first, what=what + self.first.what)


def grouped(found: Iterable[Any]) -> Iterator[Any]:
    """Yield findings as :class:`Several`. If one file has many of one kind and cause, each of the
    first few has a row of its own, and one row covers the rest. Other objects in ``found`` pass
    unchanged."""
    counts: dict[tuple[str, str, str], int] = {}
    rest: dict[tuple[str, str, str], Several] = {}
    for one in found:
        if not isinstance(one, Finding):
            yield one
            continue
        key = (one.path, str(one.kind), one.cause.value)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= _SHOWN:
            yield Several(one, one)
        elif key in rest:
            rest[key].last = one
            rest[key].number += 1
        else:
            rest[key] = Several(one, one)
    yield from rest.values()


def finding_row(
    store: Store, store_kind: str, finding: Finding, queue: str | None = None, number: int = 1
) -> Row:
    """Return a finding as a row of :data:`FINDINGS`."""
    return (
        store.url,
        store_kind,
        queue,
        store.relative(finding.path),
        finding.offset,
        finding.length,
        str(finding.kind),
        finding.cause.value,
        finding.what,
        finding.consequence,
        number,
    )


def damage(path: str, offset: int, length: int, kind: Kind, what: str, lost: str = "") -> Finding:
    """Return a finding that no crash explains."""
    return Finding(path, offset, length, Cause.DAMAGE, what, lost, kind)
