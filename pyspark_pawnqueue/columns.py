"""Messages as columns: those that every message has, and those that a schema takes out of its payload.

A value that does not fit its column is null there, and ``_corrupt`` is true in its row; nothing is converted that could
mean something else, as a ``true`` in a column of numbers. What is not in a payload is null, and no fault.
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
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pawnqueue import DeadLetter, InvalidArgumentError, Message
from pyspark_pawnqueue.ddl import REQUIRED, check_depth, check_names, payload_columns

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

#: In a row in which something of the payload did not fit.
CORRUPT: Final = "_corrupt"

PAYLOAD: Final = "payload"


def _shown(text: str) -> str:
    """Return a text as UTF-8 can have it: JSON can escape half a character, which then stays the escape that it was."""
    return text.encode("utf-8", "backslashreplace").decode()


def _as_json(message: Message) -> str | None:
    try:
        return _shown(json.dumps(message.payload, ensure_ascii=False, separators=(",", ":")))
    except RecursionError:
        return None  # of another program's: ours are not nested so deeply. The others in its batch are not to suffer.


_STRING: Final = types.StringType()
_OF_A_MESSAGE: Final[Mapping[str, tuple[DataType, Callable[[Message], Any]]]] = {
    "id": (_STRING, lambda message: _shown(message.id)),
    "topic": (_STRING, lambda message: message.topic),
    "producer_id": (_STRING, lambda message: _shown(message.producer_id)),
    "created_at": (types.TimestampType(), lambda message: message.created_at),
    PAYLOAD: (_STRING, _as_json),
    "headers": (
        types.MapType(_STRING, _STRING),
        lambda message: [(_shown(name), _shown(value)) for name, value in message.headers.items()],
    ),
    "deliveries": (types.IntegerType(), lambda message: message.deliveries),
}
_OF_A_LETTER: Final[Mapping[str, tuple[DataType, Callable[[DeadLetter], Any]]]] = {
    "letter_id": (_STRING, lambda letter: letter.id),
    "buried_at": (types.TimestampType(), lambda letter: letter.buried_at),
    "reason": (_STRING, lambda letter: _shown(letter.reason) or None),  # null: what a letter does not have
    "error": (_STRING, lambda letter: _shown(letter.error) or None),
    "max_deliveries": (types.IntegerType(), lambda letter: letter.max_deliveries),
    "fault": (_STRING, lambda letter: _shown(letter.fault) or None),
}


def schema_of(payload_schema: str, *, dead: bool) -> StructType:
    """Return the schema of what is read.

    :raises InvalidArgumentError: a column of the payload has the name of one that every message has, or is none.
    """
    columns = [types.StructField(name, kind) for name, (kind, _) in _own(dead=dead).items()]
    if payload_schema:
        of_payload = payload_columns(payload_schema)
        for field in of_payload:
            if field.name.lower() in {*_own(dead=dead), CORRUPT}:
                raise InvalidArgumentError(
                    f"payloadSchema has a column {field.name!r}, and so has every message: leave it out, and take it "
                    f"from the payload yourself: get_json_object(payload, '$.{field.name}').",
                    operation="spark",
                )
        columns += [*of_payload, types.StructField(CORRUPT, types.BooleanType())]
    return StructType(columns)


def _own(*, dead: bool) -> Mapping[str, tuple[DataType, Callable[[Any], Any]]]:
    """Return the columns that every message has, or every dead letter."""
    return {**_OF_A_MESSAGE, **_OF_A_LETTER} if dead else _OF_A_MESSAGE


@dataclass(frozen=True)
class Rows:
    """How messages become rows of a schema: of :func:`schema_of`, or of one that the query gives."""

    schema: StructType
    dead: bool = False
    """Whether they are dead letters: those have columns of their own, which of other messages are in the payload."""

    def __post_init__(self) -> None:
        check_depth(self.schema)
        check_names(self.schema)
        own = {**_own(dead=self.dead), CORRUPT: (types.BooleanType(), bool)}
        for field in self.schema.fields:
            if field.name.lower() not in own:
                _check_column(field)
                _check_readable(field.name, field.dataType)
                continue
            kind = own[field.name.lower()][0]
            if field.dataType != kind:
                raise InvalidArgumentError(
                    f"Column {field.name!r} of the schema is {field.dataType.simpleString()}, and every message has "
                    f"one of that name, which is {kind.simpleString()}: give it that type, or leave it out and take "
                    f"yours from the payload: get_json_object(payload, '$.{field.name}').",
                    operation="spark",
                )

    def batch(self, found: Sequence[Message] | Sequence[DeadLetter]) -> pa.RecordBatch:
        """Make rows of messages, or of dead letters."""
        arrow = to_arrow_schema(self.schema, timezone="UTC")
        letters = [each if isinstance(each, DeadLetter) else None for each in found]
        messages = [each.message if isinstance(each, DeadLetter) else each for each in found]
        corrupt = [message is None for message in messages]
        columns: dict[str, pa.Array] = {}
        for field in self.schema.fields:
            name, kind = field.name.lower(), arrow.field(field.name).type
            if name in _OF_A_MESSAGE:
                of_message = _OF_A_MESSAGE[name][1]
                values = [None if message is None else of_message(message) for message in messages]
            elif name in _OF_A_LETTER and self.dead:
                of_letter = _OF_A_LETTER[name][1]
                values = [None if letter is None else of_letter(letter) for letter in letters]
            elif name == CORRUPT:
                continue
            else:
                values = [None if message is None else message.payload.get(field.name) for message in messages]
                columns[field.name] = _column(values, field, kind, corrupt)
                continue
            if name == PAYLOAD:
                corrupt = [was or value is None for was, value in zip(corrupt, values, strict=True)]
            columns[field.name] = pa.array(values, kind)
        for field in self.schema.fields:
            if field.name.lower() == CORRUPT:
                columns[field.name] = pa.array(corrupt, arrow.field(field.name).type)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=arrow)


# --- payloads ---


def _column(values: list[Any], field: StructField, arrow: pa.DataType, corrupt: list[bool]) -> pa.Array:
    kind = field.dataType
    required = bool(field.metadata.get(REQUIRED))
    plain = _PLAIN.get(type(kind))
    if plain is not None and not required and set(map(type, values)) <= {*plain, type(None)}:
        try:
            return pa.array(values, arrow)
        except (ValueError, OverflowError):
            pass  # a number that is too large, half a character: one by one
    fitting = []
    for position, value in enumerate(values):
        try:
            fitting.append(_fitted(value, kind, nullable=not required))
        except _UnfitError:
            corrupt[position] = True
            fitting.append(None)
    return pa.array(fitting, arrow)


#: Of what types the values are that Arrow takes as they are.
_PLAIN: Final[Mapping[type[DataType], tuple[type, ...]]] = {
    types.StringType: (str,),
    types.LongType: (int,),
    types.IntegerType: (int,),
    types.ShortType: (int,),
    types.ByteType: (int,),
    types.DoubleType: (float,),
    types.BooleanType: (bool,),
}
_BITS: Final[Mapping[type[DataType], int]] = {
    types.LongType: 64,
    types.IntegerType: 32,
    types.ShortType: 16,
    types.ByteType: 8,
}


#: A number as JSON writes it.
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")


class _UnfitError(Exception):
    """A value does not fit its column."""


def _fitted(value: Any, kind: DataType, *, nullable: bool = True) -> Any:  # noqa: ANN401 - JSON, and what Arrow takes
    """Return a value as Arrow takes it for a column of this type."""
    if value is None:
        if nullable:
            return None
        raise _UnfitError
    try:
        return _READERS[type(kind)](value, kind)
    except (ValueError, TypeError, KeyError, DecimalException, OverflowError):
        raise _UnfitError from None


def _expect(value: object, *kinds: type) -> None:
    if type(value) not in kinds:
        raise _UnfitError


def _text(value: Any, _: DataType) -> str:  # noqa: ANN401 - JSON
    _expect(value, str)
    value.encode()  # half a character, which JSON can escape, is in no column
    return str(value)


def _whole(value: Any, kind: DataType) -> int:  # noqa: ANN401 - JSON
    _expect(value, int)
    limit = 1 << (_BITS[type(kind)] - 1)
    if not -limit <= value < limit:
        raise _UnfitError
    return int(value)


def _number(value: Any, _: DataType) -> float:  # noqa: ANN401 - JSON
    _expect(value, int, float)
    return float(value)


def _single(value: Any, _: DataType) -> float:  # noqa: ANN401 - JSON
    _expect(value, int, float)
    struct.pack("<f", float(value))  # too large for four bytes: Arrow would make it infinite
    return float(value)


def _truth(value: Any, _: DataType) -> bool:  # noqa: ANN401 - JSON
    _expect(value, bool)
    return bool(value)


#: From here on a float has not even each whole number.
_COARSE: Final = 2.0**53


def _decimal(value: Any, kind: Any) -> Decimal:  # noqa: ANN401 - JSON, and a DecimalType
    _expect(value, int, float, str)
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise _UnfitError  # Python also reads 1_000, and the digits of other scripts
    if isinstance(value, float) and not abs(value) < _COARSE:
        raise _UnfitError  # what it had of cents is lost by now: such a number is to be sent as text
    with localcontext() as context:
        context.prec = 2 * types.DecimalType(38, 0).precision
        number = Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), rounding=ROUND_HALF_UP)
        if abs(number) >= Decimal(10) ** (kind.precision - kind.scale):
            raise _UnfitError
        return number


def _instant(value: Any, _: DataType) -> datetime:  # noqa: ANN401 - JSON
    _expect(value, str)
    read = datetime.fromisoformat(value)
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


def _wall_clock(value: Any, _: DataType) -> datetime:  # noqa: ANN401 - JSON
    _expect(value, str)
    read = datetime.fromisoformat(value)
    if read.tzinfo is not None:
        raise _UnfitError
    return read


def _day(value: Any, _: DataType) -> date:  # noqa: ANN401 - JSON
    _expect(value, str)
    return date.fromisoformat(value)


def _bytes(value: Any, _: DataType) -> bytes:  # noqa: ANN401 - JSON
    _expect(value, str)
    return base64.b64decode(value, validate=True)


def _list(value: Any, kind: Any) -> list[Any]:  # noqa: ANN401 - JSON, and an ArrayType
    _expect(value, list)
    return [_fitted(each, kind.elementType, nullable=kind.containsNull) for each in value]


def _map(value: Any, kind: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - JSON, and a MapType
    _expect(value, dict)
    return [
        (_text(name, kind.keyType), _fitted(each, kind.valueType, nullable=kind.valueContainsNull))
        for name, each in value.items()
    ]


def _struct(value: Any, kind: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON, and a StructType
    _expect(value, dict)
    return {
        field.name: _fitted(value.get(field.name), field.dataType, nullable=field.nullable) for field in kind.fields
    }


_READERS: Final[Mapping[type[DataType], Callable[[Any, DataType], Any]]] = {
    types.StringType: _text,
    types.LongType: _whole,
    types.IntegerType: _whole,
    types.ShortType: _whole,
    types.ByteType: _whole,
    types.DoubleType: _number,
    types.FloatType: _single,
    types.BooleanType: _truth,
    types.DecimalType: _decimal,
    types.TimestampType: _instant,
    types.TimestampNTZType: _wall_clock,
    types.DateType: _day,
    types.BinaryType: _bytes,
    types.ArrayType: _list,
    types.MapType: _map,
    types.StructType: _struct,
}


def _check_column(field: StructField) -> None:
    if not field.nullable:
        raise InvalidArgumentError(
            f"Column {field.name!r} of the schema cannot be null, and is where a payload does not fit it: make it "
            'nullable, or name it in the option payloadSchema, as "not null", which marks such rows in the column '
            f"{CORRUPT}.",
            operation="spark",
        )


def _check_readable(name: str, kind: DataType) -> None:
    """Refuse a schema with what JSON has nothing for, before anything is read."""
    if isinstance(kind, types.MapType) and not isinstance(kind.keyType, types.StringType):
        raise InvalidArgumentError(
            f"Column {name!r} of the payload's schema is a map whose keys are no strings, which JSON does not have.",
            operation="spark",
        )
    if type(kind) not in _READERS:
        raise InvalidArgumentError(
            f"Column {name!r} of the payload's schema is of type {kind.simpleString()}, which is not read from JSON: "
            "read it as a string, and convert it yourself.",
            operation="spark",
        )
    below: dict[str, DataType] = {}
    if isinstance(kind, types.ArrayType):
        below = {f"{name}[]": kind.elementType}
    elif isinstance(kind, types.MapType):
        below = {f"{name}{{}}": kind.valueType}
    elif isinstance(kind, types.StructType):
        check_names(kind)
        below = {f"{name}.{field.name}": field.dataType for field in kind.fields}
    for path, inner in below.items():
        _check_readable(path, inner)
