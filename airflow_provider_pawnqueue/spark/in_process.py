"""For tasks with a Spark session in their own process, as ``@task.pyspark`` gives them one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.hooks.clients import settings_for_others
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.references import Given
from airflow_provider_pawnqueue.spark.job_folder import JobFolder


@contextmanager
def reading(claim: Given, pawnqueue_conn_id: str = DEFAULT_CONN_ID) -> Iterator[dict[str, str]]:
    """Work on a claim for the length of a block, as ``hook.working_on`` does. The block gets the options to read it.

    ``with reading(claim) as options: spark.read.format("pawnqueue").options(**options).load()``. Collect or write the
    results within the block. Spark finds the queue by a file that nobody else may read, and that is removed after the
    block. So no key is in a query's plan.

    :param claim: what the sensor returned.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """
    hook = PawnQueueHook(pawnqueue_conn_id)
    reference = references.from_xcom(claim, hook.settings, "reading")
    folder = JobFolder()
    with hook.working_on(claim, payloads=False):
        try:
            folder.create(settings_for_others(hook.address))
            yield {"claim": json.dumps(reference.to_dict()), "connection": str(folder.connection)}
        finally:
            folder.remove()
