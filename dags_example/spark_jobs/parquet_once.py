"""Rows become Parquet once, however often that is tried, and by however many drivers.

    OUT/claim=NAME/TABLE/*.parquet    for readers: complete from its first moment, and never changed again
    OUT/_attempt-NAME-…               a driver's work in progress; readers skip names that begin with an underscore

⚑ A claim appears by one rename of all its tables, which the file system refuses if a folder of that name exists. So
readers never see half a claim; a killed driver has written nothing; and of two drivers with one claim the first
writes, and the other one's result is discarded.

⚑ If a run is cleared after the rename, its messages come again in another claim, with the same ids: rows whose
id is in the table already are left out. So no driver may rename after its claim has ended: ``confirm`` asks right
before.

OUT is a folder that the driver shares with its executors, on a file system with an atomic rename: a disk, NFS. An
object store has none: use a table format there (Delta, Iceberg), and MERGE by ``id`` instead of all this.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def is_written(out: Path, name: str) -> bool:
    """Return whether a claim is written."""
    return (out / f"claim={name}").exists()


def not_yet_in(out: Path, table: str, rows: DataFrame) -> DataFrame:
    """Leave out rows whose id is in the table. For a large table, look only at the days of this claim."""
    folders = [str(folder) for folder in out.glob(f"claim=*/{table}")]
    if not folders:
        return rows
    return rows.join(SparkSession.active().read.parquet(*folders).select("id"), "id", "left_anti")


def write_once(out: Path, name: str, tables: Mapping[str, DataFrame], *, confirm: Callable[[], object]) -> None:
    """Write the tables of a claim, unless another driver has done so meanwhile."""
    out.mkdir(parents=True, exist_ok=True)
    attempt = out / f"_attempt-{name}-{uuid.uuid4().hex}"
    for table, rows in tables.items():
        rows.write.parquet(str(attempt / table))
    confirm()
    try:
        attempt.rename(out / f"claim={name}")
    except OSError:  # another driver was first, and may have removed its attempt already
        if not is_written(out, name):
            raise
    for left in out.glob(f"_attempt-{name}-*"):  # ours, and those of drivers that were killed
        shutil.rmtree(left, ignore_errors=True)
