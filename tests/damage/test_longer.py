"""Any bit of the index files of a longer store flipped: what comes out is true, and what is lost
or wrong is one message, and named.

The files are such as the death of the process left them, and such as a clean close did.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

import pytest

from tests.damage.harms import Harm, flipped
from tests.damage.samples import Sample, longer
from tests.damage.verdict import Verdict, judge
from tests.effort import by_tier, part

SIZES = {
    "long": (2000, 512, by_tier(quick=16, all=130, nightly=2000)),
    "short": (60, 16, by_tier(quick=12, all=100, nightly=10**9)),
}
"""Messages, entries in a segment, and bits that are flipped, about."""

_sample = cache(longer)


def bits(sample: Sample, count: int, what: str) -> list[tuple[str, int]]:
    """Give bits of the index files, spread evenly over all bytes that mean something."""
    every = [
        (path, bit)
        for path, data in sorted(sample.files.items())
        if path.endswith((".idx", ".jif", ".sum"))
        for bit in range(len(data.rstrip(b"\0")) * 8)
    ]
    return list(part(every, max(1, len(every) // count), what))


def is_named(harm: Harm, verdict: Verdict) -> bool:
    return any(os.path.basename(harm.path) in one for one in verdict.told)


@pytest.mark.rotates(2)
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "closed"])
def test_a_flipped_bit_costs_one_message_at_most(size: str, clean: bool) -> None:
    count, entry_count, wanted = SIZES[size]
    sample = _sample(count, entry_count, clean=clean)
    kinds: dict[str, Counter[str]] = {}
    for path, bit in bits(sample, wanted, f"{size} {clean}"):
        harm = flipped(sample.files, path, bit)
        verdict = judge(sample, harm, again=False, repairs=False)
        assert not verdict.refused
        assert verdict.missing <= 1, f"{harm}: {verdict.missing} missing"
        assert verdict.back <= 1, f"{harm}: {verdict.back} come back"
        assert verdict.other <= 1, f"{harm}: {verdict.other} with another flag"
        assert verdict.astray == verdict.again == 0, f"{harm}: {verdict}"
        named = is_named(harm, verdict)
        count_of = kinds.setdefault(os.path.splitext(path)[1], Counter())
        if verdict.seen and not named:
            # Delivers and acks have no checksum of their own, and the journal's last few KiB
            # none in its sum file yet.
            assert path.endswith("journal.jif"), f"{harm}: nothing says so"
            assert len(sample.files[path].rstrip(b"\0")) - (bit >> 3) < 2 * 4096, harm
            count_of["harm that nothing tells"] += 1
        count_of["flips"] += 1
        count_of["named"] += named
        for word in ("missing", "back", "other"):
            count_of[word] += getattr(verdict, word)
    for suffix, counts in sorted(kinds.items()):
        print(f"{size} {suffix}: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "closed"])
def test_unharmed(size: str, clean: bool) -> None:
    count, entry_count, _ = SIZES[size]
    sample = _sample(count, entry_count, clean=clean)
    verdict = judge(sample, Harm("", 0, 0, "nothing", sample.files))
    assert not verdict.seen
    assert not verdict.told


def test_it_has_segments_and_a_journal() -> None:
    sample = _sample(2000, 512, clean=False)
    assert sum(path.endswith(".idx") for path in sample.files) >= 3
    (journal,) = (data for path, data in sample.files.items() if path.endswith("journal.jif"))
    assert len(journal.rstrip(b"\0")) > 50_000
