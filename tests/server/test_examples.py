"""The programs of examples/ run, are killed, and no order is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.server.support import WAIT, end_in_order, end_server, server_pid

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_orders_survive_the_death_of_workers_and_of_the_server(tmp_path: Path) -> None:
    data, done = tmp_path / "data", tmp_path / "done"
    environment = os.environ | {"ORDERS": str(data), "DONE": str(done)}

    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", str(EXAMPLES / name), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    webs = [start("orders_web.py", "0") for _ in range(2)]
    workers = [start("orders_worker.py") for _ in range(2)]
    try:
        urls = [web.stdout.readline().strip() for web in webs]  # type: ignore[union-attr]
        taken = {}
        for at in range(40):
            body = f"order {at}"
            try:
                with urllib.request.urlopen(urls[at % 2], body.encode(), WAIT) as answer:
                    assert answer.status == 201
                    taken[body] = int(answer.read())
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
            if at in (10, 25):
                workers[0].kill()
                workers[0].wait(WAIT)
                workers[0] = start("orders_worker.py")
            if at == 18:
                os.kill(server_pid(data), signal.SIGKILL)
        assert len(taken) >= 38
        deadline = time.monotonic() + WAIT
        while True:
            lines = done.read_text().splitlines() if done.exists() else []
            if {f"{number} {body}" for body, number in taken.items()} <= set(lines):
                break
            assert time.monotonic() < deadline, lines
            time.sleep(0.02)
        for worker in workers:
            end_in_order(worker)
        report = start("orders_report.py")
        assert report.communicate(timeout=WAIT)[0] == "0 wait, 0 are with a worker, 0 have failed\n"
    finally:
        for process in [*webs, *workers]:
            process.kill()
            process.communicate()
    os.kill(server_pid(data), signal.SIGTERM)  # it would linger
    end_server(data)
