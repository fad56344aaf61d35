"""A stream over a topic: a claim a batch, acked when the sink has it, to the last one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.streams import Gate, Sink, Stream, numbers, options_of
from tools.kit.spark import submit
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.kit.servers import S3Server
    from tools.kit.spark import SparkCluster

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


# Writes all waiting messages as files, by Spark's own sink.
JOB = """
import json
import sys
from pyspark.sql import SparkSession

options, folder = json.loads(sys.argv[1]), sys.argv[2]
reader = SparkSession.builder.getOrCreate().readStream.format("pawnqueue").options(**options)
writer = reader.option("payloadSchema", "order_id long").load().writeStream.format("parquet").trigger(availableNow=True)
writer.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/out").awaitTermination()
"""


def test_each_batch_is_one_claim_and_no_larger_than_was_said(stream: Stream) -> None:
    """The backlog comes in order, in batches of the given size, and at the end everything is acked."""
    ids = stream.publish(7)
    sink = Sink()

    query = stream.run(sink, maxMessagesPerBatch=3)

    assert [len(rows) for rows in sink.batches.values()] == [3, 3, 1]
    assert sink.ids == ids
    assert stream.counts() == (0, 0)
    offsets = [json.loads(each["sources"][0]["endOffset"]) for each in query.recentProgress]
    claims = {offset["claim"]["claim_id"] for offset in offsets}
    assert claims == {f"{offsets[0]['stream']}-{number}" for number in (1, 2, 3)}


def test_packs_come_in_batches_of_the_given_size(stream: Stream) -> None:
    """A pack is handed out in parts, each message once, and at the end everything is acked."""
    stream.queue.update_topic(stream.topic, packs=True)
    ids = stream.queue.publish(stream.topic, [{"order_id": number} for number in range(120)], pack=True)
    sink = Sink()

    stream.run(sink, maxMessagesPerBatch=50)

    assert max(len(rows) for rows in sink.batches.values()) <= 50
    assert sink.ids == ids
    assert stream.counts() == (0, 0)


def test_available_now_takes_no_later_message(stream: Stream) -> None:
    """Messages that are published while it runs are left to the next run, which goes on at the same checkpoint."""
    early, later = stream.publish(4), []
    sink, following = Sink(lambda _: later.extend(stream.publish(2, 100))), Sink()

    stream.run(sink, "one", maxMessagesPerBatch=2)
    assert sink.ids == early
    assert stream.counts() == (len(later), 0)

    stream.run(following, "one")
    assert following.ids == later
    assert stream.counts() == (0, 0)


def test_available_now_of_an_empty_topic_ends(stream: Stream) -> None:
    """It ends without a row, each time it is started. The next run reads what was published meanwhile."""
    sink = Sink()

    stream.run(sink, "one")
    stream.run(sink, "one")
    assert sink.batches == {0: []}

    ids = stream.publish(2)
    stream.run(sink, "one")
    assert sink.ids == ids
    assert stream.counts() == (0, 0)


def test_a_bad_message_keeps_available_now_from_nothing(stream: Stream, seaweedfs: S3Server) -> None:
    """Malformed messages are buried, however many come before the good ones, which the same run reads."""
    first = stream.publish(4)
    s3 = stream.settings.s3
    client = seaweedfs.client()
    found = client.list_objects_v2(Bucket=s3.bucket_name, Prefix=s3.key_prefix)["Contents"]
    for key in [each["Key"] for each in found if any(i in each["Key"] for i in first)]:
        client.put_object(Bucket=s3.bucket_name, Key=key, Body=b"no message")
    good = stream.publish(3)
    sink = Sink()

    stream.run(sink, maxMessagesPerBatch=2)

    assert sink.ids == good
    assert stream.counts() == (0, 0)


def test_an_idle_stream_has_acked_its_last_batch(stream: Stream) -> None:
    """A running query acks what the sink has even if no message follows, and reads later messages."""
    sink = Sink()
    query = stream.start(sink)
    for first in (0, 10):
        ids = stream.publish(2, first)
        wait_until(lambda ids=ids: set(ids) <= set(sink.ids), "the sink had the messages")  # type: ignore[misc]
        stream.wait_until_empty()

    assert query.isActive
    query.stop()
    assert len(sink.ids) == 4


def test_nothing_is_acked_before_the_sink_has_it(stream: Stream) -> None:
    """While the sink works, the batch stays in flight, for longer than the claim's ttl. Then it is acked."""
    gate = Gate()
    stream.publish(3)
    query = stream.start(Sink(gate), ttl=8)
    assert gate.reached.wait(60)
    assert stream.counts() == (0, 3)

    assert not stream.queue.claim(stream.topic, "other", wait=10)
    assert stream.counts() == (0, 3)
    gate.opened.set()
    stream.wait_until_empty()
    query.stop()


