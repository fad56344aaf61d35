"""Messages as rows: the columns that every message has, and those that a schema takes out of its payload.

A value that does not fit its column becomes null, and ``_corrupt`` is true in its row. Nothing is converted that could
mean something else, such as a ``true`` in a column of numbers. A field that the payload lacks is null, and no fault.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, DecimalException, localcontext
from functools import partial
from operator import or_
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from pawnqueue import DeadLetter, Message, MessageColumns
from pawnqueue.domain.bounds import LATEST_TIME
from pyspark_pawnqueue.extra_columns import CORRUPT_RECORD, is_extra, rescued_data
from pyspark_pawnqueue.payload_schema import (
    JSON_TEXT,
    REQUIRED,
    check_depth,
    check_json_type,
    check_names,
    payload_columns,
)
from pyspark_pawnqueue.spark_errors import invalid_argument

_JSON_ENCODER: Final = msgspec.json.Encoder()
#: Whether something in the row's payload did not fit its column.
CORRUPT_COLUMN: Final = "_corrupt"
PAYLOAD_COLUMN: Final = "payload"


def _as_utf8(text: str) -> str:
    """Return a text that UTF-8 can encode: half a character, which JSON can escape, stays an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def to_json_text(value: Any) -> str | None:  # noqa: ANN401 - JSON
    """Return a JSON value as text, or None if it is nested too deeply: other programs may write such payloads."""
    try:
        return _as_utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    except RecursionError:
        return None


_STRING: Final = types.StringType()
_MESSAGE_COLUMNS: Final[Mapping[str, DataType]] = {
    "id": _STRING,
    "topic": _STRING,
    "producer_id": _STRING,
    "created_at": types.TimestampType(),
    PAYLOAD_COLUMN: _STRING,
    "headers": types.MapType(_STRING, _STRING),
    "deliveries": types.IntegerType(),
}
_DEAD_LETTER_COLUMNS: Final[Mapping[str, tuple[DataType, Callable[[DeadLetter], Any]]]] = {
    "letter_id": (_STRING, lambda letter: letter.id),
    "topic": (_STRING, lambda letter: letter.topic),
    "deliveries": (types.IntegerType(), lambda letter: letter.deliveries),
    "buried_at": (types.TimestampType(), lambda letter: letter.buried_at),
    "reason": (_STRING, lambda letter: _as_utf8(letter.reason) or None),  # what a letter lacks is null
    "error": (_STRING, lambda letter: _as_utf8(letter.error) or None),
    "max_deliveries": (types.IntegerType(), lambda letter: letter.max_deliveries),
    "fault": (_STRING, lambda letter: _as_utf8(letter.fault) or None),
}


def schema_of(payload_schema: str, *, dead: bool) -> StructType:
    """Return the schema of a query: the columns of messages or dead letters, and those of the payload.

    :raises InvalidArgumentError: the payload schema cannot be read, or has a column that every message has.
    """
    if not payload_schema:
        return StructType([StructField(name, kind) for name, kind in _own_columns(dead=dead).items()])
    of_payload = payload_columns(payload_schema)
    for field in of_payload:
        if field.name.lower() in reserved_names(dead=dead):
            raise invalid_argument(
                f"payloadSchema has a column {field.name!r}, which every message has already: leave it out, and "
                f"take it from the payload yourself: get_json_object(payload, '$.{field.name}')."
            )
    return with_payload_columns(of_payload, dead=dead)


def with_payload_columns(of_payload: StructType, *, dead: bool) -> StructType:
    """Return the schema of a query with these columns of the payload."""
    own = schema_of("", dead=dead)
    return StructType([*own.fields, *of_payload.fields, StructField(CORRUPT_COLUMN, types.BooleanType())])


def reserved_names(*, dead: bool) -> frozenset[str]:
    """Return the names, in lower case, that no column of the payload can have."""
    return frozenset({*_own_columns(dead=dead), CORRUPT_COLUMN})


def _own_columns(*, dead: bool) -> Mapping[str, DataType]:
    """Return the columns that every message has, or every dead letter."""
    of_letters = {name: kind for name, (kind, _) in _DEAD_LETTER_COLUMNS.items()}
    return {**_MESSAGE_COLUMNS, **of_letters} if dead else _MESSAGE_COLUMNS


