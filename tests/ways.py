"""The two ways that single messages take: the methods in Python, and what is written in C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

from qindex.format import plain_record as plain
from qindex.index import index_reader
from qindex.queue.acknowledging import Acker
from qindex.queue.compiled import COMPILED
from qindex.queue.delivering import Consumer
from qindex.queue.producing import Publisher
from qindex.queue.queue import Queue
from rocketstore import Store, bodies, get_result
from rocketstore.putter import Putter

__all__ = ["WAYS", "in_python", "needs_compiled"]

needs_compiled = pytest.mark.skipif(
    COMPILED is None, reason="built without a compiler, or QINDEX_PURE_PYTHON is set"
)
WAYS = ["python", pytest.param("compiled", marks=needs_compiled)]


@contextmanager
def in_python(way: str = "python") -> Iterator[None]:
    """Have single messages take the way in Python, unless ``way`` is another one."""
    with ExitStack() as stack:
        if way == "python":
            stack.enter_context(patch.object(index_reader, "read_run", plain.read_run))
            stack.enter_context(patch.object(index_reader, "read_sound", plain.read_plain))
            stack.enter_context(patch.object(Queue, "publish", Publisher.publish))
            on_loop = Publisher._publish_on_loop
            stack.enter_context(patch.object(Queue, "_publish_on_loop", on_loop))
            stack.enter_context(patch.object(Queue, "get", Consumer.get))
            stack.enter_context(patch.object(Queue, "ack", Acker.ack))
            stack.enter_context(patch.object(Store, "put", Putter.put))
            stack.enter_context(patch.object(get_result, "usual_bodies", bodies.usual_bodies))
        yield
