"""Options that select messages and dead letters of a topic, and why Spark's own pushdown is not used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition

from pawnqueue import InvalidArgumentError, Selection
from pyspark_pawnqueue.spark_options import SparkOptions
from pyspark_pawnqueue.topic_selection import selection_of
from tests.spark.test_reading import Shop, shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["shop"]

on_spark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(400)]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ID = "00000000-0000-4000-8000-000000000000"


# --- options ---


def selected(columns: str = "id payload", mode: str = "dead", **given: str) -> Selection:
    """Return what a query selects."""
    return selection_of(SparkOptions.of({"topic": "orders", "mode": mode, **given}), columns.split())


def test_times_reasons_and_ids() -> None:
    """Times are ISO 8601, in UTC unless they have a zone."""
    only = selected(
        createdAfter="2026-03-01",
        createdBefore="2026-03-01T12:00:00+02:00",
        buriedAfter="2026-03-01T10:00:00Z",
        buriedBefore=" 2026-03-02 ",
        reason="unfit*",
        letterIds=f"{ID}, {ID}",
    )
    assert only == Selection(
        datetime(2026, 3, 1, tzinfo=UTC),
        datetime(2026, 3, 1, 10, tzinfo=UTC),
        datetime(2026, 3, 1, 10, tzinfo=UTC),
        datetime(2026, 3, 2, tzinfo=UTC),
        "unfit*",
        frozenset([ID]),
    )
    assert selected() == Selection()


@pytest.mark.parametrize(
    ("columns", "reasons", "messages"),
    [
        ("letter_id TOPIC", False, False),
        ("letter_id buried_at reason error max_deliveries deliveries", True, False),
        ("letter_id fault", True, True),
        ("letter_id order_id", True, True),
    ],
)
def test_columns_say_what_is_fetched(columns: str, reasons: bool, messages: bool) -> None:  # noqa: FBT001 - parameters
    """Ids need a LIST alone, reasons one GET a letter, and everything else two."""
    only = selected(columns)
    assert (only.needs_reasons, only.needs_messages) == (reasons, messages)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"createdAfter": "yesterday"}, r"createdAfter='yesterday' is not a time: write \"2026-03-01T12:00:00Z\""),
        ({"buriedBefore": "0001-01-01T00:00:00+05:00"}, "buriedBefore=.* is not a time"),
        ({"reason": ""}, "The option reason is empty"),
        ({"letterIds": ","}, "'' is not a message id"),
        ({"mode": "peek", "reason": "x"}, r"reason is for dead letters: add .option\(\"mode\", \"dead\"\)"),
    ],
)
def test_misuse(given: dict[str, str], sentence: str) -> None:
    """The error names the option, and what to write."""
    with pytest.raises(InvalidArgumentError, match=sentence):
        selected(**given)


# --- on Spark ---


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """A session that pushes filters down to Python data sources."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


