"""Reads an Airflow connection: what a queue is opened with. Nothing else reads one."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from json import JSONDecodeError
from typing import Any, Final

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, Connection, mask_secret

from pawnqueue import ConfigError, Settings
from pawnqueue.domain.claim_terms import HANDED_OVER_TTL_SECONDS
from pawnqueue.settings.short_names import names_of_settings, nest_by_path

CONN_TYPE: Final = "pawnqueue"

_TTL: Final = "polling.visibility_timeout_seconds"
_REFRESH: Final = "polling.lease_refresh_interval_seconds"
#: Below this ttl, the default renewal interval is too long, and one is derived from the ttl.
_SHORT_TTL_SECONDS: Final = 40.0
#: The settings of an identity. A connection has its own, or takes all of them from an AWS connection.
_IDENTITY: Final = (
    "s3.aws_access_key_id",
    "s3.aws_secret_access_key",
    "s3.aws_session_token",
    "s3.profile_name",
    "s3.role_arn",
    "s3.role_session_name",
    "s3.role_external_id",
)
#: The settings of the place of a queue.
_PLACE: Final = ("endpoint_url", "bucket_name", "key_prefix")
#: Accepted without a host: the form of some releases of Airflow tests no connection without a port.
_PORT_OF_AWS: Final = 443
_SECRETS: Final = ("s3.aws_secret_access_key", "s3.aws_session_token")
#: Types that a connection may have if it comes from an environment variable or a secrets backend.
_NO_TYPE: Final = frozenset({"", CONN_TYPE, "generic"})


@dataclass(frozen=True, slots=True)
class Address:
    """What a queue is opened with: the settings, and the AWS connection whose identity is used, if any."""

    settings: Settings
    aws_conn_id: str | None = None
    #: A digest of the AWS connection. When its keys are replaced, this is another address.
    borrowed: str = field(default="", repr=False)
    #: The id of the queue's connection. Connections with the same content share a queue.
    name: str = field(default="", compare=False)
    #: The connection's host says neither http:// nor https://.
    is_https_assumed: bool = False

    def is_same_bucket(self, other: Address) -> bool:
        """Return whether both are one queue, with any keys and settings."""
        mine, others = self.settings.s3, other.settings.s3
        return all(getattr(mine, each) == getattr(others, each) for each in _PLACE)

    def is_same_but_for_keys(self, other: Address) -> bool:
        """Return whether both are one queue with the same settings, with any keys."""
        return self._without_identity() == other._without_identity()

    def _without_identity(self) -> Settings:
        s3 = self.settings.s3
        nobody = s3.model_copy(update={path.removeprefix("s3."): None for path in _IDENTITY})
        return self.settings.model_copy(update={"s3": nobody})


def read(connection: Connection) -> Address:
    """Read a connection.

    The worker's environment is not read: two workers with one connection have one queue.

    :raises ConfigError: a field is missing, unknown or wrong. The error says which, and what to write instead.
    """
    name = connection.conn_id
    if (connection.conn_type or "").replace("-", "_") not in _NO_TYPE:
        raise _config_error(
            f"Connection {name!r} is of type {connection.conn_type!r}: make one of type {CONN_TYPE!r}. Its field "
            "aws_conn_id can name an AWS connection whose identity is used."
        )
    given = _flat(_extra(connection), name)
    aws_conn_id = given.pop("aws_conn_id", None)
    endpoint = _endpoint(connection, given.get("s3.endpoint_url"))
    if endpoint:
        given["s3.endpoint_url"] = endpoint
    if connection.login:
        given["s3.aws_access_key_id"] = connection.login
    if connection.password:
        given["s3.aws_secret_access_key"] = connection.password
    if connection.schema and "s3.bucket_name" not in given:
        given["s3.bucket_name"] = connection.schema
    given.setdefault(_TTL, HANDED_OVER_TTL_SECONDS)
    with suppress(TypeError, ValueError):  # a wrong time is an error below
        if 0 < float(given[_TTL]) < _SHORT_TTL_SECONDS:
            given.setdefault(_REFRESH, float(given[_TTL]) / 4)
    hide(given)
    borrowed = ""
    if aws_conn_id is not None:
        _check_one_identity(given, aws_conn_id, name)
        place, borrowed = _borrowed(aws_conn_id, name)
        given = place | given
    try:
        settings = Settings.model_validate(nest_by_path(given))
    except ConfigError as error:
        raise _config_error(f"Connection {name!r}: {error}") from None
    is_https_assumed = bool(endpoint) and "://" not in str(endpoint)
    return Address(settings, aws_conn_id, borrowed, name, is_https_assumed)


def _config_error(sentence: str) -> ConfigError:
    return ConfigError(sentence, operation="open")


def missing(name: str) -> str:
    """Return what to do about a missing connection, or one whose environment variable Airflow cannot read."""
    variable = f"AIRFLOW_CONN_{name.upper()}"
    written = os.environ.get(variable, "").strip()
    if written.startswith("{"):
        try:
            json.loads(written)
        except ValueError as problem:
            where = f" (line {problem.lineno}, column {problem.colno})" if isinstance(problem, JSONDecodeError) else ""
            return (
                f"The environment variable {variable} is not valid JSON{where}, so Airflow finds no connection "
                f"{name!r}: correct the variable."
            )
    return (
        f"There is no connection {name!r}: make one of type {CONN_TYPE!r} (Admin, Connections), or set the environment "
        f"variable {variable}."
    )


def hide(given: Mapping[str, Any]) -> None:
    """Hide the secrets among settings in Airflow's logs. The settings have dotted paths as keys."""
    for path in _SECRETS:
        if given.get(path):
            mask_secret(str(given[path]))


