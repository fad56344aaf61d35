"""Messages as rows: which values fit a schema, which do not, and how schemas are written."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pawnqueue import DeadLetter, InvalidArgumentError, Message, MessageColumns
from pyspark_pawnqueue import messages_to_rows
from pyspark_pawnqueue.messages_to_rows import CORRUPT_COLUMN, RowBuilder, schema_of
from pyspark_pawnqueue.payload_schema import payload_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

NOW = datetime(2026, 3, 1, 12, 30, 15, 123456, UTC)
HALF = "\ud83d"  # half a character, which JSON can escape


def message(payload: dict[str, Any], **more: Any) -> Message:
    """Return a message with this payload."""
    told = {"id": "m1", "topic": "orders", "producer_id": "shop", "created_at": NOW, "headers": {}, "deliveries": 1}
    return Message(payload=payload, **{**told, **more})


def columns(messages: Iterable[Message]) -> MessageColumns:
    """Return messages as the queue reads them for tables."""
    return MessageColumns.of("orders", messages)


def rows(payloads: Sequence[Any], schema: str) -> list[dict[str, Any]]:
    """Return what the payloads' columns become."""
    batch = RowBuilder(schema_of(schema, dead=False)).build(columns(message(payload) for payload in payloads))
    batch.validate(full=True)
    wanted = [*payload_columns(schema).names, CORRUPT_COLUMN]
    return [{name: row[name] for name in wanted} for row in batch.to_pylist()]


def one(value: Any, kind: str) -> tuple[Any, bool]:  # noqa: ANN401 - JSON
    """Return what a value becomes in a column of this type, and whether it is marked."""
    [row] = rows([{"a": value}], f"a {kind}")
    return row["a"], row[CORRUPT_COLUMN]


# --- values ---

