"""Thread primitives that gevent and eventlet may exchange.

Patched before this package is imported, they are all of one kind, and the stores work. Patched
after, some locks would stop a greenlet and others the whole process, so an open is refused.
"""

from __future__ import annotations

import _thread

from journal.errors import UsageError

_allocate_lock = _thread.allocate_lock


def check_unpatched() -> None:
    """Raise :class:`UsageError` where the locks of Python were exchanged since the import."""
    if _thread.allocate_lock is not _allocate_lock:
        by = _thread.allocate_lock.__module__.partition(".")[0]
        raise UsageError(
            f"{by} has replaced Python's locks after this package was imported: "
            f"patch first, at the start of the program, then import"
        )
