"""Consumer offsets: ``consumerOffset.json`` and ``delayOffset.json``.

RocketMQ writes them with fastjson, whose integer keys are not quoted, which is not valid JSON; it
reads quoted ones as well. We write valid JSON and read both. A save keeps the old content as
``.bak``, as the broker does; a load falls back to it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from journal.arguments import encoded
from journal.errors import UsageError, storage_errors
from journal.fs.files import FileSystem, make_dirs, read_optional, replace_file

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|([{,]\s*)(-?[0-9]+)(\s*:)', re.DOTALL)
"""A text that does not end reaches to the end: looked at once, not from each quote in it."""


def parse_fastjson(text: str) -> Any:
    """Parse JSON whose object keys may be bare integers. Raises :class:`ValueError`."""

    def quote(match: re.Match[str]) -> str:
        if match[2] is None:
            return match[0]
        return f'{match[1]}"{match[2]}"{match[3]}'

    try:
        return json.loads(_BARE_KEY.sub(quote, text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def int_table(table: object) -> dict[int, int]:
    """The whole numbers under whole numbers of a parsed object; anything else is left out."""
    return {
        int(key): value
        for key, value in (table if isinstance(table, dict) else {}).items()
        if type(value) is int and _WHOLE_NUMBER.fullmatch(key)
    }


def table_problem(content: dict[str, Any], depth: int) -> str | None:
    """Return the error in the ``offsetTable`` of a parsed file, or ``None``. It must have whole
    numbers under whole numbers (``depth`` 1), or tables of those by name (2)."""
    if "offsetTable" not in content:
        return "there is no offsetTable"
    table = content["offsetTable"]
    if not isinstance(table, dict):
        return "the offsetTable is none"
    for name, inner in table.items() if depth == 2 else [("", table)]:
        if not isinstance(inner, dict) or len(int_table(inner)) != len(inner):
            return f"not all are whole numbers in the table {name}".rstrip()
    return None


def save_sane(fs: FileSystem, path: str, content: dict[str, Any], depth: int) -> None:
    """Replace a file by what of its ``content`` makes sense. Raises
    :class:`journal.errors.StorageError`."""
    table = content.get("offsetTable")
    whole = table if isinstance(table, dict) else {}
    sane: object = int_table(whole)
    if depth == 2:
        sane = {name: int_table(inner) for name, inner in whole.items()}
    data = json.dumps({**content, "offsetTable": sane}, indent="\t", ensure_ascii=False)
    replace_file(fs, path, data.encode())


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Read a file's content; ``None`` if it is not a JSON object."""
    try:
        content = parse_fastjson(data.decode())
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def load_json(fs: FileSystem, path: str) -> dict[str, Any]:
    """Read a config file; its ``.bak`` if it is missing, empty or unreadable; else nothing."""
    for candidate in (path, path + ".bak"):
        data = read_optional(fs, candidate)
        content = parse_object(data) if data else None
        if content is not None:
            return content
    return {}


def save_json(fs: FileSystem, path: str, content: dict[str, Any]) -> None:
    """Replace a config file, keeping the old one as ``.bak``; durable on return.

    Raises :class:`journal.errors.StorageError`.
    """
    data = json.dumps(content, indent="\t", ensure_ascii=False).encode()
    with storage_errors(path, "can't be read"):
        old = read_optional(fs, path)
    if old == data:
        return
    # Not a damaged file: the .bak may be all that there is until the new content is in place.
    if old and parse_object(old) is not None:
        replace_file(fs, path + ".bak", old)
    replace_file(fs, path, data)


def _place(group: str, topic: str) -> str:
    if not group or not topic or "@" in group or "@" in topic:
        raise UsageError(f"group {group!r} and topic {topic!r}: neither may be empty or hold @")
    encoded(group, "the group")
    encoded(topic, "the topic")
    return f"{topic}@{group}"


class ConsumerOffsets:
    """The next offset of each consumer group in each queue. Its owner holds a lock.

    One file for groups that share the work (cluster mode), another one for broadcast consumers,
    each of which goes through all messages by itself.
    """

    def __init__(self, fs: FileSystem, path: str, *, writable: bool) -> None:
        self._fs = fs
        self._path = path
        self._writable = writable
        self._content = load_json(fs, path)
        self._table: dict[str, dict[int, int]] = {}
        self._changed = False
        table = self._content.get("offsetTable")
        for name, offsets in (table if isinstance(table, dict) else {}).items():
            self._table[name] = int_table(offsets)

    @property
    def table(self) -> dict[str, dict[int, int]]:
        """``topic@group`` to queue id to next offset."""
        return self._table

    def fetch(self, group: str, topic: str, queue_id: int) -> int:
        """The offset committed last; -1 if there is none. Raises :class:`UsageError`."""
        return self._table.get(_place(group, topic), {}).get(queue_id, -1)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset, in memory. Raises :class:`UsageError` if it can't be an offset."""
        place = _place(group, topic)
        if offset < 0 or queue_id < 0:
            raise UsageError(f"offset {offset} and queue {queue_id} must not be negative")
        self._table.setdefault(place, {})[queue_id] = offset
        self._changed = True

    def save(self) -> None:
        """Write the file if something was committed. Raises :class:`StorageError`."""
        if not self._changed or not self._writable:
            return
        table = {
            name: {str(queue): offset for queue, offset in sorted(offsets.items())}
            for name, offsets in self._table.items()
        }
        directory = self._path.rpartition("/")[0]
        with storage_errors(directory, "can't be created"):
            make_dirs(self._fs, directory)
        save_json(self._fs, self._path, {**self._content, "offsetTable": table})
        self._changed = False


class DelayOffsets:
    """The next message of each delay level to deliver. Its owner holds a lock.

    ``changed``: since the last save.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._table = int_table(load_json(fs, path).get("offsetTable"))
        self.changed: bool = False

    def get(self, level: int) -> int:
        """The next offset in the queue of a level."""
        return self._table.get(level, 0)

    def set(self, level: int, offset: int) -> None:
        """Set it, in memory."""
        self._table[level] = offset
        self.changed = True

    def save(self) -> None:
        """Write the file if an offset was set. Raises :class:`StorageError`."""
        if self.changed:
            table = {str(level): at for level, at in sorted(self._table.items())}
            save_json(self._fs, self._path, {"offsetTable": table})
            self.changed = False
