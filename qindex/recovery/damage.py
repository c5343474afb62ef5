"""Damage that recovery meets: it is reported, and an open over it is refused or sets it aside."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence

from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.errors import DamageError
from journal.findings import Cause, Finding, Kind
from journal.format import FILE_NAME as JOURNAL
from journal.fs.files import FileSystem, is_there
from qindex.format.segment import file_number
from qindex.index.quarantine import quarantine_findings

_log = logging.getLogger("qindex.recovery")


def report(finding: Finding) -> None:
    """Log a finding: damage as a warning; what each kill leaves is repaired, and an information."""
    crash = finding.cause is Cause.CRASH
    _log.log(logging.INFO if crash else logging.WARNING, "%s", finding)


def judge(findings: Sequence[Finding], *, repair: bool) -> None:
    """Report the findings. Raises :class:`DamageError` for a loss that no crash explains, unless
    ``repair``; nothing was changed then."""
    for finding in findings:
        report(finding)
    if not repair:
        refuse_losses(
            findings,
            "nothing was changed: open with repair=True to set the damaged bytes aside and go on "
            "with the rest",
        )


def refuse_losses(findings: Sequence[Finding], remedy: str) -> None:
    """Raise :class:`DamageError` if something is lost; ``remedy``: what the user can do."""
    damage = [one for one in findings if one.is_loss]
    if damage:
        first = damage[0]
        more = f" (and {len(damage) - 1} more places)" if len(damage) > 1 else ""
        raise DamageError(first.path, first.offset, f"{first.what}{more}; {remedy}")


def set_aside(fs: FileSystem, findings: Iterable[Finding]) -> None:
    """Copy the damaged bytes to quarantine files, durably. Raises :class:`StorageError`,
    :class:`OSError`."""
    quarantine_findings(fs, [one for one in findings if one.cause is Cause.DAMAGE])


def lost_files(
    fs: FileSystem, directory: str, names: Iterable[str], *, power_lost: bool
) -> Iterator[Finding]:
    """Find index files that are missing though their checksums are there.

    ``names``: all in the queue's directory. An engine removes the checksums first. So where no
    power was lost since, somebody else has removed the file. Raises :class:`OSError`.
    """
    there = set(names)
    for name in sorted(there):
        of = name.removesuffix(SUMS_SUFFIX)
        is_index = of == JOURNAL or file_number(of) is not None
        path = os.path.join(directory, of)
        # A writer may have made or removed both since.
        if of == name or not is_index or of in there or is_there(fs, path):
            continue
        if is_there(fs, path + SUMS_SUFFIX):
            cause = Cause.CRASH if power_lost else Cause.DAMAGE
            what, lost = "the file is missing; its checksums are there", "its entries are lost"
            yield Finding(path, 0, 0, cause, what, lost, Kind.MISSING_FILE)


def without_message(path: str, seq: int, msg_id: bytes) -> Finding:
    """Describe an entry of the segment ``path`` whose message is not in the message store."""
    what = f"seq_id {seq}: its message {msg_id.hex()} is not in the message store"
    kind = Kind.ENTRY_WITHOUT_MESSAGE
    return Finding(path, 0, 0, Cause.CRASH, what, "the entry is dropped", kind)
