"""The janitor: one idempotent sweep of a topic, with a report (§5, Janitor). No delivery waits for it."""

from airflow_provider_pawnqueue.engine.janitor.report import Ask, Report, Verdict
from airflow_provider_pawnqueue.engine.janitor.sweeping import sweep, sweep_probes

__all__ = ["Ask", "Report", "Verdict", "sweep", "sweep_probes"]