DEEP = "struct<x: array<map<string, struct<y: int>>>>"


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        ("string", "", ""),
        ("string", "żółć 🦊 \u0000 \u2028", "żółć 🦊 \u0000 \u2028"),
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", -(2**63), -(2**63)),
        ("int", -(2**31), -(2**31)),
        ("smallint", 2**15 - 1, 2**15 - 1),
        ("byte", -128, -128),
        ("double", 1, 1.0),
        ("double", 0.1, 0.1),
        ("double", 10**30, 1e30),
        ("double", 2**53 + 1, float(2**53)),
        ("double", math.inf, math.inf),
        ("float", 0.5, 0.5),
        ("boolean", False, False),
        ("decimal(10,2)", 12.345, Decimal("12.35")),
        ("decimal(10,2)", "12.3", Decimal("12.30")),
        ("decimal(10,2)", -5, Decimal("-5.00")),
        ("decimal(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
        ("decimal(4,4)", 0.1234, Decimal("0.1234")),
        ("decimal(38,18)", 0.1 + 0.2, Decimal("0.300000000000000040")),
        ("decimal(38,2)", "12345678901234567.89", Decimal("12345678901234567.89")),
        ("decimal(10,0)", "1e3", Decimal(1000)),
        ("date", "2026-02-28", date(2026, 2, 28)),
        ("timestamp", "2026-02-28T10:00:00Z", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("timestamp", "2026-02-28T10:00:00.5+02:00", datetime(2026, 2, 28, 8, 0, 0, 500000, UTC)),
        ("timestamp", "2026-02-28 10:00:00", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("timestamp_ntz", "2026-02-28T10:00:00", datetime(2026, 2, 28, 10)),  # noqa: DTZ001 - without one, on purpose
        ("binary", "aGk=", b"hi"),
        ("binary", "", b""),
        ("array<int>", [1, None, 3], [1, None, 3]),
        ("array<int>", [], []),
        ("map<string,double>", {"a": 1, "ż": 2.5}, [("a", 1.0), ("ż", 2.5)]),
        ("struct<a:int,b:string>", {"b": "x", "c": 1}, {"a": None, "b": "x"}),
        (DEEP, {"x": [{"k": {"y": 1}}, {}, None]}, {"x": [[("k", {"y": 1})], [], None]}),
    ],
)
def test_what_fits(kind: str, value: Any, read: Any) -> None:  # noqa: ANN401 - JSON
    """A value that fits is read, and nothing is marked."""
    assert one(value, kind) == (read, False)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 1),
        ("string", True),
        ("string", {"a": 1}),
        ("string", ["a"]),
        ("string", HALF),
        ("long", 2**63),
        ("long", -(2**63) - 1),
        ("long", 10**400),
        ("long", 1.0),
        ("long", "1"),
        ("long", True),
        ("int", 2**31),
        ("smallint", 2**15),
        ("tinyint", 128),
        ("double", "1"),
        ("double", False),
        ("double", 10**400),
        ("float", 1e300),
        ("float", 10**400),
        ("boolean", 0),
        ("boolean", "true"),
        ("decimal(4,2)", 100),
        ("decimal(4,2)", 99.999),
        ("decimal(10,2)", "1_000"),
        ("decimal(10,2)", " 1"),
        ("decimal(10,2)", "١٢"),
        ("decimal(10,2)", "NaN"),
        ("decimal(10,2)", math.nan),
        ("decimal(38,2)", json.loads("12345678901234567.89")),  # …568.00 by now
        ("decimal(10,2)", True),
        ("decimal(38,0)", 10**400),
        ("decimal(10,0)", "1e9999"),
        ("date", "2026-02-30"),
        ("date", "2026-02-28T10:00:00"),
        ("date", 20512),
        ("timestamp", "yesterday"),
        ("timestamp", 1772000000),
        ("timestamp", "0001-01-01T00:00:00+12:00"),
        ("timestamp_ntz", "2026-02-28T10:00:00Z"),
        ("binary", "no base64!"),
        ("binary", "aGk"),
        ("binary", "ż"),
        ("array<int>", {}),
        ("array<int>", ["1"]),
        ("map<string,int>", []),
        ("map<string,int>", {"a": "1"}),
        ("map<string,int>", {HALF: 1}),
        ("struct<a:int>", []),
        ("struct<a:int>", {"a": "1"}),
        ("struct<a:int not null>", {}),
        (DEEP, {"x": [{"k": {"y": HALF}}]}),
    ],
)
def test_what_does_not_fit(kind: str, value: Any) -> None:  # noqa: ANN401 - JSON
    """It becomes null and its row is marked. Other rows and columns are not affected."""
    assert one(value, kind) == (None, True)
    before, bad, after = rows([{"b": 1}, {"a": value, "b": 2}, {"b": 3}], f"a {kind}, b int")
    assert bad == {"a": None, "b": 2, CORRUPT_COLUMN: True}
    assert (before, after) == ({"a": None, "b": 1, CORRUPT_COLUMN: False}, {"a": None, "b": 3, CORRUPT_COLUMN: False})


@pytest.mark.parametrize("kind", ["string", "long", "double", "decimal(4,2)", "timestamp", "array<int>", DEEP])
def test_null_and_missing_are_no_faults(kind: str) -> None:
    """A column that is "not null" marks such rows, and is null all the same."""
    assert rows([{"a": None}, {}], f"a {kind}") == [{"a": None, CORRUPT_COLUMN: False}] * 2
    assert rows([{"a": None}, {}], f"a {kind} not null") == [{"a": None, CORRUPT_COLUMN: True}] * 2
    assert schema_of(f"a {kind} NOT NULL", dead=False)["a"].nullable


def test_names_of_json_are_as_they_are_written() -> None:
    """Names are case-sensitive, as in Spark's own from_json."""
    assert rows([{"A": 1, "ż-1": 2, "a`b": 3}], "a int, `ż-1` int, `a``b` int") == [
        {"a": None, "ż-1": 2, "a`b": 3, CORRUPT_COLUMN: False}
    ]


# JSON as programs write it.
_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, -(2**63) - 1, 10**40])
    | st.floats()
    | st.text()
    | st.sampled_from([HALF, "1", "2026-02-28", "2026-02-28T10:00:00Z", "aGk="])
)
_json = st.recursive(_leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4)
_kinds = ["string", "boolean", "byte", "short", "int", "long", "float", "double", "decimal(6,2)", "date", "timestamp"]
_kinds += ["timestamp_ntz", "binary", "array<string>", "map<string,double>", "struct<a:int,b:array<string>>"]


