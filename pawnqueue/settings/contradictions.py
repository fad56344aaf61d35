"""Settings that contradict each other, beyond the range of each."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

_TTL_SETTING: Final = "{polling.visibility_timeout_seconds=}"
_RENEWAL_SETTING: Final = "{polling.lease_refresh_interval_seconds=}"
_MARGIN_SETTING: Final = "{claims.margin_seconds=}"

#: What is said of settings that contradict each other, and when they do. {path} is a setting, {path=} one whose value
#: may be shown.
_CONTRADICTIONS: Final[tuple[tuple[str, Callable[..., object]], ...]] = (
    (
        "{s3.aws_access_key_id} is set and {s3.aws_secret_access_key} is not: give both or neither",
        lambda key, secret: key and not secret,
    ),
    (
        "{s3.aws_secret_access_key} is set and {s3.aws_access_key_id} is not: give both or neither",
        lambda secret, key: secret and not key,
    ),
    (
        "{s3.aws_session_token} is set and {s3.aws_access_key_id} is not: a token needs the key it came with",
        lambda token, key: token and not key,
    ),
    (
        "{s3.role_external_id} is set and {s3.role_arn} is not: there is no role to assume",
        lambda external_id, role: external_id and not role,
    ),
    (
        "{s3.sse_kms_key_id} needs {s3.server_side_encryption=} to be aws:kms or aws:kms:dsse",
        lambda key, encryption: key and encryption not in {"aws:kms", "aws:kms:dsse"},
    ),
    (
        "{s3.sse_bucket_key_enabled=} needs {s3.server_side_encryption=} to be aws:kms",
        lambda enabled, encryption: enabled and encryption != "aws:kms",
    ),
    (
        f"{_TTL_SETTING} must be above {_MARGIN_SETTING}, as no claim is trusted in the last seconds before its end",
        lambda ttl, margin: ttl <= margin,
    ),
    (
        f"{_RENEWAL_SETTING} must be under half of {_TTL_SETTING}, so that a claim survives a renewal that fails",
        lambda renewal, ttl: renewal >= ttl / 2,
    ),
    (
        f"{_RENEWAL_SETTING} must be under {_TTL_SETTING} less {_MARGIN_SETTING}, while the claim is still trusted",
        lambda renewal, ttl, margin: ttl > margin and ttl - margin <= renewal < ttl / 2,
    ),
    (
        "{concurrency.csprng_verify.jitter_min_ms=} must not be above {concurrency.csprng_verify.jitter_max_ms=}",
        lambda low, high: low > high,
    ),
    (
        "{retry.initial_delay_seconds=} must not be above {retry.max_delay_seconds=}",
        lambda initial, longest: initial > longest,
    ),
)
_PLACEHOLDER: Final = re.compile(r"{([\w.]+)(=?)}")
_SETTINGS_OF_EACH: Final = tuple(
    tuple(place[1] for place in _PLACEHOLDER.finditer(sentence)) for sentence, _ in _CONTRADICTIONS
)


def find_contradictions(values: Mapping[str, object], describe: Callable[[str, object], str]) -> Iterator[str]:
    """Yield a sentence for each contradiction between the settings whose values are given by their dotted paths.

    :param describe: names a setting, by its path and what may be shown of its value.
    """
    for (sentence, disagree), paths in zip(_CONTRADICTIONS, _SETTINGS_OF_EACH, strict=True):
        if all(path in values for path in paths) and disagree(*(values[path] for path in paths)):
            yield _PLACEHOLDER.sub(lambda place: describe(place[1], values[place[1]] if place[2] else None), sentence)


def list_contradictions(describe: Callable[[str], str]) -> list[str]:
    """Return the sentences of all contradictions that are looked for.

    :param describe: names a setting, by its path.
    """
    return [_PLACEHOLDER.sub(lambda place: describe(place[1]), sentence) for sentence, _ in _CONTRADICTIONS]
