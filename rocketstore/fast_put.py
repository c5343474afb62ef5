"""A store takes the path of a usual put that is written in C, where there is one.

Whatever else there is to be seen to it leaves to the method :meth:`rocketstore.Store.put`.
"""

from __future__ import annotations

from journal.compiled import described
from journal.patience import PatientLock
from journal.poison import Poison
from rocketstore.commitlog import CommitLog
from rocketstore.compiled import COMPILED
from rocketstore.message import PutResult
from rocketstore.pending import PENDING_MAX, Pending
from rocketstore.put_path import Route

__all__ = ["install"]


def install(store: type) -> None:
    """Put it in the place of the method of ``store``, the class."""
    if COMPILED is not None:
        COMPILED.install(
            {
                "Store": store,
                "CommitLog": CommitLog,
                "Pending": Pending,
                "Route": Route,
                "Poison": Poison,
                "PutResult": PutResult,
                "PatientLock": PatientLock,
                "PENDING_MAX": PENDING_MAX,
                "put": described(store.put),  # type: ignore[attr-defined]
            }
        )
