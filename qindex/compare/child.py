"""Work in a process of its own, so that no contender pays for another's memory or threads.

The parent has a :class:`Child` and calls functions in it. ``python -m qindex.compare.child`` is the
other side: each line of its input names a function and its arguments, and is answered by one line,
``{"result": ...}`` or ``{"error": ..., "trace": ...}``. When its input ends, it ends too.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from journal.child import command
from journal.errors import StoreError

_PACKAGES = Path(__file__).resolve().parents[2]
_READ = 1 << 16
_END_SECONDS = 10.0


class ChildError(StoreError):
    """A child answered with an error, which may have a ``trace``, or it did not answer in time, or
    it ended, with an exit ``status``."""

    def __init__(self, text: str, trace: str = "", status: int | None = None) -> None:
        super().__init__(text)
        self.trace = trace
        self.status = status


class Process:
    """A process with pipes to its input and output. It reads and answers requests line by line.

    It runs in the root directory and in a session of its own: what it starts is killed with it,
    and Ctrl-C is the parent's alone. It is killed when the block after ``with`` raises.
    ``patience``: seconds that an answer may take.
    """

    def __init__(self, words: Sequence[str], patience: float | None = None) -> None:
        self._patience = patience
        self._unread = b""
        # A file and not a pipe: nobody reads it before the end, and a full pipe would block.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            words, cwd="/", stdin=pipe, stdout=pipe, stderr=self._complaints, start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.output: int = self._output.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
        self.close()

    def tell(self, line: str) -> None:
        """Write a line. Raises :class:`ChildError` if the process has ended."""
        try:
            self._input.write(line.encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise self.ended() from None

    def answer(self) -> str:
        """Wait for the next line, and return it. Raises :class:`ChildError` if the process ended
        instead, or if there was no answer in time: then it was killed."""
        deadline = None if self._patience is None else time.monotonic() + self._patience
        while b"\n" not in self._unread:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self.output], [], [], left)[0]:
                self.kill()
                raise ChildError(f"no answer within {self._patience:.0f} s")
            data = os.read(self.output, _READ)
            if not data:
                raise self.ended()
            self._unread += data
        answer, _, self._unread = self._unread.partition(b"\n")
        return answer.decode("utf-8", "replace")

    def ended(self) -> ChildError:
        """Wait for the end of the process, and return the error that says so."""
        status = self._process.wait()
        self._complaints.seek(0)
        complaint = self._complaints.read().decode("utf-8", "replace").strip()
        last = complaint.rpartition("\n")[2] or "no reason"
        return ChildError(f"the child process ended by itself ({status}): {last}", status=status)

    def kill(self) -> int:
        """Kill the process with SIGKILL unless it has ended, and return its exit status."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def close(self) -> None:
        """End the input, and so the process; kill it if it goes on."""
        for pipe in (self._input, self._output):
            # A process that died has left a request unread.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._complaints.close()


class Child(Process):
    """A process that functions can be called in.

    ``root``: the directory of modules that are not installed. Nothing is imported from the
    caller's working directory.
    """

    def __init__(self, root: Path = _PACKAGES, patience: float | None = None) -> None:
        super().__init__(command(__name__, root=root), patience)

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """Call a function of a module. Arguments and result are JSON, with paths and dataclasses.
        Raises as :meth:`result`."""
        self.start(function, **arguments)
        return self.result()

    def start(self, function: Callable[..., Any], **arguments: Any) -> None:
        """Have a function called, without waiting for its :meth:`result`."""
        module = function.__module__
        if module == "__main__":
            module = sys.modules[module].__spec__.name  # type: ignore[union-attr]
        request = {"call": f"{module}:{function.__qualname__}", "arguments": arguments}
        self.tell(json.dumps(request, default=os.fspath))

    def result(self) -> Any:
        """Wait for the result of the function that was started. Raises as :meth:`answer`, and
        :class:`ChildError` with what the function raised."""
        answer = json.loads(self.answer())
        if "error" in answer:
            raise ChildError(answer["error"], answer["trace"])
        return answer["result"]


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        try:
            function = pkgutil.resolve_name(request["call"])
            answer = {"result": function(**request["arguments"])}
        except Exception as error:
            known = isinstance(error, StoreError | OSError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            answer = {"error": text, "trace": traceback.format_exc()}
        answers.write(json.dumps(answer, default=asdict) + "\n")
        answers.flush()


def _read_requests(requests: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        requests.put(line)
    # Nobody reads an answer any more, and threads of a contender that failed may wait for ever.
    os._exit(0)


if __name__ == "__main__":
    _serve()