@dataclass(frozen=True)
class RowBuilder:
    """Makes rows of messages, for a schema of :func:`schema_of` or one that the query gives."""

    schema: StructType
    dead: bool = False
    """Whether the rows are dead letters. Their own columns are fields of the payload in other rows."""

    def __post_init__(self) -> None:
        check_depth(self.schema)
        check_names(self.schema)
        own = {**_own_columns(dead=self.dead), CORRUPT_COLUMN: types.BooleanType()}
        for field in self.schema.fields:
            if field.name.lower() not in own:
                _check_nullable(field)
                check_json_type(field.name, field.dataType, lambda kind: type(kind) in _READERS)
                continue
            kind = own[field.name.lower()]
            if field.dataType != kind:
                raise invalid_argument(
                    f"Column {field.name!r} of the schema is of type {field.dataType.simpleString()}, but every "
                    f"message has a column of that name of type {kind.simpleString()}: use that type, or leave the "
                    f"column out and take yours from the payload: get_json_object(payload, '$.{field.name}')."
                )

    def build(self, messages: MessageColumns) -> pa.RecordBatch:
        """Return the rows of messages."""
        return self._build(messages, [False] * len(messages), ())

    def build_dead(self, letters: Sequence[DeadLetter]) -> pa.RecordBatch:
        """Return the rows of dead letters. The columns of a message are null where a letter has none."""
        topic = letters[0].topic if letters else ""
        messages = MessageColumns.of(topic, (letter.message or _NO_MESSAGE for letter in letters))
        return self._build(messages, [letter.message is None for letter in letters], letters)

    def _build(
        self, messages: MessageColumns, lacking: Sequence[bool], letters: Sequence[DeadLetter]
    ) -> pa.RecordBatch:
        arrow = to_arrow_schema(self.schema, timezone="UTC")
        corrupt = list(lacking)
        columns: dict[str, pa.Array] = {}
        unfit_by_column: dict[str, Sequence[bool]] = {}
        for field in self.schema.fields:
            name, kind = field.name.lower(), arrow.field(field.name).type
            if name == CORRUPT_COLUMN or is_extra(field):
                continue  # known once all other columns are built
            if name in _DEAD_LETTER_COLUMNS and self.dead:
                of_letter = _DEAD_LETTER_COLUMNS[name][1]
                columns[field.name] = pa.array([of_letter(letter) for letter in letters], kind)
                continue
            if name in _MESSAGE_COLUMNS:
                values = _VALUES[name](messages)
                if name == PAYLOAD_COLUMN:
                    corrupt = [was or value is None for was, value in zip(corrupt, values, strict=True)]
            else:
                values = [payload.get(field.name) for payload in messages.payloads]
                unfit_by_column[field.name] = unfit = [False] * len(messages)
                columns[field.name] = _payload_column(values, field, kind, unfit)
                continue
            if any(lacking):
                values = [None if lacks else value for value, lacks in zip(_listed(values), lacking, strict=True)]
            columns[field.name] = _as_array(values, kind)
        columns |= self._columns_of_faults(messages, lacking, corrupt, unfit_by_column)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=arrow)

    def _columns_of_faults(
        self,
        messages: MessageColumns,
        lacking: Sequence[bool],
        corrupt: Sequence[bool],
        unfit_by_column: Mapping[str, Sequence[bool]],
    ) -> dict[str, pa.Array]:
        """Return the columns that say what the others could not take."""
        unfit_by_column = {name: unfit for name, unfit in unfit_by_column.items() if True in unfit}
        for unfit in unfit_by_column.values():
            corrupt = list(map(or_, corrupt, unfit))
        columns: dict[str, pa.Array] = {}
        for field in self.schema.fields:
            if field.name.lower() == CORRUPT_COLUMN:
                columns[field.name] = _as_array(corrupt, pa.bool_())
            elif CORRUPT_RECORD in field.metadata:
                flags = zip(messages.payloads, corrupt, lacking, strict=True)
                texts = [to_json_text(payload) if bad and not lacks else None for payload, bad, lacks in flags]
                columns[field.name] = pa.array(texts, pa.string())
            elif is_extra(field):
                columns[field.name] = self._rescued(messages, unfit_by_column)
        return columns

    def _rescued(self, messages: MessageColumns, unfit_by_column: Mapping[str, Sequence[bool]]) -> pa.Array:
        """Return the fields of each payload that have no column, or do not fit theirs, as JSON."""
        own = reserved_names(dead=self.dead)
        columns = StructType([each for each in self.schema if each.name.lower() not in own and not is_extra(each)])
        texts: list[str | None] = []
        for position, payload in enumerate(messages.payloads):
            unfit = [name for name, flags in unfit_by_column.items() if flags[position]]
            left = rescued_data(payload, columns, unfit)
            texts.append(None if left is None else to_json_text(left))
        return pa.array(texts, pa.string())


#: In place of the message that a dead letter lacks.
_NO_MESSAGE: Final = Message(id="", topic="", producer_id="", created_at=datetime.fromtimestamp(0, UTC), payload={})


