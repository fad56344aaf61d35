"""Rows become Parquet once, however often that is tried, and by however many drivers.

    OUT/claim=NAME/TABLE/*.parquet    what readers read: whole from the moment it is there, and never changed again
    OUT/_attempt-NAME-…               what a driver is at; readers pass over names that begin with an underscore

⚑ A claim appears by one rename, tables and all, which the file system refuses where there is a folder of that name. So
readers never see half a claim; a driver that is killed has written nothing; and of two drivers with one claim the first
has written, and what the other has is thrown away.

⚑ A message that comes again in another claim, as its run was cleared after the rename, is known by its id: rows whose
id is there already are left out. For that, nobody may rename once his claim has ended: ``confirm`` asks right before.

OUT is a folder that the driver shares with its executors, on a file system that renames at once: a disk, NFS. An object
store does not: have a table format there (Delta, Iceberg), and MERGE by ``id`` instead of all this.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def is_written(out: Path, name: str) -> bool:
    """Say whether a claim is there."""
    return (out / f"claim={name}").exists()


def not_yet_in(out: Path, table: str, rows: DataFrame) -> DataFrame:
    """Leave out rows whose id is in the table; of a table of years, look at the days of this claim alone."""
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
    except OSError:  # another driver was here before, and may have cleared up behind itself
        if not is_written(out, name):
            raise
    for left in out.glob(f"_attempt-{name}-*"):  # ours, and those of drivers that were killed
        shutil.rmtree(left, ignore_errors=True)
