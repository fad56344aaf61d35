"""The option ``inferSchema``: the columns of payloads, from a sample of a claim's or a topic's messages."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

from pawnqueue import DeadLetter, Portion, Selection, SyncPawnQueue
from pyspark_pawnqueue.extra_columns import with_extra_columns
from pyspark_pawnqueue.messages_to_rows import reserved_names, with_payload_columns
from pyspark_pawnqueue.payload_schema import JSON_TEXT
from pyspark_pawnqueue.spark_errors import invalid_argument, shorten
from pyspark_pawnqueue.spark_options import SparkOptions
from pyspark_pawnqueue.topic_selection import selection_of

logger = logging.getLogger("pawnqueue.spark")

DEFAULT_SAMPLING_MESSAGES: Final = 1000
#: Each array or struct is a level. What is below becomes JSON text.
MAX_INFERRED_DEPTH: Final = 10
#: How many columns and fields of structs a schema has at most.
MAX_INFERRED_FIELDS: Final = 1000
#: How many names of fields are remembered while messages are looked at, as each message may have other names.
MAX_SEEN_FIELDS: Final = 20_000
MAX_NAME_CHARACTERS: Final = 255
#: How many names the log shows of each kind.
_SHOWN_NAMES: Final = 20

#: Where only reading tells which messages a query selects, this many times the sample is read at most, and no less of
#: it than of a sample of the default size.
MAX_READ_SHARE: Final = 20

_LONGS: Final = range(-(2**63), 2**63)
#: A double has all whole numbers from here to here.
_WHOLE_DOUBLES: Final = range(-(2**53), 2**53 + 1)


# --- what was seen ---


@dataclass(slots=True)
class _Seen:
    """What was seen in one place of the payloads."""

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, _Seen] = field(default_factory=dict)
    """Of JSON objects."""
    elements: _Seen | None = None
    """Of JSON arrays."""


class _Sample:
    """What was seen in all places of the payloads."""

    def __init__(self) -> None:
        self.messages = 0
        self.root = _Seen()
        self.has_more_fields = False
        """Whether there were more names than are remembered."""
        self._count = 0

    def add(self, payload: Mapping[str, Any]) -> None:
        """Look at a payload."""
        self.messages += 1
        self._add_fields(self.root, payload, 0)

    def _add(self, seen: _Seen, value: Any, depth: int) -> None:  # noqa: ANN401 - JSON
        if isinstance(value, dict | list) and depth > MAX_INFERRED_DEPTH:
            seen.kinds.add("value that is nested too deeply")
        elif isinstance(value, dict):
            seen.kinds.add("object")
            self._add_fields(seen, value, depth)
        elif isinstance(value, list):
            seen.kinds.add("array")
            seen.elements = seen.elements or _Seen()
            for each in value:
                self._add(seen.elements, each, depth + 1)
        elif value is not None:
            seen.kinds.add(_kind_of(value))

    def _add_fields(self, seen: _Seen, value: Mapping[str, Any], depth: int) -> None:
        for name, inner in value.items():
            if name not in seen.fields:
                if self._count >= MAX_SEEN_FIELDS:
                    self.has_more_fields = True
                    continue
                self._count += 1
                seen.fields[name] = _Seen()
            self._add(seen.fields[name], inner, depth + 1)


def _kind_of(value: object) -> str:
    """Return the kind of a JSON value that is neither null nor nested, as the log names it."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if value in _WHOLE_DOUBLES:
            return "whole number"
        return "whole number of over 53 bits" if value in _LONGS else "number of over 64 bits"
    return "number" if isinstance(value, float) else "string"


_SIMPLE_TYPES: Final[Mapping[frozenset[str], DataType]] = {
    frozenset(["boolean"]): types.BooleanType(),
    frozenset(["whole number"]): types.LongType(),
    frozenset(["whole number of over 53 bits"]): types.LongType(),
    frozenset(["whole number", "whole number of over 53 bits"]): types.LongType(),
    frozenset(["number"]): types.DoubleType(),
    frozenset(["whole number", "number"]): types.DoubleType(),
    frozenset(["string"]): types.StringType(),
}


# --- columns ---


@dataclass(frozen=True, slots=True)
class InferredColumns:
    """The columns of payloads, and what there is to say of them."""

    columns: StructType
    messages: int
    """How many messages were looked at."""
    conflicts: Sequence[str]
    """Columns and fields that became text, with the reason."""
    left_out: Sequence[str]
    """Names that are not columns, in quotes."""

    def sentence(self, what: str) -> str:
        """Return what was seen, without a value of a payload."""
        names = _listed([shorten(each.name) for each in self.columns.fields])
        said = f"inferSchema looked at {self.messages:,} messages of {what} and found {names}."
        if self.conflicts:
            said += f" Values of several types, or nested too deeply, become JSON text: {_listed(self.conflicts)}."
        if self.left_out:
            said += (
                f" Names that cannot be columns, or are too many: {_listed(self.left_out)}. Take them from the "
                "payload: get_json_object(payload, '$.name')."
            )
        return said


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    return f"{shown} and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else shown or "no fields"


