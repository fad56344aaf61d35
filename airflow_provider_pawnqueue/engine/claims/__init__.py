"""Claims: winning a batch, its record, keeping it, settling it, and taking over what others left."""

from airflow_provider_pawnqueue.engine.claims.claim import Claim, ClaimReference, Message
from airflow_provider_pawnqueue.engine.claims.giving_out import Claims
from airflow_provider_pawnqueue.engine.claims.keep_alive import KeepAlive
from airflow_provider_pawnqueue.engine.settlement import Settlement

__all__ = ["Claim", "ClaimReference", "Claims", "KeepAlive", "Message", "Settlement"]
