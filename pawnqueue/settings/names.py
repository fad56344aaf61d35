"""By which names settings are known where there are no sections: in a connection's extra, among Spark's options."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pawnqueue.settings.base import nested
from pawnqueue.settings.settings import Settings

#: Where a short name means more than one setting, or none of its own: which one it means.
_SHORT: Final = {
    "jitter_min_ms": "concurrency.csprng_verify.jitter_min_ms",
    "jitter_max_ms": "concurrency.csprng_verify.jitter_max_ms",
    "access_key_id": "s3.aws_access_key_id",
    "secret_access_key": "s3.aws_secret_access_key",
    "session_token": "s3.aws_session_token",
    "visibility_timeout": "polling.visibility_timeout_seconds",
    "batch_size": "polling.max_messages_per_poll",
}


@cache
def names_of_settings() -> Mapping[str, str]:
    """Return every name that a setting has, by itself and with its sections, and its dotted path."""
    paths = [Settings.dotted(path) for path in Settings.fields_below()]
    names: dict[str, str] = {}
    for path in paths:
        names.setdefault(path.rpartition(".")[2], path)
    return names | {path: path for path in paths} | _SHORT


def nested_by_path(given: Mapping[str, object]) -> dict[str, Any]:
    """Return settings by their sections that are given by their dotted paths."""
    whole: dict[str, Any] = nested({tuple(path.split(".")): value for path, value in given.items()})
    return whole
