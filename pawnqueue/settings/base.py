"""What all sections of the settings have in common: they merge field by field, and fail with one ``ConfigError``.

However a section is built, pydantic's ``ValidationError`` never leaves this module: it carries the values that it
refused, and a refused value may be a secret.
"""

from collections.abc import Container, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, reduce
from operator import attrgetter
from typing import Any, Final, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails

from pawnqueue.errors import ConfigError
from pawnqueue.settings.contradictions import find_contradictions
from pawnqueue.settings.environment import variable_of
from pawnqueue.settings.kinds import shorten

#: The names that lead to a setting. An unknown key may be of any type.
Names: TypeAlias = tuple[Any, ...]

#: Set while a section is validated: the sections inside it leave the error to it.
_INSIDE: Final[ContextVar[bool]] = ContextVar("_INSIDE", default=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where values come from: a file, and the environment by the dotted paths that it sets (None: it was not read)."""

    source: str = ""
    environment: Container[str] | None = None

    def describe(self, path: str, value: object = None) -> str:
        """Name a setting by its path, its value if it is given, and the variable that it comes from."""
        notes = [] if value is None else [repr(value)]
        notes += [f"from {variable_of(path)}"] if path in (self.environment or ()) else []
        return f"{path} ({', '.join(notes)})" if notes else path or "the whole"


class Section(BaseModel):
    """A group of settings: frozen, comparable, hashable, picklable. Its title is its dotted path."""

    model_config = ConfigDict(title="", frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse, as pydantic does with frozen models, but without quoting the value."""
        refusal = InitErrorDetails(type="frozen_instance", loc=(name,), input=None)
        raise ValidationError.from_exception_data(type(self).__name__, [refusal], hide_input=True)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Read a JSON object; bad JSON is a ``ConfigError`` as well."""
        with suppress(ValidationError):  # broken JSON only: all else has become a ConfigError further down
            return super().model_validate_json(json_data, **options)
        raise ConfigError("The settings are not valid JSON.", operation="configure")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy, with ``update`` merged in field by field and, unlike in pydantic's own version, checked."""
        if not update:
            return super().model_copy(deep=deep)
        return self.model_validate(nest(self.flatten(self) | self.flatten(update)))

    @classmethod
    @cache
    def sections(cls) -> Mapping[str, type["Section"]]:
        """Return the sections of this section, by the names of their fields."""
        kinds = {name: info.annotation for name, info in cls.model_fields.items()}
        return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}

    @classmethod
    @cache
    def fields_below(cls) -> Mapping[Names, FieldInfo]:
        """Return every setting of this section and of the sections below it."""
        found: dict[Names, FieldInfo] = {}
        for name, info in cls.model_fields.items():
            below = cls.sections()[name].fields_below() if name in cls.sections() else {(): info}
            found |= {(name, *names): field for names, field in below.items()}
        return found

    @classmethod
    def flatten(cls, said: object, above: Names = ()) -> dict[Names, Any]:
        """Return the settings that a section or a mapping gives, by their names; None gives none.

        Anything else is returned as the value of the section itself: it is refused later.
        """
        if isinstance(said, cls):
            said = {name: value for name, value in said if name in said.model_fields_set}
        if not isinstance(said, Mapping | None):
            return {above: said}
        result: dict[Names, Any] = {}
        for name, value in (said or {}).items():
            section = cls.sections().get(name)
            result |= section.flatten(value, (*above, name)) if section else {(*above, name): value}
        return result

    @classmethod
    def dotted_path(cls, path: Names) -> str:
        """Return the path as users know it, from the top of the settings."""
        return ".".join([*filter(None, [cls.model_config["title"]]), *map(str, path)])

    @model_validator(mode="wrap")
    @classmethod
    def _fail_with_one_config_error(
        cls, value: object, accept: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if _INSIDE.get():
            return accept(value)
        origin = info.context if isinstance(info.context, Origin) else Origin()
        said, wrong = cls.flatten(value), dict[Names, str]()
        token = _INSIDE.set(True)
        try:
            settings = accept(nest(said))
        except ValidationError as error:
            wrong = {detail["loc"]: cls._complaint(detail, origin) for detail in error.errors(include_url=False)}
            # The rest is checked all the same: it may contradict itself.
            required = {path: "stand-in" for path, field in cls.fields_below().items() if field.is_required()}
            settings = accept(nest(required | {path: said[path] for path in said if not _is_in(wrong, path)}))
        finally:
            _INSIDE.reset(token)
        well = [path for path in cls.fields_below() if not _is_in(wrong, path)]
        values = {cls.dotted_path(path): attrgetter(".".join(path))(settings) for path in well}
        if complaints := [*wrong.values(), *find_contradictions(values, origin.describe)]:
            of = f" of {origin.source}" if origin.source else ""
            raise ConfigError(f"The settings{of} do not hold: {'; '.join(complaints)}.", operation="configure")
        return settings

    @classmethod
    def _complaint(cls, detail: ErrorDetails, origin: Origin) -> str:
        """Say what is wrong at one place."""
        path = cls.dotted_path(detail["loc"])
        match detail["type"]:
            case "missing":
                offer = "" if origin.environment is None else f": give it, or set {variable_of(path)}"
                return f"{path} is missing{offer}"
            case "extra_forbidden" | "invalid_key":
                return f"{path} is unknown; the nearest setting is {cls.dotted_path(cls._nearest(detail['loc']))}"
            case "literal_error":
                words = f"must be one of {detail['ctx']['expected']}, not {shorten(detail['input'])}"
            case "model_type":
                words = "must be a mapping of settings"
            case _:
                words = detail["msg"].removeprefix("Value error, ")
        return f"{origin.describe(path)} {words}"

    @classmethod
    def _nearest(cls, path: Names) -> Names:
        known = [setting[:depth] for setting in cls.fields_below() for depth in range(1, len(setting) + 1)]
        namesakes = [other for other in known if other[-1] == path[-1]]
        siblings = [other[-1] for other in known if other[:-1] == path[:-1]]
        return [*namesakes, (*path[:-1], *get_close_matches(str(path[-1]), siblings, n=1, cutoff=0))][0]


def nest(said: Mapping[Names, Any]) -> Any:  # noqa: ANN401 - a dict, or what was given in its place
    """Undo :meth:`Section.flatten`. A value in the place of a section hides the settings of that section."""
    whole: dict[str, Any] = {}
    for path in sorted(said, key=len, reverse=True):
        *sections, name = ("", *path)
        reduce(lambda place, section: place.setdefault(section, {}), sections, whole)[name] = said[path]
    return whole.get("", {})


def _is_in(places: Mapping[Names, object], path: Names) -> bool:
    return any(path[:depth] in places for depth in range(len(path) + 1))
