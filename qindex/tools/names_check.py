"""The names that a store directory may have, and the meaning of a name that does not belong."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator

from journal import format as journal_format
from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.errors import StorageError, storage_errors
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, names_in, special
from msgstore.format import NODE_STATE_NAMES, classify_name
from msgstore.format import Kind as FileKind
from qindex.format import layout
from qindex.format.headers import DUE_FILE, KEYS_FILE
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as INDEX_SUFFIX
from qindex.format.rabbitmq.queue_store_v2 import SUFFIX as STORE_SUFFIX
from qindex.format.segment import file_name, file_number
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.index.messages import PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY
from qindex.index.quarantine import DIRECTORY as QUARANTINE
from qindex.queue.notes.delivery_counts import FILE_NAME as DELIVERIES
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from qindex.view.rabbitmq_vhost import RECOVERY_TERMS, VHOST_FILE

_UNFINISHED_SUFFIXES = (".tmp", ".new")
_ROOT_FILES = frozenset(
    (
        layout.MARKER,
        layout.LOCK,
        layout.MOVES,
        layout.TRANSACTIONS,
        layout.IMPORT,
        SNAPSHOT,
        layout.CONFIG,
        VHOST_FILE,
        RECOVERY_TERMS,
        *(layout.SERVER_FILES - {layout.SERVER_SOCKET, layout.SERVER_MAKING}),
    )
)
_ROOT_DIRECTORIES = frozenset(
    (
        layout.SERVER_MAKING,
        layout.CONVERSION,
        layout.QUEUES,
        layout.STAGING,
        PERSISTENT_DIRECTORY,
        TRANSIENT_DIRECTORY,
        QUARANTINE,
    )
)
_QUEUE_FILES = frozenset(
    (
        layout.QUEUE_NAME,
        layout.SETTINGS,
        DELIVERIES,
        DUE_FILE,
        KEYS_FILE,
        SEQ_FILE_NAME,
        journal_format.FILE_NAME,
    )
)
_QUEUE_HASH = re.compile(r"[0-9A-Z]{1,25}")


def check_names(
    fs: FileSystem, directory: str, *, ours: bool, pairs: bool, in_use: bool
) -> Iterator[Finding]:
    """Find files that do not belong into a store or a virtual host's directory, and what an
    operation left that was cut short (unless a process has the store open: it may be at work).
    ``pairs``: its queues may have files of version 2.

    Raises :class:`StorageError` when the directory can't be listed.
    """
    queues = os.path.join(directory, layout.QUEUES)
    places: list[tuple[str, Callable[[str], bool | None]]] = [(directory, _in_root)]
    places += [
        (os.path.join(directory, name), _in_message_store)
        for name in (PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY)
    ]
    for name in _list(fs, queues):
        path = os.path.join(queues, name)
        if name.endswith(layout.DELETED_SUFFIX) and _QUEUE_HASH.fullmatch(name.partition(".")[0]):
            if not in_use:
                yield _left(path, "a queue whose deletion was cut short")
        elif not _QUEUE_HASH.fullmatch(name) or _is_directory(fs, path) is False:
            yield _foreign(path)
        else:
            places.append((path, _in_any_queue if pairs else _in_queue))
            if ours and not in_use and set(_list(fs, path)) <= {layout.QUEUE_NAME + ".tmp"}:
                yield _left(path, "a queue whose creation was cut short")
    if layout.CONVERSION in _list(fs, directory):
        path = os.path.join(directory, layout.CONVERSION)
        again = "run it again before a node is started"
        yield _left(path, "a conversion that was cut short", again)
    for place, judge in places:
        for name in _list(fs, place):
            path = os.path.join(place, name)
            mode = _mode(fs, path)
            if judge is _in_root and name == layout.SERVER_SOCKET and mode and stat.S_ISSOCK(mode):
                continue
            odd = None if mode is None else special(mode)
            if odd is not None:
                yield _foreign(path, odd, "it is not read")
                continue
            wants_directory = judge(name)
            if not in_use and (classify_name(name) or (None,))[0] is FileKind.TMP:
                yield _left(path, "copies of an unfinished compaction")
            if wants_directory is None:
                if name.endswith(_UNFINISHED_SUFFIXES) and judge(name.rpartition(".")[0]) is False:
                    if not in_use:
                        yield _left(path, "the new content of a file that was not put in place")
                elif not (name.endswith(SUMS_SUFFIX) and judge(name[: -len(SUMS_SUFFIX)]) is False):
                    yield _foreign(path)
            elif _is_directory(fs, path) is (not wants_directory):
                what = "a file" if wants_directory else "a directory"
                yield _foreign(path, f"{what} of that name", "")
            elif judge is _in_root and name == layout.IMPORT and not in_use:
                again = "import the same files again"
                yield _left(path, "an import that was cut short", again)


def _in_root(name: str) -> bool | None:
    """Return whether the name is that of a directory; ``None``: it does not belong here."""
    return True if name in _ROOT_DIRECTORIES else False if name in _ROOT_FILES else None


def _in_queue(name: str) -> bool | None:
    if name == QUARANTINE:
        return True
    number = file_number(name)
    is_segment = number is not None and file_name(number) == name
    return False if name in _QUEUE_FILES or is_segment else None


def _in_any_queue(name: str) -> bool | None:
    return False if name.endswith((INDEX_SUFFIX, STORE_SUFFIX)) else _in_queue(name)


def _in_message_store(name: str) -> bool | None:
    if name == QUARANTINE:
        return True
    return False if name in NODE_STATE_NAMES or classify_name(name) is not None else None


def _left(path: str, what: str, then: str = "the next open removes it") -> Finding:
    return Finding(path, 0, 0, Cause.CRASH, what, then, Kind.UNFINISHED)


def _foreign(
    path: str, what: str = "does not belong here", lost: str = "it is left alone"
) -> Finding:
    return Finding(path, 0, 0, Cause.DAMAGE, what, lost, Kind.FOREIGN_FILE)


def _list(fs: FileSystem, directory: str) -> list[str]:
    with storage_errors(directory, "can't be listed"):
        return sorted(names_in(fs, directory))


def _is_directory(fs: FileSystem, path: str) -> bool | None:
    """Return whether it is a directory; ``None``: it was removed since it was listed."""
    mode = _mode(fs, path)
    return None if mode is None else stat.S_ISDIR(mode)


def _mode(fs: FileSystem, path: str) -> int | None:
    try:
        return fs.stat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(path, "can't be looked at", error) from error
