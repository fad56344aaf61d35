"""Spark for the tasks of an Airflow: the variables of its processes, and its Spark connections."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tools.kit.ports import HOST
from tools.kit.spark import SHORT_LIVED, spark_environment, spark_home, spark_settings

#: The connection to a Spark in the task's own machine.
LOCAL: dict[str, Any] = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}


def cluster(master_url: str) -> dict[str, Any]:
    """Return the fields of a connection to a standalone cluster."""
    host, _, port = master_url.rpartition(":")
    return {"conn_type": "spark", "host": host, "port": int(port), "extra": {"deploy-mode": "client"}}


def variables(folder: Path) -> dict[str, str]:
    """Return the variables by which tasks find ``spark-submit`` and a Java. Spark writes into this folder.

    Every Spark reads the kit's settings from a file, so that a DAG under test names only those that it tests.
    """
    conf, local = folder / "conf", folder / "local"
    for each in (conf, local):
        each.mkdir(parents=True)
    settings = spark_settings(
        {
            "spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={local} {SHORT_LIVED}",
            "spark.sql.warehouse.dir": folder / "warehouse",
        }
    )
    lines = [f"{name} {value}\n" for name, value in settings.items()]
    (conf / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    paths = [str(spark_home() / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {
        **spark_environment(),
        "PATH": os.pathsep.join(paths),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_DIRS": str(local),
        "SPARK_LOCAL_IP": HOST,
    }
