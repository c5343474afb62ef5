"""A debug mode of the engine's locks: the order of docs/architecture.md is checked at each take.

Else it is checked by who would have to wait only. Handlers apart, nobody ever takes a lock while he
holds one of the same place, or of a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from journal.errors import UsageError
from journal.locks.call_lock import CallLock
from journal.locks.patience import PatientLock
from journal.locks.sync import GroupCommit

__all__ = ["WrongOrderError", "strict_order"]


class WrongOrderError(AssertionError):
    """A lock was taken out of order; no error of ours, so that nobody handles it."""


def _check(lock: CallLock | GroupCommit) -> None:
    check = lock.before_waiting
    if check is None:
        return
    try:
        check()
    except UsageError:
        raise WrongOrderError("a lock was taken while a later one was held") from None


@contextmanager
def strict_order() -> Iterator[None]:
    """Check the order at each take of locks that are made in this block."""
    take, wait_for_it, commit = (
        PatientLock.take,
        CallLock.wait_for_it,
        GroupCommit.commit,
    )
    patient_wait = PatientLock.wait_for_it

    def checked_take(lock: PatientLock) -> bool:
        _check(lock)
        return take(lock)

    def checked_wait(lock: CallLock) -> None:
        _check(lock)
        wait_for_it(lock)

    def checked_patient_wait(lock: PatientLock) -> None:
        _check(lock)
        patient_wait(lock)

    def checked_commit(commits: GroupCommit) -> None:
        if not commits.is_mine():
            _check(commits)
        commit(commits)

    with (
        patch.object(PatientLock, "take", checked_take),
        patch.object(CallLock, "wait_for_it", checked_wait),
        patch.object(PatientLock, "wait_for_it", checked_patient_wait),
        patch.object(GroupCommit, "commit", checked_commit),
    ):
        yield
