"""However a stream ends, its restart has the same claim and rows: each message comes once, and none is left."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from pawnqueue import ClaimBusyError, InvalidArgumentError
from pawnqueue.domain.claim_record import ClaimRecord
from pyspark_pawnqueue.jobs import ack_finished
from tests.spark.streams import Gate, Sink, Stream, options_of, planners
from tools.kit.spark import SparkJob
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

# Writes each batch to a folder of its own, says by a file that it has come to where it is to be killed, and waits.
JOB = """
import json
import pathlib
import sys
import threading
import time
from pyspark.sql import SparkSession
from pyspark_pawnqueue.jobs import ack_promptly

options, folder, phase = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]


def here(at, number):
    if phase == at and number == 1:
        (folder / "here").touch()
        threading.Event().wait()


def write(frame, number):
    here("before", number)
    if phase == "amidst" and number == 1:
        frame.limit(1).write.mode("overwrite").parquet(f"{folder}/out/{number}")
    here("amidst", number)
    frame.write.mode("overwrite").parquet(f"{folder}/out/{number}")
    here("written", number)


spark = SparkSession.builder.getOrCreate()
if phase == "acked":
    ack_promptly(spark)
stream = spark.readStream.format("pawnqueue").options(**options).load()
writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
# The second batch comes at once, as it was late; after it there is an hour.
query = writer.trigger(processingTime="1 hour" if phase in ("done", "acked") else "0 seconds").start()
while not (phase in ("done", "acked") and (folder / "checkpoint" / "commits" / "0").exists()):
    time.sleep(0.05)
(folder / "here").touch()
query.awaitTermination()
"""


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("before", marks=pytest.mark.full),
        pytest.param("amidst", marks=pytest.mark.full),
        "written",
        pytest.param("done", marks=pytest.mark.full),
        pytest.param("acked", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("packs", [False, pytest.param(True, marks=pytest.mark.full)], ids=["single", "packs"])
def test_a_driver_that_is_killed_is_followed_by_the_same_batch(
    stream: Stream, tmp_path: Path, phase: str, *, packs: bool
) -> None:
    """Killed before, in or after the sink's write, or after Spark's note of it: each message is once in the result."""
    stream.queue.update_topic(stream.topic, packs=packs)
    ids = stream.queue.publish(stream.topic, [{"order_id": number} for number in range(6)], pack=packs)
    (tmp_path / "job.py").write_text(JOB)
    options = options_of(stream.settings) | {"topic": stream.topic, "maxMessagesPerBatch": "2", "ttl": "8"}
    with SparkJob(tmp_path / "job.py", [json.dumps(options), tmp_path, phase]) as job:
        here = tmp_path / "here"
        with suppress(AssertionError):  # the job's log says more
            wait_until(lambda: here.exists() or not job.running, "it came to where it dies", seconds=180)
        assert here.exists(), f"The job did not come to where it dies:\n{job.log[-8000:]}"
        if phase == "acked":
            wait_until(lambda: stream.counts()[1] == 0, "the batch was acked")
        job.signal(signal.SIGKILL)
    in_work = 0 if phase in {"done", "acked"} else 1
    assert stream.counts()[1] == (0 if phase == "acked" else 2)
    before = _written(stream, in_work) if phase in {"written", "done", "acked"} else None

    brought: dict[int, set[str]] = {}

    def write(frame: DataFrame, number: int) -> None:
        brought[number] = {row["id"] for row in frame.collect()}
        frame.write.mode("overwrite").parquet(f"{tmp_path}/out/{number}")

    stream.run(write, "checkpoint", maxMessagesPerBatch=2, ttl=8)

    assert sorted(brought) == [1, 2]
    assert before is None or _written(stream, in_work) == before
    assert sorted(id_ for number in (0, 1, 2) for id_ in _written(stream, number)) == sorted(ids)
    assert stream.counts() == (0, 0)


def test_a_query_that_is_stopped_in_its_work_goes_on_at_once(stream: Stream) -> None:
    """query.stop() leaves a batch that the sink may have in part. Only the restart gets it, and reads all of it."""
    gate = Gate(fails=True)
    ids = stream.publish(3)
    stopped, sink = stream.start(Sink(gate), "one"), Sink()
    assert gate.reached.wait(60)
    stopping = threading.Thread(target=stopped.stop)
    stopping.start()
    wait_until(lambda: not stopped.isActive, "it has been stopped")
    gate.opened.set()
    stopping.join()

    assert ack_finished(stopped, options_of(stream.settings)) == 0
    assert stream.counts() == (0, 3)
    claim_id = f"{_offset(stream.folder / 'one')['stream']}-1"
    _wait_until_left(stream, claim_id)
    stream.run(sink, "one")
    assert sink.batches.keys() == {0}
    assert sink.ids == ids
    assert stream.counts() == (0, 0)


def test_what_a_query_had_brought_before_it_was_stopped_is_acked_by_its_restart(stream: Stream) -> None:
    """Between two triggers nothing shows that the sink has it. The restart knows, acks it, and brings nothing twice."""
    sink = Sink()
    stream.publish(3)
    query = stream.start(sink, "one", trigger={"processingTime": "1 hour"})
    wait_until(lambda: query.lastProgress is not None, "the batch was brought")
    query.stop()
    assert stream.counts() == (0, 3)

    stream.run(sink, "one")
    assert len(sink.ids) == 3
    assert stream.counts() == (0, 0)


@pytest.mark.parametrize("trigger", [{"processingTime": "1 hour"}, {"once": True}], ids=["interval", "once"])
def test_the_driver_acks_the_last_batch_of_a_query_that_is_not_started_again(
    stream: Stream, trigger: dict[str, object]
) -> None:
    """ack_finished knows from the query's progress what the sink has. A second call acks nothing more."""
    stream.publish(3)
    query = stream.start(Sink(), trigger=trigger)
    wait_until(lambda: query.lastProgress is not None, "the batch was brought")
    if query.isActive and "once" not in trigger:
        with pytest.raises(InvalidArgumentError, match=r"is running: it acks a batch by itself.*query\.stop\(\)"):
            ack_finished(query, options_of(stream.settings))
        query.stop()
    assert query.awaitTermination(60)

    assert ack_finished(query, options_of(stream.settings)) == 3
    assert stream.counts() == (0, 0)
    assert ack_finished(query, options_of(stream.settings)) == 0


