"""Checks of arguments that several packages make."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NoReturn, TypeVar

from journal.errors import UsageError

_One = TypeVar("_One")


def listed(values: Iterable[_One], what: str) -> list[_One]:
    """Return `values` as a list.

    Raises :class:`UsageError` for a single text or path, which would be taken letter by letter.

    >>> listed(("a", "b"), "queues")
    ['a', 'b']
    >>> listed("ab", "queues")
    Traceback (most recent call last):
    qindex.UsageError: queues must be a list, not 'ab': write ['ab']
    """
    if isinstance(values, str | bytes | os.PathLike):
        raise UsageError(f"{what} must be a list, not {values!r}: write [{values!r}]")
    return list(values)


def encoded(text: str, what: str) -> bytes:
    r"""Return `text` as UTF-8. Raises :class:`UsageError` if it is not Unicode.

    >>> encoded("\udcff", "the topic")
    Traceback (most recent call last):
    qindex.UsageError: the topic must be valid Unicode, not '\udcff'
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} must be valid Unicode, not {text!a}") from error


def refuse_pickling(one: object) -> NoReturn:
    """Raise the :class:`UsageError` of an object that only the process can use that has it."""
    raise UsageError(
        f"{type(one).__name__} objects can't be pickled: one process has a store open, "
        "so send another process what it needs of the messages"
    )
