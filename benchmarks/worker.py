"""One process for each contender, so that nobody pays for another's memory, threads or garbage.

Started by :mod:`benchmarks.session` as ``python -m benchmarks.worker NAME DIRECTORY``. Requests
are JSON lines on standard input: ``{"task": NAME, "parameters": {...}}`` makes and prepares a
task, ``{"call": "measure"}`` and ``{"call": "finish"}`` use it. Each is answered by one line on
standard output, ``{"result": ...}`` or ``{"error": TRACEBACK}``. At the end of its input it ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks import footprint, throughput
from benchmarks.peers import CONTENDERS
from benchmarks.tasks import Task

__all__ = ["TASKS"]

TASKS: dict[str, type[Task]] = {
    kind.__name__: kind
    for kind in (
        throughput.AckFsync,
        throughput.GetAck,
        throughput.GetAckBacklogs,
        throughput.GetMany,
        throughput.Large,
        throughput.Publish,
        throughput.PublishKeyed,
        throughput.PublishMany,
        throughput.PublishThreads,
        footprint.AtRest,
        footprint.BacklogMemory,
        footprint.CountedPhases,
        footprint.Drain,
        footprint.Million,
        footprint.Open,
        footprint.Phases,
        footprint.Written,
    )
}


def main(name: str, directory: str) -> None:
    kind = CONTENDERS[name]
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if kind.module is not None:
        importlib.import_module(kind.module)
    task: Task | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        try:
            if "task" in request:
                task = TASKS[request["task"]](kind, Path(directory), **request["parameters"])
                result = task.prepare()
            elif task is None:
                raise RuntimeError("no task was made")
            else:
                result = task.measure() if request["call"] == "measure" else task.finish()
            answer: dict[str, Any] = {"result": result}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
