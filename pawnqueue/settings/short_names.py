"""The names of settings where there are no sections: in a connection's extra, and among Spark's options."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pawnqueue.settings.all_settings import Settings
from pawnqueue.settings.base import nest

#: What a short name means that fits several settings, or none.
_ALIASES: Final = {
    "jitter_min_ms": "concurrency.csprng_verify.jitter_min_ms",
    "jitter_max_ms": "concurrency.csprng_verify.jitter_max_ms",
    "access_key_id": "s3.aws_access_key_id",
    "secret_access_key": "s3.aws_secret_access_key",
    "session_token": "s3.aws_session_token",
    "visibility_timeout": "polling.visibility_timeout_seconds",
    "batch_size": "polling.max_messages_per_poll",
}
#: A section whose fields say too little without its name: they have no short names.
_WITHOUT_SHORT_NAMES: Final = "packs."


@cache
def names_of_settings() -> Mapping[str, str]:
    """Return the dotted path of every setting, by each of its names: with its sections, and mostly alone."""
    paths = [Settings.dotted_path(path) for path in Settings.fields_below()]
    names: dict[str, str] = {}
    for path in paths:
        if path.startswith(_WITHOUT_SHORT_NAMES):
            continue
        names.setdefault(path.rpartition(".")[2], path)
    return names | {path: path for path in paths} | _ALIASES


def nest_by_path(given: Mapping[str, object]) -> dict[str, Any]:
    """Return settings that are given by their dotted paths as nested sections."""
    whole: dict[str, Any] = nest({tuple(path.split(".")): value for path, value in given.items()})
    return whole