@given(st.sampled_from(_kinds), st.lists(_json, max_size=6))
def test_any_json_is_a_column_of_any_type(kind: str, values: list[Any]) -> None:
    """No value fails a batch, and no value affects another: the fast path gives the results of the slow one."""
    together = rows([{"a": value} for value in values], f"a {kind}")
    unfit: Any = {} if kind.startswith("array") else []
    slowly = rows([*({"a": value} for value in values), {"a": unfit}], f"a {kind}")
    assert slowly.pop() == {"a": None, CORRUPT_COLUMN: True}
    assert repr(together) == repr(slowly)


def _is_finite(payloads: list[dict[str, Any]]) -> bool:
    return not re.search("inf|nan", repr(payloads))


@given(st.lists(st.dictionaries(st.text(), _json), max_size=4).filter(_is_finite))
def test_any_payload_is_told_as_json(payloads: list[dict[str, Any]]) -> None:
    """The JSON text has the same meaning as the payload, half characters included. NaN is not JSON (§1)."""
    batch = RowBuilder(schema_of("", dead=False)).build(columns(message(payload) for payload in payloads))
    assert [repr(json.loads(text)) for text in batch.column("payload").to_pylist()] == [repr(each) for each in payloads]


# --- what every message has ---


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00.000000+05:00",
        "0000-01-01T00:00:00.000000+00:00",
        "9999-12-31T23:00:00.000000-05:00",
        "1969-12-31T23:59:59.999999+00:00",
        "9999-01-01T00:00:00.000001+00:00",
        "2026-02-30T00:00:00.000000+00:00",
    ],
)
def test_a_time_out_of_bounds_is_that_of_the_object(text: str) -> None:
    """It costs neither the message nor the batch. The other messages have their own times."""
    found = columns([message({}), message({})])
    found.created_at = ["2026-03-01T12:30:15.123456+00:00", text]
    batch = RowBuilder(schema_of("", dead=False)).build(found)
    assert batch.column("created_at").to_pylist() == [NOW, NOW]


def test_the_columns_of_a_message() -> None:
    """The columns have their documented names and types, and times are in UTC."""
    told = message({"b": "ż", "a": [1]}, headers={"x": "1"}, deliveries=3)
    batch = RowBuilder(schema_of("", dead=False)).build(columns([told]))
    assert schema_of("", dead=False).simpleString() == (
        "struct<id:string,topic:string,producer_id:string,created_at:timestamp,payload:string,"
        "headers:map<string,string>,deliveries:int>"
    )
    assert batch.to_pylist() == [
        {
            "id": "m1",
            "topic": "orders",
            "producer_id": "shop",
            "created_at": NOW,
            "payload": '{"b":"ż","a":[1]}',
            "headers": [("x", "1")],
            "deliveries": 3,
        }
    ]


def test_half_a_character_fails_nobody() -> None:
    """Half a character of another program stays the escape that it was, in JSON and elsewhere."""
    [row] = (
        RowBuilder(schema_of("", dead=False))
        .build(columns([message({HALF: HALF}, id=HALF, producer_id=HALF, headers={HALF: HALF})]))
        .to_pylist()
    )
    assert json.loads(row["payload"]) == {HALF: HALF}
    assert (row["id"], row["producer_id"], row["headers"]) == ("\\ud83d", "\\ud83d", [("\\ud83d", "\\ud83d")])


def test_a_payload_that_is_nested_too_deeply_fails_nobody() -> None:
    """Python cannot write it, so it is null, and its row is marked. The other rows are complete."""
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    batch = RowBuilder(schema_of("b int", dead=False)).build(columns([message(deep), message({"b": 1})]))
    assert [(row["payload"], row["b"], row[CORRUPT_COLUMN]) for row in batch.to_pylist()] == [
        (None, None, True),
        ('{"b":1}', 1, False),
    ]


def test_no_messages_are_a_batch_of_none() -> None:
    """The empty batch has all columns."""
    batch = RowBuilder(schema_of("a int", dead=False)).build(columns([]))
    assert (batch.num_rows, batch.schema.names[-2:]) == (0, ["a", CORRUPT_COLUMN])


