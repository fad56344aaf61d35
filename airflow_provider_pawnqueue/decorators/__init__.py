"""``with claimed("orders") as claim:`` puts a sensor, your tasks and their settlement together."""

from airflow_provider_pawnqueue.decorators.claimed import ClaimOutput, claimed

__all__ = ["ClaimOutput", "claimed"]
