"""Every state that a crash can leave at one point of a recording, within stated bounds.

What we take a disk to do (docs/durability.md says it, too):

* it keeps a sector of 512 bytes whole: a sector of a file holds what the file held there at some
  moment since the last sync of the file (or at that sync), each sector for itself;
* the length of a file is that of some moment since its last sync, or that of a write which was
  only done in part (any byte); what is within the length and was never written reads as zeros;
* a file that was cut is cut before anything that is done to it later: what is written behind a
  cut never stands beside what was cut off (journaling file systems keep that order);
* each creation, rename or removal of a name since the last sync of its directory is done or not,
  each for itself.

A process that dies alone ("kill") leaves all it had handed to the system; the last write may be
done up to any byte, and the last copy into a map in part, in whatever order it was made.

Each file with pending writes has a list of contents it may have, each directory with pending
changes a list of names. The states of the whole are their combinations: all of them up to
``Bounds.product``; beyond that each thing varied on its own against "all done" and "nothing
done", each pair of things against "all done", and all mixtures of "done" and "not done".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import combinations, product

from xxhash import xxh3_64_intdigest

from tests.crash.borders import borders
from tests.crash.disk import (
    Data,
    Disk,
    Name,
    Names,
    apply_data,
    apply_name,
    parts_of_copy,
    resolve,
)

__all__ = ["Bounds", "State", "kill_states", "power_states"]

SECTOR = 512
PAGE = 4096
_WORD = 16
"""A processor stores so many bytes at once: no signal comes in between."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far combinations go.

    ``product``: combinations of contents and names that are all tried at one point. ``pairs``:
    how many pairs of two things' variants are tried beyond that. ``subset``: so many pages,
    sectors or names are varied in all subsets; beyond it singles, pairs and complements.
    ``moments``: how many of the last writes to a file are moments that the whole of it, or one of
    its sectors, may stem from.
    """

    product: int = 8
    pairs: int = 8
    subset: int = 2
    moments: int = 3


@dataclass(frozen=True, slots=True)
class State:
    """One state: ``how`` says what had become of what was pending; ``key`` is equal for equal
    files and directories, in all processes."""

    how: str
    kill: bool
    files: dict[str, bytes]
    directories: frozenset[str]
    key: int


@dataclass(frozen=True, slots=True)
class _Variant:
    how: str
    data: bytes
    digest: int


_Tree = tuple[list[tuple[str, int]], list[str]]
_Choice = tuple[str, int, _Variant | Names]
"""How, of which inode, and what."""


class _Point:
    """A point of a recording, with what is pending there by file and directory."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.writes: dict[int, list[Data]] = {}
        for write in disk.data:
            self.writes.setdefault(write.inode, []).append(write)
        self.changes: dict[int, list[Name]] = {}
        for change in disk.changes:
            assert change.left is None, "what is explored here renames within a directory"
            self.changes.setdefault(change.directory, []).append(change)
        self.paths: dict[int, str] = {}
        self.all_done = self.tree({inode: len(each) for inode, each in self.changes.items()})
        for path, inode in self.all_done[0]:
            self.paths[inode] = path
        self._digests: dict[int, int] = {}

    def names(self, directory: int, done: Iterable[Name]) -> Names:
        names = dict(self.disk.directories[directory])
        for change in done:
            apply_name(names, change)
        return names

    def tree(self, counts: dict[int, int]) -> _Tree:
        directories = dict(self.disk.directories)
        for inode, count in counts.items():
            directories[inode] = self.names(inode, self.changes[inode][:count])
        return resolve(directories)

    def state(self, how: str, kill: bool, tree: _Tree, contents: dict[int, _Variant]) -> State:
        files: dict[str, bytes] = {}
        parts: list[object] = [tuple(map(_number, sorted(tree[1])))]
        safe = self.disk.contents
        for path, inode in sorted(tree[0]):
            variant = contents.get(inode)
            if variant is None:
                data = safe.get(inode, b"")
                digest = self._digests.get(inode)
                if digest is None:
                    digest = self._digests[inode] = xxh3_64_intdigest(data)
            else:
                data, digest = variant.data, variant.digest
            files[path] = data
            parts.append((_number(path), digest))
        return State(how, kill, files, frozenset(tree[1]), hash(tuple(parts)))


@cache
def _number(path: str) -> int:
    """Give a number for a path, the same in each process; the hash of a string is not."""
    return xxh3_64_intdigest(path.encode())


