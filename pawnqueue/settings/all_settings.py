"""All settings together: how they can be given, and which one wins."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, TypeAlias

from pydantic import Field

from pawnqueue.settings.base import Origin, Section, nest
from pawnqueue.settings.environment import variable_of, warn_of_typos
from pawnqueue.settings.sections import (
    ClaimsSettings,
    ConcurrencySettings,
    LimitsSettings,
    PacksSettings,
    PollingSettings,
    RegistrySettings,
    RetrySettings,
    S3Settings,
)
from pawnqueue.settings.yaml_file import read_yaml

_Environment: TypeAlias = Mapping[str, str]
_Path: TypeAlias = str | os.PathLike[str]


class Settings(Section):
    """Everything that can be set about a queue. Frozen, comparable, hashable, picklable; prints no secret.

    ``Settings(...)`` takes nothing but its arguments. All other ways have one order of precedence: a file or a dict,
    over it the environment (``environ={}`` leaves it out), over that the explicit arguments. They are merged field by
    field: ``Settings.from_yaml("queue.yaml", s3={"bucket_name": "x"})`` keeps what the file says about the rest of
    ``s3``. A section given as an instance counts with the fields that were set in it. A field given as ``None`` takes
    back the value of the file or the environment; a section given as ``None`` changes nothing. In the environment:

    * every setting has a variable, ``PAWNQUEUE_<SECTION>_<FIELD>`` or its name in the published pawn-queue library
      (``PAWNQUEUE_S3_ACCESS_KEY``); :func:`environment_variables` lists them;
    * an empty variable counts as not set;
    * a switch is one of true, 1, yes, on, false, 0, no, off, in small letters or capitals. Anything else is refused
      (pawn-queue takes all it does not know for false, and would send your keys unencrypted after a typo);
    * a variable that looks like one of these but is unknown is logged as a warning, with the nearest one's name.

    One ``ConfigError`` names all that is wrong, by itself or because settings contradict each other: each setting by
    its dotted path, and the variable that its value is from.
    ``model_dump_json()`` masks the credentials; to hand settings to another process, pickle them.
    """

    s3: S3Settings = Field({}, validate_default=True)  # so that what is missing is the bucket's name
    polling: PollingSettings = PollingSettings()
    concurrency: ConcurrencySettings = ConcurrencySettings()
    registry: RegistrySettings = RegistrySettings()
    claims: ClaimsSettings = ClaimsSettings()
    retry: RetrySettings = RetrySettings()
    limits: LimitsSettings = LimitsSettings()
    packs: PacksSettings = PacksSettings()

    @property
    def store(self) -> S3Settings:
        """The section that says where the bucket is. S3 is the only kind of store with a section so far."""
        return self.s3

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
            packs: PacksSettings | Mapping[str, object] | None = None,
        ) -> None: ...

    @classmethod
    def from_env(cls, *, environ: _Environment = os.environ, **explicit: object) -> Self:
        """Take the settings from the environment, and over them what is given explicitly."""
        return cls.from_dict({}, environ=environ, **explicit)

    @classmethod
    def from_dict(cls, data: Mapping[str, object], *, environ: _Environment = os.environ, **explicit: object) -> Self:
        """Take the settings from a nest mapping; over it the environment, over that what is given explicitly."""
        return cls._assemble(data, "", environ, explicit)

    @classmethod
    def from_yaml(cls, path: _Path, *, environ: _Environment = os.environ, **explicit: object) -> Self:
        """Take the settings from a YAML file; over it the environment, over that what is given explicitly."""
        return cls._assemble(read_yaml(path), os.fspath(path), environ, explicit)

    @classmethod
    def load(
        cls,
        source: "Settings | Mapping[str, object] | _Path | None" = None,
        *,
        environ: _Environment = os.environ,
        **explicit: object,
    ) -> "Settings":
        """Take the settings from a mapping, the path of a YAML file, or (without a source) the environment.

        Settings are final: they are returned as they are, or with what is given explicitly merged in. The environment
        is not read again for them.
        """
        if isinstance(source, Settings):
            return source.model_copy(update=explicit) if explicit else source
        if source is None or isinstance(source, Mapping):
            return cls.from_dict(source or {}, environ=environ, **explicit)
        return cls.from_yaml(source, environ=environ, **explicit)

    @classmethod
    def _assemble(cls, base: object, source: str, environ: _Environment, explicit: Mapping[str, object]) -> Self:
        known, given = environment_variables(), cls.flatten(explicit)
        warn_of_typos(known, environ)
        texts = {tuple(path.split(".")): environ[variable] for variable, path in known.items() if environ.get(variable)}
        origin = Origin(source, {cls.dotted_path(path) for path in texts.keys() - given.keys()})
        return cls.model_validate(nest(cls.flatten(base) | texts | given), context=origin)


def environment_variables() -> Mapping[str, str]:
    """Return the dotted path of each setting, by the environment variable that sets it."""
    paths = [Settings.dotted_path(path) for path in Settings.fields_below()]
    return MappingProxyType({variable_of(path): path for path in paths})
