"""The quick way from columns to payloads gives what the way by single values gives: the same bytes, the same errors."""

from __future__ import annotations

import json
import random
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from pawnqueue import InvalidPayloadError
from pawnqueue.publish.new_messages import Checked, checked_messages
from pawnqueue.settings import LimitsSettings
from pyspark_pawnqueue.rows_to_messages import MessageBuilder

TOPIC, FIRST = "orders", 7
LIMITS = LimitsSettings()
#: How many tables are compared, and of how many of them at least each outcome has to be.
TABLES, SOME = 1000, 100

_TEXTS = ("", "a", "ä", "😀", "\x00", "\x1f", "\x7f", "\u2028", '"', "\\", "/", "\n\r\t\b\f", "1e22", "{}", "\uffff")
_NAMES = ("a", "b", "B", "_", "ä", "a b", 'quo"te', "back\\slash", "line\nend", "", "😀", "10", "9", "\x7f", "null")
_FLOATS = (0.0, -0.0, 1e15, 1e16, 9999999999999998.0, 1e-4, 1e-5, 9.999999999999999e-05, 5e-324, 1e308, 0.1, -2.5e-7)
_KEPT = (
    *("{}", '{"n": 1, "m": {"b": 2, "a": [null]}}', '{"a":1,"a":2}', ' {"x":1E5} ', '{"x":-0,"y":-0.0}'),
    *('{"é":"\\u00e9"}', '{"x":1000000000000000000000000000000}'),
)
_ODD = (
    *('{"x":1e-5}', '{"x":1e16}', '{"x":1e400}', '{"x":NaN}', '{"x":"\\ud800"}', "[]", "1", "{"),
    *('"a"', "", '{"a":[[[[1]]]]}', '{"x":"%s"}' % ("1" * 5000), '{"x":%s}' % ("1" * 5000), '{"a":1} x', "nan"),
)
_DAY = 86_400
_FIRST, _LAST = -719_162 * _DAY, 2_932_897 * _DAY - 1


def _moment(chance: random.Random, late: float) -> int:
    """Draw a time in microseconds since 1970; with some chance none of the calendar's."""
    if chance.random() < late:
        return chance.choice((_FIRST - 1, _LAST + 1, _FIRST, _LAST)) * 1_000_000
    seconds = chance.choice((0, -1, 1_767_225_600, chance.randint(_FIRST + _DAY, _LAST - _DAY)))
    return seconds * 1_000_000 + chance.choice((0, 1, 123_456, 999_999, 120_000))


def _simple(chance: random.Random, kind: DataType, odd: float) -> Any:  # noqa: ANN401 - what Arrow takes
    drawn: dict[type[DataType], Any] = {
        types.StringType: lambda: chance.choice((*_TEXTS, chr(chance.randrange(0xD800)))),
        types.BooleanType: lambda: chance.random() < 0.5,
        types.ByteType: lambda: chance.randint(-128, 127),
        types.ShortType: lambda: chance.randint(-(2**15), 2**15 - 1),
        types.IntegerType: lambda: chance.randint(-(2**31), 2**31 - 1),
        types.LongType: lambda: chance.choice((2**63 - 1, -(2**63), chance.randint(-(10**9), 10**9))),
        types.FloatType: lambda: _float(chance, odd),
        types.DoubleType: lambda: _float(chance, odd),
        types.DateType: lambda: _moment(chance, odd) // 1_000_000 // _DAY,
        types.TimestampType: lambda: _moment(chance, odd),
        types.TimestampNTZType: lambda: _moment(chance, odd),
        types.BinaryType: lambda: chance.randbytes(chance.randrange(4)),
        types.DecimalType: lambda: Decimal(chance.randint(-(10**12), 10**12)).scaleb(-10) * chance.choice((0, 1)),
        types.NullType: lambda: None,
    }
    return drawn[type(kind)]()


def _float(chance: random.Random, odd: float) -> float:
    if chance.random() < odd:
        return chance.choice((float("nan"), float("inf"), -float("inf")))
    drawn = struct.unpack("f", chance.randbytes(4))[0]
    usual = round(chance.uniform(-1e6, 1e6), chance.randrange(8))
    return chance.choice((usual, usual, usual, *_FLOATS, drawn if abs(drawn) < 1e38 else 0.0))


