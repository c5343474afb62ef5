"""Open a store, over any file system."""

from __future__ import annotations

import os
from typing import Literal, Unpack, overload

from journal.fs.files import REAL, FileSystem, PathLike, checked_path
from qindex.engine.engine import Engine
from qindex.engine.read_only import ReadOnlyEngine
from qindex.options import OpenOptions, Options


@overload
def open_store(
    directory: PathLike,
    *,
    fs: FileSystem = REAL,
    read_only: Literal[False] = False,
    **options: Unpack[OpenOptions],
) -> Engine: ...
@overload
def open_store(
    directory: PathLike,
    *,
    fs: FileSystem = REAL,
    read_only: Literal[True],
    **options: Unpack[OpenOptions],
) -> ReadOnlyEngine: ...
@overload
def open_store(
    directory: PathLike,
    *,
    fs: FileSystem = REAL,
    read_only: bool,
    **options: Unpack[OpenOptions],
) -> Engine | ReadOnlyEngine: ...
def open_store(
    directory: PathLike,
    *,
    fs: FileSystem = REAL,
    read_only: bool = False,
    **options: Unpack[OpenOptions],
) -> Engine | ReadOnlyEngine:
    """Open a store as :func:`qindex.open` does, with ``fs`` below it. The tests use others than
    the real file system."""
    checked = Options(read_only=read_only, **options)
    if read_only:
        return ReadOnlyEngine(directory, fs, segment_entry_count=checked.segment_entry_count)
    return Engine(os.path.abspath(checked_path(directory)), checked, fs)
