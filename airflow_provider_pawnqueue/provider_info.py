"""What Airflow reads when it starts: nothing but the standard library and the version may be imported here."""

from __future__ import annotations

import logging
from importlib import metadata
from typing import Any

from airflow_provider_pawnqueue import __version__

logger = logging.getLogger(__name__)

_PROVIDER = "airflow-provider-pawnqueue"
_ENGINE = "pawnqueue-engine"


def get_provider_info() -> dict[str, Any]:
    """Describe the provider, as Airflow's ``provider_info.schema.json`` wants it."""
    _look_beside()
    return {
        "package-name": _PROVIDER,
        "name": "PawnQueue",
        "description": "Turns any S3-compatible bucket into a message queue: no broker, no database, no sidecar.",
        "versions": [__version__],
        "integrations": [{"integration-name": "PawnQueue", "tags": ["service"]}],
    }


def _look_beside() -> None:
    """Warn if the engine by itself is installed here too, in another version: the one has overwritten the other."""
    provider, engine = _version(_PROVIDER), _version(_ENGINE)
    if provider and engine and provider != engine:
        logger.warning(
            "%s %s and %s %s are installed side by side: both own the same files, and those of one have overwritten "
            "the other's. Uninstall both, then install %s alone, which contains the engine.",
            _PROVIDER,
            provider,
            _ENGINE,
            engine,
            _PROVIDER,
        )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
