"""Columns that are taken from a sample of messages."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from pawnqueue import MessageColumns
from pyspark_pawnqueue import schema_inference
from pyspark_pawnqueue.messages_to_rows import RowBuilder, with_payload_columns
from pyspark_pawnqueue.schema_inference import (
    MAX_INFERRED_DEPTH,
    MAX_INFERRED_FIELDS,
    InferredColumns,
    infer_columns,
    infer_schema,
)
from pyspark_pawnqueue.spark_options import SparkOptions
from tests.spark.test_messages_to_rows import message
from tests.spark.test_reading import Shop, as_dict, shop, where

if TYPE_CHECKING:
    from tests.spark.streams import Stream

__all__ = ["shop"]

on_spark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(400)]


def inferred(*payloads: dict[str, Any], reserved: tuple[str, ...] = ()) -> InferredColumns:
    """Return the columns of these payloads."""
    return infer_columns(payloads, reserved)


def read(columns: StructType, payload: dict[str, Any]) -> dict[str, Any]:
    """Return a payload's row."""
    batch = RowBuilder(with_payload_columns(columns, dead=False)).build(MessageColumns.of("orders", [message(payload)]))
    batch.validate(full=True)
    [row] = batch.to_pylist()
    return {name: row[name] for name in [*columns.names, "_corrupt"]}


# --- types ---


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, None], "boolean"),
        ([1, -(2**63)], "bigint"),
        ([1, 1.5, None], "double"),
        ([1.5], "double"),
        ([2**53 + 1, 1], "bigint"),
        ([2**53, 1.5, -(2**53)], "double"),
        (["a", ""], "string"),
        ([[1], [], [2.5]], "array<double>"),
        ([[[1]], [[]]], "array<array<bigint>>"),
        ([{"b": 1}, {"a": "x", "b": None}, None], "struct<a:string,b:bigint>"),
        ([[{"a": 1}, {"b": [True]}]], "array<struct<a:bigint,b:array<boolean>>>"),
    ],
)
def test_types_of_values(values: list[Any], kind: str) -> None:
    """All values of a name together have one type, and fit it."""
    found = inferred(*[{"v": value} for value in values])
    assert found.columns.simpleString() == f"struct<v:{kind}>"
    assert (found.conflicts, found.left_out, found.messages) == ([], [], len(values))
    assert not any(read(found.columns, {"v": value})["_corrupt"] for value in values)


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([1, "a"], "string", ["1", "a"]),
        ([True, 1], "string", ["true", "1"]),
        ([2**63], "string", [str(2**63)]),
        ([2**53 + 1, 1.5, 2], "string", [str(2**53 + 1), "1.5", "2"]),
        ([[-(2**53) - 1, 0.5]], "array<string>", [[str(-(2**53) - 1), "0.5"]]),
        ([{"b": 1}, [1], "x"], "string", ['{"b":1}', "[1]", "x"]),
        ([[1, "a", {"b": None}]], "array<string>", [["1", "a", '{"b":null}']]),
        ([[[1], [["ż"]]]], "array<array<string>>", [[["1"], ['["ż"]']]]),
    ],
)
def test_conflicts_are_json_text(values: list[Any], kind: str, texts: list[Any]) -> None:
    """Values of several types become text, as Spark's JSON reader has it: texts as they are, others as JSON."""
    found = inferred(*[{"v": value} for value in values])
    assert found.columns.simpleString() == f"struct<v:{kind}>"
    assert len(found.conflicts) == 1
    assert found.conflicts[0].startswith("'v")
    assert [read(found.columns, {"v": value}) for value in values] == [{"v": text, "_corrupt": False} for text in texts]


@pytest.mark.parametrize("value", [None, {}, [], [None], [{}]])
def test_what_has_no_type_takes_any_value(value: Any) -> None:  # noqa: ANN401 - JSON
    """Later messages may have any value there. That is no conflict."""
    found = inferred({"v": value})
    assert found.conflicts == []
    assert found.columns["v"].dataType.simpleString() in ("string", "array<string>")
    assert read(found.columns, {"v": value})["_corrupt"] is False
    if not isinstance(value, list):
        assert read(found.columns, {"v": 5}) == {"v": "5", "_corrupt": False}


def test_conflicts_within_structs() -> None:
    """A field of a struct becomes text, and the struct stays."""
    found = inferred({"s": {"a": 1, "b": 1}}, {"s": {"a": "x", "b": 2}})
    assert found.columns.simpleString() == "struct<s:struct<a:string,b:bigint>>"
    assert read(found.columns, {"s": {"a": 5, "b": 6}}) == {"s": {"a": "5", "b": 6}, "_corrupt": False}
    assert StructType.fromJson(json.loads(found.columns.json())) == found.columns


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), max_size=5))
def test_what_was_looked_at_fits(payloads: list[dict[str, Any]]) -> None:
    """No message of the sample is corrupt by the columns of the sample, in whatever order it was looked at."""
    found = inferred(*payloads)
    assert inferred(*payloads[::-1]).columns == found.columns
    for payload in payloads:
        assert read(found.columns, payload)["_corrupt"] is False


# --- bounds ---


def nested(levels: int) -> Any:  # noqa: ANN401 - JSON
    """Return nested objects and arrays."""
    value: Any = 1
    for number in range(levels):
        value = {"a": value} if number % 2 else [value]
    return value


