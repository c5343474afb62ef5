"""``clean.dot``: the users of the message store when it was stopped in order.

Text terms, written last when a store stops and deleted when it starts::

    {client_refs,[<<0,173,...>>,<<57,169,...>>]}.
    {index_module,rabbit_msg_store_ets_index}.

A node of 4.0 and later leaves ``index_module`` out. A reference is the 16-byte ``persistent_ref``
of a queue (:mod:`qindex.format.rabbitmq.recovery_terms`). A node believes the clean-stop data of a
store, and with them those of its queues, only if the two sides name the same references.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from qindex.format.rabbitmq.term_format import Atom, TermError
from qindex.format.rabbitmq.text_terms import parse_terms

INDEX_MODULE: Final = "rabbit_msg_store_ets_index"


class CleanDot(NamedTuple):
    """``client_refs`` is sorted and may hold a reference twice, as the file may."""

    client_refs: list[bytes]
    index_module: str | None

    @property
    def refs(self) -> frozenset[bytes]:
        """The references as a set."""
        return frozenset(self.client_refs)


def parse_clean_dot(raw: bytes) -> CleanDot:
    """Read the bytes of ``clean.dot``. Raises :class:`TermError` for anything malformed."""
    refs: list[bytes] = []
    index_module: str | None = None
    # Backwards, for of two terms with the same key Erlang takes the first.
    for term in reversed(parse_terms(raw)):
        if type(term) is not tuple or len(term) != 2:
            continue
        key, value = term
        if key == "client_refs":
            if type(value) is not list or not all(type(ref) is bytes for ref in value):
                raise TermError("client_refs is not a list of binaries")
            refs = value
        elif key == "index_module":
            if type(value) is not Atom:
                raise TermError("index_module is not an atom")
            index_module = str(value)
    return CleanDot(sorted(refs), index_module)


def message_store_clean(
    clean_dot: bytes | None,
    persistent_refs: Iterable[bytes],
    *,
    has_file_summary: bool,
    has_index: bool,
    has_rdt: bool,
) -> str | None:
    """Would a node take this message store for cleanly stopped? ``None`` if so, else the reason.

    ``persistent_refs`` are those of all queues of the vhost that have recovery terms,
    ``has_file_summary`` and ``has_index`` say whether ``file_summary.ets`` and
    ``msg_store_index.ets`` are there (their content is not judged), ``has_rdt`` whether a
    half-done compaction left an ``.rdt`` file. If the store is not clean, no queue of the vhost
    is, whatever its own terms say.
    """
    if has_rdt:
        return "a compaction was under way (.rdt file)"
    if clean_dot is None:
        return "clean.dot is missing"
    if not has_file_summary or not has_index:
        return "file_summary.ets or msg_store_index.ets is missing"
    try:
        parsed = parse_clean_dot(clean_dot)
    except TermError as error:
        return f"clean.dot is unreadable: {error}"
    named = parsed.index_module == INDEX_MODULE
    if not named and (parsed.index_module is not None or b"client_refs" not in clean_dot):
        return "clean.dot names another index module"
    if parsed.client_refs != sorted(persistent_refs):
        return "clean.dot and recovery.dets name different queues"
    return None
