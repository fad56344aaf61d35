"""Claims, topics and dead letters as DataFrames, on a real session and a real store."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from pawnqueue import ClaimReference, Settings, SyncPawnQueue
from pyspark_pawnqueue.batch_reader import PortionPartition, read_partition
from pyspark_pawnqueue.messages_to_rows import RowBuilder, schema_of
from pyspark_pawnqueue.spark_errors import ERROR_PREFIX
from tests.pawnqueue.opened import BUCKET, settings_at
from tests.support.faults import FaultServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from pawnqueue import Claim
    from tools.kit.servers import S3Server

# A query takes seconds; on a machine that does other work, many more.
pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(400)]

SCHEMA = "order_id long, item string, lines array<struct<sku: string, count: int>>"


class Shop:
    """A queue with a topic, and how a session reads it."""

    def __init__(self, spark: SparkSession, settings: Settings, queue: SyncPawnQueue) -> None:
        self.spark = spark
        self.settings = settings
        self.queue = queue

    def publish(self, count: int, start: int = 0) -> list[str]:
        """Publish orders."""
        lines = [{"sku": "a", "count": 1}]
        return self.queue.publish(
            "orders", [{"order_id": n, "item": f"it {n}", "lines": lines} for n in range(start, start + count)]
        )

    def claim(self, count: int, **how: Any) -> Claim:
        """Claim orders for as long as a test takes."""
        return self.queue.claim("orders", "c", max_messages=count, ttl=600, **how)

    def read(self, *claims: Claim | dict[str, Any], **options: Any) -> DataFrame:
        """Read the format with a claim, or with these options."""
        if claims:
            options["claim"] = self.option(*claims)
        return self.reader(**options).load()

    def option(self, *claims: Claim | dict[str, Any]) -> str:
        """Return the value of the option ``claim``."""
        found = [as_dict(claim) for claim in claims]
        return json.dumps(found[0] if len(found) == 1 else found)

    def reader(self, **options: Any) -> DataFrameReader:
        """Return a reader of the format with these options."""
        return self.spark.read.format("pawnqueue").options(**{**where(self.settings), **options})

    def failure(self, *claims: Claim | dict[str, Any], **options: Any) -> str:
        """Return the sentence with which a read fails."""
        with pytest.raises(PySparkException) as raised:
            self.read(*claims, **options).collect()
        told = [line for line in str(raised.value).splitlines() if ERROR_PREFIX in line]
        assert len(told) == 1, str(raised.value)
        return told[0].partition(ERROR_PREFIX)[2]


def as_dict(claim: Claim | dict[str, Any]) -> dict[str, Any]:
    """Return the claim's reference as XCom has it, without handing the claim over."""
    if isinstance(claim, dict):
        return claim
    return ClaimReference(claim.topic, claim.claim_id, claim.generation, claim.session).to_dict()


def where(settings: Settings) -> dict[str, str]:
    """Return the options that say where the queue is."""
    s3 = settings.s3
    assert s3.aws_access_key_id is not None
    assert s3.aws_secret_access_key is not None
    return {
        "s3.endpoint_url": str(s3.endpoint_url),
        "S3.Bucket_Name": s3.bucket_name,
        "KEY_PREFIX": s3.key_prefix,
        "access_key_id": s3.aws_access_key_id,
        "aws_secret_access_key": s3.aws_secret_access_key.get_secret_value(),
        "retry.budget_seconds": "5",
    }


@pytest.fixture
def shop(spark: SparkSession, seaweedfs: S3Server, settings_for: Callable[..., Settings]) -> Iterator[Shop]:
    """A topic of orders, of its own."""
    settings = settings_for(seaweedfs)
    with SyncPawnQueue.open(settings) as queue:
        queue.create_topic("orders")
        yield Shop(spark, settings, queue)


