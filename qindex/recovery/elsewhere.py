"""A store whose segments are RabbitMQ's of version 2 may have been elsewhere since it was closed:
with a node, which keeps no note in them of what it delivered, and changes them in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from journal.files import FileSystem, unlink_if_there
from msgstore.format import NODE_STATE_NAMES
from qindex.format import layout
from qindex.index.messages import PERSISTENT_DIRECTORY, has_message_store
from qindex.index.segment_form import SegmentForm
from qindex.recovery.snapshot import RestingQueue, files_agree


def segment_files(form: SegmentForm, names: Iterable[str]) -> list[int]:
    """Give the numbers of the segments that have files, of those in a queue's directory
    (``names``), ascending."""
    return sorted({number for number in map(form.file_number, names) if number is not None})


def was_with_a_node(fs: FileSystem, directory: str) -> bool:
    """Tell whether a node has left files of its own. Raises :class:`OSError`."""
    if layout.RECOVERY_TERMS in fs.listdir(directory):
        return True
    store = os.path.join(directory, PERSISTENT_DIRECTORY)
    return has_message_store(fs, directory) and bool(set(NODE_STATE_NAMES) & {*fs.listdir(store)})


def is_as_closed(
    fs: FileSystem,
    form: SegmentForm,
    resting: Mapping[str, RestingQueue],
    queues: Mapping[str, Sequence[str]],
) -> bool:
    """Tell whether the files of all queues are those of the clean close, as far as files tell.
    ``resting``: the queues of its snapshot; ``queues``: the names in each queue's directory.
    Raises :class:`OSError`."""
    return all(
        name in resting and files_agree(fs, resting[name], names, form)
        for name, names in queues.items()
    )


def take_back(
    fs: FileSystem,
    directory: str,
    form: SegmentForm,
    entry_count: int,
    queues: Mapping[str, Sequence[str]],
) -> None:
    """Take note that any entry may have been delivered; durable on return, before the snapshot
    goes. What tells of a node goes last: after a crash in between all this is done again. Raises
    :class:`OSError`."""
    for name, names in queues.items():
        path = os.path.join(directory, layout.QUEUES, name)
        for number in segment_files(form, names):
            form.forget_deliveries(fs, path, number, entry_count)
    forget_node(fs, directory)


def forget_node(fs: FileSystem, directory: str) -> None:
    """Remove what tells of a node, which would believe it at its next start. Durable on return.
    Raises :class:`OSError`."""
    store = os.path.join(directory, PERSISTENT_DIRECTORY)
    if has_message_store(fs, directory):
        gone = [unlink_if_there(fs, os.path.join(store, name)) for name in NODE_STATE_NAMES]
        if any(gone):
            fs.sync_dir(store)
    if unlink_if_there(fs, os.path.join(directory, layout.RECOVERY_TERMS)):
        fs.sync_dir(directory)
