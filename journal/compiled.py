"""Which build runs: the sources interpreted, or the same sources compiled.

The modules of :data:`MODULES` are plain Python, and have the types of their names in a ``.pxd``
file beside them. ``setup.py`` compiles them, where there is a compiler, into a folder that no
import looks into by itself::

    journal/_compiled/<digest of all these sources>/qindex.index.queue_index.cpython-311-....so

:func:`install` lets imports find them there. The folder's name is made of the sources that are
here *now*, so that a build of other sources is never taken: there is no folder of its name.

A frozen program has no sources; it has the one build that it was made with
(:mod:`qindex._pyinstaller`).

``QINDEX_INTERPRETED=1`` has the sources interpreted, whatever is there. Without a compiler nothing
is there, and they are interpreted.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location

MODULES = (
    "journal.locks.owned_lock",
    "journal.locks.call_lock",
    "journal.locks.patience",
    "journal.journal",
    "journal.replay",
    "journal.block_sums",
    "qindex.format.message_record",
    "qindex.format.publish_records",
    "qindex.format.segment_walk",
    "qindex.format.transactions",
    "qindex.index.segment",
    "qindex.index.read_ahead",
    "qindex.index.index_reader",
    "qindex.index.queue_index",
    "qindex.queue.run_clock",
    "qindex.queue.wake_ups",
    "qindex.queue.notes.entry_note",
    "qindex.queue.notes.leases",
    "qindex.queue.notes.delays",
    "qindex.queue.state",
    "qindex.queue.flushing",
    "qindex.queue.delivery",
    "qindex.queue.expiry",
    "qindex.queue.producing",
    "qindex.queue.settling",
    "qindex.queue.delivering",
    "qindex.queue.waiting",
    "qindex.queue.plain_queue",
    "qindex.queue.priorities",
    "qindex.engine.transaction_log",
    "qindex.engine.moves",
    "qindex.engine.transactions",
    "qindex.server.protocol",
    "qindex.server.sessions",
    "qindex.server.flow",
    "qindex.server.limits",
    "qindex.server.loop",
    "qindex.server.server",
    "qindex.client.link",
    "qindex.client.calls",
    "qindex.client.shared_queue",
    "qindex.following.piece",
    "rocketstore.log.store_clock",
    "rocketstore.queues.route",
    "rocketstore.state",
    "rocketstore.log.mapped_files",
    "rocketstore.log.scan",
    "rocketstore.log.commitlog",
    "rocketstore.format.properties",
    "rocketstore.format.javahash",
    "rocketstore.columns",
    "rocketstore.format.heads",
    "rocketstore.queues.consumequeue",
    "rocketstore.format.index_format",
    "rocketstore.index.index_file",
    "rocketstore.index.index_service",
    "rocketstore.dispatcher",
    "rocketstore.putter",
    "rocketstore.get_result",
    "rocketstore.reading",
    "rocketstore.store",
)
"""All that is compiled: one ``.py`` and one ``.pxd`` each."""

SHARED = "journal._cyutility"
"""What Cython would put into each of them otherwise. It has no source here."""

_PRIMITIVES = (
    "journal.memory.words",
    "journal.memory.read_words",
    "qindex.format.json_tables",
    "qindex.format.plain_rows",
    "qindex.format.tables",
    "qindex.server.frames",
    "rocketstore.format.words",
)
"""Interpreted they are modules; the compiled ones have them within them."""

_FOR_THE_COMPILER = ("journal.memory.json_text",)
"""What primitives share, which the interpreter has in its library."""

COMPILED, INTERPRETED = "compiled", "interpreted"
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CHOSEN = [INTERPRETED]


def build() -> str:
    """Return which build runs: :data:`COMPILED` or :data:`INTERPRETED`."""
    return _CHOSEN[0]


def log_once(log: logging.Logger) -> None:
    """Log, once in a process, that the sources are interpreted."""
    if _CHOSEN == [INTERPRETED]:
        _CHOSEN.append("logged")
        log.info(
            "this build of qindex is interpreted, which takes several times the CPU of a compiled "
            "one (docs/operations.md: Compiled, or not)"
        )


def file_name(module: str) -> str:
    """Return the name of a compiled module's file, for this interpreter."""
    return module + EXTENSION_SUFFIXES[0]


def builds_folder() -> str:
    """Return the folder that holds the folders of builds."""
    return os.path.join(_ROOT, "journal", "_compiled")


def digest() -> str:
    """Return 16 hexadecimal digits that tell the sources from any others. About 1 ms."""
    from hashlib import sha256  # here, so that a user without a build does not import it

    found = sha256()
    for module in (*MODULES, *_PRIMITIVES, *_FOR_THE_COMPILER):
        for suffix in (".py", ".pxd")[module in _FOR_THE_COMPILER :]:
            with open(os.path.join(_ROOT, *module.split(".")) + suffix, "rb") as file:
                source = file.read()
            found.update(b"%s%s %d\n" % (module.encode(), suffix.encode(), len(source)) + source)
    return found.hexdigest()[:16]


class _Finder:
    """Finds compiled modules before the search of ``sys.path`` finds their sources."""

    def __init__(self, folder: str) -> None:
        self._files = {
            module: os.path.join(folder, file_name(module)) for module in (SHARED, *MODULES)
        }

    def is_whole(self) -> bool:
        """Return whether each module has its file: they are compiled against each other."""
        return all(map(os.path.exists, self._files.values()))

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        """Return where to load a module from; ``None`` for a module that is not compiled."""
        file = self._files.get(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))


def install() -> None:
    """Let imports find the compiled modules, if there is a build of these very sources. Where there
    is one of others only, a :class:`RuntimeWarning` says so."""
    if os.environ.get("QINDEX_INTERPRETED", "0") not in ("", "0"):
        return
    try:
        there = [each.name for each in os.scandir(builds_folder())]
        if getattr(sys, "frozen", False):
            wanted = "".join(there[:1])
        else:
            wanted = digest() if there else ""
    except OSError:
        return  # nothing was built, as a rule; or this is an archive
    if not there:
        return
    finder = _Finder(os.path.join(builds_folder(), wanted))
    if finder.is_whole():
        sys.meta_path.insert(0, finder)
        _CHOSEN[0] = COMPILED
        return
    warnings.warn(
        "qindex runs interpreted: its compiled build is of other sources, or of another Python; "
        "build it again (sh scripts/venv.sh), or set QINDEX_INTERPRETED=1",
        RuntimeWarning,
        stacklevel=3,
    )
