"""Spark, started once for all tests of this folder: a session in this process, and a cluster beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import SyncPawnQueue
from pawnqueue.domain import layout
from tests.spark.streams import QUICK, Stream
from tools.kit.spark import SparkCluster, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pawnqueue import Settings
    from tools.kit.servers import S3Server


@pytest.fixture(scope="session")
def settings_for(settings_for: Callable[..., Settings]) -> Callable[..., Settings]:
    """Settings as everywhere, for a place whose processes have agreed already: a probe takes SeaweedFS two seconds."""
    agreed: dict[str, bytes] = {}

    def make(server: S3Server, **sections: Any) -> Settings:
        settings = settings_for(server, **sections)
        client, bucket, prefix = server.client(), settings.s3.bucket_name, settings.s3.key_prefix
        record = f"{prefix}{layout.BUCKET_RECORD}"
        if server.endpoint in agreed:
            client.put_object(Bucket=bucket, Key=record, Body=agreed[server.endpoint])
        else:
            SyncPawnQueue.open(settings).close()
            agreed[server.endpoint] = client.get_object(Bucket=bucket, Key=record)["Body"].read()
        return settings

    return make


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on ``local[2]`` in this process: two tasks at once, each with a Python worker of its own."""
    with session() as spark:
        yield spark


@pytest.fixture(scope="session")
def spark_cluster(seaweedfs: S3Server) -> Iterator[SparkCluster]:
    """A master and two workers. Their executors know the address of the SeaweedFS, but not the bucket.

    Jobs reach it by ``submit``: a process can have one session, and this is the one.
    """
    env = {
        "PAWNQUEUE_S3_ENDPOINT_URL": seaweedfs.endpoint,
        "PAWNQUEUE_S3_REGION": seaweedfs.region,
        "PAWNQUEUE_S3_ACCESS_KEY": seaweedfs.access_key,
        "PAWNQUEUE_S3_SECRET_KEY": seaweedfs.secret_key,
    }
    with SparkCluster(workers=2, env=env) as cluster:
        yield cluster


@pytest.fixture
def stream(
    spark: SparkSession, seaweedfs: S3Server, settings_for: Callable[..., Settings], tmp_path: Path
) -> Iterator[Stream]:
    """An empty topic on a real store, and queries over it."""
    made = Stream(spark, settings_for(seaweedfs, **QUICK), tmp_path)
    yield made
    made.close()
