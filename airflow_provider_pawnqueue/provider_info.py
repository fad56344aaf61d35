"""Describes the provider to Airflow, which reads this at its start. Only the standard library may be imported here.

So the form repeats what the queue's settings and strategies declare, as importing any module of ``pawnqueue`` imports
all of it. ``tests/hooks/test_provider_info.py`` compares the two.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_pawnqueue import __version__

_PACKAGE = "airflow_provider_pawnqueue"
_INTEGRATION = "PawnQueue"


def get_provider_info() -> dict[str, Any]:
    """Describe the provider, as Airflow's ``provider_info.schema.json`` wants it."""
    return {
        "package-name": "airflow-provider-pawnqueue",
        "name": "PawnQueue",
        "description": "Turns any S3-compatible bucket into a message queue: no broker, no database, no sidecar.",
        "versions": [__version__],
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["service"]}],
        "hooks": [_modules("hooks.pawnqueue")],
        "operators": [_modules("operators.pawnqueue", "spark.operators")],
        "sensors": [_modules("sensors.pawnqueue")],
        "triggers": [_modules("triggers.pawnqueue")],
        "connection-types": [_connection_type()],
        "queues": [f"{_PACKAGE}.queues.pawnqueue.PawnQueueMessageQueueProvider"],
        "extra-links": [f"{_PACKAGE}.links.TopicLink"],
        "asset-uris": [{"schemes": ["pawnqueue"], "handler": f"{_PACKAGE}.lineage.sanitized"}],
        "cli": [f"{_PACKAGE}.cli.definition.get_pawnqueue_cli_commands"],
        "config": {"pawnqueue": _options()},
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}


def _connection_type() -> dict[str, Any]:
    """Describe the connection, and the form that Airflow's UI shows for it, without importing the hook."""
    return {
        "connection-type": "pawnqueue",
        "hook-class-name": f"{_PACKAGE}.hooks.pawnqueue.PawnQueueHook",
        "hook-name": "PawnQueue (S3 bucket)",
        "ui-field-behaviour": {
            "hidden-fields": ["schema"],
            "relabeling": {
                "host": "Endpoint (empty for AWS)",
                "port": "Port (or in the endpoint)",
                "login": "Access key id",
                "password": "Secret access key",
            },
            "placeholders": {
                "host": "https://minio.example.com",
                "port": "9000",
                "login": "empty: found by boto3, or borrowed from AWS connection",
            },
        },
        "conn-fields": _form_fields(),
    }


def _form_fields() -> dict[str, Any]:
    """Describe the fields of the form, in their order.

    A default is saved with the connection, so only values that suit all connections are defaults.
    """
    return {
        "bucket_name": _field(
            "Bucket", "The bucket that holds the queue; it must exist.", type="string", minLength=3, maxLength=63
        ),
        "key_prefix": _field(
            "Key prefix", "All keys of the queue begin with it, so that queues can share a bucket; may be empty."
        ),
        "region_name": _field(
            "Region", "The bucket's region; if empty, the AWS connection's, or us-east-1. Most stores accept any."
        ),
        "aws_conn_id": _field(
            "AWS connection",
            "The id of a connection of type aws, whose credentials are used: keys, roles, profiles, web identity.",
        ),
        "addressing_style": _field(
            "Addressing",
            "Where a URL names the bucket: in the path, or in the host (virtual). auto: in the path if there is an "
            "endpoint.",
            enum=["auto", "path", "virtual"],
            default="auto",
        ),
        "visibility_timeout_seconds": _number(
            "Visibility timeout (s)", "How long a claim lasts without renewal; 300 if empty.", 1
        ),
        "max_messages_per_poll": _number("Batch size", "How many messages a claim takes by default; 10 if empty.", 1),
        "strategy": _field(
            "Lease strategy",
            "How consumers agree on who has a message. auto: by what the store can do, which is probed once.",
            enum=["auto", "conditional_write", "csprng_verify"],
            default="auto",
        ),
        "jitter_min_ms": _number(
            "Shortest jitter (ms)", "Only for csprng_verify: the shortest pause after a write; 100 if empty."
        ),
        "jitter_max_ms": _number(
            "Longest jitter (ms)", "Only for csprng_verify: the longest pause after a write; 400 if empty."
        ),
    }


def _field(label: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}


def _number(label: str, description: str, minimum: int = 0) -> dict[str, Any]:
    schema = {"type": ["integer", "null"], "minimum": minimum}
    return {"label": label, "description": description, "schema": schema}


def _options() -> dict[str, Any]:
    return {
        "description": "PawnQueue: message queues in S3 buckets.",
        "options": {
            "installation": _option(
                "The name of this Airflow in the buckets of its queues. Two Airflows on one bucket need two names. By "
                "default the name is random, and is kept in the Variable pawnqueue_installation.",
                example="production",
            ),
            "topic_link": _option(
                "The address that tasks link to for their topic: a page of the store's console, with {bucket}, "
                "{prefix}, {topic} and {region} in it. By default AWS's console, or the listing at the endpoint.",
                example="https://console.example.com/browser/{bucket}/{prefix}{topic}",
            ),
        },
    }


def _option(description: str, example: str) -> dict[str, Any]:
    return {"description": description, "version_added": "0.1.0", "type": "string", "example": example, "default": None}
