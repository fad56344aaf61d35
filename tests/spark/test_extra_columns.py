"""Columns for what a schema cannot take, and schemas that Spark writes itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType, StructType

from pawnqueue import DeadLetter, InvalidArgumentError
from pyspark_pawnqueue.messages_to_rows import RowBuilder
from pyspark_pawnqueue.query_columns import checked_columns, query_schema
from pyspark_pawnqueue.spark_options import SparkOptions
from tests.spark.test_messages_to_rows import NOW, columns, message
from tests.spark.test_reading import Shop, shop
from tests.spark.test_schema_inference import JSON, inferred

if TYPE_CHECKING:
    from tests.spark.streams import Stream

__all__ = ["shop"]

on_spark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(400)]
TOPIC = {"topic": "orders", "mode": "peek"}
BOTH = {"columnNameOfCorruptRecord": "_bad", "rescuedDataColumn": "_rest"}


def rows(schema: str, *payloads: dict[str, Any]) -> list[tuple[bool, str | None, str | None]]:
    """Return what the rows of these payloads say of what does not fit."""
    options = SparkOptions.of({**TOPIC, **BOTH, "payloadSchema": schema})
    batch = RowBuilder(checked_columns(options, query_schema(options))).build(
        columns(message(each) for each in payloads)
    )
    batch.validate(full=True)
    return [(row["_corrupt"], row["_bad"], row["_rest"]) for row in batch.to_pylist()]


# --- rows ---


@pytest.mark.parametrize(
    ("schema", "payload", "row"),
    [
        ("a int", {"a": 1}, (False, None, None)),
        ("a int", {}, (False, None, None)),
        ("a int", {"a": None}, (False, None, None)),
        ("a int", {"a": "ż"}, (True, '{"a":"ż"}', '{"a":"ż"}')),
        ("a int", {"a": 1, "b": [2]}, (False, None, '{"b":[2]}')),
        ("a int", {"a": 1, "A": 2, "id": 3}, (False, None, '{"A":2,"id":3}')),
        ("a int, b int", {"a": "x", "b": 2}, (True, '{"a":"x","b":2}', '{"a":"x"}')),
        ("a int not null", {"b": 1}, (True, '{"b":1}', '{"b":1}')),
        ("a int not null", {"a": None}, (True, '{"a":null}', '{"a":null}')),
        ("s struct<a: int>", {"s": {"a": 1, "b": 2}}, (False, None, '{"s":{"b":2}}')),
        ("s struct<a: int>", {"s": {"a": "x", "b": 2}}, (True, '{"s":{"a":"x","b":2}}', '{"s":{"a":"x","b":2}}')),
        ("s array<struct<a: int>>", {"s": [{"a": 1}, {"b": 2}]}, (False, None, '{"s":[{"a":1},{"b":2}]}')),
        ("s array<struct<a: int>>", {"s": [{"a": 1}, None]}, (False, None, None)),
        ("s map<string, struct<a: int>>", {"s": {"x": {"a": 1}, "y": {"b": 2}}}, (False, None, '{"s":{"y":{"b":2}}}')),
    ],
)
def test_what_does_not_fit(schema: str, payload: dict[str, Any], row: tuple[bool, str | None, str | None]) -> None:
    """A corrupt row has the payload's text. Fields without a column, and those that do not fit, are rescued."""
    assert rows(schema, payload) == [row]
    good = {"a": 1} if schema.startswith("a") else {}
    assert rows(schema, good, payload)[1] == row


@given(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3))
def test_nothing_is_lost(payload: dict[str, Any]) -> None:
    """A field is in its column, or in the rescued data as it was."""
    [(corrupt, bad, rest)] = rows("a int, b string, c struct<a: string, b: int>", payload)
    assert (json.loads(bad) if bad else None) == (payload if corrupt else None)
    left = json.loads(rest) if rest else {}
    for name, kind in (("a", int), ("b", str)):
        if name in left:
            assert left[name] == payload[name]
        else:
            assert type(payload.get(name)) in (kind, type(None))


def test_a_letter_whose_message_cannot_be_read() -> None:
    """It is corrupt, and has no text."""
    options = SparkOptions.of({"topic": "orders", "mode": "dead", **BOTH, "payloadSchema": "a int"})
    builder = RowBuilder(checked_columns(options, query_schema(options)), dead=True)
    [row] = builder.build_dead([DeadLetter("l", "orders", NOW, fault="no body")]).to_pylist()
    assert (row["_corrupt"], row["_bad"], row["_rest"]) == (True, None, None)


# --- which column ---


def test_columns_of_a_schema_are_used() -> None:
    """A column that the payload's schema has already is not added. Of a payload it takes nothing."""
    options = SparkOptions.of({**TOPIC, "payloadSchema": "_bad string, a int", "columnNameOfCorruptRecord": "_bad"})
    schema = checked_columns(options, query_schema(options))
    assert schema.names[-3:] == ["_bad", "a", "_corrupt"]
    [row] = RowBuilder(schema).build(columns([message({"_bad": "x", "a": 1})])).to_pylist()
    assert row["_bad"] is None
    given = StructType().add("a", IntegerType()).add("_rest", StringType())
    options = SparkOptions.of({**TOPIC, "rescuedDataColumn": "_rest"})
    [row] = RowBuilder(checked_columns(options, given)).build(columns([message({"a": "x", "b": 1})])).to_pylist()
    assert row == {"a": None, "_rest": '{"a":"x","b":1}'}


