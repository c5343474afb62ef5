"""An application of Celery for tests; `CELERY_STORE` names the store, `CELERY_DONE` a file that
each run of a task adds a line to."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from kombu import Queue
from kombu.common import Broadcast

import qindex.compat.kombu  # noqa: F401

app = Celery("celery_child", broker=f"qindex://{os.environ['CELERY_STORE']}", backend="rpc://")
app.conf.update(
    worker_prefetch_multiplier=1,
    result_expires=60,
    task_queues=[
        Queue(
            "celery",
            queue_arguments={
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "celery.failed",
                "x-delivery-limit": 3,
            },
        ),
        Broadcast("all"),
    ],
    beat_schedule={"tick": {"task": "celery_child.note", "schedule": 1, "args": ["tick"]}},
    beat_schedule_filename=os.environ["CELERY_DONE"] + ".beat",
    beat_max_loop_interval=0.3,
)


def _write(line: str) -> None:
    done = os.open(os.environ["CELERY_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(done, f"{line} {time.time()}\n".encode())
    os.close(done)


@app.task(name="celery_child.note")
def note(text: Any) -> str:
    """Write a line."""
    _write(f"note:{text}")
    return f"noted {text}"


@app.task(name="celery_child.slow")
def slow(text: str, seconds: float) -> str:
    """Write a line, and work."""
    _write(f"slow:{text}")
    time.sleep(seconds)
    return text


@app.task(name="celery_child.late", acks_late=True, reject_on_worker_lost=True)
def late(text: str, seconds: float) -> str:
    """Write a line, and work; acknowledged at the end."""
    _write(f"late:{text}")
    time.sleep(seconds)
    _write(f"end:{text}")
    return text


@app.task(name="celery_child.again", bind=True, max_retries=3)
def again(self: Any, text: str, countdown: float) -> int:
    """Fail twice."""
    _write(f"again:{text}")
    if self.request.retries < 2:
        raise self.retry(countdown=countdown)
    return int(self.request.retries)


@app.task(name="celery_child.refuse", acks_late=True)
def refuse(text: str) -> None:
    """Refuse its message."""
    _write(f"refuse:{text}")
    raise Reject(text, requeue=False)


@app.task(name="celery_child.die", acks_late=True, reject_on_worker_lost=True)
def die(text: str, times: int) -> str:
    """Kill the process that runs it, so many times."""
    _write(f"die:{text}")
    with open(os.environ["CELERY_DONE"]) as done:
        if sum(line.startswith(f"die:{text} ") for line in done) <= times:
            os.kill(os.getpid(), 9)
    return text
