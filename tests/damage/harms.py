"""Ways to harm the files of a store, each named, in a fixed order.

They are of any store, qindex's or rocketstore's: a store here is the bytes of its files by path.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = [
    "Files",
    "Harm",
    "appended",
    "cut",
    "doubled",
    "file_kind",
    "flipped",
    "flips",
    "others",
    "overwritten",
    "removed",
    "replaced",
    "several",
    "swapped",
]

Files = Mapping[str, bytes]

_BLOCK = 512
_DENSE = 1024
"""Of a file up to this size, and of the last so many bytes before the zeros at the end of a
longer one, every bit counts."""


@dataclass(frozen=True, slots=True)
class Harm:
    """``what`` was done to the file at ``path``: to its ``size`` bytes from ``offset`` on;
    ``files``: all there are then; ``others``: paths of other files that are not what they were."""

    path: str
    offset: int
    size: int
    what: str
    files: dict[str, bytes]
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.path} at offset {self.offset}: {self.what}"


def file_kind(path: str) -> str:
    """Give the row of the table that a file counts for."""
    name = os.path.basename(path)
    return name if name.startswith((".", "qindex.")) else "*" + "".join(_suffixes(name))


def _suffixes(name: str) -> list[str]:
    first, *rest = name.split(".")
    return ["." + one for one in rest] or [first]


def flipped(files: Files, path: str, bit: int) -> Harm:
    """Flip a bit: 0 is the highest one of the first byte."""
    content = bytearray(files[path])
    content[bit >> 3] ^= 0x80 >> (bit & 7)
    what = f"bit {bit & 7} flipped"
    return Harm(path, bit >> 3, 1, what, {**files, path: bytes(content)})


def cut(files: Files, path: str, length: int) -> Harm:
    data = files[path]
    return Harm(path, length, len(data) - length, "cut here", {**files, path: data[:length]})


def overwritten(files: Files, path: str, start: int, block: bytes, what: str) -> Harm:
    """Put a block over what stands at ``start``; the file does not grow."""
    data = files[path]
    block = block[: len(data) - start]
    content = data[:start] + block + data[start + len(block) :]
    return Harm(path, start, len(block), what, {**files, path: content})


def removed(files: Files, path: str) -> Harm:
    rest = {name: one for name, one in files.items() if name != path}
    return Harm(path, 0, len(files[path]), "removed", rest)


def appended(files: Files, path: str, more: bytes, what: str) -> Harm:
    data = files[path]
    return Harm(path, len(data), 0, what, {**files, path: data + more})


def doubled(files: Files, path: str) -> Harm:
    return appended(files, path, files[path], "doubled")


def replaced(files: Files, path: str, other: str) -> Harm:
    """Put a copy of another file in a file's place."""
    changed = {**files, path: files[other]}
    return Harm(path, 0, len(files[path]), f"replaced by {other}", changed)


def swapped(files: Files, path: str, other: str) -> Harm:
    changed = {**files, path: files[other], other: files[path]}
    return Harm(path, 0, len(files[path]), f"swapped with {other}", changed, (other,))


def _copied(files: Files, path: str, copy: str) -> Harm:
    return Harm(path, 0, 0, f"copied to {copy}", {**files, copy: files[path]}, (copy,))


def flips(files: Files, path: str, *, share: int = 1, seed: int = 0) -> Iterator[Harm]:
    """Flip bits of one file: every ``share``-th, from ``seed`` on; the first and last bytes of its
    content (:data:`_DENSE`) ``share`` times as often in a long file as what lies between."""
    data = files[path]
    used = len(data.rstrip(b"\0"))
    for bit in range(len(data) * 8):
        at = bit >> 3
        dense = len(data) <= _DENSE or used - _DENSE <= at < used + 64
        if not (bit * 7 + seed) % (share if dense else share * share):
            yield flipped(files, path, bit)


def others(files: Files, path: str, *, share: int = 1, seed: int = 0) -> Iterator[Harm]:
    """Cut the file at every ``share``-th length; make each block of 512 bytes zero; remove it, put
    it twice behind itself, and put each other file of its kind in its place."""
    data = files[path]
    for length in range(seed % share, len(data), share):
        yield cut(files, path, length)
    for start in range(0, len(data), _BLOCK):
        if any(data[start : start + _BLOCK]):
            yield overwritten(files, path, start, bytes(_BLOCK), "512 bytes zero")
    yield removed(files, path)
    if data:
        yield doubled(files, path)
    for other in sorted(files):
        if other != path and file_kind(other) == file_kind(path) and files[other] != data:
            yield replaced(files, path, other)
            if other > path:
                yield swapped(files, path, other)
    name = os.path.basename(path)
    if name[:1].isdigit():
        copy = os.path.join(os.path.dirname(path), "7" + name[1:])
        if copy not in files:
            yield _copied(files, path, copy)


def several(files: Files, rng: random.Random) -> dict[str, bytes]:
    """Harm a store in one to four ways at random; gives its files then."""
    for _ in range(rng.randint(1, 4)):
        names = sorted(files)
        path, other = rng.choice(names), rng.choice(names)
        data = files[path]
        at = rng.randrange(len(data) or 1)
        match rng.randrange(8):
            case 0 if data:
                harm = flipped(files, path, at * 8 + rng.randrange(8))
            case 1:
                harm = overwritten(files, path, at, bytes(_BLOCK), "zeros")
            case 2:
                harm = cut(files, path, at)
            case 3:
                harm = removed(files, path)
            case 4:
                harm = swapped(files, path, other)
            case 5:
                suffix = os.path.splitext(path)[1]
                name = f"{rng.randrange(5)}{suffix}"
                harm = _copied(files, path, os.path.join(os.path.dirname(path), name))
            case 6:
                harm = appended(files, path, rng.randbytes(rng.randrange(1, 300)), "noise behind")
            case _:
                harm = overwritten(files, path, at, rng.randbytes(40), "noise")
        files = harm.files
    return dict(files)
