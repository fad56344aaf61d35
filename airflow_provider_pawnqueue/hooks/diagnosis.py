"""Answers of *Test connection*, and errors in the words of Airflow's users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from airflow_provider_pawnqueue.hooks.connection import Address, path_of
from airflow_provider_pawnqueue.provider_info import get_provider_info
from pawnqueue import PawnQueueError, ProbeResult, SyncPawnQueue, TopicNotEmptyError, TopicNotFoundError
from pawnqueue.reads.health import Health
from pawnqueue.settings.short_names import names_of_settings

#: A clock that is further off is reported, as it confuses readers of two logs. The queue uses only the store's clock.
_CLOCK_OFFSET_SECONDS: Final = 1.0
#: The labels of the form's standard fields, by their settings.
_STANDARD_LABELS: Final = {
    "s3.endpoint_url": "Endpoint",
    "s3.aws_access_key_id": "Access key id",
    "s3.aws_secret_access_key": "Secret access key",
}
#: The engine's advice where TLS fails. A connection has a host instead of that setting.
_CHECK_TLS: Final = "check s3.use_ssl"
#: The names of the same fields in a connection that is written without the form.
_STANDARD_FIELDS: Final = {
    "s3.endpoint_url": "host",
    "s3.aws_access_key_id": "login",
    "s3.aws_secret_access_key": "password",
}


def in_airflow(error: PawnQueueError) -> str:
    """Return an error's sentence, with what a user of Airflow can do about it."""
    match error:
        case TopicNotFoundError(topic=str(topic)) if topic:
            return (
                f"{error} In Airflow, PawnQueueCreateTopicOperator makes a topic, and by hand "
                f"`airflow pawnqueue create-topic {topic}`."
            )
        case TopicNotEmptyError(topic=str(topic)) if topic:
            return f"{error} By hand, `airflow pawnqueue delete-topic {topic} --force` does that."
        case _:
            return str(error)


def describe(queue: SyncPawnQueue) -> str:
    """Return what the store of an open queue can do, in a few sentences."""
    return " ".join(_sentences(queue, queue.probe(), queue.health()))


def form_error(error: Exception, conn_id: str) -> str:
    """Return an error in the words of the form, which has labels where the engine has settings.

    The connection is not named, as Airflow draws an id for each test of a form.
    """
    text = str(error).removeprefix(f"Connection {conn_id!r}: ").replace(f"Connection {conn_id!r}", "This connection")
    text = text.replace(_CHECK_TLS, "check whether 'Endpoint' begins with http:// or https://")
    return _renamed(text, {path: repr(label) for path, label in _labels().items()})


def connection_error(error: Exception, conn_id: str, address: Address | None = None) -> str:
    """Return an error of a connection or its queue with the names of the connection's fields.

    :param address: the content of the connection, where it could be read.
    """
    known = sorted(set(names_of_settings().values()))
    names = {path: f"extra.{path.removeprefix('s3.')}" for path in known if path.startswith("s3.")} | _STANDARD_FIELDS
    if address is not None and address.aws_conn_id:
        keys = f"the keys of AWS connection {address.aws_conn_id!r}"
        names |= dict.fromkeys(("s3.aws_access_key_id", "s3.aws_secret_access_key"), keys)
    text = original = str(error)
    if address is not None and address.is_https_assumed:
        text = text.replace(
            _CHECK_TLS, "host begins with neither http:// nor https://, so https was assumed: write one of them"
        )
    renamed = _renamed(text, names)
    # An error that names no setting is not about the connection, and one that begins so names the connection already.
    is_complete = renamed == original or original.startswith("Connection ")
    return renamed if is_complete else f"Connection {conn_id!r}: {renamed}"


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for path, name in names.items():
        text = re.sub(rf"(?<![\w.]){re.escape(path)}(?![\w.]*\w)", name, text)
    return text


@cache
def _labels() -> dict[str, str]:
    """Return the label of each field of the connection form, by the path of its setting: aws_conn_id has none."""
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    return _STANDARD_LABELS | {path_of(name): field["label"] for name, field in fields.items() if name != "aws_conn_id"}


def _sentences(queue: SyncPawnQueue, found: ProbeResult, health: Health) -> list[str]:
    s3 = queue.settings.s3
    below = f" below {s3.key_prefix}" if s3.key_prefix else ""
    took = f"{max(health.round_trip_seconds * 1000, 1):.0f} ms"
    sentences = [
        f"Reached {s3.endpoint_url or 'AWS'}, bucket {s3.bucket_name!r}{below}; a request takes {took}.",
        f"The lease strategy of this queue is {queue.strategy}: {found.reason}",
        "Reads and listings show a write at once.",
        _clock(health),
    ]
    if found.strategy != queue.strategy:
        sentences.append(f"The probe would choose {found.strategy} today. The bucket keeps the strategy agreed on.")
    return [sentence if sentence.endswith(".") else f"{sentence}." for sentence in sentences]


def _clock(health: Health) -> str:
    offset = health.clock_offset_seconds
    if abs(offset) <= _CLOCK_OFFSET_SECONDS:  # a store's time has whole seconds
        return "This machine's clock and the store's agree within a second."
    way = "ahead of" if offset > 0 else "behind"
    return f"This machine's clock is {abs(offset):.0f} s {way} the store's. The queue uses only the store's."
