"""Count what became of harmed stores, by kind of file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.damage.harms import Harm, file_kind
from tests.damage.mending import Mended
from tests.damage.samples import Sample
from tests.damage.verdict import Verdict, judge

__all__ = ["Row", "Table"]


@dataclass(slots=True)
class Row:
    """``harms``: all; ``seen``: after which a user gets something else than from a sound store;
    ``told``: of those, after which an error or a finding of damage says so; ``logged``: of the
    others, after which a finding says what a crash may have done; ``silent``: the rest, by name.
    ``noticed``: of all, that open, a queue or verify had anything to say about; ``verified``:
    that verify calls damage.

    Of the harms after which the store was also repaired into a new one, ``mended``: ``lost``, in
    whose new store a user gets something else than from a sound one; ``unsaid``, of those, whose
    report has no finding, and ``unnamed``, whose report names other files than the harmed one, by
    name."""

    harms: int = 0
    seen: int = 0
    told: int = 0
    logged: int = 0
    noticed: int = 0
    verified: int = 0
    silent: list[str] = field(default_factory=list)
    mended: int = 0
    lost: int = 0
    unsaid: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def add(self, harm: Harm, verdict: Verdict) -> None:
        """Count one."""
        self.harms += 1
        self.verified += bool(verdict.verified)
        self.noticed += bool(
            verdict.reported or verdict.logged or verdict.verified or verdict.verify_logged
        )
        if verdict.mended is not None:
            self._add_mended(harm, verdict.mended)
        if not verdict.seen:
            return
        self.seen += 1
        if verdict.reported:
            self.told += 1
        elif verdict.logged:
            self.logged += 1
        else:
            self.silent.append(f"{harm}: {_seen(verdict)}")

    def _add_mended(self, harm: Harm, mended: Mended) -> None:
        self.mended += 1
        if not mended.seen:
            return
        self.lost += 1
        if not mended.told:
            self.unsaid.append(f"{harm}: {_seen(mended)}")
        elif not mended.named:
            self.unnamed.append(f"{harm}: {_seen(mended)}")


def _seen(one: Verdict | Mended) -> dict[str, int]:
    names = ("missing", "back", "other", "astray", "again")
    return {name: getattr(one, name) for name in names if getattr(one, name)}


@dataclass(slots=True)
class Table:
    """Rows by the kind of harm and of file, and the promises that were broken. After every
    ``mend_every``-th harm the store is also repaired into a new one."""

    mend_every: int = 1
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def run(self, sample: Sample, what: str, harms: Iterable[Harm]) -> None:
        """Judge each harm to a sample."""
        for number, harm in enumerate(harms):
            repairs = number % self.mend_every == 0
            try:
                # Of flips, one bit of each byte.
                again = what != "flip" or "bit 3" in harm.what
                verdict = judge(sample, harm, again=again, repairs=repairs)
            except Exception as error:
                self.broken.append(f"{sample.name}: {harm}: {type(error).__name__}: {error}")
                continue
            self.rows.setdefault((what, file_kind(harm.path)), Row()).add(harm, verdict)

    def lines(self) -> list[str]:
        """Give the table as text."""
        head = (
            *("harm", "file", "harms", "seen", "told", "logged", "silent", "noticed", "verify"),
            *("repaired", "lost", "unsaid", "unnamed"),
        )
        lines = ["{:<8} {:<16}".format(*head[:2]) + "".join(f"{one:>9}" for one in head[2:])]
        for (what, kind), row in sorted(self.rows.items()):
            figures = (
                *(row.harms, row.seen, row.told, row.logged),
                *(len(row.silent), row.noticed, row.verified),
                *(row.mended, row.lost, len(row.unsaid), len(row.unnamed)),
            )
            lines.append(f"{what:<8} {kind:<16}" + "".join(f"{one:>9}" for one in figures))
        return lines
