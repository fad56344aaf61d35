"""Price the orders of a claim: write them as Parquet, publish them into another topic, and report the others.

It is submitted with the folder of the results as its argument.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast

from pyspark_pawnqueue.jobs import job_claims, report_failures
from pyspark_pawnqueue.parquet_once import not_yet_in, write_once

spark, out, [claim] = SparkSession.builder.getOrCreate(), sys.argv[1], job_claims()
prices = spark.createDataFrame([("apple", 25), ("pear", 40), ("plum", 15)], ["item", "cents"])  # your table
schema = "order_id long not null, item string, quantity int not null"
orders = spark.read.format("pawnqueue").option("payloadSchema", schema).load()
found = orders.join(broadcast(prices), "item", "left").cache()  # it is used three times

rejected = found.where("_corrupt or cents is null")
report_failures(claim, rejected.selectExpr("id", "if(_corrupt, 'not an order', 'the item has no price') as reason"))

priced = found.where("not _corrupt and cents is not null").selectExpr("id", "order_id", "quantity * cents as cents")
write_once(out, claim, {"orders": not_yet_in(out, "orders", priced)})
publish = priced.drop("id").write.format("pawnqueue").option("topic", "priced_orders").option("writeId", claim.stem)
publish.mode("append").save()