def test_a_sink_that_fails_acks_nothing(stream: Stream) -> None:
    """The restart reads the same rows under the same batch number, and need not wait."""
    ids = stream.publish(4)
    failing, sink = Sink(_fails_at(1)), Sink()

    with pytest.raises(StreamingQueryException, match="this sink fails"):
        stream.run(failing, "one", maxMessagesPerBatch=2)
    assert stream.counts() == (0, 2)

    stream.publish(1)
    stream.run(sink, "one", maxMessagesPerBatch=2)
    assert failing.ids == ids
    assert [row["id"] for row in sink.batches[1]] == ids[2:]
    assert len(sink.batches[2]) == 1
    assert stream.counts() == (0, 0)


def test_the_progress_says_what_waits(stream: Stream) -> None:
    """It has the backlog behind the batch and the age of its oldest message, also where a batch waits for more."""
    stream.publish(5)
    sink = Sink()
    query = stream.start(sink, maxMessagesPerBatch=4, minMessagesPerBatch=4, maxBytesPerBatch=1_000_000)
    wait_until(lambda: query.lastProgress is not None, "there was progress")

    assert query.lastProgress is not None
    (source,) = query.lastProgress["sources"]
    waiting = json.loads(source["latestOffset"])
    assert waiting["backlog"] == 1
    assert 0 < waiting["oldestAgeSeconds"] < 300
    wait_until(lambda: stream.counts() == (1, 0), "the batch was acked, and the last message waits")
    stream.publish(3, 5)
    stream.wait_until_empty()
    assert [len(rows) for rows in sink.batches.values()] == [4, 4]


def test_available_now_and_once_do_not_wait_for_more(stream: Stream) -> None:
    """However few messages there are, these triggers take them, and end."""
    ids = stream.publish(3)
    sink = Sink()

    stream.run(sink, "one", minMessagesPerBatch=10, maxBytesPerBatch=1)
    assert [len(rows) for rows in sink.batches.values()] == [1, 1, 1]
    assert sink.ids == ids
    stream.publish(2)
    query = stream.start(sink, "one", trigger={"once": True}, minMessagesPerBatch=10)
    assert query.awaitTermination(60)
    assert len(sink.ids) == 5


def test_two_queries_share_a_topic(stream: Stream) -> None:
    """Two queries at once share the messages, none comes twice, and all are acked."""
    first, second = Sink(), Sink()
    queries = [stream.start(each, maxMessagesPerBatch=5) for each in (first, second)]

    ids = stream.publish(60)
    wait_until(lambda: len(first.ids) + len(second.ids) >= len(ids), "both had taken all")
    stream.wait_until_empty()

    assert sorted(first.ids + second.ids) == sorted(ids)
    assert all(query.isActive for query in queries)


def test_many_batches_of_two_topics_in_one_query(stream: Stream, tmp_path: Path) -> None:
    """Each topic has claims of its own, batch after batch. While one is empty, the other goes on."""
    other = Stream(stream.spark, stream.settings, tmp_path, "returns")
    orders, returns = stream.publish(20), other.publish(5)
    sink = Sink()
    both = stream.frame(maxMessagesPerBatch=1, partitions=2).union(other.frame(maxMessagesPerBatch=1))

    writer = both.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "both"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(100)

    assert [len(rows) for rows in sink.batches.values()] == [2] * 5 + [1] * 15
    assert sorted(sink.ids) == sorted(orders + returns)
    assert (stream.counts(), other.counts()) == ((0, 0), (0, 0))
    other.close()


def test_a_stream_on_a_cluster(stream: Stream, spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """Executors in other processes read the claims of the driver's planning process, with its options."""
    ids = stream.publish(6)
    (tmp_path / "job.py").write_text(JOB)
    options = options_of(stream.settings) | {"topic": stream.topic, "maxMessagesPerBatch": "4", "partitions": "2"}

    done = submit(tmp_path / "job.py", [json.dumps(options), tmp_path], master=spark_cluster.master_url, seconds=200)

    assert done.status == 0, done.log
    rows = stream.spark.read.parquet(f"{tmp_path}/out").select("id", "order_id").collect()
    assert sorted(row["id"] for row in rows) == sorted(ids)
    assert sorted(numbers(rows)) == [*range(6)]
    assert stream.counts() == (0, 0)


def test_payloads_are_columns(stream: Stream) -> None:
    """A stream can have a payload schema. A value that does not fit marks its row, as in a batch read."""
    stream.queue.publish(stream.topic, [{"order_id": 1, "item": "pen"}, {"order_id": "two", "item": "ink"}])
    sink = Sink()

    stream.run(sink, payloadSchema="order_id long, item string")

    rows = sink.batches[0]
    assert [(row["order_id"], row["item"], row["_corrupt"]) for row in rows] == [(1, "pen", False), (None, "ink", True)]
    assert numbers(rows) == [1, None]


def test_a_topic_that_does_not_exist_is_told(stream: Stream) -> None:
    """The query fails with an error that names the topic, and says what to do."""
    stream.topic = "odrers"

    with pytest.raises(StreamingQueryException) as caught:
        stream.run(Sink())

    assert "PawnQueue: Topic 'odrers' does not exist" in str(caught.value)


def _fails_at(number: int) -> Callable[[int], None]:
    def seen(batch: int) -> None:
        if batch == number:
            message = "this sink fails"
            raise RuntimeError(message)

    return seen
