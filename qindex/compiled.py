"""What is written in C (``qindex/c``), where the package was built with a compiler.

Everything works without it, single messages half as fast. ``QINDEX_PURE_PYTHON=1`` in the
environment does without.
"""

from __future__ import annotations

import os
from types import ModuleType

from xxhash import xxh3_64_digest

from journal.format import DELIVER_BITS
from qindex import plain
from qindex.segment_format import STEP_SIZE

__all__ = ["COMPILED", "read_run"]


def _load() -> ModuleType | None:
    if os.environ.get("QINDEX_PURE_PYTHON"):
        return None
    try:
        from qindex import _compiled
    except ImportError:
        return None
    _compiled.use_layout(
        {
            "PLAIN_HEADS": plain.PLAIN_HEADS,
            "plain_parts": plain.plain_parts,
            "xxh3_64_digest": xxh3_64_digest,
            "CHECK_START": plain.CHECK_START,
            "STEP_SIZE": STEP_SIZE,
            "DELIVER_BITS": DELIVER_BITS,
        }
    )
    return _compiled


COMPILED = _load()
"""The module, or ``None``."""

read_run = plain.read_run if COMPILED is None else COMPILED.read_run