def _variant(how: str, data: bytes) -> _Variant:
    return _Variant(how, data, xxh3_64_intdigest(data))


def kill_states(disk: Disk, last: Data | None) -> Iterator[State]:
    """The death of the process alone: all is there; of the ``last`` write, if it was under way,
    perhaps only the beginning, and of the last copy into a map only parts."""
    point = _Point(disk)
    contents = {}
    before = b""
    for inode, writes in point.writes.items():
        data = disk.contents.get(inode, b"")
        for write in writes:
            if write is last:
                before = data
            data = apply_data(data, write)
        contents[inode] = _variant("done", data)
    yield point.state("kill", True, point.all_done, contents)
    if last is None or last.data is None or len(last.data) <= _WORD:
        return
    path = point.paths.get(last.inode, "")
    if last.copied:
        for how, parts in parts_of_copy(last, _cuts(path, last, before, around=0)):
            contents[last.inode] = _variant("", reduce(apply_data, parts, before))
            yield point.state(f"kill, copied {how}", True, point.all_done, contents)
        return
    for cut in _cuts(path, last, before):
        contents[last.inode] = _variant("", apply_data(before, _front(last, cut)))
        yield point.state(f"kill, the last write cut at {cut}", True, point.all_done, contents)


def power_states(disk: Disk, bounds: Bounds) -> Iterator[State]:
    """A loss of power: see the module's text."""
    point = _Point(disk)
    choices: list[list[_Choice]] = []
    for inode, writes in point.writes.items():
        path = point.paths.get(inode, "")
        variants = _contents(path, disk.contents.get(inode, b""), writes, bounds)
        label = path or f"inode {inode}"
        choices.append([(f"{label} {one.how}", inode, one) for one in variants])
    for inode, changes in point.changes.items():
        choices.append(
            [(how, inode, point.names(inode, done)) for how, done in _subsets(changes, bounds)]
        )
    if not choices:
        return
    trees: dict[tuple[int, ...], _Tree] = {}
    for chosen in _combinations(choices, bounds):
        contents: dict[int, _Variant] = {}
        directories = dict(disk.directories)
        named: list[int] = []
        for what in chosen:
            if isinstance(what[2], _Variant):
                contents[what[1]] = what[2]
            else:
                assert isinstance(what[2], dict)
                directories[what[1]] = what[2]
                named.append(id(what[2]))
        tree = trees.get(tuple(named))
        if tree is None:
            tree = trees[tuple(named)] = resolve(directories)
        how = "; ".join(what[0] for what in chosen if not what[0].endswith(_DONE))
        yield point.state(how or "all done, power lost", False, tree, contents)


_DONE = " done"
_NOT_DONE = " not done"


def _combinations(
    choices: Sequence[Sequence[_Choice]], bounds: Bounds
) -> Iterator[tuple[_Choice, ...]]:
    """Choose one of each; the first of each is "done", the second, if any, "not done"."""
    total = 1
    for each in choices:
        total *= len(each)
    if total <= bounds.product:
        yield from product(*choices)
        return
    done = [each[0] for each in choices]
    nothing = [each[min(1, len(each) - 1)] for each in choices]
    extremes = [each[:2] for each in choices]
    if 2 ** len(choices) <= bounds.product:
        yield from product(*extremes)
    else:
        yield tuple(done)
        yield tuple(nothing)
    for base in (done, nothing):
        for at, each in enumerate(choices):
            for one in each:
                yield (*base[:at], one, *base[at + 1 :])
    pairs = 0
    for (at, one), (other, two) in combinations(
        [(at, one) for at, each in enumerate(choices) for one in each[1:]], 2
    ):
        if at != other:
            chosen = list(done)
            chosen[at], chosen[other] = one, two
            yield tuple(chosen)
            pairs += 1
            if pairs >= bounds.pairs:
                return


def _subsets(changes: list[Name], bounds: Bounds) -> Iterator[tuple[str, list[Name]]]:
    """Which of the changes of one directory are done."""
    count = len(changes)
    numbers = range(count)
    yield _DONE, changes
    yield "names" + _NOT_DONE, []
    if count <= bounds.subset:
        kept = [set(each) for size in range(1, count) for each in combinations(numbers, size)]
    else:
        kept = [{at} for at in numbers] + [set(numbers) - {at} for at in numbers]
        kept += [set(range(size)) for size in range(2, count - 1)]
    for each in kept:
        lost = ", ".join(_label(changes[at]) for at in numbers if at not in each)
        yield f"not {lost}", [changes[at] for at in sorted(each)]


