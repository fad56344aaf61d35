"""The janitor: every minute it finishes what crashed tasks left, and renews the claims of runs that go on.

You need one for each connection. Without it everything still works, but waits are longer: see docs/airflow.md.
"""

from __future__ import annotations

from airflow_provider_pawnqueue.dags import janitor_dag

dag = janitor_dag("pawnqueue_janitor")
