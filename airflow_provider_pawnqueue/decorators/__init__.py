"""``with claimed("orders") as claim:`` claims messages, runs your tasks on them, and settles them."""

from airflow_provider_pawnqueue.decorators.claimed import ClaimOutput, claimed

__all__ = ["ClaimOutput", "claimed"]
