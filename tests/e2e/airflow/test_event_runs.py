"""How many runs an event trigger starts for a backlog, on an Airflow where each asset event is a run (since 3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import SyncPawnQueue

if TYPE_CHECKING:
    from tools.kit.airflow import Airflow
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.full, pytest.mark.timeout(1500)]

BATCHES = 10
#: One run at a time, a minute each, which claims a tenth of the messages. It asks for no batching of events.
SOURCE = """
import time

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueEventTrigger

bell = AssetWatcher(name="{dag_id}_bell", trigger=PawnQueueEventTrigger(topic="{dag_id}", ring_every=10))
arrivals = Asset("{dag_id}", watchers=[bell])

with (
    DAG("{dag_id}", schedule=[arrivals], catchup=False, max_active_runs=1),
    claimed("{dag_id}", max_messages=5, timeout=30, soft_fail=True) as claim,
):

    @task
    def work(claim):
        time.sleep(50)

    work(claim)
"""


def test_a_backlog_of_ten_minutes_makes_few_runs_in_vain(
    airflow: Airflow, dag_id: str, seaweedfs: S3Server, bucket: str
) -> None:
    """All messages are settled, and at most two runs claim nothing; none is left when the backlog is."""
    with SyncPawnQueue.open(s3=seaweedfs.address(bucket)) as queue:
        queue.create_topic(dag_id)
        queue.publish(dag_id, [{"n": n} for n in range(5 * BATCHES)])
        airflow.write_dags(f"{dag_id}.py", SOURCE.format(dag_id=dag_id))
        airflow.api.unpause(dag_id)

        def is_settled() -> bool:
            found = queue.stats(dag_id)
            return not found.pending + found.in_flight + found.delayed + found.dead

        airflow.wait_for(is_settled, "all messages to be settled", timeout=1200)
    runs = airflow.api.runs(dag_id)
    for run in runs:
        airflow.wait_for_run(dag_id, run["dag_run_id"], state=("success", "failed"))
    claims = {
        run["dag_run_id"]: ti["state"]
        for run in runs
        for ti in airflow.api.task_instances(dag_id, run["dag_run_id"])
        if ti["task_id"].endswith(".claim")
    }
    assert list(claims.values()).count("success") == BATCHES
    assert list(claims.values()).count("skipped") <= 2
