"""One DAG run for each message: a dispatcher claims a batch, and each message becomes a partition of an asset.

Needs Airflow 3.2 or newer, which has partitioned assets. The message's id is the partition key of its run. So you can
find the run of an order in the UI, and clear it to work on that one order again.

The dispatcher's messages are acked once their runs are requested, and a run is given only the key. So store the content
of a message where its run finds it by the id, such as in a table.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset, get_current_context, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook

try:
    from airflow.sdk import IdentityMapper, PartitionedAssetTimetable
except ImportError:
    raise ImportError(
        "This DAG needs Airflow 3.2 or newer, for partitioned assets: each message starts a run."
    ) from None

TOPIC = "tickets"
ticket = Asset("pawnqueue_tickets")

with (
    DAG("tickets_dispatch", schedule=None, catchup=False, max_active_runs=1, tags=["pawnqueue"]),
    claimed(TOPIC, max_messages=20) as claim,
):

    @task(outlets=[ticket])
    def dispatch(claim: dict, *, outlet_events) -> list[str]:  # noqa: ANN001 - given by Airflow
        """Request a run for each message, with the message's id as the partition key."""
        messages = PawnQueueHook().messages(claim)
        outlet_events[ticket].add_partitions([message.id for message in messages])
        return [message.id for message in messages]

    dispatch(claim)

with DAG(
    "tickets_work",
    schedule=PartitionedAssetTimetable(assets=ticket, default_partition_mapper=IdentityMapper()),
    catchup=False,
    tags=["pawnqueue"],
):

    @task
    def work() -> str:
        """Work on one ticket."""
        return str(get_current_context()["dag_run"].partition_key)

    work()
