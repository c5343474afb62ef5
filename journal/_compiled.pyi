from collections.abc import Callable

from journal.files import ReadBuffer

def pread(fd: int, length: int, offset: int, /) -> bytes: ...
def pwrite(fd: int, data: ReadBuffer, offset: int, /) -> int: ...
def use(
    pread: Callable[[int, int, int], bytes],
    pwrite: Callable[[int, ReadBuffer, int], int],
    most_bytes: int,
    longest: int,
    pause_after: int,
    /,
) -> None: ...
