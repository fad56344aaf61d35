"""Rows of every type become messages: all or none of them, and once, whatever is retried or killed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from pawnqueue import SyncPawnQueue
from pawnqueue.domain.write_record import WriteRecord
from pawnqueue.settings.environment import variable_of
from pyspark_pawnqueue.datasource import register
from tools.kit.spark import SparkJob, submit
from tools.kit.stores import ALL
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from pawnqueue import PawnQueue, Settings
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "orders"
#: What a job may take where others have the machine as well.
LONG = 280.0


class Target:
    """A topic, with ways to write to it and to look at it."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.s3 = settings.s3
        self.queue = SyncPawnQueue.open(settings)
        self.queue.create_topic(TOPIC)

    @property
    def options(self) -> dict[str, str]:
        """Where it is, as options."""
        return {f"s3.{name}": value for name, value in self.address.items()}

    @property
    def address(self) -> dict[str, str]:
        """Where it is, by the names of settings."""
        assert self.s3.aws_secret_access_key is not None
        return {
            "endpoint_url": str(self.s3.endpoint_url),
            "bucket_name": self.s3.bucket_name,
            "key_prefix": self.s3.key_prefix,
            "aws_access_key_id": str(self.s3.aws_access_key_id),
            "aws_secret_access_key": self.s3.aws_secret_access_key.get_secret_value(),
        }

    @property
    def variables(self) -> dict[str, str]:
        """The same, for a job's environment."""
        return {variable_of(f"s3.{name}"): value for name, value in self.address.items()}

    def write(self, frame: DataFrame, mode: str = "append", **options: object) -> None:
        """Write a DataFrame into the topic."""
        writer = frame.write.format("pawnqueue").mode(mode).options(**self.options).option("topic", TOPIC)
        writer.options(**{name: str(value) for name, value in options.items()}).save()

    def refused(self, frame: DataFrame, mode: str = "append", **options: object) -> str:
        """Write a DataFrame, and assert that this fails, publishes nothing and leaves nothing. Return the error."""
        before = self.keys("messages")
        with pytest.raises(PySparkException) as caught:
            self.write(frame, mode, **options)
        assert self.keys("messages") == before
        assert self.keys("staged") == []
        assert "PawnQueue: " in str(caught.value)
        return str(caught.value)

    def keys(self, folder: str) -> list[str]:
        """The keys in a folder of the topic."""

        async def listed(queue: PawnQueue) -> list[str]:
            return [info.key async for page in queue._context.store.pages(f"{TOPIC}/{folder}/") for info in page]

        return self.queue.run(listed)

    def payloads(self) -> list[dict[str, Any]]:
        """The payloads of the topic's messages, in order."""
        return [dict(message.payload) for message in self.queue.peek(TOPIC, 100_000)]

    def numbers(self, field: str = "n") -> Counter[int]:
        """The numbers of the rows in the topic, with counts."""
        return Counter(payload[field] for payload in self.payloads())

    def records(self) -> list[WriteRecord]:
        """The records of writes."""

        async def read(queue: PawnQueue) -> list[WriteRecord]:
            found = [(key, await queue._context.store.get(key, ALL)) for key in keys]
            return [WriteRecord.decode(each.body, key) for key, each in found if each is not None]

        keys = self.keys("writes")
        return self.queue.run(read)


@pytest.fixture
def target(spark: SparkSession, seaweedfs: S3Server, settings_for: Callable[..., Settings]) -> Iterator[Target]:
    """A topic that is empty."""
    register(spark)
    made = Target(spark, settings_for(seaweedfs))
    yield made
    made.queue.close()


EVERY_TYPE = """
    text string, long long, int int, short short, byte byte, double double, float float, truth boolean,
    amount decimal(38,10), at timestamp, wall timestamp_ntz, day date, raw binary,
    list array<date>, lists array<array<int>>, map map<string,decimal(5,2)>,
    struct struct<a: timestamp, b: array<struct<c: binary>>>
"""
ROWS = """
    SELECT 'ä "quoted" \\n' AS text, 9223372036854775807L AS long, -1 AS int, 2S AS short, 3Y AS byte, 0.1D AS double,
        CAST(0.1 AS FLOAT) AS float, true AS truth, 12345678901234567890.0123456789BD AS amount,
        TIMESTAMP '2026-03-29 02:30:00.123456+02:00' AS at, TIMESTAMP_NTZ '2026-01-01 00:00:00' AS wall,
        DATE '2024-02-29' AS day, X'00FF10' AS raw, array(DATE '1970-01-01', NULL) AS list,
        array(array(1), array()) AS lists, map('a', 1.25BD, 'b', NULL) AS map,
        named_struct('a', TIMESTAMP '1969-12-31 23:59:59Z', 'b', array(named_struct('c', X'01'), NULL)) AS struct
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
"""


