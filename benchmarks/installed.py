"""A real Airflow with the provider, its own default settings, and a store whose requests are counted."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.counted import Counted, counted
from pawnqueue import SyncPawnQueue
from tools.kit import servers
from tools.kit.airflow import Airflow

if TYPE_CHECKING:
    from collections.abc import Iterator

PARALLELISM = 4
#: Where the kit's Airflow is quicker than one that is installed: there Airflow's own defaults hold.
_DEFAULTS = ("AIRFLOW__SCHEDULER__", "AIRFLOW__TRIGGERER__", "AIRFLOW__DAG_PROCESSOR__")


@dataclass(frozen=True)
class Installed:
    """An Airflow, the store that its connection names, and a queue that goes there without being counted."""

    airflow: Airflow
    store: Counted
    queue: SyncPawnQueue


@contextmanager
def installed(**dags: str) -> Iterator[Installed]:
    """Start all of it, with DAG files by their names, and wait until Airflow has parsed the DAGs.

    The connection is in Airflow's database, so that waiting tasks read it as they do anywhere.
    """
    print(f"   {machine()}", flush=True)
    with servers.seaweedfs() as server, counted(server) as store:
        bucket = server.make_bucket()
        airflow = Airflow(parallelism=PARALLELISM)
        for name in [name for name in airflow.environ if name.startswith(_DEFAULTS)]:
            del airflow.environ[name]
        for name, source in dags.items():
            (airflow.dags / f"{name}.py").write_text(source, encoding="utf-8")
        with airflow, SyncPawnQueue.open(s3=server.address(bucket)) as queue:
            airflow.api.create_connection(
                "pawnqueue_default",
                "pawnqueue",
                login=server.access_key,
                password=server.secret_key,
                extra={"bucket_name": bucket, "endpoint_url": store.server.endpoint, "region_name": server.region},
            )
            airflow.wait_for(
                lambda: set(dags) <= {dag["dag_id"] for dag in airflow.api.dags()}, "the DAGs are parsed", timeout=120
            )
            yield Installed(airflow, store, queue)


def machine() -> str:
    """Say how much of the machine others use at the moment."""
    before = _cpu_times()
    time.sleep(3)
    after = _cpu_times()
    busy = 1 - (after[1] - before[1]) / (after[0] - before[0])
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    return f"{os.cpu_count()} cores, {busy:.0%} busy before this begins, load average {load}"


def _cpu_times() -> tuple[int, int]:
    """Return all the ticks of all cores, and those in which they had nothing to do."""
    ticks = [int(part) for part in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]]
    return sum(ticks), ticks[3] + ticks[4]
