"""Pieces of a buffer, all of one length, gathered as the rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def rows_at(
    units: npt.NDArray[Any], starts: npt.NDArray[np.int64], length: int
) -> npt.NDArray[Any]:
    """A table of shape ``(len(starts), length)``: a copy of the ``length`` units from each of
    ``starts`` on. ``length`` is not 0, and no piece may reach beyond the buffer.

    As items of one opaque type, rows are gathered by one copy each.
    """
    item = units.itemsize
    pieces = np.ndarray(
        (max(len(units) - length + 1, 0),), f"V{length * item}", units, strides=(item,)
    )
    return pieces[starts].view(units.dtype).reshape(-1, length)
