"""The janitor: one idempotent sweep of a topic, with a report (§5, Janitor). No delivery waits for it."""

from pawnqueue.maintenance.sweep import finish, sweep
from pawnqueue.maintenance.sweep_report import AskOwner, OpenClaim, SweepReport, Verdict, ask_by_record

__all__ = ["AskOwner", "OpenClaim", "SweepReport", "Verdict", "ask_by_record", "finish", "sweep"]
