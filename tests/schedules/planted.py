"""Defects that are planted to see that the explorer finds them: of the kinds that are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from journal.journal import Journal, Retired
from journal.locks.call_lock import CallLock
from journal.locks.calls import Calls
from journal.locks.owned_lock import LockByOwner
from msgstore import MessageStore
from qindex.queue.dead_letters import DeadLetters
from qindex.queue.wake_ups import Bell

__all__ = ["DEFECTS"]


def _replace(kind: type, name: str, method: Callable[..., Any]) -> None:
    assert hasattr(kind, name), f"{kind.__name__} has no {name} any more"
    setattr(kind, name, method)


def _close_waits_for_nobody() -> None:
    """A publish that is between message store and journal is cut in two."""
    _replace(Calls, "wait", lambda _calls: None)


def _not_asked_behind_the_take() -> None:
    """Who stood at a lock while the engine closed comes in behind."""
    _replace(CallLock, "check_taken", lambda _lock: None)


def _lock_taken_too_late() -> None:
    """A rebase looks whether a sync is under way, and then takes the lock of the files."""
    real_rebase, real_look = Journal.rebase, Journal._is_durable_from

    def look(journal: Any, front: int) -> bool:
        early: bool | None = journal.__dict__.get("early")
        return real_look(journal, front) if early is None else early

    def rebase(journal: Any, front: int, prepared: Retired | None) -> Retired | None:
        journal.early = real_look(journal, front)
        try:
            return real_rebase(journal, front, prepared)
        finally:
            journal.early = None

    _replace(Journal, "_is_durable_from", look)
    _replace(Journal, "rebase", rebase)


def _running_sync_forgotten() -> None:
    """A rebase takes no notice of a sync that is under way."""

    def look(journal: Any, front: int) -> bool:
        return bool(journal.synced > front)

    _replace(Journal, "_is_durable_from", look)


def _locks_in_the_other_order() -> None:
    """The append lock of the message store is taken while its tables' lock is held."""
    real = MessageStore.remove

    def remove(store: Any, msg_ids: Any) -> None:
        with store._state.lock, store._writer._append_lock:
            pass
        real(store, msg_ids)

    _replace(MessageStore, "remove", remove)


def _notify_lost() -> None:
    """Who waits is not told of the end."""
    _replace(Bell, "notify_all", lambda _bell: None)


def _sleeper_not_woken() -> None:
    """Who gives a lock back wakes nobody."""

    def release(lock: LockByOwner) -> None:
        lock._owner = lock._depth = 0

    _replace(LockByOwner, "release", release)


def _handler_waits_behind_its_thread() -> None:
    """A handler that waits for the lock wakes after the call that it interrupted."""

    real = LockByOwner.__init__

    class Sleepers(list):  # type: ignore[type-arg]
        def insert(self, _at: object, sleeper: object) -> None:
            self.append(sleeper)

    def __init__(lock: LockByOwner) -> None:
        real(lock)
        lock._sleepers = Sleepers()

    _replace(LockByOwner, "__init__", __init__)


def _letters_moved_by_several() -> None:
    """Threads that move the letters of one queue take no turns."""

    class Nobody(CallLock):
        def __enter__(self, *_: object) -> bool:
            return True

        def __exit__(self, *_: object) -> None:
            pass

    real = DeadLetters.__init__

    def __init__(letters: DeadLetters, *parts: Any) -> None:
        real(letters, *parts)
        letters._turn = Nobody()

    _replace(DeadLetters, "__init__", __init__)


DEFECTS: dict[str, Callable[[], None]] = {
    "close_waits_for_nobody": _close_waits_for_nobody,
    "not_asked_behind_the_take": _not_asked_behind_the_take,
    "lock_taken_too_late": _lock_taken_too_late,
    "running_sync_forgotten": _running_sync_forgotten,
    "locks_in_the_other_order": _locks_in_the_other_order,
    "notify_lost": _notify_lost,
    "letters_moved_by_several": _letters_moved_by_several,
    "sleeper_not_woken": _sleeper_not_woken,
    "handler_waits_behind_its_thread": _handler_waits_behind_its_thread,
}
