"""Spark, started once for all tests of this folder: a session in this process, and a cluster beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.kit.spark import SparkCluster, session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on ``local[2]`` in this process: two tasks at once, each with a Python worker of its own."""
    with session() as spark:
        yield spark


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """A master and two workers. Jobs reach it by ``submit``: a process can have one session, and this one has it."""
    with SparkCluster(workers=2) as cluster:
        yield cluster
