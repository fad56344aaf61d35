"""Orders as a stream, into Parquet: each micro-batch is a claim, and is acked once it is written.

    spark-submit orders_stream.py OUT TOPIC [SECONDS]

It works on all waiting messages and ends. With SECONDS it goes on, and looks for messages at this interval. The place
of the queue comes from the file or the ``PAWNQUEUE_*`` variables of its environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pyspark_pawnqueue.parquet_once import is_written, not_yet_in, write_once

SCHEMA = "order_id long, item string, quantity int, price decimal(10,2)"


def main(out: Path, topic: str, seconds: str = "") -> None:
    """Write all waiting messages, or run for ever if ``seconds`` is given."""
    spark = SparkSession.builder.appName("orders_stream").getOrCreate()
    orders = (
        spark.readStream.format("pawnqueue")
        .option("topic", topic)
        .option("payloadSchema", SCHEMA)
        .option("maxMessagesPerBatch", 500)
        .option("ttl", 300)  # a stream that is down for at most this long gets its last batch again
        .load()
    )

    def write(batch: DataFrame, number: int) -> None:
        """Write a batch. After a restart, the last batch comes again, or comes empty if it was acked."""
        # The query's own id, which is in its checkpoint: a new checkpoint counts from 0 again.
        name = f"{spark.sparkContext.getLocalProperty('sql.streaming.queryId')}-{number}"
        if not is_written(out, name):
            batch.cache()
            good, bad = batch.where("not _corrupt"), batch.where("_corrupt")
            tables = {
                "orders": not_yet_in(out, "orders", good.select("id", "order_id", "item", "quantity", "price")),
                "rejected": not_yet_in(out, "rejected", bad.select("id", "payload")),
            }
            write_once(out, name, tables)
            batch.unpersist()

    how = {"processingTime": f"{seconds} seconds"} if seconds else {"availableNow": True}
    stream = orders.writeStream.option("checkpointLocation", str(out / "_checkpoint")).foreachBatch(write)
    stream.trigger(**how).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
