"""Start a run when messages arrive, instead of having a run wait for them.

The watcher in the triggerer sends an event when messages wait, and again if a claim has left some. It claims nothing
itself. Several events may start only one run, and each run claims as many messages as wait. So no message is left
behind, not even after the DAG was paused.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueEventTrigger

TOPIC = "arrivals"

# If another DAG file names this asset, it must have the watcher too: otherwise Airflow removes the watcher.
arrivals = Asset(
    "pawnqueue_arrivals",
    watchers=[AssetWatcher(name="pawnqueue_arrivals_bell", trigger=PawnQueueEventTrigger(topic=TOPIC, ring_every=10))],
)

try:
    from airflow.sdk import AssetTriggeredTimetable
except ImportError:  # before Airflow 3.4, several events together start one run
    schedule = [arrivals]
else:
    schedule = AssetTriggeredTimetable(arrivals, batch_asset_events=True)

with (
    DAG("orders_on_arrival", schedule=schedule, catchup=False, max_active_runs=2, tags=["pawnqueue"]),
    # Two runs may start for the same messages: a run that finds none within a minute is skipped, and does not fail.
    claimed(TOPIC, max_messages=100, timeout=60, soft_fail=True) as claim,
):

    @task
    def work(claim: dict) -> int:
        """Work on the claimed messages."""
        return len(PawnQueueHook().messages(claim))

    work(claim)
