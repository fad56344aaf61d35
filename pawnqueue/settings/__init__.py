"""Everything that can be set about a queue, with its default; from keyword arguments, a dict, YAML or the environment.

The sections ``s3``, ``polling``, ``concurrency`` and ``registry`` have the names and the defaults of the published
pawn-queue library, so that its ``config.yaml`` and its environment variables configure this engine too.
"""

from pawnqueue.settings.all_settings import Settings, environment_variables
from pawnqueue.settings.sections import (
    ClaimsSettings,
    ConcurrencySettings,
    CsprngVerifySettings,
    LimitsSettings,
    PacksSettings,
    PollingSettings,
    RegistrySettings,
    RetrySettings,
    S3Settings,
)

__all__ = [
    "ClaimsSettings",
    "ConcurrencySettings",
    "CsprngVerifySettings",
    "LimitsSettings",
    "PacksSettings",
    "PollingSettings",
    "RegistrySettings",
    "RetrySettings",
    "S3Settings",
    "Settings",
    "environment_variables",
]