def _value(chance: random.Random, kind: DataType, odd: float) -> Any:  # noqa: ANN401 - what Arrow takes
    if chance.random() < 0.15:
        return None
    if isinstance(kind, ArrayType):
        return [_value(chance, kind.elementType, odd) for _ in range(chance.randrange(3))]
    if isinstance(kind, MapType):
        names = chance.sample(_NAMES, chance.randrange(3))
        return [(name, _value(chance, kind.valueType, odd)) for name in names]
    if isinstance(kind, StructType):
        return {field.name: _value(chance, field.dataType, odd) for field in kind.fields}
    return _simple(chance, kind, odd)


_SIMPLE = (
    *(types.StringType(), types.BooleanType(), types.ByteType(), types.ShortType(), types.IntegerType()),
    *(types.LongType(), types.FloatType(), types.DoubleType(), types.DateType(), types.TimestampType()),
    *(types.TimestampNTZType(), types.BinaryType(), types.DecimalType(38, 10), types.NullType()),
)


def _kind(chance: random.Random, depth: int) -> DataType:
    nested = chance.randrange(8 if depth else 5)
    if nested == 5:
        return ArrayType(_kind(chance, depth - 1))
    if nested == 6:
        return MapType(StringType(), _kind(chance, depth - 1))
    return _struct(chance, depth - 1) if nested == 7 else chance.choice(_SIMPLE)


def _struct(chance: random.Random, depth: int) -> StructType:
    names = chance.sample(_NAMES, chance.randrange(1, 5))
    return StructType([StructField(name, _kind(chance, depth)) for name in names])


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def _array(chance: random.Random, kind: DataType, arrow: pa.DataType, rows: int, odd: float) -> pa.Array:
    values = [_value(chance, kind, odd) for _ in range(rows)]
    if pa.types.is_date(arrow):
        return pa.array(values, pa.int32()).cast(arrow)
    array = pa.array(values, arrow)
    # Spark's times have the zone of its session.
    in_zone = pa.types.is_timestamp(arrow) and arrow.tz is not None
    return array.cast(pa.timestamp("us", chance.choice(("UTC", "Asia/Tokyo")))) if in_zone else array


def _table(chance: random.Random, schema: StructType, odd: float) -> pa.RecordBatch:
    rows = chance.randrange(1, 6)
    kinds = [(field.dataType, each.type) for field, each in zip(schema.fields, _arrow(schema), strict=True)]
    arrays = [_array(chance, kind, arrow, rows + 1, odd) for kind, arrow in kinds]
    return pa.RecordBatch.from_arrays(arrays, schema.names).slice(chance.randrange(2), rows)


def _outcome(
    builder: MessageBuilder, batch: pa.RecordBatch, limits: LimitsSettings, *, quick: bool
) -> list[Checked] | str:
    built = builder.build(batch, TOPIC, FIRST, limits) if quick else builder.build_each(batch, TOPIC, FIRST)
    try:
        return checked_messages(built, None, limits, TOPIC, first=FIRST)
    except InvalidPayloadError as error:
        return str(error)


def _compared(batch: pa.RecordBatch, schema: StructType, limits: LimitsSettings = LIMITS) -> str:
    """Compare both ways, and return what the outcome is."""
    builder = MessageBuilder(schema)
    builder.check()
    found = _outcome(builder, batch, limits, quick=True)
    assert found == _outcome(builder, batch, limits, quick=False), (schema, batch.to_pylist())
    if isinstance(found, str):
        return "refused"
    payloads = builder._payloads_as_json(batch, limits.max_payload_depth)
    return "slow" if payloads is None or None in payloads else "quick"


@pytest.mark.parametrize("odd", [0.0, 0.05])
def test_columns_and_single_values_give_the_same(odd: float) -> None:
    """Rows of any types become the same bytes by columns as by single values, or the same error."""
    chance = random.Random(22)  # noqa: S311 - repeatable on purpose
    found = dict.fromkeys(("quick", "slow", "refused"), 0)
    for _ in range(TABLES):
        schema = _struct(chance, 3)
        found[_compared(_table(chance, schema, odd), schema)] += 1
    assert found["quick"] > SOME
    assert odd == 0 or found["refused"] > SOME
    assert odd > 0 or found["quick"] > TABLES * 0.95  # others have numbers that 32 bits cannot hold