def test_every_type_comes_back(target: Target) -> None:
    """Each row is the same after it was written, claimed and read with its schema. Nulls stay nulls."""
    frame = target.spark.sql(ROWS).repartition(1)
    target.write(frame)
    assert {len(payload) for payload in target.payloads()} == {17}
    reference = target.queue.claim(TOPIC, "reader").hand_over().to_dict()
    reader = target.spark.read.format("pawnqueue").options(**target.options).option("claim", json.dumps(reference))
    read = reader.option("payloadSchema", EVERY_TYPE).load()
    assert not read.where("_corrupt").count()
    columns = frame.columns
    assert Counter(map(str, read.select(columns).collect())) == Counter(map(str, frame.collect()))
    target.queue.ack(target.queue.attach(reference))


def test_a_row_says_its_payload_and_headers(target: Target) -> None:
    """A payload can be the text of a JSON object, a struct or a map. Headers are optional."""
    sql = target.spark.sql
    target.write(sql("""SELECT '{"n": 1, "x": [null]}' AS payload, map('h', 'ä') AS headers"""), producer="shop")
    target.write(sql("SELECT named_struct('n', 2, 'x', DATE '2026-01-01') AS payload, NULL AS headers"))
    target.write(sql("SELECT map('n', 3) AS payload"))
    # Each write takes its place by a sample of the store's clock, of which the next has another.
    found = sorted(target.queue.peek(TOPIC), key=lambda message: int(message.payload["n"]))
    assert [(dict(message.payload), dict(message.headers)) for message in found] == [
        ({"n": 1, "x": [None]}, {"h": "ä"}),
        ({"n": 2, "x": "2026-01-01"}, {}),
        ({"n": 3}, {}),
    ]
    assert [message.producer_id for message in found] == [target.queue.register_producer("shop").id, "", ""]


def test_a_write_is_done_once(target: Target) -> None:
    """A second write with the same writeId publishes nothing, even with other partitions, and leaves nothing staged."""
    frame = target.spark.range(200).withColumnRenamed("id", "n")
    target.write(frame.repartition(3), writeId="claim-1.0")
    ids = [message.id for message in target.queue.peek(TOPIC, 1000)]
    target.write(frame.repartition(2), writeId="claim-1.0")
    assert [message.id for message in target.queue.peek(TOPIC, 1000)] == ids
    assert target.numbers() == Counter(range(200))
    assert target.keys("staged") == []
    target.write(frame)
    assert target.numbers() == Counter([*range(200)] * 2)


def test_rows_are_in_order(target: Target) -> None:
    """Messages are in the order of partitions and rows, however many Arrow batches they are."""
    target.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 7)
    try:
        target.write(target.spark.range(0, 100, 1, 3))
    finally:
        target.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [payload["id"] for payload in target.payloads()] == list(range(100))


def test_nothing_to_write_is_a_write(target: Target) -> None:
    """A DataFrame without rows publishes nothing, and is no error."""
    target.write(target.spark.range(0))
    target.write(target.spark.range(5).where("id > 9"), writeId="none")
    assert target.payloads() == []


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT '{}' AS payload, 'x' AS id, 1 AS deliveries", "not 'id', 'deliveries'"),
        ("SELECT 1 AS payload", "column payload is of type int"),
        ("SELECT '{}' AS payload, 'x' AS headers", "headers is of type string"),
        ("SELECT INTERVAL 1 DAY AS d", "'d' is of type interval day"),
        ("SELECT named_struct('m', array(map(1, 2))) AS s", "'s.m[]' is a map whose keys are not strings"),
        ("SELECT parse_json('1') AS v", "'v' is of type variant"),
    ],
)
def test_what_no_message_can_be_made_of_is_refused(target: Target, query: str, told: str) -> None:
    """The error names the column, and comes before any task runs."""
    assert told in target.refused(target.spark.sql(query))


def test_what_is_no_payload_is_told_by_its_row(target: Target) -> None:
    """The error names partition and row. Nothing of the query is published or left staged."""
    frame = target.spark.range(0, 20, 1, 1)  # one task: where one fails, others are killed in the middle of a PUT
    broken = "if(id = 15, 'x', '{}') AS payload"
    assert "partition 0, where payloads[n] is row n: payloads[15]" in target.refused(frame.selectExpr(broken))
    assert "payloads[15] for topic 'orders' is a list" in target.refused(
        frame.selectExpr("if(id = 15, '[]', '{}') AS payload")
    )
    assert "payloads[15].x for topic 'orders' is nan" in target.refused(
        frame.selectExpr("if(id = 15, double('NaN'), 1.0D) AS x")
    )
    assert "is null" in target.refused(frame.selectExpr("if(id = 15, NULL, '{}') AS payload"))