def test_dead_letters_have_columns_of_their_own() -> None:
    """A letter whose message cannot be read has a marked row with the known values."""
    read = DeadLetter("l1", "orders", NOW, reason="unfit", error="e", message=message({"a": 1}))
    unread = DeadLetter("l2", "orders", NOW, fault="no body")
    first, second = RowBuilder(schema_of("a int", dead=True), dead=True).build_dead([read, unread]).to_pylist()

    told = ("letter_id", "reason", "error", "fault", "id", "a", CORRUPT_COLUMN)
    assert [first[name] for name in told] == ["l1", "unfit", "e", None, "m1", 1, False]
    assert [second[name] for name in told] == ["l2", None, None, "no body", None, None, True]
    assert (first["buried_at"], second["payload"]) == (NOW, None)
    assert (first["topic"], second["topic"], second["producer_id"]) == ("orders", "orders", None)


def test_the_names_of_a_letters_columns_are_free_elsewhere() -> None:
    """A payload may have a field "reason", which is a column of messages, but not of dead letters."""
    assert rows([{"reason": "late", "error": 5}], "reason string, error int") == [
        {"reason": "late", "error": 5, CORRUPT_COLUMN: False}
    ]
    with pytest.raises(InvalidArgumentError, match="'reason', which every message has already"):
        schema_of("reason string", dead=True)


def test_batches_are_what_spark_expects_to_the_letter() -> None:
    """Spark compares the schemas, and refuses a batch that differs."""
    schema = schema_of(", ".join(f"c{n} {kind}" for n, kind in enumerate([*_kinds, DEEP])), dead=False)
    assert RowBuilder(schema).build(columns([message({})])).schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert RowBuilder(schema).build(columns([message({})])).schema.field("created_at").type == pa.timestamp("us", "UTC")


# --- a schema that the query gives ---


def test_a_query_may_name_the_columns_that_it_wants() -> None:
    """Our columns are found in any case, and others come from the payload, in the query's order."""
    schema = StructType().add("order_id", "long").add("ID", "string")
    assert RowBuilder(schema).build(columns([message({"order_id": 7})])).to_pylist() == [{"order_id": 7, "ID": "m1"}]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (
            StructType().add("id", "long"),
            "'id' of the schema is of type bigint, but every .* of type string",
        ),
        (StructType().add("_corrupt", "string"), "'_corrupt' of the schema is of type string"),
        (StructType().add("a", "long", nullable=False), "'a' of the schema cannot be null.*payloadSchema"),
        (StructType().add("a", "long").add("a", "string"), "has two columns 'a'"),
        (StructType().add("a", types.DayTimeIntervalType()), "'a' is of type interval day"),
        (
            StructType().add("a", types.MapType(types.LongType(), types.LongType())),
            "'a' is a map whose keys are not strings",
        ),
    ],
)
def test_a_schema_that_does_not_do_is_told(schema: StructType, sentence: str) -> None:
    """It is refused before anything is read."""
    with pytest.raises(InvalidArgumentError, match=sentence):
        RowBuilder(schema)


# --- schemas as they are written ---

WRITTEN = [
    "order_id long, item string",
    "order_id:long,item:string",
    "A INT, b Array<String>",
    "a struct<b: int, c: array<struct<d: decimal(4, 2), e: map<string, array<double>>>>>, f date",
    "a int comment 'the, first', b string not null comment 'it''s'",
    "`a b` int, `c,d` string, `e``f` double, `select` int",
    "a decimal, b dec(5), c numeric(38,38)",
    "a bigint, b integer, c tinyint, d smallint, e real, f byte, g short, h float, i boolean, j binary",
    "a timestamp, b timestamp_ltz, c timestamp_ntz",
    "a -- the first\n int, /* the\n other */ b int",
    "a map<string, struct<`x y`: int not null comment 'c'>>",
    "a struct<>",
    "date date, map map<string,string>, string string",
    "  a   int  ",
    "_1 int, 1a int",
]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("ddl", WRITTEN)
def test_a_schema_is_read_as_spark_reads_it(spark: SparkSession, ddl: str) -> None:
    """The columns and types are the same, but all can be null, as a value that does not fit is null."""
    theirs = StructType.fromDDL(ddl)
    ours = payload_columns(ddl)
    assert [(field.name, field.dataType) for field in ours] == [(field.name, field.dataType) for field in theirs]
    assert all(field.nullable for field in ours)


