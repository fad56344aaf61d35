"""The Spark format ``pawnqueue``, and what jobs import (:mod:`pyspark_pawnqueue.jobs`).

Spark looks for ``DefaultSource`` in every installed package whose name begins with ``pyspark_``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_pawnqueue.datasource import PawnQueueDataSource as DefaultSource
    from pyspark_pawnqueue.spark_errors import PawnQueueSparkError

__all__ = ["DefaultSource", "PawnQueueSparkError"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as Python asks for it
    """Import on first use: Airflow imports modules of this package on machines without Spark."""
    if name == "DefaultSource":
        from pyspark_pawnqueue.datasource import PawnQueueDataSource  # noqa: PLC0415 - as above

        return PawnQueueDataSource
    if name == "PawnQueueSparkError":
        from pyspark_pawnqueue.spark_errors import PawnQueueSparkError  # noqa: PLC0415 - as above

        return PawnQueueSparkError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
