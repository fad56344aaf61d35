"""Runs whose topic is full already: each claims in its first try, and whatever is in a payload goes through XCom."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pawnqueue import SyncPawnQueue

if TYPE_CHECKING:
    from tools.kit.airflow import Airflow
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.timeout(600)]

RUNS = 3
EACH = 3

DAG = """
from airflow.sdk import DAG, task
from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook

with (
    DAG({dag_id!r}, schedule=None, max_active_runs={runs}),
    claimed({dag_id!r}, group_id="batch", max_messages={each}, on_reported="bury") as claim,
):

    @task
    def number(message):
        return message["payload"]["n"]

    @task
    def numbers(claim):
        if "messages" in claim:
            return [message["payload"]["n"] for message in claim["messages"]]
        payloads = [message.payload for message in PawnQueueHook().messages(claim, shared=True)]
        assert all(payload.get("serial", 2**128) == 2**128 for payload in payloads)
        return [payload["n"] for payload in payloads]

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
    {"serial": 2**128},
    json.loads('{"in": ' * 300 + "[]" + "}" * 300),
]
#: Of these, those that Airflow cannot carry from task to task.
BEYOND = [6, 7]


def test_no_try_is_lost_on_a_full_topic(airflow: Airflow, seaweedfs: S3Server, bucket: str, dag_id: str) -> None:
    """Airflow 3.3 often fails a task whose trigger fires at once: waiting messages are claimed before the deferral."""
    count = RUNS * EACH
    limits = {"max_payload_depth": 500}
    with SyncPawnQueue.open(s3=seaweedfs.address(bucket), limits=limits) as queue:
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
        assert (left.pending, left.in_flight, left.dead) == (0, 0, len(BEYOND))
        letters = queue.dead_letters(dag_id).letters
        assert sorted(letter.message.payload["n"] for letter in letters if letter.message) == BEYOND
        assert all("Airflow cannot carry it" in letter.reason for letter in letters)
