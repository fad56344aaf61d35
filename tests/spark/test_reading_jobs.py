"""Reads by jobs of their own: on a cluster, with a claim and a connection from the environment, and with retries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from pawnqueue import ClaimReference, SyncPawnQueue
from pyspark_pawnqueue.job_environment import CLAIM_VARIABLE, CONNECTION_VARIABLE
from pyspark_pawnqueue.spark_errors import ERROR_PREFIX
from tools.kit.spark import submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pawnqueue import Claim, Settings
    from tools.kit.servers import S3Server
    from tools.kit.spark import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(400)]

#: A job takes a few of them; on a machine that does other work, many more.
SECONDS = 240.0

# Reads by the options that it is given, and tells what it found, and where.
READ = """
import json
import os
import sys
from pyspark.sql import SparkSession

options = json.loads(sys.argv[1])
spark = SparkSession.builder.getOrCreate()


def where(batches):
    import airflow_provider_pawnqueue
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({
            "id": batch.column("id").to_pylist(),
            "executor": [os.environ.get("SPARK_EXECUTOR_DIRS", "")] * batch.num_rows,
            "package": [airflow_provider_pawnqueue.__file__] * batch.num_rows,
        })


frame = spark.read.format("pawnqueue").options(**options).load()
rows = frame.mapInArrow(where, "id string, executor string, package string").collect()
print(json.dumps([row.asDict() for row in rows]))
"""

# Every task fails once, after it has read all; then the stage is done by second attempts.
FAILS_FIRST = """
import json
import sys
from pyspark import TaskContext
from pyspark.sql import SparkSession


def at_second(batches):
    found = list(batches)
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("first attempt")
    yield from found


spark = SparkSession.builder.getOrCreate()
options = {**json.load(open(sys.argv[1])), "partitions": 2, "payloadSchema": "order_id long"}
frame = spark.read.format("pawnqueue").options(**options).load()
again = frame.mapInArrow(at_second, frame.schema)
print(json.dumps([row.order_id for row in again.select("order_id").collect()]))
"""


class Shop:
    """A queue with a claim, and the options to read it."""

    def __init__(self, settings: Settings, queue: SyncPawnQueue, count: int) -> None:
        self.settings = settings
        self.queue = queue
        queue.create_topic("orders")
        queue.publish("orders", [{"order_id": number} for number in range(count)])
        self.claim: Claim = queue.claim("orders", "c", max_messages=count, ttl=600, claim_id="run")
        claim = self.claim
        self.reference = json.dumps(
            ClaimReference(claim.topic, claim.claim_id, claim.generation, claim.session).to_dict()
        )

    @property
    def address(self) -> dict[str, str]:
        """Where it is, without a key."""
        s3 = self.settings.s3
        return {"endpoint_url": str(s3.endpoint_url), "bucket_name": s3.bucket_name, "key_prefix": s3.key_prefix}

    @property
    def keys(self) -> dict[str, str]:
        """The keys of a user."""
        s3 = self.settings.s3
        assert s3.aws_access_key_id is not None
        assert s3.aws_secret_access_key is not None
        return {
            "aws_access_key_id": s3.aws_access_key_id,
            "aws_secret_access_key": s3.aws_secret_access_key.get_secret_value(),
        }


@pytest.fixture
def shop(seaweedfs: S3Server, settings_for: Callable[..., Settings]) -> Iterator[Shop]:
    """A claim of forty orders."""
    settings = settings_for(seaweedfs)
    with SyncPawnQueue.open(settings) as queue:
        yield Shop(settings, queue, 40)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The job that reads."""
    path = tmp_path / "job.py"
    path.write_text(READ)
    return path


def test_both_executors_read_with_the_settings_of_the_driver(
    shop: Shop, job: Path, spark_cluster: SparkCluster
) -> None:
    """Both executors read, their own environment has no effect, and nothing is claimed."""
    conf = {
        "spark.scheduler.minRegisteredResourcesRatio": 1.0,
        "spark.executorEnv.PAWNQUEUE_S3_ENDPOINT_URL": "http://127.0.0.1:9",
        "spark.executorEnv.PAWNQUEUE_S3_BUCKET_NAME": "nowhere",
    }
    options = {**shop.address, **shop.keys, "claim": shop.reference, "partitions": 4}
    done = submit(job, [json.dumps(options)], master=spark_cluster.master_url, conf=conf, seconds=SECONDS)

    assert done.status == 0, done.log
    rows = json.loads(done.output)
    assert [row["id"] for row in rows] == shop.claim.ids
    assert len({row["executor"] for row in rows}) == 2
    assert shop.keys["aws_secret_access_key"] not in done.log
    assert shop.queue.ack(shop.claim).complete


def test_executors_without_credentials_say_what_to_do(shop: Shop, job: Path, spark_cluster: SparkCluster) -> None:
    """The driver finds keys in its environment, and plans. The executor's error says what the executor lacks."""
    env = {
        "AWS_ACCESS_KEY_ID": shop.keys["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": shop.keys["aws_secret_access_key"],
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
    conf = {
        "spark.task.maxFailures": 1,
        "spark.executorEnv.AWS_EC2_METADATA_DISABLED": True,
        "spark.executorEnv.AWS_CONFIG_FILE": "/dev/null",
        "spark.executorEnv.AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
    options = {**shop.address, "claim": shop.reference}
    done = submit(job, [json.dumps(options)], master=spark_cluster.master_url, conf=conf, env=env, seconds=SECONDS)

    assert done.status != 0
    told = {line.partition(ERROR_PREFIX)[2] for line in done.log.splitlines() if ERROR_PREFIX in line}
    assert len(told) == 1, done.log
    [sentence] = told
    assert sentence.startswith(f"No credentials for {shop.address['endpoint_url']} were found")
    assert "on a Spark executor" in sentence
    assert "give the job the keys, by the options aws_access_key_id and aws_secret_access_key" in sentence
    assert "or give the workers a role" in sentence


def test_a_stage_that_is_tried_again_reads_the_same(shop: Shop, tmp_path: Path) -> None:
    """A retried stage reads the same rows. Its claim and connection come from variables. No log has a secret."""
    connection, events, path = tmp_path / "queue.yaml", tmp_path / "events", tmp_path / "job.py"
    connection.write_text(yaml.safe_dump({"s3": {**shop.address, **shop.keys}}))
    told = tmp_path / "options.json"
    told.write_text(json.dumps(shop.keys))
    events.mkdir()
    path.write_text(FAILS_FIRST)
    done = submit(
        path,
        [told],
        master="local[2,2]",
        env={CLAIM_VARIABLE: shop.reference, CONNECTION_VARIABLE: str(connection)},
        conf={"spark.eventLog.enabled": True, "spark.eventLog.dir": events.as_uri(), "spark.eventLog.compress": False},
        seconds=SECONDS,
    )

    assert done.status == 0, done.log
    assert "first attempt" in done.log
    assert json.loads(done.output) == list(range(40))
    assert [message.deliveries for message in shop.queue.messages(json.loads(shop.reference))] == [1] * 40
    logged = [file.read_text() for file in events.rglob("*") if file.is_file()]
    assert any("pawnqueue" in text for text in logged)
    for secret in shop.keys.values():
        assert [text for text in [*logged, done.log] if secret in text] == []
