"""Runs DAG files by ``dag.test()``: a process that imports Airflow once, and reads what to run from lines of JSON.

Arguments: the descriptor to answer on. It ends with its standard input.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from typing import Any


def main() -> None:
    """Make the database, then answer each line."""
    from airflow.utils.db import initdb  # noqa: PLC0415 - takes a second, which is the worker's own

    initdb()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            try:
                answer = _run(json.loads(line))
            except BaseException:  # noqa: BLE001 - the test gets every error
                answer = {"error": traceback.format_exc()}
            sys.stdout.flush()
            sys.stderr.flush()
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _run(asked: dict[str, Any]) -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag  # noqa: PLC0415
    from airflow.models.xcom import XComModel  # noqa: PLC0415
    from airflow.utils.session import create_session  # noqa: PLC0415

    before = dict(os.environ)
    os.environ.update(asked["env"])
    try:
        bag = DagBag(asked["path"], safe_mode=False)
        if bag.import_errors:
            return {"error": "\n".join(bag.import_errors.values())}
        [dag] = bag.dags.values()
        run = dag.test(run_conf=asked["conf"])
    finally:
        os.environ.clear()
        os.environ.update(before)
    with create_session() as session:
        tasks = run.get_task_instances(session=session)
        rows = session.query(XComModel).filter_by(dag_id=dag.dag_id, run_id=run.run_id).all()
        return {
            "run_id": run.run_id,
            "state": run.state,
            "tasks": [[task.task_id, task.map_index, task.state] for task in tasks],
            "xcoms": [[row.task_id, row.map_index, row.key, XComModel.deserialize_value(row)] for row in rows],
        }


if __name__ == "__main__":
    main()