def _as_pairs(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(_as_utf8(name), _as_utf8(value)) for name, value in headers.items()]


def _created_at(messages: MessageColumns) -> Sequence[Any] | pa.Array:
    """Return the times, which Arrow reads in a fifth of the time if all are spelled as our publishers spell them."""
    if set(map(len, messages.created_at)) == {len("2026-11-20T14:00:00.000000+00:00")}:
        try:
            times = pa.array(messages.created_at).cast(pa.timestamp("us", "UTC"))
        except pa.ArrowInvalid:
            return messages.times()
        # Arrow reads years that Python has not, and times within §1's bounds alone are the publishers'.
        first, last = (bound.as_py() for bound in pc.min_max(times.view(pa.int64())).values())
        if first >= 0 and last <= LATEST_TIME * 1_000_000:
            return times
    return messages.times()


def _headers(messages: MessageColumns) -> Sequence[Any] | pa.Array:
    if not any(messages.headers):
        texts = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(messages) + 1), texts, texts)
    return [_as_pairs(headers) for headers in messages.headers]


#: Returns the values of each column that every message has.
_VALUES: Final[Mapping[str, Callable[[MessageColumns], Sequence[Any] | pa.Array]]] = {
    "id": lambda messages: _as_texts(messages.ids),
    "topic": lambda messages: [messages.topic] * len(messages),
    "producer_id": lambda messages: _as_texts(messages.producer_ids),
    "created_at": _created_at,
    PAYLOAD_COLUMN: lambda messages: _payload_texts(messages.payloads),
    "headers": _headers,
    "deliveries": lambda messages: messages.deliveries,
}


def _listed(values: Sequence[Any] | pa.Array) -> Sequence[Any]:
    return values.to_pylist() if isinstance(values, pa.Array) else values


def _as_texts(values: Sequence[str]) -> Sequence[str]:
    """Return texts that UTF-8 can encode, see :func:`_as_utf8`."""
    return values if all(map(str.isascii, values)) else [_as_utf8(value) for value in values]


def _payload_texts(payloads: Sequence[Mapping[str, Any]]) -> list[bytes | str | None]:
    encode = _JSON_ENCODER.encode
    texts: list[bytes | str | None] = []
    for payload in payloads:
        try:
            texts.append(encode(payload))
        except (msgspec.MsgspecError, ValueError, RecursionError):  # half a character, or a very large number
            texts.append(to_json_text(payload))
    return texts