def test_a_schema_may_be_json() -> None:
    """The schema may be written as by ``df.schema.json()``."""
    schema = StructType().add("a", "long", nullable=False).add("b", types.ArrayType(types.StringType()))
    assert [(field.name, field.dataType) for field in payload_columns(schema.json())] == [
        (field.name, field.dataType) for field in schema
    ]
    assert rows([{"b": ["x"]}], schema.json()) == [{"a": None, "b": ["x"], CORRUPT_COLUMN: True}]


@pytest.mark.parametrize(
    ("ddl", "sentence"),
    [
        ("order_id lnog", r"'lnog' is not a type \(did you mean long\?\)"),
        ("order_id", "column 'order_id' has no type, at its end"),
        ("order_id, item string", "column 'order_id' has no type, before ','"),
        ("a int b int", "a comma or the end is missing after column 'a', before 'b'"),
        ("a int,, b int", "a column's name is missing, before ','"),
        ("order-id int", "column 'order' has no type, before '-'"),
        ("a array<int", "'>' is missing after the type of an array's elements, at its end"),
        ("a array", "'<' is missing after array, at its end"),
        ("a map<string>", "',' is missing after the type of a map's keys, before '>'"),
        ("a struct<b int", "'>' is missing after the fields of a struct"),
        ("a decimal(40,2)", "a decimal has from 1 to 38 digits"),
        ("a decimal(2,4)", "a decimal has from 1 to 38 digits"),
        ("a decimal(x)", "number of digits is missing"),
        ("a int not", "'null' is missing after NOT"),
        ("a int comment b", "a text in quotes is missing after COMMENT"),
        ("`` int", "a column's name is missing"),
        ("'a' int", "a column's name is missing"),
        (",", "a column's name is missing"),
        ("-- nothing", "it has no column"),
        ("a int)", "a comma or the end is missing after column 'a'"),
        ("a int, a string", "has two columns 'a'"),
        ("a struct<b:int, b:int>", "has two columns 'b'"),
        ("a int, 'b", "a quote is not closed, before"),
        ("a int, `b", "a quote is not closed"),
        ("a int comment 'b", "a quote is not closed"),
        ("a int /* the first", "a comma or the end is missing after column 'a', before '/'"),
        ("a " + "array<" * 51 + "int" + ">" * 51, "nested more than 50 levels deep: name a column of type string"),
        ("a " + "struct<a:" * 6000, "nested more than 50 levels deep"),
        ("a " + "map<string," * 6000, "nested more than 50 levels deep"),
        ('{"type":"struct","fields":' + "[" * 40_000, "looks like JSON, but not like a schema"),
        ("a " + "x" * 200_000, "has 200,002 characters, and 200,000 are allowed"),
        ("a " + "x" * 40_000, "payloadSchema='a x+…' cannot be read: 'x+…' is not a type"),
        ("a varchar(10)", "'a' of payloadSchema is of type varchar, which JSON cannot hold: use a string"),
        ("a interval day", "of type interval"),
        ("a array<variant>", r"'a\[\]' of payloadSchema is of type variant"),
        ("a map<int,int>", "a map whose keys are not strings"),
        ("id long", "has a column 'id', which every message has already"),
        ("Payload string", "has a column 'Payload', which every message has already.*get_json_object"),
        ("_CORRUPT string", "has a column '_CORRUPT'"),
        ("{}", "looks like JSON, but not like a schema"),
        ('{"type": "long"}', "looks like JSON, but not like a schema"),
        ("{", "looks like JSON, but not like a schema"),
    ],
)
def test_a_schema_that_is_none_is_told(ddl: str, sentence: str) -> None:
    """The error is one sentence that says where the problem is, and what to write."""
    with pytest.raises(InvalidArgumentError, match=sentence) as raised:
        RowBuilder(schema_of(ddl, dead=False))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1000


