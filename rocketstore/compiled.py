"""The part of this store that is written in C (:mod:`journal.compiled`), set up for the layout of
records."""

from __future__ import annotations

from journal.compiled import load
from rocketstore import bodies
from rocketstore.commitlog_format import FIXED_SIZE, HEADERS, MESSAGE_MAGIC
from rocketstore.crc import crc32
from rocketstore.message import OTHER_HOSTS
from rocketstore.properties import PROPERTIES_MAX
from rocketstore.put_path import STAMP_SIZE

__all__ = ["COMPILED", "usual_bodies"]

COMPILED = load("rocketstore")
"""The module, or ``None``."""

if COMPILED is not None:
    COMPILED.use_layout(
        {
            "crc32": crc32,
            "MAGIC": MESSAGE_MAGIC & 0xFFFFFFFF,
            "HEAD_SIZE": HEADERS[0].size,
            "FIXED_SIZE": FIXED_SIZE,
            "STAMP_SIZE": STAMP_SIZE,
            "OTHER_HOSTS": OTHER_HOSTS,
            "PROPERTIES_MAX": PROPERTIES_MAX,
        }
    )

usual_bodies = bodies.usual_bodies if COMPILED is None else COMPILED.usual_bodies
