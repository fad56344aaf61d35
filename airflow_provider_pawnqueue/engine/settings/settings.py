"""Settings as a whole: the ways in, their order of precedence, and what must agree across sections."""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Self

from pydantic import Field

from airflow_provider_pawnqueue.engine.settings.base import At, Clash, Origin, Section
from airflow_provider_pawnqueue.engine.settings.environment import read_environment, variables_of
from airflow_provider_pawnqueue.engine.settings.sections import (
    ClaimsSettings,
    ConcurrencySettings,
    LimitsSettings,
    PollingSettings,
    RegistrySettings,
    RetrySettings,
    S3Settings,
)
from airflow_provider_pawnqueue.engine.settings.yaml_file import read_yaml


class Settings(Section):
    """Everything that can be set about a queue. Frozen, comparable, hashable, picklable; prints no secret.

    There are five ways in, and one order of precedence: a file or a dict, over it the environment, over that what is
    given explicitly. They are merged field by field: ``Settings.from_yaml("queue.yaml", s3={"bucket_name": "x"})``
    keeps what the file says about the rest of ``s3``. A section given as an instance counts with the fields that it was
    given, and a field given as ``None`` takes back what the file or the environment said.

    * ``Settings(s3={...}, polling={...})``: explicit only; the environment is not read.
    * :meth:`from_env`, :meth:`from_dict`, :meth:`from_yaml`: as above; ``environ={}`` leaves the environment out.
    * :meth:`load`: whichever of them fits what it is given.

    A section that is ``None`` (a YAML section without content) says nothing. In the environment:

    * every setting has a variable, ``PAWNQUEUE_<SECTION>_<FIELD>`` or its name in the published pawn-queue library
      (``PAWNQUEUE_S3_ACCESS_KEY``); :func:`environment_variables` lists them;
    * an empty variable counts as not set;
    * a switch is one of true, 1, yes, on, false, 0, no, off, in small letters or capitals. Anything else is refused
      (pawn-queue takes all it does not know for false, and would send your keys unencrypted after a typo);
    * a variable that looks like one of ours and is none is logged as a warning with the nearest one's name.

    All that is wrong is told in one ``ConfigError``, which names each setting by its dotted path, and the variable that
    its value is from. Beyond ranges, these must agree:

    * ``polling.visibility_timeout_seconds`` > ``claims.margin_seconds``: a holder stops trusting its claim the margin
      before its time, so a shorter claim could never be used;
    * ``polling.lease_refresh_interval_seconds`` < half of ``polling.visibility_timeout_seconds``, and < that timeout
      less ``claims.margin_seconds``: one renewal may fail, and each comes while the claim is still trusted;
    * ``concurrency.csprng_verify.jitter_min_ms`` <= ``jitter_max_ms``, and ``retry.initial_delay_seconds`` <=
      ``max_delay_seconds``;
    * ``s3.aws_access_key_id`` and ``s3.aws_secret_access_key`` come together; a session token needs them, an external
      id needs a role, a KMS key or a Bucket Key needs the encryption that uses it.

    ``model_dump_json()`` masks the credentials; to hand settings to another process, pickle them.
    """

    s3: S3Settings = Field(description="Where the bucket is, who we are to it, and how to talk to it.")
    polling: PollingSettings = Field(
        default_factory=PollingSettings, description="How a consumer looks for messages, and how long it has them."
    )
    concurrency: ConcurrencySettings = Field(
        default_factory=ConcurrencySettings, description="How processes keep out of each other's way."
    )
    registry: RegistrySettings = Field(default_factory=RegistrySettings, description="The list of who is here.")
    claims: ClaimsSettings = Field(default_factory=ClaimsSettings, description="The times of claims.")
    retry: RetrySettings = Field(default_factory=RetrySettings, description="How failed requests are tried again.")
    limits: LimitsSettings = Field(default_factory=LimitsSettings, description="What a payload may be at most.")

    if TYPE_CHECKING:

        def __init__(  # noqa: PLR0913 - a section each; all of them also take a mapping
            self,
            *,
            s3: S3Settings | Mapping[str, object],
            polling: PollingSettings | Mapping[str, object] | None = None,
            concurrency: ConcurrencySettings | Mapping[str, object] | None = None,
            registry: RegistrySettings | Mapping[str, object] | None = None,
            claims: ClaimsSettings | Mapping[str, object] | None = None,
            retry: RetrySettings | Mapping[str, object] | None = None,
            limits: LimitsSettings | Mapping[str, object] | None = None,
        ) -> None: ...

    @classmethod
    def from_env(cls, *, environ: Mapping[str, str] = os.environ, **explicit: object) -> Self:
        """Take the settings from the environment, and over them what is given explicitly."""
        return cls._assembled({}, "", environ, explicit)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, object], *, environ: Mapping[str, str] = os.environ, **explicit: object
    ) -> Self:
        """Take the settings from a nested mapping; over it the environment, over that what is given explicitly."""
        return cls._assembled(data, "", environ, explicit)

    @classmethod
    def from_yaml(
        cls, path: str | os.PathLike[str], *, environ: Mapping[str, str] = os.environ, **explicit: object
    ) -> Self:
        """Take the settings from a YAML file; over it the environment, over that what is given explicitly."""
        return cls._assembled(read_yaml(path), os.fspath(path), environ, explicit)

    @classmethod
    def load(
        cls,
        source: "Settings | Mapping[str, object] | str | os.PathLike[str] | None" = None,
        *,
        environ: Mapping[str, str] = os.environ,
        **explicit: object,
    ) -> "Settings":
        """Take the settings from a mapping, the path of a YAML file, or (without a source) the environment.

        Settings are final: they are returned as they are, or with what is given explicitly merged in. The environment
        is not read again for them.
        """
        if isinstance(source, Settings):
            return source.model_copy(update=explicit) if explicit else source
        if source is None:
            return cls.from_env(environ=environ, **explicit)
        if isinstance(source, Mapping):
            return cls.from_dict(source, environ=environ, **explicit)
        return cls.from_yaml(source, environ=environ, **explicit)

    def clashes(self) -> Iterator[Clash]:
        """Find a claim that could not be used, or not be renewed in time."""
        ttl, margin = self.polling.visibility_timeout_seconds, self.claims.margin_seconds
        renewal = self.polling.lease_refresh_interval_seconds
        at_ttl, at_margin = At("polling.visibility_timeout_seconds"), At("claims.margin_seconds")
        at_renewal = At("polling.lease_refresh_interval_seconds")
        if ttl <= margin:
            yield at_ttl, " must be above ", at_margin, ", for so long before its end no claim is trusted"
        if renewal >= ttl / 2:
            yield at_renewal, " must be under half of ", at_ttl, ", so that a claim survives a renewal that fails"
        elif ttl > margin and renewal >= ttl - margin:
            yield at_renewal, " must be under ", at_ttl, " less ", at_margin, ", while the claim is still trusted"

    @classmethod
    def _assembled(
        cls, base: Mapping[str, object], source: str, environ: Mapping[str, str], explicit: Mapping[str, object]
    ) -> Self:
        overlay, variables = read_environment(cls, environ)
        for path in cls.paths_in(explicit):
            variables.pop(path, None)
        offers = {path: variable for variable, path in variables_of(cls).items()}
        return cls.model_validate(
            cls.merged((base, overlay, explicit)), context=Origin(source=source, variables=variables, offers=offers)
        )


def environment_variables() -> Mapping[str, str]:
    """Return every environment variable that is read, and the dotted path of the setting that it sets."""
    return variables_of(Settings)
