"""End a call in the middle, as a signal's handler does that raises.

CPython looks for signals behind each call, at the start of each function and when a loop goes
back, and nowhere else. So a call has a number of points where Ctrl-C can end it; here they are
counted with a tracer, and at a given one the tracer raises in the handler's stead.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

__all__ = ["Interruption", "interrupted_at", "points_of", "run_at"]

_ROOT = Path(__file__).resolve().parents[2]
_OURS = tuple(str(_ROOT / name) for name in ("qindex", "journal", "msgstore", "rocketstore"))
_LOOKS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME")


class Interruption(BaseException):
    """What the handler raises."""


@cache
def _looks_of(code: CodeType) -> dict[int, int]:
    """Give the instructions (their offsets) behind which a signal's handler may raise, and where
    an exception there is handled."""
    handled = _handlers_of(code)
    return {
        one.offset: handled(one.offset)
        for one in dis.get_instructions(code)
        if one.opname in _LOOKS
    }


@cache
def _handlers_of(code: CodeType) -> Callable[[int], int]:
    """Give a function that tells where an exception at an offset is handled, -1: nowhere."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    @cache
    def handler(offset: int) -> int:
        return next((one.target for one in table if one.start <= offset < one.end), -1)

    return handler


@cache
def _is_ours(file: str) -> bool:
    return file.startswith(_OURS)


class _Tracer:
    """``library``: what is interrupted includes the standard library's locks."""

    def __init__(
        self, stop_at: int, handler: Callable[[str], object], *, library: bool = False
    ) -> None:
        self._library = library
        self.count = 0
        self.where = ""
        self._stop_at = stop_at
        self._handler = handler

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        """Take note that a function of ours begins, or goes on; gives what follows it."""
        file = frame.f_code.co_filename
        if event != "call" or not (
            _is_ours(file) or (self._library and file == threading.__file__)
        ):
            return None
        following = self._following(frame.f_code)
        frame.f_trace = following  # or 3.13 does not trace the opcodes of this frame
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._point(frame)
        return following

    def _following(self, code: CodeType) -> Any:
        """Give what is called before each instruction of one call.

        The interpreter raises behind an instruction, the tracer before the next. Where the one is
        within a ``try`` or ``with`` and the other is not, they differ, and that is no point.
        """
        looks, handled, point = _looks_of(code), _handlers_of(code), self._point
        before = -1

        def follow(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal before
            if event == "opcode":
                now = frame.f_lasti
                if before in looks and looks[before] == handled(now):
                    point(frame)
                before = now
            return follow

        return follow

    def _point(self, frame: FrameType) -> None:
        self.count += 1
        if self.count == self._stop_at:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            sys.settrace(None)
            self._handler(self.where)


def _end(where: str) -> NoReturn:
    raise Interruption(where)


def _run(
    call: Callable[[], object],
    stop_at: int,
    handler: Callable[[str], object] = _end,
    *,
    library: bool = False,
) -> _Tracer:
    tracer = _Tracer(stop_at, handler, library=library)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        call()
    finally:
        sys.settrace(before)
    return tracer


def points_of(call: Callable[[], object], *, library: bool = False) -> int:
    """Make a call; gives the number of points where it could have been interrupted. ``library``:
    also within the standard library's locks."""
    return _run(call, 0, library=library).count


def interrupted_at(call: Callable[[], object], point: int, *, library: bool = False) -> str | None:
    """Make a call that is interrupted at this point (from 1); tells where, or ``None`` when it was
    at its end before."""
    try:
        _run(call, point, library=library)
    except Interruption as error:
        return str(error)
    return None


def run_at(call: Callable[[], object], point: int, handler: Callable[[], object]) -> str | None:
    """Make a call, and run ``handler`` at this point; tells where, or ``None`` as above."""
    return _run(call, point, lambda _: handler()).where or None
