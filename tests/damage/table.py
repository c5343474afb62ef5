"""Count what became of harmed stores, by kind of file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.damage.harms import Harm, file_kind
from tests.damage.samples import Sample
from tests.damage.verdict import Verdict, judge

__all__ = ["Row", "Table"]


@dataclass(slots=True)
class Row:
    """``harms``: all; ``seen``: after which a user gets something else than from a sound store;
    ``told``: of those, after which an error or a finding of damage says so; ``logged``: of the
    others, after which a finding says what a crash may have done; ``silent``: the rest, by name.
    ``noticed``: of all, that open, a queue or verify had anything to say about; ``verified``:
    that verify calls damage."""

    harms: int = 0
    seen: int = 0
    told: int = 0
    logged: int = 0
    noticed: int = 0
    verified: int = 0
    silent: list[str] = field(default_factory=list)

    def add(self, harm: Harm, verdict: Verdict) -> None:
        """Count one."""
        self.harms += 1
        self.verified += bool(verdict.verified)
        self.noticed += bool(
            verdict.reported or verdict.logged or verdict.verified or verdict.verify_logged
        )
        if not verdict.seen:
            return
        self.seen += 1
        if verdict.reported:
            self.told += 1
        elif verdict.logged:
            self.logged += 1
        else:
            names = ("missing", "back", "other", "astray", "again")
            seen = {name: getattr(verdict, name) for name in names if getattr(verdict, name)}
            self.silent.append(f"{harm}: {seen}")


@dataclass(slots=True)
class Table:
    """Rows by the kind of harm and of file, and the promises that were broken."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def run(self, sample: Sample, what: str, harms: Iterable[Harm]) -> None:
        """Judge each harm to a sample."""
        for harm in harms:
            try:
                # Of flips, one bit of each byte.
                verdict = judge(sample, harm, again=what != "flip" or "bit 3" in harm.what)
            except Exception as error:
                self.broken.append(f"{sample.name}: {harm}: {type(error).__name__}: {error}")
                continue
            self.rows.setdefault((what, file_kind(harm.path)), Row()).add(harm, verdict)

    def lines(self) -> list[str]:
        """Give the table as text."""
        head = ("harm", "file", "harms", "seen", "told", "logged", "silent", "noticed", "verify")
        lines = ["{:<8} {:<16}".format(*head[:2]) + "".join(f"{one:>9}" for one in head[2:])]
        for (what, kind), row in sorted(self.rows.items()):
            figures = (
                *(row.harms, row.seen, row.told, row.logged),
                *(len(row.silent), row.noticed, row.verified),
            )
            lines.append(f"{what:<8} {kind:<16}" + "".join(f"{one:>9}" for one in figures))
        return lines
