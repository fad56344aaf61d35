"""How the columns of rows become messages, without Spark: a schema is enough."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DateType, LongType, MapType, StringType, StructField, StructType, TimestampType

from pawnqueue import InvalidArgumentError, InvalidPayloadError
from pawnqueue.settings import LimitsSettings
from pyspark_pawnqueue.rows_to_messages import MessageBuilder


def _schema(*names: str) -> StructType:
    kinds = {"headers": MapType(StringType(), StringType()), "n": LongType()}
    return StructType([StructField(name, kinds.get(name.lower(), StringType())) for name in names])


@pytest.mark.parametrize("names", [("payload",), ("payload", "headers"), ("n",), ("n", "Headers")])
def test_columns_are_fields_or_the_payload(names: tuple[str, ...]) -> None:
    """A column payload is the payload. Without one each column is a field, headers too."""
    MessageBuilder(_schema(*names)).check()


@pytest.mark.parametrize("names", [("Payload",), ("PAYLOAD", "n"), ("payload", "Headers")])
def test_another_spelling_is_told(names: tuple[str, ...]) -> None:
    """Spark ignores case, so a column Payload or Headers is refused rather than taken for a field."""
    with pytest.raises(InvalidArgumentError, match=r"rename it to '(payload|headers)'"):
        MessageBuilder(_schema(*names)).check()


def test_what_is_beside_a_payload_is_named() -> None:
    """Columns that would be lost are refused, and named."""
    with pytest.raises(InvalidArgumentError, match=r"and not .n.: select"):
        MessageBuilder(_schema("payload", "n")).check()


#: Days and microseconds of the year 10000, and one of before the year 1, which Spark has as well.
LATE_DAY, EARLY_DAY, LATE_TIME = 2932897, -719163, 253402300800000000


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (DateType(), pa.array([0, LATE_DAY, 1], pa.int32()).cast(pa.date32())),
        (DateType(), pa.array([0, EARLY_DAY, 1], pa.int32()).cast(pa.date32())),
        (TimestampType(), pa.array([0, LATE_TIME, 1], pa.timestamp("us", "UTC"))),
        (ArrayType(TimestampType()), pa.array([[0], [1, LATE_TIME], None], pa.list_(pa.timestamp("us", "UTC")))),
    ],
)
def test_a_time_that_no_calendar_has_is_told(kind: StructType, values: pa.Array) -> None:
    """The error names row and column. Spark has dates up to the year 294247, and most readers of JSON do not."""
    payloads = MessageBuilder(StructType().add("n", LongType()).add("due", kind))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), values], names=["n", "due"])
    with pytest.raises(InvalidPayloadError, match=r"payloads\[8\] for topic 'orders' has in column 'due' .* 1 to 9999"):
        list(payloads.build(batch, "orders", 7, LimitsSettings()))