def test_a_table_of_sparks_catalog(shop: Shop) -> None:
    """A table may have options. A query names them again, as Spark does not pass a table's options to readers."""
    shop.publish(3)
    options = {**where(shop.settings), "topic": "orders", "mode": "peek", "payloadSchema": "order_id long"}
    said = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    shop.spark.sql(f"CREATE TABLE orders USING pawnqueue OPTIONS ({said}) COMMENT 'all' TBLPROPERTIES ('team' = 'x')")
    try:
        assert shop.spark.read.options(**options).table("orders").count() == 3
        named = ", ".join(f"`{name}` = '{value}'" for name, value in options.items() if name != "payloadSchema")
        found = shop.spark.sql(f"SELECT order_id FROM orders WITH ({named})").collect()  # noqa: S608 - of its own
        assert [row["order_id"] for row in found] == [0, 1, 2]
    finally:
        shop.spark.sql("DROP TABLE orders")


def test_a_claim_is_a_dataframe(shop: Shop) -> None:
    """It has the messages in publish order. Spark finds the format by itself. Nothing is claimed or written."""
    ids = shop.publish(5)
    claim = shop.claim(4)
    frame = shop.read(claim)

    assert frame.schema.simpleString() == (
        "struct<id:string,topic:string,producer_id:string,created_at:timestamp,payload:string,"
        "headers:map<string,string>,deliveries:int>"
    )
    found = frame.collect()
    assert [row.id for row in found] == ids[:4]
    assert [json.loads(row.payload) for row in found] == [message.payload for message in claim]
    assert {(row.topic, row.deliveries) for row in found} == {("orders", 1)}
    assert [row.created_at.astimezone(UTC) for row in found] == [message.created_at for message in claim]
    assert shop.queue.stats("orders").pending == 1
    assert shop.queue.ack(claim).complete


def test_a_payload_has_columns(shop: Shop) -> None:
    """A schema makes columns of payloads. A value that does not fit is null, and its row is marked."""
    shop.publish(2)
    shop.queue.publish("orders", [{"order_id": "three", "item": "x", "other": 1}], headers={"h": "ż"})
    frame = shop.read(shop.claim(3), payloadSchema=SCHEMA)

    assert frame.columns[-4:] == ["order_id", "item", "lines", "_corrupt"]
    assert [(row.order_id, row.item, row._corrupt) for row in frame.collect()] == [
        (0, "it 0", False),
        (1, "it 1", False),
        (None, "x", True),
    ]
    assert frame.filter("_corrupt").select("headers", "payload").collect() == [
        ({"h": "ż"}, '{"item":"x","order_id":"three","other":1}')
    ]
    assert frame.select(f.sum("order_id"), f.sum(f.col("lines")[0]["count"])).collect() == [(1, 2)]


def test_reading_twice_gives_the_same(shop: Shop) -> None:
    """Every action reads the same rows, cached or not, and none of them counts as a delivery."""
    shop.publish(30)
    claim = shop.claim(30)
    frame = shop.read(claim, payloadSchema="order_id long", partitions=3)

    assert frame.rdd.getNumPartitions() == 3
    first = frame.collect()
    assert frame.count() == 30
    assert frame.collect() == first
    cached = shop.read(claim, payloadSchema="order_id long").cache()
    assert cached.count() == 30
    shop.queue.ack(claim)
    assert cached.select("*").collect() == first
    cached.unpersist()
    with pytest.raises(PySparkException, match="does not exist any more"):
        frame.collect()


def test_what_a_query_needs_of_it(shop: Shop) -> None:
    """Queries can select, filter, limit and count, which Spark does itself."""
    shop.publish(20)
    frame = shop.read(shop.claim(20), payloadSchema="order_id long", partitions=2)

    assert frame.select("order_id").filter("order_id % 2 = 0").count() == 10
    assert frame.select("id").limit(3).count() == 3
    assert frame.filter("order_id < 0").collect() == []


def test_several_claims_are_read_together(shop: Shop) -> None:
    """A list of references is read, each claim once."""
    shop.publish(6)
    claims = [shop.claim(2), shop.claim(2)]
    assert shop.read(*claims, *claims[:1], payloadSchema="order_id int").select("order_id").collect() == [
        (0,),
        (1,),
        (2,),
        (3,),
    ]
    assert shop.read(claim="[]").count() == 0