def test_depth_is_bounded() -> None:
    """What is nested more deeply is JSON text, at any depth that a payload can have."""
    assert inferred({"v": nested(MAX_INFERRED_DEPTH - 1)}).conflicts == []
    found = inferred({"v": nested(400)})
    assert "nested too deeply" in found.conflicts[0]
    assert found.columns.simpleString().count("<") == 1 + MAX_INFERRED_DEPTH
    assert read(found.columns, {"v": nested(400)})["_corrupt"] is False


def test_the_number_of_fields_is_bounded() -> None:
    """Structs become text, the deepest ones first. Of too many columns the first ones stay, and the rest is named."""
    wide = {f"n{number:04}": number for number in range(MAX_INFERRED_FIELDS)}
    found = inferred({"a": {"b": wide}, "c": 1})
    assert found.columns.simpleString() == "struct<a:struct<b:string>,c:bigint>"
    assert "a.b" in found.conflicts[0]
    found = inferred({**wide, "z": 1, "y": 2})
    assert (len(found.columns), found.left_out) == (MAX_INFERRED_FIELDS, ["'y'", "'z'"])


def test_other_names_in_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of names that are remembered is limited."""
    monkeypatch.setattr(schema_inference, "MAX_SEEN_FIELDS", 50)
    found = inferred(*[{f"n{number:03}": 1} for number in range(100)])
    assert (len(found.columns), found.left_out) == (50, ["names beyond the first 50"])


def test_names_that_are_not_columns() -> None:
    """Those of columns of every message, and those that are empty or very long, are left out and named."""
    found = inferred({"ID": 1, "": 1, "n" * 256: 1, "item": 1}, reserved=("id",))
    assert found.columns.names == ["item"]
    assert found.left_out == ["''", "'ID'", f"'{'n' * 60}…'"]


def test_what_the_log_says() -> None:
    """It names fields and types, and no value."""
    found = inferred({"a": "secret", "b": 1, "id": "secret"}, {"b": "secret"}, reserved=("id",))
    assert found.sentence("topic 'orders'") == (
        "inferSchema looked at 2 messages of topic 'orders' and found 'a', 'b'. Values of several types, or nested too "
        "deeply, become JSON text: 'b' (string, whole number). Names that cannot be columns, or are too many: 'id'. "
        "Take them from the payload: get_json_object(payload, '$.name')."
    )
    many = inferred({f"n{number:02}": 1 for number in range(30)})
    assert many.sentence("x").endswith("'n19' and 10 more.")
    assert inferred({}).sentence("x") == "inferSchema looked at 1 messages of x and found no fields."


# --- on Spark ---


class TestOnSpark:
    """On a real session and a real store."""

    pytestmark = on_spark

    @pytest.mark.parametrize("packs", [False, True])
    def test_claims_topics_and_dead_letters(self, shop: Shop, packs: bool) -> None:  # noqa: FBT001 - a parameter
        """Each has the columns of its own messages, without a schema."""
        shop.queue.update_topic("orders", packs=packs)
        payloads = [{"n": number, "price": number * 1.5, "tags": [{"a": 1}]} for number in range(120)]
        shop.queue.publish("orders", payloads, pack=packs)
        claim = shop.claim(120)
        frame = shop.read(claim, inferSchema=True)
        columns = {each.name: each.dataType.simpleString() for each in frame.schema.fields[7:]}
        assert columns == {
            "n": "bigint",
            "price": "double",
            "tags": "array<struct<a:bigint>>",
            "_corrupt": "boolean",
        }
        assert frame.where("not _corrupt").selectExpr("sum(n)", "sum(tags[0].a)").collect() == [(7140, 120)]
        topic = shop.read(topic="orders", mode="peek", inferSchema=True, samplingMessages=1)
        assert topic.schema["price"].dataType.simpleString() == "double"
        shop.queue.bury(claim, reason="unfit")
        letters = shop.read(topic="orders", mode="dead", inferSchema=True)
        assert letters.selectExpr("sum(n)").collect() == [(7140,)]

    def test_the_sample_is_small(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        """Later messages that do not fit are corrupt, as with any schema. The log says what was seen."""
        shop.queue.publish("orders", [{"a": 1}, {"a": 2}, {"a": "three"}])
        options = {**where(shop.settings), "claim": json.dumps(as_dict(shop.claim(3))), "inferSchema": "true"}
        with caplog.at_level(logging.WARNING, "pawnqueue.spark"):
            schema = infer_schema(SparkOptions.of({**options, "samplingMessages": "2"}))
        assert "inferSchema looked at 2 messages of the claim" in caplog.text
        assert schema["a"].dataType.simpleString() == "bigint"
        found = shop.spark.read.format("pawnqueue").options(**options, samplingMessages=2).load().collect()
        assert [(row.a, row._corrupt) for row in found] == [(1, False), (2, False), (None, True)]

    def test_a_stream(self, stream: Stream) -> None:
        """It looks at the topic when it is planned, and claims as ever. An empty topic has no columns to tell."""
        with pytest.raises(PySparkException, match="PawnQueue: inferSchema finds no message in topic 'orders'"):
            stream.frame(inferSchema=True)
        stream.publish(3)
        found: list[int] = []
        stream.run(lambda frame, _: found.extend(row.order_id for row in frame.collect()), inferSchema=True)
        assert found == [0, 1, 2]
        assert stream.counts() == (0, 0)
