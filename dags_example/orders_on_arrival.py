"""Start a run when messages arrive, instead of having a run wait for them.

The watcher in the triggerer rings for a backlog, and again for messages that a claim has left. It claims nothing: a
burst of rings may start one run only, and each run claims as much as it finds. So no message is left over, not even
after a pause.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueEventTrigger

TOPIC = "arrivals"

# Name this asset in no other DAG file without its watchers: Airflow would take the watcher away.
arrivals = Asset(
    "pawnqueue_arrivals",
    watchers=[AssetWatcher(name="pawnqueue_arrivals_bell", trigger=PawnQueueEventTrigger(topic=TOPIC, ring_every=10))],
)

try:
    from airflow.sdk import AssetTriggeredTimetable
except ImportError:  # before Airflow 3.4, a burst of events is one run
    schedule = [arrivals]
else:
    schedule = AssetTriggeredTimetable(arrivals, batch_asset_events=True)

with (
    DAG("orders_on_arrival", schedule=schedule, catchup=False, max_active_runs=2, tags=["pawnqueue"]),
    # Two runs may be started for one backlog: a run that finds nothing for a minute is skipped, and not failed.
    claimed(TOPIC, max_messages=100, timeout=60, soft_fail=True) as claim,
):

    @task
    def work(claim: dict) -> int:
        """Work on what was claimed."""
        return len(PawnQueueHook().messages(claim))

    work(claim)