@pytest.mark.parametrize(
    ("options", "schema", "sentence"),
    [
        ({"rescuedDataColumn": "_rest"}, "", "rescuedDataColumn is for what does not fit a schema"),
        ({"rescuedDataColumn": "ID", "payloadSchema": "a int"}, "", "names the column 'ID', which every message has"),
        ({"rescuedDataColumn": "a", "payloadSchema": "a int"}, "", "column 'a' of type int: declare it as a string"),
        ({**BOTH, "rescuedDataColumn": "_bad", "payloadSchema": "a int"}, "", "name the same column"),
        ({"columnNameOfCorruptRecord": "_bad"}, "a", r"'_bad', which .schema\(…\) lacks: add it there"),
    ],
)
def test_misuse(options: dict[str, str], schema: str, sentence: str) -> None:
    """The error names the option, and what to do."""
    asked = SparkOptions.of({**TOPIC, **options})
    with pytest.raises(InvalidArgumentError, match=sentence):
        checked_columns(asked, StructType().add(schema, IntegerType()) if schema else query_schema(asked))


# --- on Spark ---


class TestOnSpark:
    """On a real session and a real store."""

    pytestmark = on_spark

    @pytest.mark.parametrize("packs", [False, True])
    def test_rows(self, shop: Shop, packs: bool) -> None:  # noqa: FBT001 - a parameter
        """The columns are there beside the boolean, of single messages and of packs."""
        shop.queue.update_topic("orders", packs=packs)
        payloads = [{"a": 1}, {"a": "x"}, {"a": 2, "b": {"c": 3}}]
        shop.queue.publish("orders", payloads, pack=packs)
        claim = shop.claim(3)
        wanted = [(1, False, None, None), (None, True, '{"a":"x"}', '{"a":"x"}'), (2, False, None, '{"b":{"c":3}}')]
        frame = shop.read(claim, payloadSchema="a int", **BOTH)
        assert frame.columns[-4:] == ["a", "_corrupt", "_bad", "_rest"]
        assert frame.selectExpr("a", "_corrupt", "_bad", "_rest").collect() == wanted
        named = shop.reader(claim=shop.option(claim), **BOTH).schema("a int, _rest string, _bad string").load()
        assert [(row.a, row._bad, row._rest) for row in named.collect()] == [
            (a, bad, rest) for a, _, bad, rest in wanted
        ]
        assert shop.read(claim, inferSchema="true", samplingMessages=1, rescuedDataColumn="_rest").columns[-3:] == [
            "a",
            "_corrupt",
            "_rest",
        ]

    def test_schemas_that_spark_writes(self, shop: Shop) -> None:
        """The schema of a frame, nested and with values of several types, reads the same again."""
        payloads = [
            {"s": {"a": [{"x": 1}], "m": 1.5}, "mixed": 1, "day": "2026-03-01"},
            {"s": {"a": [{"x": 2, "y": "t"}], "m": None}, "mixed": {"k": "v"}},
        ]
        shop.queue.publish("orders", payloads, pack=True)
        claim = shop.claim(2)
        first = shop.read(claim, inferSchema="true")
        again = (
            shop.reader(claim=shop.option(claim)).schema(StructType.fromJson(json.loads(first.schema.json()))).load()
        )
        assert again.collect() == first.collect()
        assert [row.mixed for row in again.collect()] == ["1", '{"k":"v"}']

        own = shop.spark.createDataFrame(
            [], "s struct<a: array<struct<x: bigint, y: string>> not null, m: double>, day date"
        )
        by_json = shop.read(claim, payloadSchema=own.schema.json()).select("s", "day", "_corrupt").collect()
        by_schema = shop.reader(claim=shop.option(claim)).schema(own.schema).load().collect()
        assert [(row.s, row.day) for row in by_json] == [(row.s, row.day) for row in by_schema]
        assert [row.s.a[0].asDict() for row in by_json] == [{"x": 1, "y": None}, {"x": 2, "y": "t"}]
        assert [row._corrupt for row in by_json] == [False, False]

    def test_a_stream(self, stream: Stream) -> None:
        """Its rows have them too."""
        stream.queue.publish("orders", [{"a": "x", "b": 1}])
        found: list[tuple[str, str]] = []
        stream.run(
            lambda frame, _: found.extend((row._bad, row._rest) for row in frame.collect()),
            payloadSchema="a int",
            **BOTH,
        )
        assert found == [('{"a":"x","b":1}', '{"a":"x","b":1}')]


def test_inferred_columns_and_what_is_left() -> None:
    """What the columns of a sample lack is rescued: here the second field of a struct."""
    found = inferred({"s": {"a": 1}})
    options = SparkOptions.of({**TOPIC, "payloadSchema": found.columns.json(), "rescuedDataColumn": "_rest"})
    [row] = (
        RowBuilder(checked_columns(options, query_schema(options)))
        .build(columns([message({"s": {"a": 1, "b": 2}})]))
        .to_pylist()
    )
    assert row["_rest"] == '{"s":{"b":2}}'
