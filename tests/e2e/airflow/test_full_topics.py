"""Runs whose topic is full already: each claims in its first try, and whatever is in a payload goes through XCom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pawnqueue.engine import SyncPawnQueue

if TYPE_CHECKING:
    from tools.kit.airflow import Airflow
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.timeout(600)]

RUNS = 3
EACH = 2

DAG = """
from airflow.sdk import DAG, task
from airflow_provider_pawnqueue.decorators import claimed

with (
    DAG({dag_id!r}, schedule=None, max_active_runs={runs}),
    claimed({dag_id!r}, group_id="batch", max_messages={each}) as claim,
):

    @task
    def number(message):
        return message["payload"]["n"]

    @task
    def numbers(claim):
        return [message["payload"]["n"] for message in claim["messages"]]

    number.expand(message=claim.messages)
    numbers(claim)
"""

#: What Airflow's own serialization reads in dicts, and a text that a database refuses in JSON.
HOSTILE = [
    {"__id__": 7},
    {"__classname__": "builtins.dict", "__version__": 1, "__data__": {}},
    {"__type": "airflow.sdk.definitions.asset.Asset", "__var": {"name": "x", "uri": "x://y", "group": "", "extra": {}}},
    {"deep": [{"__type": "pandas.core.frame.DataFrame", "__var": "no frame"}]},
    {"text": "{{ 1 / 0 }} \x00"},
    {"text": "ü"},
]


def test_no_try_is_lost_on_a_full_topic(airflow: Airflow, seaweedfs: S3Server, bucket: str, dag_id: str) -> None:
    """Airflow 3.3 often fails a task whose trigger fires at once: what is there is claimed before the deferral."""
    count = RUNS * EACH
    with SyncPawnQueue.open(s3=seaweedfs.address(bucket)) as queue:
        queue.create_topic(dag_id)
        queue.publish(dag_id, [{"n": n, **HOSTILE[n % len(HOSTILE)]} for n in range(count)])
        airflow.write_dags(f"{dag_id}.py", DAG.format(dag_id=dag_id, runs=RUNS, each=EACH))
        airflow.api.unpause(dag_id)
        runs = [airflow.trigger(dag_id) for _ in range(RUNS)]
        for run_id in runs:
            airflow.wait_for_run(dag_id, run_id, timeout=300)
        tries = [airflow.api.task_instance(dag_id, run_id, "batch.claim")["try_number"] for run_id in runs]
        assert tries == [1] * RUNS
        for task_id in ("number", "numbers"):
            found = [airflow.api.task_instances(dag_id, run_id, task_id=f"batch.{task_id}") for run_id in runs]
            assert {each["try_number"] for instances in found for each in instances} == {1}
        seen = [n for run_id in runs for n in airflow.api.xcom(dag_id, run_id, "batch.numbers")]
        assert sorted(seen) == list(range(count))
        left = queue.stats(dag_id)
        assert (left.pending, left.in_flight, left.dead) == (0, 0, 0)