@pytest.mark.parametrize("odd", [0.0, 0.05])
def test_payloads_and_headers_of_columns_give_the_same(odd: float) -> None:
    """So it is for a payload that is a struct or a map, with headers or without."""
    chance = random.Random(23)  # noqa: S311 - repeatable on purpose
    found = dict.fromkeys(("quick", "slow", "refused"), 0)
    for _ in range(TABLES):
        payload = chance.choice((_struct(chance, 2), MapType(StringType(), _kind(chance, 2))))
        schema = StructType([StructField("payload", payload)])
        if chance.random() < 0.5:
            schema = schema.add("headers", MapType(StringType(), StringType(), valueContainsNull=odd > 0))
        found[_compared(_table(chance, schema, odd), schema)] += 1
    assert min(found["quick"], found["refused"]) > SOME  # a payload that is null is refused


def test_texts_of_payloads_give_the_same() -> None:
    """A payload that is a text is read and written by msgspec, or, where json would do it otherwise, by json."""
    chance = random.Random(24)  # noqa: S311 - repeatable on purpose
    schema = StructType([StructField("payload", StringType())])
    limits = LimitsSettings(max_payload_depth=4)
    found = dict.fromkeys(("quick", "slow", "refused"), 0)
    for _ in range(TABLES):
        texts = [
            chance.choice((*_KEPT, *_ODD)) if chance.random() < 0.1 else json.dumps({"n": _float(chance, 0.0)})
            for _ in range(3)
        ]
        found[_compared(pa.RecordBatch.from_pydict({"payload": texts}), schema, limits)] += 1
    assert min(found.values()) > SOME
    for text in _KEPT:
        assert _compared(pa.RecordBatch.from_pydict({"payload": [text]}), schema) == "quick", text
    for text in _ODD:
        assert _compared(pa.RecordBatch.from_pydict({"payload": [text]}), schema, limits) != "quick", text


def _one(kind: DataType, *values: object, limits: LimitsSettings = LIMITS) -> str:
    schema = StructType([StructField("x", kind)])
    batch = pa.RecordBatch.from_arrays([pa.array(values, _arrow(schema)[0].type)], ["x"])
    return _compared(batch, schema, limits)


def test_the_same_rows_are_refused() -> None:
    """What is too large, too deep, or no number of JSON's is refused, by its row and its place."""
    deep = ArrayType(ArrayType(types.DoubleType()))
    assert _one(deep, [[1.5]], limits=LimitsSettings(max_payload_depth=3)) == "quick"
    assert _one(deep, [[1.5]], limits=LimitsSettings(max_payload_depth=2)) == "refused"
    assert _one(deep, None, [], [None], limits=LimitsSettings(max_payload_depth=2)) == "slow"
    assert _one(deep, [[1.5]], [[float("nan")]]) == "refused"
    assert _one(StringType(), "a", "b" * 2000, limits=LimitsSettings(max_payload_bytes=1024)) == "refused"
    assert _one(StructType().add("f", types.FloatType()), {"f": 1e-4}, {"f": 1.5}) == "quick"


def test_times_near_the_end_of_the_calendar_give_the_same() -> None:
    """A zone may lead out of the calendar where UTC does not."""
    schema = StructType([StructField("x", types.TimestampType())])
    for moment in (
        datetime(9999, 12, 31, 23, tzinfo=UTC),
        datetime(1, 1, 1, 1, tzinfo=UTC),
        datetime(2026, 7, 1, tzinfo=UTC),
    ):
        for zone in ("UTC", "Europe/Berlin", "America/New_York", "+05:30"):
            array = pa.array([moment, moment + timedelta(microseconds=5)]).cast(pa.timestamp("us", zone))
            _compared(pa.RecordBatch.from_arrays([array], ["x"]), schema)
    assert _one(types.DateType(), date(1, 1, 1), date(9999, 12, 31)) == "quick"


def test_a_text_that_is_not_unicode_is_named() -> None:
    """Spark's strings may have any bytes. The error names row and column."""
    for name in ("x", "payload"):
        schema = StructType([StructField(name, StringType())])
        data = pa.array([b"{}", b'{"a":"\xed\xa0\x80"}']).cast(pa.string(), safe=False)
        with pytest.raises(
            InvalidPayloadError, match=rf"payloads\[8\] .* in column '{name}' a text that is not valid UTF-8"
        ):
            list(MessageBuilder(schema).build(pa.RecordBatch.from_arrays([data], [name]), TOPIC, FIRST, LIMITS))
