"""Rows as messages: the reverse of ``messages_to_rows.py``.

A column ``payload`` is the payload, and a column ``headers`` beside it has the headers. Without a column ``payload``,
each row is a payload, and its columns are the fields. A null is written as null, so that a consumer sees the field.

    timestamp           ISO 8601, in UTC, with its offset         array                a list
    timestamp_ntz       ISO 8601 without an offset                map<string, …>       an object
    date                ISO 8601                                  struct               an object
    decimal             text, so that no digit is lost            binary               base64
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import types

from pawnqueue import InvalidPayloadError, NewMessage
from pawnqueue.publish.new_messages import checked_json
from pyspark_pawnqueue.payload_schema import JSON_TYPES, check_json_type, check_names
from pyspark_pawnqueue.rows_to_json import (
    Converter,
    MapEncoder,
    NotPlainError,
    RowEncoder,
    convert,
    converter_of,
    plain_texts,
)
from pyspark_pawnqueue.spark_errors import invalid_argument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from pawnqueue.publish.new_messages import Checked
    from pawnqueue.settings import LimitsSettings

_PAYLOAD_COLUMN, _HEADERS_COLUMN = "payload", "headers"


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

    def build(
        self, batch: pa.RecordBatch, topic: str, first: int, limits: LimitsSettings
    ) -> Iterator[NewMessage | Checked]:
        """Make messages of rows.

        :param first: how many rows came before these. An error names a row by its number.
        :raises InvalidPayloadError: the payload of a row is not a JSON object.
        """
        payloads = self._payloads_as_json(batch, limits.max_payload_depth)
        if payloads is None:
            yield from self.build_each(batch, topic, first)
            return
        for position, (payload, own) in enumerate(zip(payloads, self._headers(batch, topic, first), strict=True)):
            if payload is not None:
                yield checked_json(payload, own, limits, topic, first + position)
            else:
                yield from self.build_each(batch.slice(position, 1), topic, first + position)

    def build_each(self, batch: pa.RecordBatch, topic: str, first: int) -> Iterator[NewMessage]:
        """Make messages of rows, one value at a time, so that an error can name the value."""
        names = self.schema.names
        if self._payload is None:
            columns = [self._column(batch, position, topic, first) for position in range(batch.num_columns)]
            for row in zip(*columns, strict=True):
                yield NewMessage(dict(zip(names, row, strict=True)))
            return
        payloads = self._column(batch, self._payload, topic, first)
        for number, (payload, own) in enumerate(zip(payloads, self._headers(batch, topic, first), strict=True), first):
            if payload is None:
                raise _invalid_payload(topic, number, "is null: a payload is a JSON object")
            yield NewMessage(_parse(payload, topic, number) if self._is_text else payload, own or {})

    def _payloads_as_json(self, batch: pa.RecordBatch, max_depth: int) -> Sequence[bytes | None] | None:
        """Return the payloads of rows, and None for texts, or for a whole batch, that only a closer look can judge."""
        columns = batch.columns
        if self._payload is not None:
            payload = columns[self._payload]
            if payload.null_count:
                return None
            if self._is_text:
                return plain_texts(payload, max_depth)
            columns = payload.flatten() if isinstance(self._encoder, RowEncoder) else [payload]
        if self._encoder.depth > max_depth:
            return None
        try:
            return self._encoder.encode(columns)
        except NotPlainError:
            return None

    def _headers(self, batch: pa.RecordBatch, topic: str, first: int) -> Sequence[dict[str, str] | None]:
        if self._payload is None or _HEADERS_COLUMN not in self.schema.names:
            return [None] * batch.num_rows
        return self._column(batch, self.schema.names.index(_HEADERS_COLUMN), topic, first)

    def _column(self, batch: pa.RecordBatch, position: int, topic: str, first: int) -> list[Any]:
        column, converter = batch.column(position), self._converters[position]
        try:
            return [convert(converter, value) for value in column.to_pylist()]
        except (OverflowError, ValueError):
            for number, value in enumerate(column, first):
                try:
                    convert(converter, value.as_py())
                except (OverflowError, ValueError) as problem:
                    raise _invalid_payload(topic, number, _why_wrong(self.schema.names[position], problem)) from None
            raise

    @cached_property
    def _payload(self) -> int | None:
        """The position of the column payload."""
        return self.schema.names.index(_PAYLOAD_COLUMN) if _PAYLOAD_COLUMN in self.schema.names else None

    @cached_property
    def _is_text(self) -> bool:
        return self._payload is not None and isinstance(self.schema[_PAYLOAD_COLUMN].dataType, types.StringType)

    @cached_property
    def _encoder(self) -> RowEncoder | MapEncoder:
        kind = self.schema if self._payload is None else self.schema[_PAYLOAD_COLUMN].dataType
        return RowEncoder(kind.fields) if isinstance(kind, types.StructType) else MapEncoder(kind)

    @cached_property
    def _converters(self) -> list[Converter | None]:
        return [converter_of(field.dataType) for field in self.schema.fields]


def _why_wrong(column: str, problem: ValueError | OverflowError) -> str:
    if isinstance(problem, UnicodeDecodeError):
        return f"has in column {column!r} a text that is not valid UTF-8: cast it to binary, or leave the row out"
    return (
        f"has in column {column!r} a date or a time outside of the years 1 to 9999, which cannot be written: cast it "
        "to a string, or leave the row out"
    )


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
