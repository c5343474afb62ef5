"""Runs jobs, the most urgent first, in as many processes as you like.

``python jobs.py add PRIORITY NAME`` adds a job with a priority from 0 to 9, and
``python jobs.py run`` runs jobs until SIGTERM. A job whose runner is killed is run again, before
others of its priority. A job that fails three times is put aside. Jobs with a low priority wait
as long as there are others: there is no longest wait.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import qindex


def jobs_of(engine: qindex.SharedEngine) -> qindex.SharedQueue:
    """Return the queue of jobs, which is made with priorities."""
    return engine.queue("jobs", max_priority=9, delivery_limit=3, dead_letter="failed-jobs")


def add(priority: int, name: str) -> None:
    """Add a job. It is on disk once this returns."""
    with qindex.open(os.environ.get("JOBS", "jobs-data"), shared=True) as engine:
        seq_id = jobs_of(engine).publish(name.encode(), priority=priority, confirm=True)
        print(f"job {seq_id} with priority {priority}: {name}")


def run_job(job: qindex.Delivery) -> None:
    """Run one job: write it down, as one line that is there whole or not at all."""
    if job.body.startswith(b"fail"):
        raise RuntimeError(f"job {job.seq_id} failed")
    path = os.environ.get("DONE", "jobs-done")
    done = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(done, b"%d %d %s\n" % (job.priority, job.seq_id, job.body))
    os.close(done)
    time.sleep(float(os.environ.get("SECONDS", "0.01")))


def run() -> None:
    """Run jobs until SIGTERM. The job in hand is finished."""
    with qindex.open(os.environ.get("JOBS", "jobs-data"), shared=True) as engine:
        # With a prefetch of 1 an urgent job waits for the running one at most.
        jobs = jobs_of(engine).consume(prefetch=1)
        signal.signal(signal.SIGTERM, lambda _number, _frame: jobs.stop())
        while not jobs.stopped:
            try:
                for job in jobs:
                    with job:  # acknowledged at the end, requeued if the block raises
                        run_job(job)
            except RuntimeError as error:
                print(error, file=sys.stderr)
            except qindex.DisconnectedError:
                continue  # the server was killed; the next round finds or starts one


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "add":
        add(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:] == ["run"]:
        run()
    else:
        sys.exit("usage: jobs.py add PRIORITY NAME | run")
