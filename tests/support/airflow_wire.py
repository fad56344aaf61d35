"""The wire between a task and its supervisor, and on to Airflow's API, by Airflow's own encoders."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from airflow.sdk.execution_time import comms
from airflow.sdk.execution_time.comms import SetRenderedFields
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields
from pydantic import JsonValue, TypeAdapter

_AT_THE_SUPERVISOR = TypeAdapter(comms.ToSupervisor)
_AT_THE_API = TypeAdapter(dict[str, JsonValue])


def rendered(task: Any) -> Any:
    """Return what Airflow stores of a task's rendered fields, before any of the task's own code runs."""
    sent = SetRenderedFields(rendered_fields=_serialize_rendered_fields(task))
    received: Any = _AT_THE_SUPERVISOR.validate_python(_over_the_socket(sent))
    return _AT_THE_API.validate_json(json.dumps(received.rendered_fields))


def _over_the_socket(sent: Any) -> Any:
    if not hasattr(comms, "_RequestFrame"):  # before Airflow 3.1 it was JSON
        return json.loads(sent.model_dump_json())
    frame = comms._RequestFrame(id=1, body=sent.model_dump())
    return msgspec.msgpack.Decoder(comms._RequestFrame).decode(frame.as_bytes()[4:]).body
