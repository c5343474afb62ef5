"""The file ``qindex.settings`` of a queue's directory: read it, and write new settings.

:mod:`qindex.format.settings` has its bytes.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from journal.errors import DamageError
from journal.fs.files import FileSystem, read_optional, replace_file
from qindex.format import layout
from qindex.format.settings import (
    NO_SETTINGS,
    QueueSettings,
    differences,
    pack_settings,
    unpack_settings,
)
from qindex.index.quarantine import quarantine

_log = logging.getLogger("qindex.engine")


def read_settings(fs: FileSystem, directory: str) -> QueueSettings:
    """Read the settings of the queue in ``directory``. Raises :class:`DamageError`,
    :class:`OSError`."""
    path = os.path.join(directory, layout.SETTINGS)
    data = read_optional(fs, path)
    if data is None:
        return NO_SETTINGS
    try:
        return unpack_settings(data)
    except ValueError as error:
        raise DamageError(path, 0, f"the settings of the queue are damaged: {error}") from error


def adopt_settings(
    fs: FileSystem,
    directory: str,
    given: dict[str, Any],
    *,
    repair: bool,
    are_there: bool = True,
) -> QueueSettings:
    """Read the settings of the queue in ``directory``, and write the new ones.

    ``are_there``: whether there may be a file of them; without one nothing is read.
    Raises as :func:`read_settings`, unless ``repair``: then damaged ones are set aside.
    """
    path = os.path.join(directory, layout.SETTINGS)
    stored = NO_SETTINGS
    try:
        if are_there:
            stored = read_settings(fs, directory)
    except DamageError as damage:
        if not repair:
            raise
        _log.error("%s: quarantined; the queue has no settings", damage)
        quarantine(fs, path, 0, read_optional(fs, path) or b"")
        fs.unlink(path)
    settings = stored.changed(**given)
    if given.get("overflow") is not None:  # a limit may be taken away, and come again
        settings.check_overflow()
    if settings != stored:
        if stored != NO_SETTINGS:
            there, asked = differences(stored, settings)
            _log.info("%s: the settings were %s, are now %s", directory, there, asked)
        replace_file(fs, path, pack_settings(settings))
    return settings
