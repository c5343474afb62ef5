"""What is fuzzed, and what each decoder has to keep: the errors of this project and no others, and
time and memory in proportion to its input.

A module of this package named ``decoders_*.py`` adds its own by a tuple ``DECODERS``.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

from journal.errors import StoreError

__all__ = ["SEED_BYTES", "BrokenPromiseError", "Decoder", "all_decoders", "check", "measuring"]

SEED_BYTES = 4096
"""Seeds are cut to so many bytes: what is small is mutated often."""


class BrokenPromiseError(AssertionError):
    """A decoder took more time or memory than its input justifies."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """One reader of foreign bytes.

    ``run``: called with any bytes; raises a :class:`StoreError` or nothing. ``seeds``: real
    inputs to start from. ``memory``, ``per_byte``: bytes that it may take at its peak, for itself
    and for each byte of input; ``seconds``: of processor time for 64 KiB of input.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    memory: int = 4 << 20
    per_byte: int = 256
    seconds: float = 2.0

    def corpus(self) -> list[bytes]:
        """Give the seeds, cut to :data:`SEED_BYTES`, each once, and the empty input."""
        return sorted({b"", *(seed[:SEED_BYTES] for seed in self.seeds())})


@cache
def all_decoders() -> dict[str, Decoder]:
    """Give the decoders of all modules, by name."""
    found: dict[str, Decoder] = {}
    package = __name__.rpartition(".")[0]
    for module in sorted(one.name for one in pkgutil.iter_modules(_package_path(package))):
        if module.startswith("decoders_"):
            for decoder in importlib.import_module(f"{package}.{module}").DECODERS:
                assert decoder.name not in found, f"two decoders {decoder.name}"
                found[decoder.name] = decoder
    return found


def _package_path(package: str) -> list[str]:
    return list(importlib.import_module(package).__path__)


@contextmanager
def measuring(decoder: Decoder) -> Iterator[None]:
    """Count memory while a decoder is checked; what it loads at its first use does not count."""
    for seed in decoder.corpus():
        with suppress(StoreError):
            decoder.run(seed)
    tracemalloc.start(1)
    try:
        yield
    finally:
        tracemalloc.stop()


def check(decoder: Decoder, data: bytes) -> bool:
    """Run one decoder on ``data`` within :func:`measuring`; tells whether it accepted it.

    Raises :class:`BrokenPromiseError`, and whatever else than a :class:`StoreError` it raises.
    """
    accepted, memory, took = _run(decoder, data)
    size = len(data)
    most = decoder.memory + decoder.per_byte * size
    # The interpreter's table of interned strings grows by megabytes, but not twice in a row.
    if memory > most and _run(decoder, data)[1] > most:
        raise BrokenPromiseError(f"{decoder.name}: {memory} bytes of memory for {size}")
    if took > decoder.seconds * max(1.0, size / (64 << 10)):
        raise BrokenPromiseError(f"{decoder.name}: {took:.1f} seconds for {size} bytes")
    return accepted


def _run(decoder: Decoder, data: bytes) -> tuple[bool, int, float]:
    """Run one decoder: whether it accepted ``data``, bytes at its peak, seconds of CPU."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    started = time.process_time()
    try:
        decoder.run(data)
        accepted = True
    except StoreError:
        accepted = False
    took = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    return accepted, peak - before, took
