"""The engine on a machine that has neither Airflow nor Spark's driver: a Spark executor, or a plain script."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.faults import FaultServer

TOP = Path(__file__).parent.parent

# All that the engine needs.
NEEDED = ["boto3", "obstore", "pydantic", "pyyaml"]

# Runs in the new environment.
PROGRAM = """
import asyncio
import importlib.util
import sys

import airflow_provider_pawnqueue
from airflow_provider_pawnqueue.engine import MemoryStore, PawnQueue, Settings

for absent in ("airflow", "pyspark"):
    assert importlib.util.find_spec(absent) is None, f"{absent} is installed here: the test proves nothing"


async def use(opening):
    async with opening as queue:
        assert queue.strategy == "conditional_write"
        assert (await queue.create_topic("orders", max_deliveries=3)).max_deliveries == 3
        producer = await queue.register_producer("billing")
        assert await queue.list_topics() == ["orders"]
        assert [one.entity_id for one in await queue.list_producers()] == [producer.entity_id]
        await queue.delete_topic("orders")


asyncio.run(use(PawnQueue.open(store=MemoryStore())))
for client in ("obstore", "boto3"):
    asyncio.run(use(PawnQueue.open(Settings.from_env(s3={"client": client, "key_prefix": f"{client}/"}))))

assert not {"airflow", "pyspark"} & set(sys.modules)
print(airflow_provider_pawnqueue.__file__)
"""

BUCKET = "queues"


def _pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_engine_runs_without_airflow_and_spark(tmp_path: Path) -> None:
    """The wheel, beside four libraries and nothing else, opens a queue in memory and on S3, by both clients."""
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"

    _pip(python, "install", "--constraint", str(TOP / "constraints.txt"), *NEEDED)
    _pip(python, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(TOP))
    (wheel,) = tmp_path.glob("*.whl")
    _pip(python, "install", "--no-deps", str(wheel))

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
