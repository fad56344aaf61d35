"""The janitor: one idempotent sweep of a topic, with a report (§5, Janitor). No delivery waits for it."""

from airflow_provider_pawnqueue.engine.janitor.report import AskOwner, OpenClaim, SweepReport, Verdict, asking
from airflow_provider_pawnqueue.engine.janitor.sweeping import finish, sweep

__all__ = ["AskOwner", "OpenClaim", "SweepReport", "Verdict", "asking", "finish", "sweep"]