def test_a_topic_is_looked_at(shop: Shop) -> None:
    """All messages are read, claimed or not, or a number of them from the head. An empty topic has no rows."""
    assert shop.read(topic="orders", mode="peek").collect() == []
    ids = shop.publish(5)
    shop.claim(2)
    assert [row.id for row in shop.read(topic="orders", mode="peek").collect()] == ids
    assert [row.id for row in shop.read(topic="orders", mode="peek", maxMessages=3).collect()] == ids[:3]
    assert {row.deliveries for row in shop.read(topic="orders", mode="peek").collect()} == {0}
    assert shop.queue.stats("orders").pending == 3


def test_packs_are_read_like_single_messages(shop: Shop) -> None:
    """Of a claim all its messages, of a topic all that are not finished, and dead letters with their payloads."""
    shop.queue.update_topic("orders", packs=True)
    payloads = [{"order_id": n} for n in range(250)]
    ids = shop.queue.publish("orders", payloads[:200], pack=True) + shop.queue.publish("orders", payloads[200:])
    claim = shop.claim(200)
    rows = shop.read(claim, partitions=2, payloadSchema="order_id long").orderBy("order_id").collect()
    assert [(row.id, row.order_id, row.deliveries) for row in rows] == [
        (message.id, message.payload["order_id"], 1) for message in claim
    ]
    assert len(rows) == 200
    assert [row.id for row in shop.read(topic="orders", mode="peek").collect()] == ids
    assert [row.id for row in shop.read(topic="orders", mode="peek", maxMessages=7).collect()] == ids[:7]

    done = shop.queue.settle(claim, bury={ids[3]: "unfit"}, requeue={ids[4]: "again"})
    assert (done.buried, done.released, len(done.acked)) == ([ids[3]], [ids[4]], 198)
    assert [row.id for row in shop.read(topic="orders", mode="peek").collect()] == [ids[4], *ids[200:]]
    letters = shop.read(topic="orders", mode="dead", payloadSchema="order_id long").collect()
    assert [(row.order_id, row.reason, row.deliveries) for row in letters] == [(3, "unfit", 1)]


def test_each_action_looks_anew(shop: Shop) -> None:
    """Spark keeps a frame's plan, but each action reads the messages that are in the topic at that time."""
    frame = shop.read(topic="orders", mode="peek")
    dead = shop.read(topic="orders", mode="dead")
    assert (frame.count(), dead.count()) == (0, 0)
    shop.publish(3)
    assert (frame.count(), dead.count()) == (3, 0)
    shop.queue.bury(shop.claim(2), reason="unfit")
    assert (frame.count(), dead.count()) == (1, 2)


def test_a_frame_of_a_claim_that_was_lost(shop: Shop) -> None:
    """Its second action fails rather than return messages that others have by then."""
    shop.publish(2)
    claim = shop.claim(2, claim_id="run")
    frame = shop.read(claim)
    assert frame.count() == 2
    shop.queue.requeue(claim)
    with pytest.raises(PySparkException, match=f"{ERROR_PREFIX}Claim run.0 of topic 'orders' has ended since these"):
        frame.count()


def test_dead_letters_are_looked_at(shop: Shop) -> None:
    """The rows say why each message was buried."""
    assert shop.read(topic="orders", mode="dead").collect() == []
    ids = shop.publish(3)
    before = datetime.now(UTC).timestamp()
    shop.queue.nack(shop.claim(3), reason="unfit", error="it is broken")
    frame = shop.read(topic="orders", mode="dead", payloadSchema="order_id long, item string")

    assert {row.letter_id: (row.id, row.reason, row.error, row.fault, row.order_id) for row in frame.collect()} == {
        each: (each, "unfit", "it is broken", None, number) for number, each in enumerate(ids)
    }
    assert frame.filter(f.col("buried_at") >= f.timestamp_seconds(f.lit(int(before) - 5))).count() == 3


