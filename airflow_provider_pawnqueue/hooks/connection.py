"""An Airflow connection, read: what a queue is opened with. Nothing else reads one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pawnqueue.engine import ConfigError, Settings

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection

CONN_TYPE: Final = "pawnqueue"
DEFAULT_CONN_ID: Final = "pawnqueue_default"

#: What a claim made in Airflow has without renewal, unless the connection or the task says otherwise: a janitor that
#: runs every minute may fail twice, and a task may wait for its slot as long.
DEFAULT_TTL: Final = 300.0

#: Where a short name means more than one setting, or none of its own: which one it means in a connection.
_SHORT: Final = {
    "jitter_min_ms": "concurrency.csprng_verify.jitter_min_ms",
    "jitter_max_ms": "concurrency.csprng_verify.jitter_max_ms",
    "access_key_id": "s3.aws_access_key_id",
    "secret_access_key": "s3.aws_secret_access_key",
    "session_token": "s3.aws_session_token",
    "visibility_timeout": "polling.visibility_timeout_seconds",
    "batch_size": "polling.max_messages_per_poll",
}
_TTL: Final = "polling.visibility_timeout_seconds"
#: Types under which a connection may come from an environment variable or a secrets backend that has none of ours.
_NO_TYPE: Final = frozenset({"", CONN_TYPE, "generic"})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a queue is and who we are to it: the settings, and the AWS connection that is borrowed, if any."""

    settings: Settings
    aws_conn_id: str | None = None


def read(connection: Connection) -> Address:
    """Read a connection.

    The environment of the worker says nothing here: two workers that read one connection have one queue.

    :raises ConfigError: something in it is missing, unknown or of the wrong kind: which, and what to write instead.
    """
    name = connection.conn_id
    if (connection.conn_type or "").replace("-", "_") not in _NO_TYPE:
        raise ConfigError(
            f"Connection {name!r} is of type {connection.conn_type!r}: make one of type {CONN_TYPE!r}, which borrows "
            "the identity of an AWS connection that its field aws_conn_id names.",
            operation="open",
        )
    given = _flat(_extra(connection), name)
    aws_conn_id = given.pop("aws_conn_id", None)
    if connection.host:
        given["s3.endpoint_url"] = _endpoint(connection)
    if connection.login:
        given["s3.aws_access_key_id"] = connection.login
    if connection.password:
        given["s3.aws_secret_access_key"] = connection.password
    if connection.schema and "s3.bucket_name" not in given:
        given["s3.bucket_name"] = connection.schema
    given.setdefault(_TTL, DEFAULT_TTL)
    if aws_conn_id:
        given |= {path: value for path, value in _borrowed(str(aws_conn_id)).items() if path not in given}
    try:
        settings = Settings.from_dict(_nested(given), environ={})
    except ConfigError as error:
        raise ConfigError(f"Connection {name!r}: {error}", operation="open") from None
    return Address(settings, str(aws_conn_id) if aws_conn_id else None)


def _extra(connection: Connection) -> Mapping[str, Any]:
    if not connection.extra:
        return {}
    try:
        extra = json.loads(connection.extra)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise ConfigError(
            f"The extra of connection {connection.conn_id!r} is no JSON object: write it as "
            '{"bucket_name": "queues", ...}.',
            operation="open",
        )
    return extra


def _flat(extra: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Name every setting by its dotted path, whether it was given by that, by its own name, or in its section."""
    known = _known()
    given: dict[str, Any] = {}
    for key, value in _unfolded(extra):
        if value is None or value == "":
            continue  # a field of the form that was left empty
        path = known.get(key)
        if path is None:
            near = get_close_matches(key, known, n=1)
            raise ConfigError(
                f"Connection {name!r} has {key!r} in its extra, which is no setting"
                + (f": did you mean {near[0]!r}?" if near else ": take it out, or correct its name."),
                operation="open",
            )
        given[path] = value
    return given


def _unfolded(extra: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in extra.items():
        path = f"{above}.{key}" if above else str(key)
        found += _unfolded(value, path) if isinstance(value, Mapping) else [(path, value)]
    return found


@cache
def _known() -> Mapping[str, str]:
    """Return every name that a setting has in a connection, and its path."""
    paths = [Settings.dotted(path) for path in Settings.fields_below()]
    names: dict[str, str] = {}
    for path in paths:
        names.setdefault(path.rpartition(".")[2], path)
    return names | {path: path for path in paths} | dict(_SHORT) | {"aws_conn_id": "aws_conn_id"}


def _endpoint(connection: Connection) -> str:
    host = str(connection.host)
    bare = host.partition("://")[2] or host
    has_port = bare.rpartition("]")[2].count(":") == 1  # an IPv6 address has colons of its own
    return f"{host.rstrip('/')}:{connection.port}" if connection.port and not has_port else host


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in given.items():
        *sections, field = path.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[field] = value
    return tree


def _borrowed(aws_conn_id: str) -> dict[str, Any]:
    """Return what an AWS connection says of the place; its identity is asked for when the queue is opened."""
    hook = aws_hook(aws_conn_id)
    found = {"s3.region_name": hook.region_name, "s3.endpoint_url": hook.conn_config.get_service_endpoint_url("s3")}
    verify = hook.verify
    if verify is False:
        found["s3.verify_tls"] = False
    elif isinstance(verify, str):
        found["s3.ca_bundle"] = verify
    return {path: value for path, value in found.items() if value is not None}


def aws_hook(aws_conn_id: str) -> Any:  # noqa: ANN401 - the amazon provider is imported where it is used
    """Return the amazon provider's hook of a connection."""
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook  # noqa: PLC0415 - a second of imports

    return AwsGenericHook(aws_conn_id=aws_conn_id, client_type="s3")
