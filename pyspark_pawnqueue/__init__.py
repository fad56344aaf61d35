"""By this name Spark finds the format ``pawnqueue`` where it is installed."""

from airflow_provider_pawnqueue.spark.datasource import PawnQueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
