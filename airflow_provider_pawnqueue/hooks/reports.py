"""What a task says of single messages, for whoever settles them: in its XCom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_pawnqueue.engine import InvalidArgumentError
from airflow_provider_pawnqueue.hooks.keys import REPORT_KEY, told

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


def add(failed: object, done: object) -> None:
    """Add to the report of the task that runs here."""
    if not isinstance(failed, Mapping) or isinstance(done, (str, bytes, Mapping)) or not isinstance(done, Iterable):
        raise InvalidArgumentError(
            f"report takes failed={{id: why}} and done=[ids], not failed={failed!r}, done={done!r}.", operation="report"
        )
    finished = list(done)
    if not all(isinstance(each, str) for each in [*failed, *finished]):
        raise InvalidArgumentError(
            "report takes the ids of messages (message.id), which are texts.", operation="report"
        )
    ti: Any = _context()["ti"]
    found = ti.xcom_pull(task_ids=ti.task_id, key=REPORT_KEY, map_indexes=ti.map_index) or {}
    wrong = {message: why for message, why in found.get("failed", {}).items() if message not in finished}
    right = [message for message in found.get("done", []) if message not in failed]
    ti.xcom_push(
        key=REPORT_KEY,
        value={
            "failed": wrong | {message: told(why) for message, why in failed.items()},
            "done": [*dict.fromkeys([*right, *(message for message in finished if message not in failed)])],
        },
    )


def _context() -> Context:
    from airflow.providers.common.compat.sdk import get_current_context  # noqa: PLC0415 - not at import

    try:
        return get_current_context()
    except Exception as error:
        raise InvalidArgumentError("report is for tasks: no task runs here.", operation="report") from error