def test_wrong_modes_and_options_are_refused(target: Target) -> None:
    """Each error says what to do."""
    frame = target.spark.range(1)
    assert "in the mode append" in target.refused(frame, "overwrite")
    assert "is not a valid write id" in target.refused(frame, writeId="a/b")
    target.queue.delete_topic(TOPIC)
    assert f"create_topic('{TOPIC}')" in target.refused(frame)


# --- tasks that fail, drivers that are killed ---

# Fails in partition 1 after some rows: in its first attempts, as many as the argument says.
FAILING = """
import sys
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pawnqueue.settings.environment import variable_of
from pyspark_pawnqueue.datasource import register

attempts, write_id = int(sys.argv[1]), sys.argv[2]


def work(batches):
    task = TaskContext.get()
    for number, batch in enumerate(batches):
        if task.partitionId() == 1 and number == 3 and task.attemptNumber() < attempts:
            raise RuntimeError("this attempt fails")
        yield batch


spark = SparkSession.builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", 10).getOrCreate()
register(spark)
rows = spark.range(0, 100, 1, 2).withColumnRenamed("id", "n").mapInArrow(work, "n long")
rows.write.format("pawnqueue").option("topic", "orders").option("writeId", write_id).mode("append").save()
"""


def test_a_task_that_is_tried_again_leaves_nothing(target: Target, tmp_path: Path) -> None:
    """An attempt that fails publishes and leaves nothing. If all attempts fail, nothing of the query is visible.

    Nobody knows what another task had staged when Spark killed it. The next commit of the write removes that.
    """
    job = tmp_path / "job.py"
    job.write_text(FAILING)
    failed = submit(job, [3, "w"], master="local[2,3]", env=target.variables, seconds=LONG)
    assert failed.status != 0
    assert "this attempt fails" in failed.log
    assert target.keys("messages") == []
    assert not [key for key in target.keys("staged") if "/000000001-" in key]
    done = submit(job, [2, "w"], master="local[2,3]", env=target.variables, seconds=LONG)
    assert done.status == 0, done.log
    assert target.numbers() == Counter(range(100))
    assert target.keys("staged") == []


# Streams lines of files, a file a batch, and ends when there is no other.
STREAM = """
import sys
from pyspark.sql import SparkSession
from pawnqueue.settings.environment import variable_of
from pyspark_pawnqueue.datasource import register

lines, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
read = spark.readStream.option("maxFilesPerTrigger", 1).text(lines).withColumnRenamed("value", "payload")
write = read.writeStream.format("pawnqueue").option("topic", "orders").option("checkpointLocation", checkpoint)
query = write.trigger(availableNow=True).start()
query.awaitTermination()
"""


@pytest.mark.full  # its restart waits for the time of the one that was killed
@pytest.mark.parametrize("packs", [True, False])
def test_a_stream_that_is_killed_while_it_publishes(target: Target, tmp_path: Path, *, packs: bool) -> None:
    """A stream that is killed in the middle of a commit, and started again, publishes every message once."""
    target.queue.update_topic(TOPIC, packs=packs)
    variables = {**target.variables, variable_of("packs.messages"): "2"}  # larger packs are published in a moment
    lines, job = tmp_path / "lines", tmp_path / "job.py"
    lines.mkdir()
    job.write_text(STREAM)
    counts = {"a": 10, "b": 4000, "c": 10}
    first = 0
    for name, count in counts.items():
        text = "".join(json.dumps({"n": number}) + "\n" for number in range(first, first + count))
        (lines / name).write_text(text)
        first += count
    arguments = [lines, tmp_path / "checkpoint"]
    with SparkJob(job, arguments, env=variables) as running:
        wait_until(
            lambda: any(each.state == "begun" and each.published for each in target.records()) or not running.running,
            "a batch is half published",
            seconds=LONG,
        )
        running.signal(signal.SIGKILL)
    [begun] = [each for each in target.records() if each.state == "begun"]
    seen = target.numbers()
    assert 0 < len(seen) < first
    done = submit(job, arguments, env=variables, seconds=LONG)
    assert done.status == 0, done.log
    assert target.numbers() == Counter(range(first))
    assert [each.state for each in target.records()] == ["done"] * 3
    assert begun.write_id in {each.write_id for each in target.records()}
    assert target.keys("staged") == []


def test_a_batch_that_is_replayed_is_not_published_twice(target: Target, tmp_path: Path) -> None:
    """Spark replays a batch that it had not noted as done. The write's id is the same, so nothing comes twice."""
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()

    def run() -> None:
        read = target.spark.readStream.text(str(lines)).withColumnRenamed("value", "payload")
        write = read.writeStream.format("pawnqueue").options(**target.options).option("topic", TOPIC)
        query = write.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    for number in range(3):
        (lines / f"{number}.json").write_text(json.dumps({"n": number}) + "\n")
        run()
    for log in (checkpoint / "commits").iterdir():
        if log.name.strip(".").startswith("2"):
            log.unlink()
    run()
    assert target.numbers() == Counter(range(3))
    assert target.keys("staged") == []