class TestOnSpark:
    """On a real session and a real store."""

    pytestmark = on_spark

    def test_messages_and_dead_letters_are_selected(self, shop: Shop) -> None:
        """A query has the rows that its options select, and columns of its own."""
        shop.queue.update_topic("orders", packs=True)
        ids = [*shop.publish(3), *shop.queue.publish("orders", [{"n": n} for n in range(150)], pack=True)]
        rows = shop.read(topic="orders", mode="peek").collect()
        middle = rows[100].created_at.astimezone(UTC).isoformat()
        after = shop.read(topic="orders", mode="peek", createdAfter=middle)
        before = shop.read(topic="orders", mode="peek", createdBefore=middle)
        assert [[row.id for row in frame.collect()] for frame in (after, before)] == [ids[100:], ids[:100]]

        shop.queue.bury(shop.claim(1), reason="unfit")
        shop.queue.bury(shop.claim(2), reason="late")
        one = shop.read(topic="orders", mode="dead", reason="unfit").collect()
        assert [(row.letter_id, row.reason) for row in one] == [(ids[0], "unfit")]
        options = {"topic": "orders", "mode": "dead", "letterIds": ",".join(ids[1:3])}
        narrow = shop.reader(**options).schema("letter_id string, topic string").load()
        assert sorted(map(tuple, narrow.collect())) == sorted((each, "orders") for each in ids[1:3])

    def test_limits_count_what_is_selected(self, shop: Shop) -> None:
        """Letters and messages that are not selected do not use up maxMessages, nor the sample of inferSchema."""
        ids = shop.queue.publish("orders", [{"n": n} for n in range(40)])
        claim = shop.claim(40)
        shop.queue.bury(claim, ids[:35], reason="a")
        shop.queue.bury(claim, ids[35:], reason="wanted")
        wanted = {"topic": "orders", "mode": "dead", "reason": "wanted", "partitions": 4}
        frame = shop.read(**wanted, maxMessages=3)
        assert [frame.count(), frame.count()] == [3, 3]
        assert {row.letter_id for row in shop.read(**wanted, maxMessages=5).collect()} == set(ids[35:])
        assert "n" in shop.read(**wanted, inferSchema=True, samplingMessages=3).columns
        with pytest.raises(PySparkException, match="no message in topic 'orders' that the options select, among the"):
            shop.read(topic="orders", mode="dead", reason="none", inferSchema=True)

        shop.queue.update_topic("orders", packs=True)
        shop.publish(20)
        middle = shop.read(topic="orders", mode="peek").collect()[-1].created_at.astimezone(UTC)
        shop.queue.publish("orders", [{"n": n} for n in range(150)], pack=True)
        after = shop.read(topic="orders", mode="peek", createdAfter=(middle + timedelta(microseconds=1)).isoformat())
        some = shop.read(
            topic="orders",
            mode="peek",
            createdAfter=(middle + timedelta(microseconds=1)).isoformat(),
            maxMessages=30,
        )
        assert [row.id for row in some.collect()] == [row.id for row in after.collect()][:30]

    @pytest.mark.usefixtures("pushdown")
    def test_pushdown_changes_nothing(self, shop: Shop) -> None:
        """Queries of one frame have their own rows each, whether filters are pushed down or not."""
        ids = shop.publish(3)
        frame = shop.read(topic="orders", mode="peek", payloadSchema="order_id long")
        one, two = frame.where(f"id = '{ids[1]}'"), frame.where("order_id = 2")
        assert [row.id for row in one.collect()] == ids[1:2]
        assert [row.id for row in frame.collect()] == ids
        assert sorted(row.order_id for row in one.union(two).collect()) == [1, 2]
        assert [row.id for row in frame.where("created_at > timestamp'2020-01-01' and deliveries = 0").collect()] == ids

    @pytest.mark.usefixtures("pushdown")
    def test_why_spark_is_not_given_filters(self, spark: SparkSession) -> None:
        """A source that uses them loses rows of the next query. If this fails, a Spark has mended it: use them then."""
        spark.dataSource.register(Filtering)
        frame = spark.read.format("filtering").load()
        assert frame.where("n = 1").count() == 1
        assert frame.count() == 1, "of three"


class Filtering(DataSource):
    """Three rows, by a reader that uses filters as Spark documents it."""

    @classmethod
    def name(cls) -> str:
        """Return its name."""
        return "filtering"

    def schema(self) -> str:
        """Return its columns."""
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        del schema
        return FilteringReader()


class FilteringReader(DataSourceReader):
    """Reads the rows that are equal to what a filter names."""

    def __init__(self) -> None:
        self.wanted = range(3)

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Use what can be used. Spark applies all of them again."""
        for each in filters:
            if isinstance(each, EqualTo):
                self.wanted = range(each.value, each.value + 1)
        return filters

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Read the rows."""
        del partition
        return ((n,) for n in self.wanted)
