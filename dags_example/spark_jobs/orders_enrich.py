"""Add prices to the orders of a claim, and publish them into another topic.

    spark-submit orders_enrich.py TOPIC

A ``PawnQueueSparkSubmitOperator`` passes the claim to it. A second try publishes nothing twice, because the job writes
under the claim's name. A run that is cleared after its job has published makes another claim, and publishes again. A
consumer can recognise such an order by its ``order_id``.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pyspark_pawnqueue.jobs import job_claims, report_failures

#: In production this is a table.
PRICES = [("apple", "0.25"), ("pear", "0.40"), ("plum", "0.15")]


def main(topic: str) -> None:
    """Publish the orders with their prices; report messages that are not orders, or whose item has no price."""
    spark = SparkSession.builder.appName("orders_enrich").getOrCreate()
    prices = spark.createDataFrame(PRICES, "item string, price string")
    for claim in job_claims():
        reader = spark.read.format("pawnqueue").option("claim", json.dumps(claim.to_dict()))
        # A row without a field that is "not null" is corrupt: nobody could compute its amount.
        orders = reader.option("payloadSchema", "order_id long not null, item string, quantity int not null").load()
        found = orders.join(f.broadcast(prices), "item", "left").cache()
        unpriced = found.where("_corrupt or price is null")
        why = f.when(f.col("_corrupt"), f.lit("the payload is not an order")).otherwise(f.lit("the item has no price"))
        report_failures(claim, unpriced.select("id", why.alias("reason")))
        amount = (f.col("quantity") * f.col("price").cast("decimal(10,2)")).alias("amount")
        priced = found.where("not _corrupt and price is not null").select("order_id", "item", amount)
        # Each row is a payload. All are published together when this succeeds, and once for each writeId.
        priced.write.format("pawnqueue").option("topic", topic).option("writeId", claim.stem).mode("append").save()


if __name__ == "__main__":
    main(sys.argv[1])