def _as_array(values: Sequence[Any] | pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array. The messages of a batch have many values in common, which are converted once."""
    if isinstance(values, pa.Array):
        return values
    if len(values) > 1 and values[0] is not None and values.count(values[0]) == len(values):
        return pa.repeat(pa.array(values[:1], kind)[0], len(values))
    return pa.array(values, kind)


# --- payloads ---


def _payload_column(values: list[Any], field: StructField, arrow: pa.DataType, corrupt: list[bool]) -> pa.Array:
    """Return the column of these JSON values, and mark in ``corrupt`` the rows whose value does not fit."""
    kind = field.dataType
    required = bool(field.metadata.get(REQUIRED))
    direct = _DIRECT_TYPES.get(type(kind))
    if direct is not None and not required and set(map(type, values)) <= {direct, type(None)}:
        try:
            return pa.array(values, arrow)
        except (ValueError, OverflowError):
            pass  # A number is too large, or a text has half a character: look at each value below.
    fitting = []
    for position, value in enumerate(values):
        try:
            fitting.append(_read(_with_texts(value, field), kind, nullable=not required))
        except _UnfitError:
            corrupt[position] = True
            fitting.append(None)
    return pa.array(fitting, arrow)


#: Column types for which Arrow takes values of one Python type without a conversion.
_DIRECT_TYPES: Final[Mapping[type[DataType], type]] = {
    types.StringType: str,
    types.LongType: int,
    types.IntegerType: int,
    types.ShortType: int,
    types.ByteType: int,
    types.DoubleType: float,
    types.BooleanType: bool,
}
#: A number as JSON writes it. Python's Decimal also reads 1_000, and the digits of other scripts.
_JSON_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")
#: From here on a float cannot hold every whole number, so it has lost the digits after the point.
_FIRST_INEXACT_FLOAT: Final = 2.0**53


class _UnfitError(Exception):
    """A value does not fit its column."""


def _read(value: Any, kind: DataType, *, nullable: bool = True) -> Any:  # noqa: ANN401 - JSON, and what Arrow takes
    """Return a JSON value as Arrow takes it for a column of this type."""
    if value is None:
        if nullable:
            return None
        raise _UnfitError
    try:
        return _READERS[type(kind)](value, kind)
    except (ValueError, TypeError, KeyError, DecimalException, OverflowError):
        raise _UnfitError from None


def _expect(value: Any, *kinds: type) -> Any:  # noqa: ANN401 - JSON
    """Return the value if it is of one of these types, exactly: ``True`` is not an ``int`` here."""
    if type(value) not in kinds:
        raise _UnfitError
    return value


def _text(value: Any, _: DataType) -> str:  # noqa: ANN401 - JSON
    _expect(value, str)
    value.encode()  # raises for half a character, which JSON can escape and a column cannot hold
    return str(value)


def _integer(bits: int, value: Any, _: DataType) -> int:  # noqa: ANN401 - JSON
    _expect(value, int)
    limit = 1 << (bits - 1)
    if not -limit <= value < limit:
        raise _UnfitError
    return int(value)


def _single(value: Any, _: DataType) -> float:  # noqa: ANN401 - JSON
    _expect(value, int, float)
    struct.pack("<f", float(value))  # raises if it is too large for four bytes: Arrow would make it infinite
    return float(value)


def _decimal(value: Any, kind: Any) -> Decimal:  # noqa: ANN401 - JSON, and a DecimalType
    _expect(value, int, float, str)
    if isinstance(value, str) and not _JSON_NUMBER.fullmatch(value):
        raise _UnfitError
    if isinstance(value, float) and not abs(value) < _FIRST_INEXACT_FLOAT:
        raise _UnfitError  # Its cents are lost already. Producers send such numbers as text.
    with localcontext() as context:
        context.prec = 2 * types.DecimalType(38, 0).precision
        number = Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), rounding=ROUND_HALF_UP)
        if abs(number) >= Decimal(10) ** (kind.precision - kind.scale):
            raise _UnfitError
        return number


def _timestamp(value: Any, _: DataType) -> datetime:  # noqa: ANN401 - JSON
    read = datetime.fromisoformat(_expect(value, str))
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


def _timestamp_without_zone(value: Any, _: DataType) -> datetime:  # noqa: ANN401 - JSON
    read = datetime.fromisoformat(_expect(value, str))
    if read.tzinfo is not None:
        raise _UnfitError
    return read


def _array(value: Any, kind: Any) -> list[Any]:  # noqa: ANN401 - JSON, and an ArrayType
    return [_read(each, kind.elementType, nullable=kind.containsNull) for each in _expect(value, list)]


def _map(value: Any, kind: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - JSON, and a MapType
    return [
        (_text(name, kind.keyType), _read(each, kind.valueType, nullable=kind.valueContainsNull))
        for name, each in _expect(value, dict).items()
    ]


def _struct(value: Any, kind: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON, and a StructType
    _expect(value, dict)
    return {
        field.name: _read(_with_texts(value.get(field.name), field), field.dataType, nullable=field.nullable)
        for field in kind.fields
    }


def _with_texts(value: Any, field: StructField) -> Any:  # noqa: ANN401 - JSON
    """Return the value of a field, with JSON text where the field is for values of any type."""
    return _as_json_texts(value, field.dataType) if JSON_TEXT in field.metadata else value


def _as_json_texts(value: Any, kind: DataType) -> Any:  # noqa: ANN401 - JSON
    if isinstance(kind, types.ArrayType):
        return [_as_json_texts(each, kind.elementType) for each in value] if isinstance(value, list) else value
    if value is None or isinstance(value, str) or not isinstance(kind, types.StringType):
        return value
    return to_json_text(value)


_READERS: Final[Mapping[type[DataType], Callable[[Any, DataType], Any]]] = {
    types.StringType: _text,
    types.LongType: partial(_integer, 64),
    types.IntegerType: partial(_integer, 32),
    types.ShortType: partial(_integer, 16),
    types.ByteType: partial(_integer, 8),
    types.DoubleType: lambda value, _: float(_expect(value, int, float)),
    types.FloatType: _single,
    types.BooleanType: lambda value, _: _expect(value, bool),
    types.DecimalType: _decimal,
    types.TimestampType: _timestamp,
    types.TimestampNTZType: _timestamp_without_zone,
    types.DateType: lambda value, _: date.fromisoformat(_expect(value, str)),
    types.BinaryType: lambda value, _: base64.b64decode(_expect(value, str), validate=True),
    types.ArrayType: _array,
    types.MapType: _map,
    types.StructType: _struct,
}


def _check_nullable(field: StructField) -> None:
    if not field.nullable:
        raise invalid_argument(
            f"Column {field.name!r} of the schema cannot be null, but it is null in a row whose payload does not fit: "
            'make it nullable, or declare it "not null" in the option payloadSchema, which marks such rows in the '
            f"column {CORRUPT_COLUMN}."
        )
