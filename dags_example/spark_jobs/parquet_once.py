"""Write rows as Parquet exactly once, even if several drivers try it several times.

    OUT/claim=NAME/TABLE/*.parquet    what readers read: complete from the moment it exists, and never changed again
    OUT/_attempt-NAME-…               what a driver is writing; readers skip names that begin with an underscore

⚑ One rename makes all tables of a claim visible, and the file system refuses it if the folder exists. So readers never
see half a claim, and a driver that is killed has written nothing. Of two drivers with one claim, the first wins, and
the files of the other are deleted.

⚑ A message may come again in another claim, if its run was cleared after the rename. Then its id is in the table
already, and its row is left out. For this, no driver may rename after its claim has ended: ``confirm`` checks that
right before.

OUT is a folder that the driver shares with its executors, on a file system with an atomic rename, such as a disk or
NFS. An object store has none: use a table format there (Delta, Iceberg), and MERGE by ``id`` instead of this module.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def is_written(out: Path, name: str) -> bool:
    """Say whether a claim has been written."""
    return (out / f"claim={name}").exists()


def not_yet_in(out: Path, table: str, rows: DataFrame) -> DataFrame:
    """Leave out rows whose id is in the table. For a large table, read only the days of this claim."""
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
    except OSError:  # another driver was faster, and may have deleted this attempt
        if not is_written(out, name):
            raise
    for left in out.glob(f"_attempt-{name}-*"):  # this one's, and those of drivers that were killed
        shutil.rmtree(left, ignore_errors=True)
