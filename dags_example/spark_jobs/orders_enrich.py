"""Orders of a claim, with their prices, as messages of another topic, for its consumers.

    spark-submit orders_enrich.py TOPIC

For a ``PawnQueueSparkSubmitOperator``, which passes the claim. A job that is tried again publishes nothing twice, as
it writes under the claim's name. A run that is cleared after its job has published has another claim, and publishes
again: consumers recognise an order by its ``order_id``.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pyspark_pawnqueue.jobs import job_claims, report_failures

#: In practice a table.
PRICES = [("apple", "0.25"), ("pear", "0.40"), ("plum", "0.15")]


def main(topic: str) -> None:
    """Price the orders. An order without a price, or an invalid one, is reported to the settlement."""
    spark = SparkSession.builder.appName("orders_enrich").getOrCreate()
    prices = spark.createDataFrame(PRICES, "item string, price string")
    for claim in job_claims():
        reader = spark.read.format("pawnqueue").option("claim", json.dumps(claim.to_dict()))
        # A missing "not null" column makes a row corrupt: its amount could not be added up.
        orders = reader.option("payloadSchema", "order_id long not null, item string, quantity int not null").load()
        found = orders.join(f.broadcast(prices), "item", "left").cache()
        unpriced = found.where("_corrupt or price is null")
        why = f.when(f.col("_corrupt"), f.lit("the payload is no order")).otherwise(f.lit("the item has no price"))
        report_failures(claim, unpriced.select("id", why.alias("reason")))
        amount = (f.col("quantity") * f.col("price").cast("decimal(10,2)")).alias("amount")
        priced = found.where("not _corrupt and price is not null").select("order_id", "item", amount)
        # Each row is a payload. All become visible together, once this has succeeded, and once for a writeId.
        priced.write.format("pawnqueue").option("topic", topic).option("writeId", claim.stem).mode("append").save()


if __name__ == "__main__":
    main(sys.argv[1])
