"""One line out of the page that Spark makes of an error: the Java exception, a Python traceback in
it, a Java stack trace after that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from journal.errors import StoreError

_OURS: Final = re.compile(
    r"^\s*(?:journal|msgstore|qindex|rocketstore|pyspark_qindex)(?:\.\w+)*\.(\w+): (.+)$", re.M
)
_PYTHON: Final = re.compile(
    r"^\s*(?!java|scala|org\.)(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)|\w+\.error): (.+)$", re.M
)
_JAVA: Final = re.compile(r"(?:java|scala|org\.apache)\.[\w.$]+(?:Exception|Error): (.+)")
_MISSING: Final = re.compile(
    "ModuleNotFoundError: No module named '(journal|msgstore|pyspark_qindex|qindex|rocketstore"
    "|fsspec|msgpack|numpy|pandas|pyarrow|sortedcontainers|xxhash)\\b"
)
"""What the extra ``spark`` installs, and one of Spark's processes did not find."""
_NO_MEMORY: Final = re.compile(r"java\.lang\.OutOfMemoryError|GC overhead limit")
_NOISE: Final = re.compile(
    r"^(?:\[[A-Z_0-9.]+\] |Query \[.*?\] terminated with exception: )+|(?: SQLSTATE: \w{5})+;?$"
)
_LONGEST: Final = 2000
_GONE: Final = ("ConnectionRefusedError", "ConnectionResetError", "Py4JNetworkError")
"""What a call of Spark raises where its Java process is not there any more."""


class SparkMissingError(StoreError):
    """pyspark, one of its parts or Java is not there; the message says how to get it."""


def explain(error: BaseException) -> str:
    """Say in one line what went wrong.

    Args:
        error: What a call of Spark raised.

    Returns:
        The words of an error of this project, wherever Spark has wrapped it. For a package that one
        of Spark's machines has not: where it has to be installed. Else the last Python error in it,
        else what Java says.
    """
    text = str(error)
    causes = [*_causes(error)]
    for cause in causes:
        if isinstance(cause, StoreError):
            return one_line(str(cause))
    ours = _OURS.findall(text)
    if ours:
        return one_line(str(ours[-1][1]))
    if _NO_MEMORY.search(text) or any(type(one).__name__ in _GONE for one in causes):
        return (
            "Spark's Java process ended, most likely for want of memory: set "
            "SPARK_DRIVER_MEMORY=4g in the environment (1g by default; on a cluster "
            "spark.executor.memory), or read less at a time (--batch)"
        )
    missing = _MISSING.search(text)
    if missing is not None:
        return (
            f"one of Spark's machines has no Python package {missing[1]!r}: each of them, and that "
            "of a Spark Connect server, needs pip install qindex[spark]"
        )
    if _JAVA.search(text) is None and "\n" not in text.strip():
        said = _NOISE.sub("", text.strip()) or type(error).__name__
        while (below := getattr(error, "_cause", None)) is not None:
            error = below
        why = str(error).split("\n")[0]
        return one_line(said if why in text or said in why else f"{said} {why}")
    python = [found for found in _PYTHON.findall(text) if not found[0].startswith("Py4J")]
    if python:
        return one_line(f"{python[-1][0]}: {python[-1][1]}")
    java = _JAVA.search(text)
    return one_line(java.group(1) if java else _NOISE.sub("", text.strip().split("\n")[0]))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_line(text: str) -> str:
    """Return a text without line breaks, cut where it is endless."""
    joined = " ".join(text.split())
    return joined if len(joined) <= _LONGEST else joined[:_LONGEST] + "..."