def _check_one_identity(given: Mapping[str, Any], aws_conn_id: object, name: str) -> None:
    if not isinstance(aws_conn_id, str):
        raise _config_error(
            f"Connection {name!r}: aws_conn_id must be the id of an AWS connection, not a value of type "
            f"{type(aws_conn_id).__name__}."
        )
    own = [path for path in _IDENTITY if path in given]
    if own:
        raise _config_error(
            f"Connection {name!r} uses the identity of {aws_conn_id!r} (aws_conn_id), and has one of its own "
            f"({', '.join(own)}): remove one of the two."
        )


def _extra(connection: Connection) -> Mapping[str, Any]:
    if not connection.extra:
        return {}
    try:
        extra = json.loads(connection.extra)
    except (ValueError, RecursionError):
        extra = None
    if not isinstance(extra, dict):
        raise _config_error(
            f"The extra of connection {connection.conn_id!r} is not a JSON object: write it as "
            '{"bucket_name": "queues", ...}.'
        )
    return extra


def _flat(extra: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings by their dotted paths. They may be given by path, by short name, or in their section."""
    known = _known()
    given: dict[str, Any] = {}
    for key, value in _unfolded(extra):
        if value is None or value == "":
            continue  # a field of the form that was left empty
        path = known.get(key)
        if path is None:
            near = get_close_matches(key, known, n=1)
            raise _config_error(
                f"Connection {name!r} has {key!r} in its extra, which is not a setting"
                + (f": did you mean {near[0]!r}?" if near else ": remove it, or correct its name.")
            )
        if given.setdefault(path, value) != value:
            raise _config_error(f"Connection {name!r} has two values for {path} in its extra: remove one of them.")
    return given


def _unfolded(extra: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in extra.items():
        path = f"{above}.{key}" if above else str(key)
        found += _unfolded(value, path) if isinstance(value, Mapping) else [(path, value)]
    return found


def path_of(name: str) -> str:
    """Return the dotted path of a setting by its short name in a connection's extra."""
    return _known()[name]


@cache
def _known() -> Mapping[str, str]:
    """Return each name that a setting can have in a connection, with the setting's path."""
    return {**names_of_settings(), "aws_conn_id": "aws_conn_id"}


def _endpoint(connection: Connection, otherwise: object) -> str | None:
    """Return the endpoint: the host, perhaps with a scheme and a port, or with the port of its own field."""
    given = connection.host or (otherwise if isinstance(otherwise, str) else "")
    if not given:
        if connection.port and connection.port != _PORT_OF_AWS:
            raise _config_error(
                f"Connection {connection.conn_id!r} has a port and no host: give the host as well, or neither for AWS."
            )
        return None
    scheme, mark, host = given.rpartition("://")
    host = host.rstrip("/")
    if host.count(":") > 1 and "[" not in host:
        host = f"[{host}]"  # a bare IPv6 address
    port = re.search(r"(?<=:)\d+$", host.rpartition("]")[2])
    if connection.port and port is None:
        host = f"{host}:{connection.port}"
    elif connection.port and port is not None and int(port[0]) != connection.port:
        raise _config_error(
            f"Connection {connection.conn_id!r} has port {port[0]} in its host, and {connection.port} in its field: "
            "remove one of them."
        )
    return f"{scheme}{mark}{host}"


def _borrowed(aws_conn_id: str, name: str) -> tuple[dict[str, Any], str]:
    """Return the settings of the place that an AWS connection has, and a digest of the connection.

    Its identity is read when the queue is opened.
    """
    try:
        connection = BaseHook.get_connection(aws_conn_id)
    except AirflowNotFoundException:  # the amazon provider would go on with this machine's identity
        raise _config_error(
            f"Connection {name!r} uses the identity of the AWS connection {aws_conn_id!r} (aws_conn_id), which does "
            "not exist: make it, or correct the id."
        ) from None
    hook = aws_hook(aws_conn_id)
    found = {"s3.region_name": hook.region_name, "s3.endpoint_url": hook.conn_config.get_service_endpoint_url("s3")}
    verify = hook.verify
    word = str(verify).lower()
    if word == "false":
        found["s3.verify_tls"] = False
    elif isinstance(verify, str) and word != "true":
        found["s3.ca_bundle"] = verify
    said = json.dumps([connection.conn_type, connection.login, connection.password, connection.extra])
    place = {path: value for path, value in found.items() if value not in (None, "")}
    return place, hashlib.sha256(said.encode()).hexdigest()


def aws_hook(aws_conn_id: str) -> Any:  # noqa: ANN401 - the amazon provider is imported where it is used
    """Return the amazon provider's hook of a connection."""
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook  # noqa: PLC0415 - a second of imports

    return AwsGenericHook(aws_conn_id=aws_conn_id, client_type="s3")
