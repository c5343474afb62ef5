"""One Spark session for all tests of this directory (of one pytest process)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pyspark_qindex.errors import SparkMissingError
from tests.effort import skip_in_quick

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.cluster import Cluster

__all__ = ["cluster", "java_home", "spark"]


@pytest.fixture(scope="session")
def java_home() -> str:
    """A JAVA_HOME for Spark, or the tests that need one are skipped."""
    skip_in_quick("Spark")
    pytest.importorskip("pyspark", reason="pyspark is not installed (extra spark)")
    from pyspark_qindex.local_session import find_java

    try:
        return find_java()
    except SparkMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java_home: str) -> Iterator[SparkSession]:
    """A local session with two cores, in which a task that fails is tried twice. It serves Spark
    Connect, too."""
    from pyspark_qindex import session
    from tests.spark.cluster import free_port

    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(free_port()),
    }
    running = session(f"tests-{os.getpid()}", "local[2,2]", conf, quick=True)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def cluster(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone master and two workers with one core each."""
    from tests.spark.cluster import running_cluster

    with running_cluster(tmp_path_factory.mktemp("cluster"), java_home) as running:
        yield running