def infer_columns(payloads: Iterable[Mapping[str, Any]], reserved: Collection[str]) -> InferredColumns:
    """Return the columns of payloads, sorted by name. The same payloads always have the same columns.

    Whole numbers and others together are doubles, if a double can have them all. Values of different types, or nested
    too deeply, become JSON text.

    :param reserved: names in lower case that are not columns of payloads.
    """
    sample = _Sample()
    for payload in payloads:
        sample.add(payload)
    depth = MAX_INFERRED_DEPTH
    found = _Columns(depth)
    columns = found.of(sample.root, "", 1, reserved)
    while _count_fields(columns) > MAX_INFERRED_FIELDS and depth > 1:
        depth -= 1
        found = _Columns(depth)
        columns = found.of(sample.root, "", 1, reserved)
    kept = StructType(columns.fields[:MAX_INFERRED_FIELDS])
    left_out = [*found.left_out, *(shorten(each.name) for each in columns.fields[MAX_INFERRED_FIELDS:])]
    if sample.has_more_fields:
        left_out.append(f"names beyond the first {MAX_SEEN_FIELDS:,}")
    return InferredColumns(kept, sample.messages, found.conflicts, left_out)


class _Columns:
    """Makes columns of what was seen.

    :param depth: on which level structs become text.
    """

    def __init__(self, depth: int) -> None:
        self.conflicts: list[str] = []
        self.left_out: list[str] = []
        self._depth = depth

    def of(self, seen: _Seen, path: str, depth: int, reserved: Collection[str] = ()) -> StructType:
        """Return the fields of objects."""
        fields = []
        for name, inner in sorted(seen.fields.items()):
            if not 0 < len(name) <= MAX_NAME_CHARACTERS or name.lower() in reserved:
                self.left_out.append(shorten(f"{path}{name}"))
                continue
            kind, is_text = self._type(inner, f"{path}{name}", depth)
            fields.append(StructField(name, kind, nullable=True, metadata={JSON_TEXT: True} if is_text else {}))
        return StructType(fields)

    def _type(self, seen: _Seen, path: str, depth: int) -> tuple[DataType, bool]:
        """Return the type of what was seen in a place, and whether its strings are JSON text."""
        simple = _SIMPLE_TYPES.get(frozenset(seen.kinds))
        if simple is not None:
            return simple, False
        if seen.kinds == {"array"} and seen.elements is not None and depth <= self._depth:
            kind, is_text = self._type(seen.elements, f"{path}[]", depth + 1)
            return types.ArrayType(kind), is_text
        if seen.kinds == {"object"} and depth < self._depth:
            fields = self.of(seen, f"{path}.", depth + 1)
            if fields.fields:
                return fields, False
        elif seen.kinds:
            self.conflicts.append(f"{shorten(path)} ({', '.join(sorted(seen.kinds))})")
        return types.StringType(), True


def _count_fields(kind: DataType) -> int:
    if isinstance(kind, types.ArrayType):
        return _count_fields(kind.elementType)
    if isinstance(kind, StructType):
        return sum(1 + _count_fields(each.dataType) for each in kind.fields)
    return 0


# --- the sample ---


def infer_schema(options: SparkOptions) -> StructType:
    """Return the schema of a query with ``inferSchema``: it reads the first messages of its claims or its topic.

    :raises InvalidArgumentError: there is no message to look at.
    """
    most = options.count("samplingMessages") or DEFAULT_SAMPLING_MESSAGES
    reserved = reserved_names(dead=options.is_dead_mode)
    with SyncPawnQueue.open(options.settings()) as queue:
        found = infer_columns(_payloads(queue, options, most), reserved)
    what = f"the claim {options.claims()[0].stem}" if options.has_claim and options.claims() else ""
    what = what or ("the claims" if options.has_claim else f"topic {options.topic!r}")
    if not found.messages:
        only = _selection(options)
        selected = f" that the options select, among the first {_most_read(most):,}" if only.is_by_content else ""
        raise invalid_argument(
            f"inferSchema finds no message in {what}{selected}: read when it has some, or name the columns by the "
            "option payloadSchema, which needs no messages."
        )
    # A warning is shown where nobody has configured logging, as in the processes in which Spark plans.
    logger.warning("%s", found.sentence(what))
    schema = with_payload_columns(found.columns, dead=options.is_dead_mode)
    return with_extra_columns(schema, options, reserved)


def _payloads(queue: SyncPawnQueue, options: SparkOptions, most: int) -> Iterator[Mapping[str, Any]]:
    """Give the payloads of the first messages, in order, and at most this many."""
    unread, size = _most_read(most), most
    for portion in _portions(queue, options, most):
        left = portion
        while left.units and unread > 0:
            part, left = left.split_off(min(size, unread))
            unread -= len(part)
            size *= 2
            for payload in _payloads_of(queue, part):
                yield payload
                most -= 1
                if most <= 0:
                    return


def _payloads_of(queue: SyncPawnQueue, part: Portion) -> Iterator[Mapping[str, Any]]:
    """Give the payloads of some messages or dead letters. Those of packs are in memory a few megabytes at a time."""
    if part.is_dead:
        letters = (each for each in queue.read(part) if isinstance(each, DeadLetter))
        yield from (letter.message.payload for letter in letters if letter.message is not None)
        return
    for columns in queue.fetch(part).columns():
        yield from columns.payloads


def _portions(queue: SyncPawnQueue, options: SparkOptions, most: int) -> Iterator[Portion]:
    if options.has_claim:
        for claim in options.claims():
            yield from queue.portions(claim, parts=1)
        return
    only = _selection(options)
    listed = None if only.is_by_content else most
    yield from queue.portions(options.topic, parts=1, dead=options.is_dead_mode, max_messages=listed, only=only)


def _selection(options: SparkOptions) -> Selection:
    """Return what the query selects. Without a mode it is a stream, or an error that its reader raises."""
    return selection_of(options, ["payload"]) if options.text("mode") and not options.has_claim else Selection()


def _most_read(most: int) -> int:
    """Return how many messages are read at most for a sample of this size."""
    return MAX_READ_SHARE * max(most, DEFAULT_SAMPLING_MESSAGES)
