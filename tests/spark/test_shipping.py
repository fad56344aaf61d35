"""The data source without an installed package: the job brings it to the driver and to the executors."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pawnqueue import ClaimReference, SyncPawnQueue
from tests.support.wheels import pip
from tools.kit.spark import submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pawnqueue import Settings
    from tools.kit.servers import S3Server
    from tools.kit.spark import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(400)]

TOP = Path(__file__).parent.parent.parent
#: A job takes a few of them; on a machine that does other work, many more.
SECONDS = 240.0

# Tells what it has read, and from where the package came on the driver and on the executors.
JOB = """
import json
import sys
from pyspark.sql import SparkSession
import pyspark_pawnqueue
from pyspark_pawnqueue.parquet_once import write_once

spark = SparkSession.builder.getOrCreate()
if "register" in sys.argv:
    from pyspark_pawnqueue.datasource import register
    register(spark)


def where(batches):
    import sys
    import pyspark_pawnqueue
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({
            "order_id": batch.column("order_id").to_pylist(),
            "package": [pyspark_pawnqueue.__file__] * batch.num_rows,
            "airflow": ["airflow" in sys.modules] * batch.num_rows,
        })


options = json.load(open(sys.argv[1]))
frame = spark.read.format("pawnqueue").options(**options).option("payloadSchema", "order_id long").load()
assert write_once(sys.argv[2], "by-a-job", {"numbers": spark.range(1)})
rows = frame.mapInArrow(where, "order_id long, package string, airflow boolean").collect()
print(json.dumps({
    "driver": pyspark_pawnqueue.__file__,
    "orders": [row.order_id for row in rows],
    "executors": sorted({row.package for row in rows}),
    "airflow": any(row.airflow for row in rows),
}))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of ``pawnqueue-engine``, and nothing else."""
    folder = tmp_path_factory.mktemp("packed")
    pip("install", "--no-deps", "--no-compile", "--target", folder, TOP / "tools" / "engine")
    return folder


@pytest.fixture
def told(tmp_path: Path, seaweedfs: S3Server, settings_for: Callable[..., Settings]) -> Path:
    """A file with the options of a read of ten orders."""
    settings = settings_for(seaweedfs)
    s3 = settings.s3
    assert s3.aws_secret_access_key is not None
    with SyncPawnQueue.open(settings) as queue:
        queue.create_topic("orders")
        queue.publish("orders", [{"order_id": number} for number in range(10)])
        claim = queue.claim("orders", "c", max_messages=10, ttl=600, claim_id="run")
        reference = ClaimReference(claim.topic, claim.claim_id, claim.generation, claim.session)
        queue.leave(claim)
    path = tmp_path / "options.json"
    path.write_text(
        json.dumps(
            {
                "endpoint_url": s3.endpoint_url,
                "bucket_name": s3.bucket_name,
                "key_prefix": s3.key_prefix,
                "aws_access_key_id": s3.aws_access_key_id,
                "aws_secret_access_key": s3.aws_secret_access_key.get_secret_value(),
                "claim": json.dumps(reference.to_dict()),
                "partitions": 2,
            }
        )
    )
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The job."""
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def test_executors_have_it_from_an_archive(
    tmp_path: Path, packed: Path, told: Path, job: Path, spark_cluster: SparkCluster
) -> None:
    """Executors need the archive of one distribution only, and the driver finds the format by itself."""
    archive = tmp_path / "pawnqueue.tar.gz"
    with tarfile.open(archive, "w:gz") as packing:
        packing.add(packed, ".")
    done = submit(
        job,
        [told, tmp_path / "out"],
        master=spark_cluster.master_url,
        env={"PYTHONPATH": str(packed)},
        conf={"spark.archives": f"{archive}#pawnqueue", "spark.executorEnv.PYTHONPATH": "pawnqueue"},
        seconds=SECONDS,
    )

    assert done.status == 0, done.log
    found = json.loads(done.output)
    assert found["orders"] == list(range(10))
    assert Path(found["driver"]).is_relative_to(packed)
    assert [path.partition("/pawnqueue/")[2] for path in found["executors"]] == ["pyspark_pawnqueue/__init__.py"] * len(
        found["executors"]
    )
    assert found["airflow"] is False


def test_it_comes_along_as_a_zip_and_is_registered(
    tmp_path: Path, packed: Path, told: Path, job: Path, spark_cluster: SparkCluster
) -> None:
    """Shipped by ``--py-files``, the format must be registered by one call."""
    files = shutil.make_archive(str(tmp_path / "pawnqueue"), "zip", packed)
    done = submit(
        job,
        [told, tmp_path / "out", "register"],
        master=spark_cluster.master_url,
        env={"PYTHONPATH": ""},
        conf={"spark.submit.pyFiles": files},
        seconds=SECONDS,
    )

    assert done.status == 0, done.log
    found = json.loads(done.output)
    assert found["orders"] == list(range(10))
    assert "pawnqueue.zip/" in found["driver"]
    assert [path for path in found["executors"] if "pawnqueue.zip/" not in path] == []