def _label(change: Name) -> str:
    if change.source is None:
        return f"+{change.target}"
    return f"-{change.source}" if change.target is None else f"{change.source}>{change.target}"


def _contents(path: str, safe: bytes, writes: list[Data], bounds: Bounds) -> list[_Variant]:
    """What a file may hold: first "done", then "not done", then all between; each once."""
    moments = [safe]
    for write in writes:
        moments.append(apply_data(moments[-1], write))
    done = moments[-1]
    found: dict[bytes, str] = {}

    def add(how: str, data: bytes) -> None:
        found.setdefault(data, how)

    add(_DONE[1:], done)
    add(_NOT_DONE[1:], safe)
    cut_at = max((at for at in range(1, len(moments)) if _is_cut(moments, writes, at)), default=0)
    recent = moments[-1 - bounds.moments : -1]
    for back, moment in enumerate(reversed(recent), 1):
        add(f"{back} writes back", moment)
    last = writes[-1]
    if last.data is not None:
        extends = last.offset + len(last.data) > len(moments[-2])
        for cut in _cuts(path, last, moments[-2]):
            # Within the old length a disk cuts at sectors only.
            if extends or not (last.offset + cut) % SECTOR:
                add(f"cut at {cut} of the last write", apply_data(moments[-2], _front(last, cut)))
    since = [moments[cut_at], *moments[max(cut_at + 1, len(moments) - 1 - bounds.moments) : -1]]
    for length in set(map(len, since)):
        add(f"{length} bytes long", done[:length])
        add(f"zeros up to {len(done)}", done[:length].ljust(len(done), b"\0"))
    for moment in since:
        if len(moment) < len(done):
            add("its length alone", moment.ljust(len(done), b"\0"))
    for how, data in _mixtures(done, since, PAGE, "page", bounds):
        add(how, data)
    for how, data in _mixtures(done, since, SECTOR, "sector", bounds):
        add(how, data)
    return [_variant(how, data) for data, how in found.items()]


def _is_cut(moments: list[bytes], writes: list[Data], at: int) -> bool:
    """Tell whether the write before moment ``at`` cut the file."""
    return writes[at - 1].data is None and len(moments[at]) < len(moments[at - 1])


def _mixtures(
    done: bytes, moments: list[bytes], unit: int, what: str, bounds: Bounds
) -> Iterator[tuple[str, bytes]]:
    """Pages or sectors, each of its own moment."""
    size = len(done)
    safe = moments[0][:size].ljust(size, b"\0")
    changed = [at for at in range(0, size, unit) if safe[at : at + unit] != done[at : at + unit]]
    if len(changed) < 2 and unit == SECTOR and len(moments) < 2:
        return
    numbers = range(len(changed))
    if len(changed) <= bounds.subset:
        olds = [set(each) for n in range(1, len(changed)) for each in combinations(numbers, n)]
    else:
        olds = [{at} for at in numbers] + [set(numbers) - {at} for at in numbers]
        olds += [set(each) for each in combinations(numbers, 2)][: bounds.pairs]
    for old in olds:
        yield _mixed(done, safe, [changed[at] for at in sorted(old)], unit, what)
    for moment in moments[1:]:
        older = moment[:size].ljust(size, b"\0")
        for at in changed:
            if older[at : at + unit] not in (done[at : at + unit], safe[at : at + unit]):
                yield _mixed(done, older, [at], unit, f"earlier {what}")


def _mixed(
    done: bytes, older: bytes, places: Sequence[int], unit: int, what: str
) -> tuple[str, bytes]:
    mixed = bytearray(done)
    for at in places:
        mixed[at : at + unit] = older[at : at + unit]
    listed = ", ".join(str(at // unit) for at in places)
    return f"without {what} {listed}", bytes(mixed)


def _front(write: Data, cut: int) -> Data:
    assert write.data is not None
    return Data(write.inode, write.offset, write.data[:cut])


def _cuts(path: str, write: Data, before: bytes, around: int = 1) -> list[int]:
    """Where a write may end: at borders of records, ``around`` bytes before and behind them, at
    sectors."""
    assert write.data is not None
    size = len(write.data)
    cuts = {1, 2, size - 1}
    for border in borders(path, before, write):
        cuts.update(range(border - around, border + around + 1))
    first = -write.offset % SECTOR
    cuts |= set(range(first, size, SECTOR))
    return sorted(cut for cut in cuts if 0 < cut < size)