def test_a_failed_query_acks_what_its_sink_has_and_nothing_else(stream: Stream) -> None:
    """Of a query that failed in its second batch, ack_finished leaves that one alone."""
    ids = stream.publish(4)

    with pytest.raises(StreamingQueryException, match="this sink fails"):
        stream.run(Sink(_raises_at(1)), "one", maxMessagesPerBatch=2)

    assert ack_finished(stream.started[-1], options_of(stream.settings)) == 0
    assert stream.counts() == (0, 2)
    following = Sink()
    stream.run(following, "one", maxMessagesPerBatch=2)
    assert following.ids == ids[2:]


def test_the_planning_process_is_killed(stream: Stream) -> None:
    """The query fails when it needs the process that was killed. The restart waits, and reads the same batch."""
    gate = Gate()
    ids = stream.publish(3)
    query = stream.start(Sink(gate), "one", ttl=8)
    assert gate.reached.wait(60)
    (planner,) = planners()
    os.kill(planner, signal.SIGKILL)
    gate.opened.set()

    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    sink = Sink()
    stream.run(sink, "one", ttl=8)
    assert sink.ids in ([], ids)
    assert stream.counts() == (0, 0)


def test_a_claim_that_was_ended_by_others_is_not_acked(stream: Stream, seaweedfs: S3Server) -> None:
    """If another process ends the claim, its messages are not acked. They come again, and the stream goes on."""
    gate = Gate()
    ids = stream.publish(2)
    sink = Sink(gate)
    query = stream.start(sink, "one", ttl=8)
    assert gate.reached.wait(60)
    claim_id = f"{_offset(stream.folder / 'one')['stream']}-1"
    _end_claim(stream, seaweedfs, claim_id)
    gate.opened.set()

    wait_until(lambda: len(sink.ids) == 4, "the messages came again")
    stream.wait_until_empty()
    assert query.isActive
    assert sorted(sink.ids) == sorted(ids * 2)


def test_nothing_is_left_of_queries_that_have_ended(stream: Stream) -> None:
    """Queries that were stopped, ran out and failed leave no planning process behind, in a session that goes on."""
    stream.publish(1)
    stream.run(Sink())
    idle = stream.start(Sink())
    wait_until(lambda: len(planners()) == 1, "one query plans")
    wait_until(lambda: idle.lastProgress is not None, "it has begun")
    idle.stop()

    wait_until(lambda: planners() == [], "all planning processes have ended")


def _raises_at(number: int) -> Callable[[int], None]:
    def seen(batch: int) -> None:
        if batch == number:
            message = "this sink fails"
            raise RuntimeError(message)

    return seen


def _written(stream: Stream, number: int) -> list[str]:
    return sorted(row["id"] for row in stream.spark.read.parquet(f"{stream.folder}/out/{number}").collect())


def _offset(checkpoint: Path) -> dict[str, str]:
    """Return the last offset that Spark has noted."""
    offsets = checkpoint / "offsets"
    last = max((path for path in offsets.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    offset: dict[str, str] = json.loads(last.read_text().splitlines()[-1])
    return offset


def _end_claim(stream: Stream, server: S3Server, claim_id: str) -> None:
    """End a claim by its record, as a takeover does."""
    s3, client = stream.settings.s3, server.client()
    found = client.list_objects_v2(Bucket=s3.bucket_name, Prefix=s3.key_prefix)["Contents"]
    (key,) = [each["Key"] for each in found if claim_id in each["Key"] and "/claims/" in each["Key"]]
    body = client.get_object(Bucket=s3.bucket_name, Key=key)["Body"].read()
    record = ClaimRecord.decode(body, key.removeprefix(s3.key_prefix))
    client.put_object(Bucket=s3.bucket_name, Key=key, Body=record.model_copy(update={"state": "expired"}).encode())


def _wait_until_left(stream: Stream, claim_id: str) -> None:
    """Wait until the claim can be attached without a reference, long before its session would expire."""

    def is_left() -> bool:
        with suppress(ClaimBusyError):
            stream.queue.leave(stream.queue.claim(stream.topic, "spark", claim_id=claim_id, ttl=300))
            return True
        return False

    wait_until(is_left, "the claim was left", seconds=15)
