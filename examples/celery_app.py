"""A Celery application whose broker is a directory.

    celery -A celery_app worker --concurrency 4   # as many of these as you like
    celery -A celery_app beat
    python celery_app.py                          # sends some tasks

``ORDERS_DATA`` names the directory. The queues are in it, and a file for each result. What was
shipped is written to its file ``shipped``.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery, Task

import qindex.compat.kombu  # noqa: F401 - registers qindex://

data = Path(os.environ.get("ORDERS_DATA", "celery-data")).resolve()
results = data / "results"
results.mkdir(parents=True, exist_ok=True)

app = Celery("celery_app", broker=f"qindex://{data}/queue", backend=f"file://{results}")
app.conf.update(
    task_acks_late=True,  # a task is deleted when it is done: kill -9 does not lose it
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    beat_schedule={"report": {"task": "celery_app.report", "schedule": 60.0}},
)


@app.task
def ship(order: int) -> str:
    """Ship an order. A worker that is killed in the middle leaves it to another one."""
    with open(data / "shipped", "a") as shipped:
        shipped.write(f"{order}\n")
    return f"order {order} shipped"


@app.task(bind=True, max_retries=5)
def invoice(self: Task, order: int) -> str:
    """Send an invoice, at the second attempt."""
    if self.request.retries < 1:
        raise self.retry(countdown=2)  # waits in the store, not in the worker
    return f"invoice of order {order} sent"


@app.task
def report() -> None:
    """Report the day's orders."""


if __name__ == "__main__":
    shipped = [ship.delay(number) for number in range(1, 4)]
    urgent = ship.apply_async((4,), priority=9)  # before all that wait with a lower priority
    later = ship.apply_async((5,), countdown=3)
    for one in (*shipped, urgent, later, invoice.delay(1)):
        print(one.get(timeout=60))