@pytest.mark.timeout(20)  # what reads a text again from each of its quotes takes minutes
@pytest.mark.parametrize("text", ['"\\', "'x\\", "`x``", "/*x", "'\"`", "a `", "a int comment '"])
def test_a_long_schema_with_what_is_never_closed(text: str) -> None:
    """Each of its characters is read once, so it takes no longer than another one."""
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        payload_columns(text * (150_000 // len(text)) + "`")


@pytest.mark.parametrize("levels", [50, 51])
def test_a_schema_of_a_query_has_a_depth_as_well(levels: int) -> None:
    """It has the same limit as the option payloadSchema, in both ways to write that."""
    kind: types.DataType = types.LongType()
    for _ in range(levels):
        kind = types.ArrayType(kind)
    schema = StructType().add("a", kind)
    if levels == 50:
        RowBuilder(schema)
        assert payload_columns(schema.json())[0].dataType == kind
        return
    for read in (RowBuilder, lambda each: payload_columns(each.json())):
        with pytest.raises(InvalidArgumentError, match="nested more than 50 levels deep"):
            read(schema)


def test_names_that_differ_in_case_alone() -> None:
    """Spark can write such columns with ``spark.sql.caseSensitive``, so they can be read too."""
    assert rows([{"a": 1, "A": "x", "s": {"b": 1, "B": 2}}], "a int, A string, s struct<b: int, B: int>") == [
        {"a": 1, "A": "x", "s": {"b": 1, "B": 2}, CORRUPT_COLUMN: False}
    ]


@given(st.text(alphabet="ab ,<>()`':int-*/", max_size=30) | st.text(max_size=20))
def test_any_text_is_a_schema_or_told(text: str) -> None:
    """Any text is read or refused, in finite time and without another error."""
    with suppress(InvalidArgumentError):
        payload_columns(text)


# --- beside Spark's own ---

SAME = [
    ("long", 5),
    ("long", "5"),
    ("long", True),
    ("int", 2**31),
    ("double", 1),
    ("double", 0.1),
    ("boolean", True),
    ("boolean", "true"),
    ("string", "x"),
    ("string", None),
    ("decimal(10,2)", 12.345),
    ("date", "2026-02-28"),
    ("timestamp", "2026-02-28T10:00:00Z"),
    ("timestamp", "2026-02-28T10:00:00+02:00"),
    ("binary", "aGk="),
    ("array<int>", [1, 2]),
    ("map<string,int>", {"a": 1}),
    ("struct<x:int,y:string>", {"x": 1}),
    ("array<struct<x:int>>", [{"x": 1}, None]),
]
#: Ours is null and marked, theirs is something else: nothing is converted here that could mean something else.
OTHER = [
    ("string", 5, "5"),
    ("string", {"a": 1}, '{"a":1}'),
    ("timestamp", 0, datetime(1970, 1, 1)),  # noqa: DTZ001 - as Spark shows it in UTC
    ("float", 1e300, math.inf),
]


@pytest.mark.spark
@pytest.mark.slow
def test_ordinary_values_are_read_as_by_from_json(spark: SparkSession) -> None:
    """The same values fit as with from_json, except those that Spark would convert."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - a JVM is there only now

    cases = [*((kind, value, ...) for kind, value in SAME), *OTHER]
    read = [
        f.from_json(f.lit(json.dumps({"a": value})), f"a {kind}, _corrupt_record string").alias(f"c{number}")
        for number, (kind, value, _) in enumerate(cases)
    ]
    [row] = spark.range(1).select(*read).toArrow().to_pylist()
    for (kind, value, theirs), got in zip(cases, row.values(), strict=True):
        ours, corrupt = one(value, kind)
        if theirs is ...:
            assert (ours, corrupt) == (got["a"], got["_corrupt_record"] is not None), (kind, value)
        else:
            shown = got["a"].replace(tzinfo=None) if isinstance(got["a"], datetime) else got["a"]
            assert (ours, corrupt, shown) == (None, True, theirs), (kind, value)


def test_the_fast_path_is_taken() -> None:
    """Ordinary columns go to Arrow without a conversion, so the test above compares two paths."""
    values = ["a", None, "b"]
    field = types.StructField("a", types.StringType())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages_to_rows, "_read", None)
        assert messages_to_rows._payload_column(values, field, pa.string(), [False] * 3).to_pylist() == values
