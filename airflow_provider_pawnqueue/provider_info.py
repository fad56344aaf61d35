"""What Airflow reads when it starts: nothing but built-ins and the version may be imported here."""

from __future__ import annotations

from typing import Any

from airflow_provider_pawnqueue import __version__


def get_provider_info() -> dict[str, Any]:
    """Describe the provider, as Airflow's ``provider_info.schema.json`` wants it."""
    return {
        "package-name": "airflow-provider-pawnqueue",
        "name": "PawnQueue",
        "description": "Turns any S3-compatible bucket into a message queue: no broker, no database, no sidecar.",
        "versions": [__version__],
        "integrations": [{"integration-name": "PawnQueue", "tags": ["service"]}],
    }
