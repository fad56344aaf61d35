"""A task that Spark runs twice at once, because the first attempt is slow, has each of its rows counted once."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pawnqueue import SyncPawnQueue
from tools.kit.spark import SparkCluster, submit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pawnqueue import Settings
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.full, pytest.mark.timeout(580)]

# Reads a claim and writes it into another topic. The first attempt at one part waits until a second attempt runs
# beside it.
JOB = """
import json
import pathlib
import sys
import time
from pyspark import TaskContext
from pyspark.sql import SparkSession

options, claim, folder = json.loads(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])


def slowly(batches):
    task = TaskContext.get()
    (folder / f"{task.partitionId()}-{task.attemptNumber()}").touch()
    if task.partitionId() == 1:
        while not (folder / "1-1").exists():
            time.sleep(0.05)
    yield from batches


spark = SparkSession.builder.getOrCreate()
orders = spark.read.format("pawnqueue").options(**options, claim=claim, partitions=2, payloadSchema="n long").load()
rows = orders.select("n").mapInArrow(slowly, "n long")
rows.write.format("pawnqueue").options(**options, topic="invoices", writeId="speculated").mode("append").save()
"""


def test_an_attempt_beside_another_one(
    tmp_path: Path, seaweedfs: S3Server, settings_for: Callable[..., Settings]
) -> None:
    """Every row is published once, whichever attempt is committed."""
    settings = settings_for(seaweedfs)
    s3 = settings.s3
    options = {
        "endpoint_url": str(s3.endpoint_url),
        "bucket_name": s3.bucket_name,
        "key_prefix": s3.key_prefix,
        "aws_access_key_id": seaweedfs.access_key,
        "aws_secret_access_key": seaweedfs.secret_key,
    }
    conf = {
        "spark.speculation": True,
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.executor.memory": "512m",
    }
    job, attempts = tmp_path / "job.py", tmp_path / "attempts"
    job.write_text(JOB)
    attempts.mkdir()
    with SyncPawnQueue.open(settings) as queue, SparkCluster(hosts=["127.0.0.2", "127.0.0.3"]) as cluster:
        for topic in ("orders", "invoices"):
            queue.create_topic(topic, packs=False)  # a pack is read by one task
        queue.publish("orders", [{"n": number} for number in range(100)])
        claim = queue.claim("orders", "c", max_messages=100, ttl=600)
        reference = json.dumps(claim.reference.to_dict())

        done = submit(job, [json.dumps(options), reference, attempts], master=cluster.master_url, conf=conf)

        assert done.status == 0, done.output
        assert {"0-0", "1-0", "1-1"} <= {path.name for path in attempts.iterdir()}
        written = queue.claim("invoices", "c", max_messages=1000)
        assert Counter(message.payload["n"] for message in written) == Counter(range(100))
