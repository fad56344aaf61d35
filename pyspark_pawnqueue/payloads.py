"""Rows as messages: what ``columns.py`` reads, the other way round.

With a column ``payload`` that is the payload, and ``headers`` may stand beside it; without one each row is a payload,
and its columns are the fields. A null is written as null, so that a consumer sees the field: what it reads is the same.

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

from pawnqueue import InvalidArgumentError, InvalidPayloadError, NewMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

#: The columns by which a row says itself what its message is.
PAYLOAD, HEADERS = "payload", "headers"

_Written = Callable[[Any], Any]

#: What Arrow gives is what JSON takes.
_AS_IT_IS: Final = (
    types.StringType,
    types.LongType,
    types.IntegerType,
    types.ShortType,
    types.ByteType,
    types.DoubleType,
    types.FloatType,
    types.BooleanType,
    types.NullType,
)
_WRITTEN: Final[Mapping[type[DataType], _Written]] = {
    types.TimestampType: lambda value: value.astimezone(UTC).isoformat(),
    types.TimestampNTZType: lambda value: value.isoformat(),
    types.DateType: lambda value: value.isoformat(),
    types.DecimalType: lambda value: format(value, "f"),
    types.BinaryType: lambda value: base64.b64encode(value).decode("ascii"),
}


@dataclass(frozen=True)
class Payloads:
    """How rows of a schema become messages."""

    schema: StructType

    def check(self) -> None:
        """Refuse what no message can be made of, before anything is read.

        :raises InvalidArgumentError: and which column it is.
        """
        names = self.schema.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None or not names:
            told = f"has two columns {twice!r}, and a payload one field of a name" if twice else "has no column"
            raise _wrong(f"What is to be written {told}: name what each message is to have, by select().")
        for name in (PAYLOAD, HEADERS):
            spelt = next((each for each in names if each.lower() == name), name)
            if spelt != name and (name == PAYLOAD or PAYLOAD in names):
                raise _wrong(
                    f"The column {spelt!r} is the {name} to Spark, and would be a field of each message here: rename "
                    f"it to {name!r}, or to something else."
                )
        if PAYLOAD not in names:
            for field in self.schema.fields:
                _check_writable(field.name, field.dataType)
            return
        others = [name for name in names if name not in (PAYLOAD, HEADERS)]
        if others:
            raise _wrong(
                f"Beside the column payload there can be headers, and not {', '.join(map(repr, others))}: leave out "
                'what the payload has (.select("payload", "headers")), or leave out payload, and each row is one.'
            )
        payload = self.schema[PAYLOAD].dataType
        if not isinstance(payload, types.StringType | types.StructType | types.MapType):
            raise _wrong(
                f"The column payload is of type {payload.simpleString()}: it is the text of a JSON object, a struct or "
                "a map."
            )
        _check_writable(PAYLOAD, payload)
        if HEADERS in names and self.schema[HEADERS].dataType.simpleString() not in ("map<string,string>", "void"):
            raise _wrong(
                f"The column headers is of type {self.schema[HEADERS].dataType.simpleString()}: headers are a "
                "map<string,string>."
            )

    def messages(self, batch: pa.RecordBatch, topic: str, first: int) -> Iterator[NewMessage]:
        """Make messages of rows.

        :param first: how many rows were before them: a row that is none is told by its number.
        :raises InvalidPayloadError: its payload is no JSON.
        """
        columns = [self._column(batch, position, topic, first) for position in range(batch.num_columns)]
        if PAYLOAD not in self.schema.names:
            names = self.schema.names
            for row in zip(*columns, strict=True):
                yield NewMessage(dict(zip(names, row, strict=True)))
            return
        payloads = columns[self.schema.names.index(PAYLOAD)]
        headers = columns[self.schema.names.index(HEADERS)] if HEADERS in self.schema.names else [None] * len(payloads)
        is_text = isinstance(self.schema[PAYLOAD].dataType, types.StringType)
        for number, (payload, own) in enumerate(zip(payloads, headers, strict=True), first):
            if payload is None:
                raise _no_payload(topic, number, "is null: a payload is a JSON object")
            yield NewMessage(_parsed(payload, topic, number) if is_text else payload, own or {})

    def _column(self, batch: pa.RecordBatch, position: int, topic: str, first: int) -> list[Any]:
        column, written = batch.column(position), self._written[position]
        try:
            return [_one(written, value) for value in column.to_pylist()]
        except (OverflowError, ValueError):
            for number, value in enumerate(column, first):
                try:
                    _one(written, value.as_py())
                except (OverflowError, ValueError):
                    raise _no_payload(
                        topic,
                        number,
                        f"has in column {self.schema.names[position]!r} a date or a time outside of the years 1 to "
                        "9999, which is not written: cast it to a string, or leave the row out",
                    ) from None
            raise

    @cached_property
    def _written(self) -> list[_Written | None]:
        return [_writer_of(field.dataType) for field in self.schema.fields]


def _writer_of(kind: Any) -> _Written | None:  # noqa: ANN401 - a DataType, whose parts are not typed
    """Return what makes JSON of a value that is there; None: it is JSON as it is."""
    if isinstance(kind, types.ArrayType):
        element = _writer_of(kind.elementType)
        return None if element is None else lambda values: [_one(element, value) for value in values]
    if isinstance(kind, types.MapType):
        inner = _writer_of(kind.valueType)
        return lambda pairs: {name: _one(inner, value) for name, value in pairs}
    if isinstance(kind, types.StructType):
        fields = [(field.name, _writer_of(field.dataType)) for field in kind.fields]
        return lambda value: {name: _one(inner, value[name]) for name, inner in fields}
    return _WRITTEN.get(type(kind))


def _one(written: _Written | None, value: Any) -> Any:  # noqa: ANN401 - what Arrow gives, and JSON
    return value if written is None or value is None else written(value)


def _parsed(text: str, topic: str, number: int) -> Any:  # noqa: ANN401 - whatever it is, it is checked as a payload
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        why = f" at character {problem.pos}" if isinstance(problem, json.JSONDecodeError) else ""
        raise _no_payload(topic, number, f"is no JSON{why}: a payload is a JSON object") from None


def _check_writable(name: str, kind: Any) -> None:  # noqa: ANN401 - a DataType, whose parts are not typed
    if isinstance(kind, types.MapType) and not isinstance(kind.keyType, types.StringType):
        raise _wrong(f"Column {name!r} is a map whose keys are no strings, which JSON does not have: cast them.")
    below: dict[str, DataType] = {}
    if isinstance(kind, types.ArrayType):
        below = {f"{name}[]": kind.elementType}
    elif isinstance(kind, types.MapType):
        below = {f"{name}{{}}": kind.valueType}
    elif isinstance(kind, types.StructType):
        below = {f"{name}.{field.name}": field.dataType for field in kind.fields}
    elif not isinstance(kind, _AS_IT_IS) and type(kind) not in _WRITTEN:
        raise _wrong(
            f"Column {name!r} is of type {kind.simpleString()}, for which JSON has nothing: cast it, to a string say."
        )
    for path, inner in below.items():
        _check_writable(path, inner)


def _no_payload(topic: str, number: int, what: str) -> InvalidPayloadError:
    return InvalidPayloadError(
        f"payloads[{number}] for topic {topic!r} {what}. Nothing was published.",
        topic=topic,
        operation="stage",
    )


def _wrong(sentence: str) -> InvalidArgumentError:
    return InvalidArgumentError(sentence, operation="spark")
