"""The directory of one queue: the name of the queue in it, and its removal."""

from __future__ import annotations

import logging
import os

from journal.errors import UnsafeFileError
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, read_optional
from qindex.format import layout
from qindex.format.rabbitmq.names import parse_queue_name

_log = logging.getLogger("qindex.recovery")


def remove_queue_directory(fs: FileSystem, path: str) -> None:
    """Remove a directory and its content. Unlink a symlink or other non-directory, and never
    follow it. Raises :class:`OSError`."""
    try:
        names = fs.listdir(path)
    except UnsafeFileError as error:
        _log.warning("%s: removed; what it leads to stays", error)
        fs.unlink(path)
        return
    for name in names:
        inner = os.path.join(path, name)
        try:
            fs.unlink(inner)
        except (IsADirectoryError, PermissionError):
            remove_queue_directory(fs, inner)
    fs.rmdir(path)


def stored_name(fs: FileSystem, path: str, hashed: str, findings: list[Finding]) -> str:
    """Return the name of the queue in a directory; where its file is missing or can't be read
    (noted in ``findings``, once), that of the directory."""
    file = os.path.join(path, layout.QUEUE_NAME)
    what, kind = "the file is missing", Kind.MISSING_FILE
    try:
        data = read_optional(fs, file)
    except OSError as error:
        data, what, kind = None, f"can't be read: {error.strerror or error}", Kind.UNREADABLE
    if data is None:
        consequence = "the queue is listed by its directory's name"
        finding = Finding(file, 0, 0, Cause.DAMAGE, what, consequence, kind)
        if finding not in findings:
            _log.error("%s", finding)
            findings.append(finding)
        return hashed
    return parse_queue_name(data, hashed).queue.decode("utf-8", "surrogateescape")
