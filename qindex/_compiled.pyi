from collections.abc import Mapping

from journal.files import ReadBuffer
from qindex.format.entries import Entry

def use_layout(with_: Mapping[str, object], /) -> None: ...
def install(with_: Mapping[str, object], /) -> None: ...
def read_sound(
    data: ReadBuffer, payload: int, word: int, verified: bool, /
) -> tuple[bytes, int | Entry] | None: ...
def read_run(
    data: ReadBuffer,
    offsets: object,
    start: int,
    count: int,
    first_seq: int,
    most_bytes: int,
    in_journal: bool,
    /,
) -> tuple[list[bytes], list[int], list[bytes]]: ...
