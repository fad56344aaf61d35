"""Settings from ``PAWNQUEUE_*`` environment variables: which variable sets what, and which one is likely a typo."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from pawnqueue.events import logger_of

log = logger_of("queue")

#: The published pawn-queue library does not name these by their paths; its names are kept.
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


def variable_of(path: str) -> str:
    """Return the variable that sets the setting with this dotted path."""
    return _NAMED_BY_PAWN_QUEUE.get(path, f"PAWNQUEUE_{path.replace('.', '_')}".upper())


def warn_of_typos(known: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Log the variables that look like one of the known ones, but are unknown."""
    prefixes = tuple({"_".join([*variable.split("_")[:2], ""]) for variable in known})
    for variable in sorted(environ):
        if variable.startswith(prefixes) and variable not in known:
            nearest = get_close_matches(variable, known, n=1, cutoff=0)[0]
            log.warning("The environment variable %s sets nothing; did you mean %s?", variable, nearest)
