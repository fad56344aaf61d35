"""Settings from ``PAWNQUEUE_*`` environment variables: which variable sets what, and which one is likely a typo."""

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from airflow_provider_pawnqueue.engine.settings.base import Section

log = logging.getLogger(__name__)

#: The published pawn-queue library names these otherwise than by their path; its names are kept.
_NAMED_BY_PAWN_QUEUE: Final = MappingProxyType(
    {
        "s3.aws_access_key_id": "PAWNQUEUE_S3_ACCESS_KEY",
        "s3.aws_secret_access_key": "PAWNQUEUE_S3_SECRET_KEY",
        "s3.region_name": "PAWNQUEUE_S3_REGION",
        "polling.visibility_timeout_seconds": "PAWNQUEUE_POLLING_VISIBILITY_TIMEOUT",
        "polling.lease_refresh_interval_seconds": "PAWNQUEUE_POLLING_LEASE_REFRESH_INTERVAL",
        "concurrency.csprng_verify.jitter_min_ms": "PAWNQUEUE_CSPRNG_JITTER_MIN_MS",
        "concurrency.csprng_verify.jitter_max_ms": "PAWNQUEUE_CSPRNG_JITTER_MAX_MS",
        "concurrency.csprng_verify.verify_retries": "PAWNQUEUE_CSPRNG_VERIFY_RETRIES",
        "concurrency.csprng_verify.verify_retry_delay_ms": "PAWNQUEUE_CSPRNG_RETRY_DELAY_MS",
        "registry.heartbeat_interval_seconds": "PAWNQUEUE_REGISTRY_HEARTBEAT_INTERVAL",
    }
)


def variables_of(root: type[Section]) -> Mapping[str, str]:
    """Return the dotted path of every setting below ``root``, by the variable that sets it."""
    sections = {section.rpartition(".")[0] for section, _ in root.fields_below()}
    return MappingProxyType(
        {
            _NAMED_BY_PAWN_QUEUE.get(path, f"PAWNQUEUE_{path.replace('.', '_')}".upper()): path
            for path, _ in root.fields_below()
            if path not in sections
        }
    )


def read_environment(root: type[Section], environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the environment sets, nested like the settings, and the variable of each path that it sets."""
    known = variables_of(root)
    _warn_of_typos(known, environ)
    layer: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for variable, path in known.items():
        if not (value := environ.get(variable)):
            continue
        *sections, name = path.split(".")
        place = layer
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
        origins[path] = variable
    return layer, origins


def _warn_of_typos(known: Mapping[str, str], environ: Mapping[str, str]) -> None:
    prefixes = tuple({"_".join([*variable.split("_")[:2], ""]) for variable in known})
    for variable in sorted(environ):
        if variable.startswith(prefixes) and variable not in known:
            nearest = get_close_matches(variable, known, n=1, cutoff=0)[0]
            log.warning("The environment variable %s sets nothing; did you mean %s?", variable, nearest)
