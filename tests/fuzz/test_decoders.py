"""Every decoder on near misses of real files: its own errors, and bounded time and memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.effort import by_tier, examples, part
from tests.fuzz.frame import BrokenPromiseError, Decoder, all_decoders, check, measuring
from tests.fuzz.mutations import near_misses

EXAMPLES = {"inspect-jif": 12, "inspect-idx": 12, "inspect-rdq": 12}
"""Fewer than the 60 that others get in --all: each runs the command line twice."""


@pytest.mark.parametrize(
    "name", part(sorted(all_decoders()), by_tier(quick=4, all=1, nightly=1), "decoders")
)
def test_near_misses(name: str) -> None:
    decoder = all_decoders()[name]
    corpus = decoder.corpus()
    assert len(corpus) > 1, "no seeds"
    times = examples(EXAMPLES.get(name, 60), nightly=20_000)

    @settings(max_examples=times)
    @given(near_misses(corpus))
    def on_any(data: bytes) -> None:
        check(decoder, data)

    with measuring(decoder):
        accepted = [check(decoder, seed) for seed in corpus]
        assert any(accepted), "not even a real input is accepted"
        on_any()


def test_the_check_finds_what_it_should() -> None:
    """Test of the test: a decoder that believes a length field, and one that lets an error out."""
    greedy = Decoder("greedy", lambda data: bytes(len(data) << 20), lambda: [b""])
    with measuring(greedy):
        check(greedy, b"1")
        with pytest.raises(BrokenPromiseError, match="bytes of memory for 9"):
            check(greedy, b"123456789")
    careless = Decoder("careless", lambda data: data.index(b"2"[: len(data)]), lambda: [b""])
    with measuring(careless), pytest.raises(ValueError, match="not found"):
        check(careless, b"1")
