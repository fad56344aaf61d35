"""Check and sum up the orders of a claim, and write Parquet: the orders, sums by item, and the rejected messages.

    spark-submit orders_etl.py OUT [CLAIM]

A ``PawnQueueSparkSubmitOperator`` passes the claim and the place of the queue to it. With another operator, pass the
claim as the sensor returned it, and set the ``PAWNQUEUE_*`` variables in the environment. Running it twice for a claim
has the effect of running it once: see ``pyspark_pawnqueue.parquet_once``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pawnqueue import ClaimReference
from pyspark_pawnqueue.jobs import job_claims, report_failures
from pyspark_pawnqueue.parquet_once import is_written, not_yet_in, write_once

SCHEMA = "order_id long, item string, quantity int, price decimal(10,2)"


def read(spark: SparkSession, claim: ClaimReference) -> DataFrame:
    """Return the orders of a claim, with the reason why an order is rejected, or null."""
    reader = spark.read.format("pawnqueue").option("claim", json.dumps(claim.to_dict()))
    reason = (
        f.when(f.col("_corrupt"), f.lit(f"the payload does not fit the schema: {SCHEMA}"))
        .when(f.col("order_id").isNull(), f.lit("there is no order_id"))
        .when(f.coalesce(f.col("quantity"), f.lit(0)) <= 0, f.lit("the quantity is not above zero"))
    )
    return reader.option("payloadSchema", SCHEMA).load().withColumn("reason", reason)


def main(out: Path, *given: str) -> None:
    """Work on the claims one after the other."""
    spark = SparkSession.builder.appName("orders_etl").getOrCreate()
    for claim in [ClaimReference.of(json.loads(text)) for text in given] or job_claims():
        messages = read(spark, claim).cache()  # they are used four times, and read once
        rejected = messages.where("reason is not null").select("id", "payload", "reason")
        if not given:  # otherwise no task receives the report
            report_failures(claim, rejected)
        if not is_written(out, claim):
            orders = not_yet_in(out, "orders", messages.where("reason is null"))
            orders = orders.select(
                "id", "order_id", "item", "quantity", (f.col("quantity") * f.col("price")).alias("amount")
            )
            sums = orders.groupBy("item").agg(f.sum("quantity").alias("quantity"), f.sum("amount").alias("amount"))
            tables = {"orders": orders, "by_item": sums, "rejected": not_yet_in(out, "rejected", rejected)}
            write_once(out, claim, tables)
        messages.unpersist()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
