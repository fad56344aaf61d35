"""A task's report of single messages, in XCom, for the task that settles them.

⚑ It is one JSON text: a publisher may choose any id for a message, and Airflow interprets some keys of dicts itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow.providers.common.compat import sdk

from airflow_provider_pawnqueue.hooks.task_notes import (
    CLEAR_NUMBER,
    REPORT_KEY,
    clear_number_of,
    error_text,
    is_current,
)
from pawnqueue import InvalidArgumentError


def add(failed: object, done: object) -> None:
    """Add to the report of the task that runs here."""
    if not isinstance(failed, Mapping) or isinstance(done, (str, bytes, Mapping)) or not isinstance(done, Iterable):
        raise InvalidArgumentError(
            f"report takes failed={{id: why}} and done=[ids], not failed={failed!r}, done={done!r}.", operation="report"
        )
    finished = list(done)
    if not all(isinstance(each, str) for each in [*failed, *finished]):
        raise InvalidArgumentError("report takes ids of messages (message.id), which are texts.", operation="report")
    context = _context()
    ti: Any = context["ti"]
    number = clear_number_of(context)
    found = read_report(ti.xcom_pull(task_ids=ti.task_id, key=REPORT_KEY, map_indexes=ti.map_index))
    if not is_current(found, number):
        found = {}
    wrong = {message: why for message, why in found.get("failed", {}).items() if message not in finished}
    right = [message for message in found.get("done", []) if message not in failed]
    report: dict[str, Any] = {
        "failed": wrong | {message: error_text(why) for message, why in failed.items()},
        "done": [*dict.fromkeys([*right, *(message for message in finished if message not in failed)])],
    }
    if number:
        report[CLEAR_NUMBER] = number
    ti.xcom_push(key=REPORT_KEY, value=json.dumps(report))


def read_report(value: object) -> Mapping[str, Any]:
    """Return the report in XCom: a text, a dict of a former release, or nothing."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return read if isinstance(read, Mapping) else {}


def _context() -> sdk.Context:
    try:
        return sdk.get_current_context()
    except Exception as error:
        raise InvalidArgumentError("report only works in a task, and no task runs here.", operation="report") from error