def test_a_query_may_have_a_schema_of_its_own(shop: Shop) -> None:
    """Then these are the columns, and payloadSchema is refused beside it."""
    shop.publish(1)
    options = {**where(shop.settings), "claim": json.dumps(as_dict(shop.claim(1)))}
    reader = shop.spark.read.format("pawnqueue").options(**options).schema("order_id long, deliveries int")
    assert reader.load().collect() == [(0, 1)]
    with pytest.raises(PySparkException, match="and the option payloadSchema: leave out one"):
        reader.option("payloadSchema", "order_id long").load().collect()


def test_one_row_of_many_comes_promptly(shop: Shop) -> None:
    """A query with a limit drops what was read ahead, again and again, in workers that are reused."""
    shop.publish(3000)
    frame = shop.read(shop.claim(3000), partitions=1)
    for _ in range(4):
        assert len(frame.limit(1).collect()) == 1
    assert frame.count() == 3000


def test_a_small_look_is_small(spark: SparkSession) -> None:
    """A task begins with a few messages: five of three thousand cost at most sixty requests."""
    with FaultServer(buckets=(BUCKET,)) as server:
        settings = Settings(**settings_at(server.endpoint))
        with SyncPawnQueue.open(settings) as queue:
            queue.create_topic("orders", packs=False)
            queue.publish("orders", [{"n": number} for number in range(3000)])
        options = {**where(settings), "topic": "orders", "mode": "peek"}
        frame = spark.read.format("pawnqueue").options(**options).load()
        server.forget_requests()
        assert [json.loads(row["payload"])["n"] for row in frame.take(5)] == [0, 1, 2, 3, 4]
        assert len(server.requests) <= 60


@pytest.mark.parametrize("read", [0, 1])
def test_who_stops_reading_leaves_nothing_running(shop: Shop, read: int) -> None:
    """No thread and no connection is left, before or after the first batch."""
    shop.publish(3000)
    [portion] = shop.queue.portions(as_dict(shop.claim(3000)), parts=1)
    before = set(threading.enumerate())
    rows = read_partition(shop.settings, RowBuilder(schema_of("", dead=False)), PortionPartition(portion))
    assert [next(rows).num_rows for _ in range(read)] == [1000] * read
    rows.close()

    assert [thread for thread in threading.enumerate() if thread not in before and not thread.daemon] == []
    assert not [thread.name for thread in threading.enumerate() if thread not in before and "pawnqueue" in thread.name]


def test_secrets_are_shown_nowhere(shop: Shop) -> None:
    """Secrets are neither in a plan nor in an error."""
    shop.publish(1)
    frame = shop.read(shop.claim(1))
    plan = frame._jdf.queryExecution().toString() + frame._jdf.queryExecution().explainString(
        frame.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
    )
    assert "pawnqueue" in plan
    for hidden in (where(shop.settings)["aws_secret_access_key"], where(shop.settings)["access_key_id"]):
        assert hidden not in plan
    failed = shop.failure(topic="orders", mode="peek", aws_secret_access_key="hunter2hunter2")
    assert "hunter2" not in failed
    assert "secret key is wrong; correct s3.aws_secret_access_key" in failed


# --- what goes wrong, each told in a sentence that says what to do ---


def test_a_claim_that_is_gone(shop: Shop) -> None:
    """A claim that never existed, that is settled, or whose topic was deleted is an error."""
    shop.publish(2)
    made_up = {"topic": "orders", "claim_id": "made-up", "generation": 0, "session": ""}
    assert "Claim made-up of topic 'orders' cannot be looked at: it has no record any more" in shop.failure(made_up)
    claim = shop.claim(2, claim_id="run")
    shop.queue.ack(claim)
    assert "Claim run.0 of topic 'orders' is settled" in shop.failure(claim)
    reference = as_dict(claim)
    shop.queue.delete_topic("orders", force=True)
    assert "'orders'" in shop.failure(reference)


