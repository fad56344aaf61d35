"""Messages as columns: those that every message has, and those that a schema takes out of its payload.

A value that does not fit its column is null there, and ``_corrupt`` is true in its row; nothing is converted that could
mean something else, as a ``true`` in a column of numbers. What is not in a payload is null, and no fault.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, DecimalException, localcontext
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from airflow_provider_pawnqueue.engine import DeadLetter, InvalidArgumentError, Message

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

#: In a row in which something of the payload did not fit.
CORRUPT: Final = "_corrupt"

_OF_A_MESSAGE: Final[Mapping[str, tuple[str, Callable[[Message], Any]]]] = {
    "id": ("string", lambda message: message.id),
    "topic": ("string", lambda message: message.topic),
    "producer_id": ("string", lambda message: message.producer_id),
    "created_at": ("timestamp", lambda message: message.created_at),
    "payload": ("string", lambda message: json.dumps(message.payload, ensure_ascii=False, separators=(",", ":"))),
    "headers": ("map<string,string>", lambda message: list(message.headers.items())),
    "deliveries": ("int", lambda message: message.deliveries),
}
_OF_A_LETTER: Final[Mapping[str, tuple[str, Callable[[DeadLetter], Any]]]] = {
    "letter_id": ("string", lambda letter: letter.id),
    "buried_at": ("timestamp", lambda letter: letter.buried_at),
    "reason": ("string", lambda letter: letter.reason),
    "error": ("string", lambda letter: letter.error),
    "fault": ("string", lambda letter: letter.fault),
}


def ddl_of(payload_schema: str, *, dead: bool) -> str:
    """Return the schema of what is read, as Spark writes schemas.

    :raises InvalidArgumentError: a column of the payload has the name of one that every message has.
    """
    own = {**_OF_A_MESSAGE, **_OF_A_LETTER} if dead else _OF_A_MESSAGE
    columns = [f"{name} {kind}" for name, (kind, _) in own.items()]
    if payload_schema:
        for name in _top_level_names(payload_schema):
            if name.lower() in {*own, CORRUPT}:
                raise InvalidArgumentError(
                    f"payloadSchema has a column {name!r}, and so has every message: leave it out, and take it from "
                    f"the payload yourself: get_json_object(payload, '$.{name}').",
                    operation="spark",
                )
        columns += [payload_schema.strip().rstrip(","), f"{CORRUPT} boolean"]
    return ", ".join(columns)


def _top_level_names(ddl: str) -> Iterator[str]:
    """Give the names of the columns of a schema, without reading their types."""
    depth, begins = 0, True
    for part in re.findall(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[<>(),]|[^\s<>(),`']+", ddl):
        if begins:
            yield part[1:-1].replace("``", "`") if part.startswith("`") else part.rstrip(":")
            begins = False
        elif part == ",":
            begins = depth == 0
        else:
            depth += (part in "<(") - (part in ">)")


@dataclass(frozen=True)
class Rows:
    """How messages become rows of a schema: of :func:`ddl_of`, or of one that the query gives."""

    schema: StructType

    def __post_init__(self) -> None:
        for field in self._of_payload:
            _check_readable(field.name, field.dataType)

    @property
    def _of_payload(self) -> list[StructField]:
        own = {*_OF_A_MESSAGE, *_OF_A_LETTER, CORRUPT}
        return [field for field in self.schema.fields if field.name not in own]

    def batch(self, found: Sequence[Message] | Sequence[DeadLetter]) -> pa.RecordBatch:
        """Make rows of messages, or of dead letters."""
        arrow = to_arrow_schema(self.schema, timezone="UTC")
        letters = [each if isinstance(each, DeadLetter) else None for each in found]
        messages = [each.message if isinstance(each, DeadLetter) else each for each in found]
        corrupt = [False] * len(found)
        columns: dict[str, pa.Array] = {}
        for field in self._of_payload:
            values = [None if message is None else message.payload.get(field.name) for message in messages]
            columns[field.name] = _column(values, field, arrow.field(field.name).type, corrupt)
        for name in self.schema.names:
            if name == CORRUPT:
                columns[name] = pa.array(corrupt, arrow.field(name).type)
            elif name not in columns:
                columns[name] = pa.array(_own(name, messages, letters), arrow.field(name).type)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=arrow)


def _own(name: str, messages: Sequence[Message | None], letters: Sequence[DeadLetter | None]) -> list[Any]:
    if name in _OF_A_LETTER:
        tell = _OF_A_LETTER[name][1]
        return [None if letter is None else tell(letter) for letter in letters]
    of_message = _OF_A_MESSAGE[name][1]
    return [None if message is None else of_message(message) for message in messages]


# --- payloads ---


def _column(values: list[Any], field: StructField, arrow: pa.DataType, corrupt: list[bool]) -> pa.Array:
    kind = field.dataType
    plain = _PLAIN.get(type(kind))
    if plain is not None and field.nullable and set(map(type, values)) <= {*plain, type(None)}:
        try:
            return pa.array(values, arrow)
        except (pa.ArrowInvalid, OverflowError):
            pass  # a number that is too large: one by one
    fitting = []
    for position, value in enumerate(values):
        try:
            fitting.append(_fitted(value, kind, nullable=field.nullable))
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


def _truth(value: Any, _: DataType) -> bool:  # noqa: ANN401 - JSON
    _expect(value, bool)
    return bool(value)


def _decimal(value: Any, kind: Any) -> Decimal:  # noqa: ANN401 - JSON, and a DecimalType
    _expect(value, int, float, str)
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
    return [(name, _fitted(each, kind.valueType, nullable=kind.valueContainsNull)) for name, each in value.items()]


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
    types.FloatType: _number,
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
        below = {f"{name}.{field.name}": field.dataType for field in kind.fields}
    for path, inner in below.items():
        _check_readable(path, inner)
