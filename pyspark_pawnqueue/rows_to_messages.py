"""Rows as messages: the reverse of ``messages_to_rows.py``.

A column ``payload`` is the payload, and a column ``headers`` beside it has the headers. Without a column ``payload``,
each row is a payload, and its columns are the fields. A null is written as null, so that a consumer sees the field.

    timestamp           ISO 8601, in UTC, with its offset         array                a list
    timestamp_ntz       ISO 8601 without an offset                map<string, …>       an object
    date                ISO 8601                                  struct               an object
    decimal             text, so that no digit is lost            binary               base64
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types

from pawnqueue import InvalidPayloadError, NewMessage
from pyspark_pawnqueue.payload_schema import JSON_TYPES, check_json_type, check_names
from pyspark_pawnqueue.spark_errors import invalid_argument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_PAYLOAD_COLUMN, _HEADERS_COLUMN = "payload", "headers"

_Converter = Callable[[Any], Any]

#: Turns values into JSON, for types whose values Arrow does not return as JSON takes them.
_CONVERTERS: Final[Mapping[type[DataType], _Converter]] = {
    types.TimestampType: lambda value: value.astimezone(UTC).isoformat(),
    types.TimestampNTZType: lambda value: value.isoformat(),
    types.DateType: lambda value: value.isoformat(),
    types.DecimalType: lambda value: format(value, "f"),
    types.BinaryType: lambda value: base64.b64encode(value).decode("ascii"),
}


@dataclass(frozen=True)
class MessageBuilder:
    """Makes messages of rows of a schema."""

    schema: StructType

    def check(self) -> None:
        """Refuse a schema whose rows cannot become messages, before Spark reads a row.

        :raises InvalidArgumentError: the error names the column.
        """
        names = self.schema.names
        if not names:
            raise invalid_argument("The rows to write have no column: select the fields of the messages by select().")
        check_names(self.schema)
        for name in (_PAYLOAD_COLUMN, _HEADERS_COLUMN):
            spelt = next((each for each in names if each.lower() == name), name)
            if spelt != name and (name == _PAYLOAD_COLUMN or _PAYLOAD_COLUMN in names):
                raise invalid_argument(
                    f"Spark takes the column {spelt!r} for {name!r}, but here it would be a field of each message: "
                    f"rename it to {name!r}, or to something else."
                )
        if _PAYLOAD_COLUMN not in names:
            for field in self.schema.fields:
                check_json_type(field.name, field.dataType, _is_writable)
            return
        others = [name for name in names if name not in (_PAYLOAD_COLUMN, _HEADERS_COLUMN)]
        if others:
            raise invalid_argument(
                f"Beside the column payload only headers is allowed, and not {', '.join(map(repr, others))}: select "
                '"payload" and "headers" alone, or leave out payload, so that each row is a payload.'
            )
        payload = self.schema[_PAYLOAD_COLUMN].dataType
        if not isinstance(payload, types.StringType | types.StructType | types.MapType):
            raise invalid_argument(
                f"The column payload is of type {payload.simpleString()}: make it the text of a JSON object, a struct "
                "or a map."
            )
        check_json_type(_PAYLOAD_COLUMN, payload, _is_writable)
        headers = self.schema[_HEADERS_COLUMN].dataType.simpleString() if _HEADERS_COLUMN in names else "void"
        if headers not in ("map<string,string>", "void"):
            raise invalid_argument(f"The column headers is of type {headers}: make it a map<string,string>.")

    def build(self, batch: pa.RecordBatch, topic: str, first: int) -> Iterator[NewMessage]:
        """Make messages of rows.

        :param first: how many rows came before these. An error names a row by its number.
        :raises InvalidPayloadError: the payload of a row is not a JSON object.
        """
        names = self.schema.names
        columns = [self._column(batch, position, topic, first) for position in range(batch.num_columns)]
        if _PAYLOAD_COLUMN not in names:
            for row in zip(*columns, strict=True):
                yield NewMessage(dict(zip(names, row, strict=True)))
            return
        payloads = columns[names.index(_PAYLOAD_COLUMN)]
        headers = columns[names.index(_HEADERS_COLUMN)] if _HEADERS_COLUMN in names else [None] * len(payloads)
        is_text = isinstance(self.schema[_PAYLOAD_COLUMN].dataType, types.StringType)
        for number, (payload, own) in enumerate(zip(payloads, headers, strict=True), first):
            if payload is None:
                raise _invalid_payload(topic, number, "is null: a payload is a JSON object")
            yield NewMessage(_parse(payload, topic, number) if is_text else payload, own or {})

    def _column(self, batch: pa.RecordBatch, position: int, topic: str, first: int) -> list[Any]:
        column, converter = batch.column(position), self._converters[position]
        try:
            return [_convert(converter, value) for value in column.to_pylist()]
        except (OverflowError, ValueError):
            for number, value in enumerate(column, first):
                try:
                    _convert(converter, value.as_py())
                except (OverflowError, ValueError):
                    raise _invalid_payload(
                        topic,
                        number,
                        f"has in column {self.schema.names[position]!r} a date or a time outside of the years 1 to "
                        "9999, which cannot be written: cast it to a string, or leave the row out",
                    ) from None
            raise

    @cached_property
    def _converters(self) -> list[_Converter | None]:
        return [_converter_of(field.dataType) for field in self.schema.fields]


def _converter_of(kind: Any) -> _Converter | None:  # noqa: ANN401 - a DataType, whose parts are not typed
    """Return what turns a value that is not null into JSON, or None if it is JSON already."""
    if isinstance(kind, types.ArrayType):
        element = _converter_of(kind.elementType)
        return None if element is None else lambda values: [_convert(element, value) for value in values]
    if isinstance(kind, types.MapType):
        inner = _converter_of(kind.valueType)
        return lambda pairs: {name: _convert(inner, value) for name, value in pairs}
    if isinstance(kind, types.StructType):
        fields = [(field.name, _converter_of(field.dataType)) for field in kind.fields]
        return lambda value: {name: _convert(inner, value[name]) for name, inner in fields}
    return _CONVERTERS.get(type(kind))


def _convert(converter: _Converter | None, value: Any) -> Any:  # noqa: ANN401 - what Arrow gives, and JSON
    return value if converter is None or value is None else converter(value)


def _parse(text: str, topic: str, number: int) -> Any:  # noqa: ANN401 - any JSON, which is checked as a payload later
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        where = f" at character {problem.pos}" if isinstance(problem, json.JSONDecodeError) else ""
        raise _invalid_payload(topic, number, f"is not JSON{where}: a payload is a JSON object") from None


def _is_writable(kind: DataType) -> bool:
    return type(kind) in (*JSON_TYPES, types.NullType)


def _invalid_payload(topic: str, number: int, what: str) -> InvalidPayloadError:
    return InvalidPayloadError(
        f"payloads[{number}] for topic {topic!r} {what}. Nothing was published.", topic=topic, operation="stage"
    )
