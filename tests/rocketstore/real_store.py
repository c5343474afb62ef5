"""The real RocketMQ 4.9.3 store as a child process: its classes come from Maven Central."""

from __future__ import annotations

import atexit
import shutil
import signal
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import WAIT

JAVA_DIR = Path(__file__).parent / "java"
_OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
MAVEN_SECONDS = 180


@lru_cache(maxsize=1)
def class_path() -> tuple[str, str]:
    """``(class path, reason)``: one of them is empty. Fetches and compiles at first use."""
    for program in ("mvn", "java", "javac"):
        if shutil.which(program) is None:
            return "", f"{program} is not installed"
    build = Path(tempfile.mkdtemp(prefix="realstore-"))
    atexit.register(shutil.rmtree, build, ignore_errors=True)
    listing = build / "class-path"
    fetch = ["mvn", "-q", "-B", "-f", str(JAVA_DIR / "pom.xml"), "dependency:build-classpath"]
    try:
        done = subprocess.run(
            [*fetch, f"-Dmdep.outputFile={listing}"],
            capture_output=True,
            text=True,
            timeout=MAVEN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"Maven did not fetch the store within {MAVEN_SECONDS} s"
    if done.returncode != 0 or not listing.exists():
        return "", f"Maven could not fetch the store: {done.stdout.strip()[-300:]}"
    path = f"{build}:{listing.read_text().strip()}"
    source = JAVA_DIR / "RealStore.java"
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", str(build), str(source)], check=True)
    return path, ""


def require() -> str:
    """The class path; skips the test, with the reason, where there is none."""
    # Here, for the benchmarks use this module, and need no pytest.
    import pytest

    from tests.effort import skip_in_quick

    skip_in_quick("a real RocketMQ store")
    path, reason = class_path()
    if not path:
        pytest.skip(f"no real store: {reason}")
    return path


class RealStore:
    """One opened real store. ``ask`` sends a command and gives the fields of the answer."""

    def __init__(self, path: str, directory: Path, sizes: tuple[int, int, int, int]) -> None:
        java = ["java", "-XX:+UseSerialGC", "-Xmx1g", *_OPENED, "-cp", path, "RealStore"]
        self._process = subprocess.Popen(
            [*java, str(directory), *map(str, sizes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._answer() == ["open"]

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        fields = self._process.stdout.readline().rstrip("\n").split("\t")
        assert fields[0] != "error", fields
        return fields

    def ask(self, *words: object) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def offsets(self, *words: object, skip: int) -> list[int]:
        return [int(field) for field in self.ask(*words)[skip:]]

    def close(self) -> None:
        """Shut down in order."""
        assert self.ask("close") == ["closed"]
        self._process.wait(WAIT)

    def pause(self) -> None:
        """Stop its threads, so that they take nothing from what is measured beside it."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