def test_a_claim_that_is_settled_while_it_is_read(shop: Shop) -> None:
    """The error of the executor's task names the message."""
    shop.publish(3)
    claim = shop.claim(3, claim_id="run")
    [portion] = shop.queue.portions(as_dict(claim))
    shop.queue.ack(claim, claim[1])
    # As a task finds it that was planned before: the record still names it, and its body is gone.
    told = f"Message {claim[1].id} of claim run.0 of topic 'orders' does not exist any more"
    with pytest.raises(Exception, match=told):
        list(read_partition(shop.settings, RowBuilder(schema_of("", dead=False)), PortionPartition(portion)))
    assert [row.id for row in shop.read(claim).collect()] == [claim[0].id, claim[2].id]


def test_a_store_that_is_away(shop: Shop) -> None:
    """The error names its address, and what to check."""
    away = {"s3.endpoint_url": "http://127.0.0.1:9", "retry.budget_seconds": 1}
    failed = shop.failure(topic="orders", mode="peek", **away)
    assert "http://127.0.0.1:9 cannot be reached" in failed
    assert "check s3.endpoint_url" in failed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"claim": "orders"}, "The claim is not JSON ('orders'): pass json.dumps(reference)"),
        ({"topic": "orders"}, 'needs the option mode: .option("mode", "peek")'),
        ({"topic": "gone", "mode": "peek"}, "'gone'"),
        (
            {"topics": "orders"},
            "'topics' is neither an option of the format pawnqueue nor a setting: did you",
        ),
        ({"topic": "orders", "mode": "peek", "s3.use_ssl": "true", "use_ssl": "false"}, "are the same setting"),
        ({"topic": "orders", "mode": "peek", "payloadSchema": "a lnog"}, "'lnog' is not a type (did you mean long?)"),
        (
            {"topic": "orders", "mode": "peek", "payloadSchema": "a interval day"},
            "is of type interval, which",
        ),
    ],
)
def test_wrong_options(shop: Shop, options: dict[str, str], sentence: str) -> None:
    """The error says what is wrong, and what to write."""
    assert sentence.lower() in shop.failure(**options).lower()


def test_no_settings_at_all(shop: Shop) -> None:
    """The error names all the ways to give them."""
    with pytest.raises(PySparkException, match=r"PawnQueue: .*s3\.bucket_name is missing.*PAWNQUEUE_\* variables"):
        shop.spark.read.format("pawnqueue").options(topic="orders", mode="peek").load().collect()


def test_an_executor_tells_its_sentence(shop: Shop) -> None:
    """An error of a task is reported once, like an error of planning, whatever stack trace surrounds it."""
    shop.publish(3)
    claim = shop.claim(3)
    frame = shop.read(claim).select("id")
    [first, *_] = [key for key in keys(shop) if "/messages/" in key]
    overwrite(shop, first, b"garbage")
    with pytest.raises(PySparkException, match=rf"PawnQueue: Message {claim[0].id} of claim .* was overwritten"):
        frame.collect()


def keys(shop: Shop) -> list[str]:
    """Return all keys of the queue."""
    return sorted(info["Key"] for info in client(shop).list_objects_v2(**place(shop))["Contents"])


def overwrite(shop: Shop, key: str, body: bytes) -> None:
    """Overwrite an object, as another program may do."""
    client(shop).put_object(Bucket=shop.settings.s3.bucket_name, Key=key, Body=body)


def place(shop: Shop) -> dict[str, str]:
    """Return where the queue is in its bucket."""
    return {"Bucket": shop.settings.s3.bucket_name, "Prefix": shop.settings.s3.key_prefix}


def client(shop: Shop) -> Any:  # noqa: ANN401 - of boto3
    """Return a client beside the engine's."""
    import boto3  # noqa: PLC0415 - for two tests

    told = where(shop.settings)
    return boto3.client(
        "s3",
        endpoint_url=told["s3.endpoint_url"],
        region_name="us-east-1",
        aws_access_key_id=told["access_key_id"],
        aws_secret_access_key=told["aws_secret_access_key"],
    )
