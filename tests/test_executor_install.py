"""The engine on a machine that has neither Airflow nor Spark's driver: a Spark executor, or a plain script."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.faults import FaultServer
from tests.support.wheels import environment_with

if TYPE_CHECKING:
    from tests.support.wheels import Wheels

# Runs in the new environment.
PROGRAM = """
import asyncio
import importlib.metadata
import importlib.util
import sys

import pawnqueue
from pawnqueue import MemoryStore, PawnQueue, Settings

for absent in ("airflow", "airflow_provider_pawnqueue", "pyspark"):
    assert importlib.util.find_spec(absent) is None, f"{absent} is installed here: the test proves nothing"


async def use(opening):
    async with opening as queue:
        assert queue.strategy == "conditional_write"
        assert (await queue.create_topic("orders", max_deliveries=3)).settings.max_deliveries == 3
        producer = await queue.register_producer("billing")
        assert await queue.list_topics() == ["orders"]
        assert [one.id for one in await queue.list_producers()] == [producer.id]
        await queue.delete_topic("orders")


asyncio.run(use(PawnQueue.open(store=MemoryStore())))
for client in ("obstore", "boto3"):
    asyncio.run(use(PawnQueue.open(Settings.from_env(s3={"client": client, "key_prefix": f"{client}/"}))))

assert not {"airflow", "pyspark"} & set(sys.modules)
assert importlib.metadata.version("pawnqueue-engine") == pawnqueue.__version__
assert importlib.util.find_spec("pyspark_pawnqueue")
print(pawnqueue.__file__)
"""

BUCKET = "queues"

pytestmark = pytest.mark.timeout(400)  # the distributions are built first, and pip installs them


@pytest.mark.slow
def test_engine_runs_without_airflow_and_spark(tmp_path: Path, wheels: Wheels) -> None:
    """The engine's wheel, with what it asks for and no more, opens a queue in memory and on S3, by both clients."""
    environment = tmp_path / "venv"
    python = environment_with(environment, "pawnqueue-engine", "--no-index", wheels.engine)

    with FaultServer(buckets=(BUCKET,)) as server:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PAWNQUEUE_"))}
        environ |= {
            "PAWNQUEUE_S3_ENDPOINT_URL": server.endpoint,
            "PAWNQUEUE_S3_BUCKET_NAME": BUCKET,
            "PAWNQUEUE_S3_ACCESS_KEY": server.s3.access_key,
            "PAWNQUEUE_S3_SECRET_KEY": server.s3.secret_key,
        }
        done = subprocess.run(
            [str(python), "-c", PROGRAM], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        left = {key.partition("/")[0] for key in server.objects(BUCKET)}

    assert done.returncode == 0, done.stderr
    assert left == {"obstore", "boto3"}, "each client has left its registration"
    assert Path(done.stdout.strip()).is_relative_to(environment), "the engine came from the source tree, not the wheel"
