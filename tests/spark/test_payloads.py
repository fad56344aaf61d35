"""Which columns of what is to be written are taken for what, without Spark: a schema is enough."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from airflow_provider_pawnqueue.engine import InvalidArgumentError
from airflow_provider_pawnqueue.spark.payloads import Payloads


def _schema(*names: str) -> StructType:
    kinds = {"headers": MapType(StringType(), StringType()), "n": LongType()}
    return StructType([StructField(name, kinds.get(name.lower(), StringType())) for name in names])


@pytest.mark.parametrize("names", [("payload",), ("payload", "headers"), ("n",), ("n", "Headers")])
def test_columns_are_fields_or_the_payload(names: tuple[str, ...]) -> None:
    """With a column payload it is the message; without one each column is a field, headers also."""
    Payloads(_schema(*names)).check()


@pytest.mark.parametrize("names", [("Payload",), ("PAYLOAD", "n"), ("payload", "Headers")])
def test_another_spelling_is_told(names: tuple[str, ...]) -> None:
    """Spark does not tell capitals apart: nobody means a field named Payload by it, or loses headers by theirs."""
    with pytest.raises(InvalidArgumentError, match=r"rename it to '(payload|headers)'"):
        Payloads(_schema(*names)).check()


def test_what_is_beside_a_payload_is_named() -> None:
    """Columns that would be lost are refused by name."""
    with pytest.raises(InvalidArgumentError, match=r"and not .n.: leave out"):
        Payloads(_schema("payload", "n")).check()
