"""Docstrings that the awaitable face of an API shares with the blocking one."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from typing import TypeVar

C = TypeVar("C", bound=type)


def described_by(twin: type) -> Callable[[C], C]:
    """Give each public method of a class without a docstring that of the same name in ``twin``."""

    def describe(cls: C) -> C:
        for name, member in vars(cls).items():
            if isfunction(member) and member.__doc__ is None and not name.startswith("_"):
                member.__doc__ = getattr(twin, name).__doc__
        return cls

    return describe
