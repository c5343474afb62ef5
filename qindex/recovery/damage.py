"""Damage that recovery meets: it is reported, and an open over it is refused or sets it aside."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from journal.errors import DamageError
from journal.files import FileSystem
from journal.findings import Cause, Finding, Kind
from qindex.index.quarantine import quarantine_findings

_log = logging.getLogger("qindex.recovery")


def report(finding: Finding) -> None:
    """Log a finding: damage as a warning; what each kill leaves is repaired, and an information."""
    crash = finding.cause is Cause.CRASH
    _log.log(logging.INFO if crash else logging.WARNING, "%s", finding)


def judge(findings: Sequence[Finding], *, repair: bool) -> None:
    """Report what was found. Raises :class:`DamageError` for a loss that no crash explains, unless
    ``repair``; nothing was changed then."""
    for finding in findings:
        report(finding)
    damage = [one for one in findings if one.is_loss]
    if damage and not repair:
        first = damage[0]
        more = f" (and {len(damage) - 1} more places)" if len(damage) > 1 else ""
        raise DamageError(
            first.path,
            first.offset,
            f"{first.what}{more}; nothing was changed: open with repair=True to set the damaged "
            "bytes aside and go on with the rest",
        )


def set_aside(fs: FileSystem, findings: Iterable[Finding]) -> None:
    """Copy the damaged bytes to quarantine files, durably. Raises :class:`StorageError`,
    :class:`OSError`."""
    quarantine_findings(fs, [one for one in findings if one.cause is Cause.DAMAGE])


def without_message(path: str, seq: int, msg_id: bytes) -> Finding:
    """Describe an entry of the segment ``path`` whose message is not in the message store."""
    what = f"seq_id {seq}: its message {msg_id.hex()} is not in the message store"
    kind = Kind.ENTRY_WITHOUT_MESSAGE
    return Finding(path, 0, 0, Cause.CRASH, what, "the entry is dropped", kind)
