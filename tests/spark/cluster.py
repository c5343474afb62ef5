"""Drivers in processes of their own, and a real cluster for them: a standalone master and two
workers on the loopback interface, from the pip package."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from pyspark_qindex.local_session import LOOPBACK_ONLY, quiet_environment
from tests.waiting import WAIT

__all__ = ["ROOT", "Cluster", "Driver", "free_port", "running_cluster"]

ROOT = Path(__file__).parents[2]
_WORKERS = 2
_HIDE = 'mount -t tmpfs none "$0" && exec "$@"'
"""A shell script that hides a directory from a command, in a mount namespace of its own."""


class Driver:
    """A driver process, and those that it starts."""

    def __init__(self, *arguments: object) -> None:
        """``arguments``: of :mod:`tests.spark.driver`."""
        self._ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - kill() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def say(self, *command: object) -> None:
        """Wait until it is ready, and tell it what to do."""
        assert self._process.stdin is not None
        if not self._ready:
            self.expect("ready")
            self._ready = True
        self._process.stdin.write(json.dumps([str(part) for part in command]) + "\n")
        self._process.stdin.flush()

    def expect(self, line: str) -> None:
        """Wait for a line."""
        found = self.answer()
        assert found == line, (found, self.complaints())

    def answer(self) -> str:
        """Wait for a line, and give it."""
        assert self._process.stdout is not None
        found = self._process.stdout.readline().strip()
        assert found, self.complaints()
        return found

    def check(self) -> None:
        """Fail if it has ended."""
        assert self._process.poll() is None, self.complaints()

    def complaints(self) -> str:
        """Return all that it wrote to standard error: Spark tells a cause before its plans."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def kill(self) -> None:
        """Kill Python and JVM; Python processes that Spark started apart may outlive them."""
        if self._process.returncode is not None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self._process.communicate()
            self._errors.close()


class Cluster:
    """``master``: its URL. ``environment``: of drivers that use it. ``hidden``: a directory that
    the workers see empty, or ``None`` where the system lets nobody hide one."""

    def __init__(self, scratch: Path, java_home: str) -> None:
        import pyspark

        self._scratch = scratch
        home = os.path.dirname(pyspark.__file__)
        self.environment = {
            **os.environ,
            **quiet_environment(str(scratch)),
            **LOOPBACK_ONLY,
            "JAVA_HOME": java_home,
            "SPARK_HOME": home,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        self._class = os.path.join(home, "bin", "spark-class")
        self._processes: list[subprocess.Popen[bytes]] = []
        port, self._page = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{port}"
        # The REST port is not closed by default, and not needed.
        self._run("master.Master", "--port", port, "--webui-port", self._page)
        hidden = scratch / "hidden"
        hidden.mkdir()
        hide = ("unshare", "--mount", "sh", "-c", _HIDE, str(hidden))
        can_hide = subprocess.run([*hide, "true"], capture_output=True, check=False)
        self.hidden = hidden if can_hide.returncode == 0 else None
        for number in range(_WORKERS):
            self._run(
                "worker.Worker",
                *("--cores", 1, "--memory", "1g", "--webui-port", 0),
                *("--work-dir", scratch / f"worker-{number}", self.master),
                before=hide if self.hidden is not None else (),
            )
        self._wait_for_workers()

    def _run(self, name: str, *arguments: object, before: tuple[str, ...] = ()) -> None:
        command = [*before, self._class, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        self._processes.append(
            subprocess.Popen(
                [*command, *map(str, arguments)],
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def _wait_for_workers(self) -> None:
        until = time.monotonic() + WAIT
        while time.monotonic() < until:
            # Its page in JSON comes a moment after the one in HTML, which answers in its place.
            with contextlib.suppress(OSError, ValueError):
                page = urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5)
                if json.load(page)["aliveworkers"] == _WORKERS:
                    return
            time.sleep(0.1)
        raise AssertionError("the cluster did not come up")

    def executors(self) -> list[int]:
        """Process ids of the executors' JVMs."""
        workers = {process.pid for process in self._processes}
        return [
            pid
            for pid, parent, command in _processes()
            if parent in workers and b"CoarseGrainedExecutorBackend" in command
        ]

    def close(self) -> None:
        """Kill all."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)


@contextlib.contextmanager
def running_cluster(scratch: Path, java_home: str) -> Iterator[Cluster]:
    """Start a cluster, and end it."""
    cluster = Cluster(scratch, java_home)
    try:
        yield cluster
    finally:
        cluster.close()


def free_port() -> int:
    """Give a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _processes() -> Iterator[tuple[int, int, bytes]]:
    """Give pid, parent and command line of all processes."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                yield int(entry.name), parent, (entry / "cmdline").read_bytes()
