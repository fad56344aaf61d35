"""The format ``pawnqueue`` for Spark, and what jobs import (:mod:`pyspark_pawnqueue.jobs`).

Spark looks for ``DefaultSource`` in every installed package whose name begins with ``pyspark_``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_pawnqueue.datasource import PawnQueueDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as Python asks for it
    """Import the data source when Spark asks for it: Airflow imports modules of this package where Spark is missing."""
    if name == "DefaultSource":
        from pyspark_pawnqueue.datasource import PawnQueueDataSource  # noqa: PLC0415 - as above

        return PawnQueueDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
