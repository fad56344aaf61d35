"""What all sections of the settings have in common: they merge field by field, and they fail with one ConfigError.

A section is a frozen pydantic model that knows its dotted path. However it is built, pydantic's ``ValidationError``
never leaves this module: it carries the values that it refused, and a refused value may be a secret.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails

from airflow_provider_pawnqueue.engine.errors import ConfigError
from airflow_provider_pawnqueue.engine.settings.kinds import Kind

#: Set while a section is validated; what is validated meanwhile is inside it, and leaves the complaining to it.
_INSIDE: Final[ContextVar[bool]] = ContextVar("_INSIDE", default=False)

#: Passes for any required setting, so that the others can be compared with each other although it is missing.
_STAND_IN: Final = "stand-in"

_LONGEST_SHOWN: Final = 40
_LARGEST_SHOWN: Final = 10**18


@dataclass(frozen=True, slots=True)
class At:
    """A place in a clash's sentence where a setting is named, with its value and where that came from."""

    path: str


#: Why two or more settings contradict each other: a sentence in pieces.
Clash: TypeAlias = tuple[str | At, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the values under validation came from."""

    source: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)  # dotted path -> the variable that its value is from
    offers: Mapping[str, str] = field(default_factory=dict)  # dotted path -> the variable that it could be from


class Section(BaseModel):
    """A group of settings: frozen, comparable, hashable, picklable; bad input is a ``ConfigError``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    dotted: ClassVar[str] = ""

    def clashes(self) -> Iterator[Clash]:
        """Which settings in here contradict each other."""
        yield from ()

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse, as pydantic does with frozen models, but without quoting the value."""
        refusal = InitErrorDetails(type="frozen_instance", loc=(name,), input=None)
        raise ValidationError.from_exception_data(type(self).__name__, [refusal], hide_input=True)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Read a JSON object; bad JSON is a ``ConfigError`` as well."""
        try:
            return super().model_validate_json(json_data, **options)
        except ValidationError:
            pass  # all but broken JSON has become a ConfigError further down
        message = "The settings are not valid JSON."
        raise ConfigError(message, operation="configure")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy, with ``update`` merged in field by field and, unlike in pydantic's own version, checked."""
        if not update:
            return super().model_copy(deep=deep)
        return self.model_validate(self.merged((self, update)))

    @classmethod
    def section_of(cls, name: str) -> type["Section"] | None:
        """Return the section that the field ``name`` holds, if it holds one."""
        info = cls.model_fields.get(name)
        kind = info.annotation if info else None
        return kind if isinstance(kind, type) and issubclass(kind, Section) else None

    @classmethod
    def path_of(cls, name: str) -> str:
        """Return the full dotted path of the field ``name``."""
        return f"{cls.dotted}.{name}" if cls.dotted else name

    @classmethod
    def fields_below(cls) -> Iterator[tuple[str, FieldInfo]]:
        """Every field in here and in the sections below, by its dotted path; the sections themselves too."""
        for name, info in cls.model_fields.items():
            yield cls.path_of(name), info
            if section := cls.section_of(name):
                yield from section.fields_below()

    @classmethod
    def spelled_out(cls, value: object) -> object:
        """Return what a section or a mapping says, as a dict; None says nothing; a stranger stays what it is."""
        if value is None:
            return {}
        if isinstance(value, cls):
            return {name: getattr(value, name) for name in cls.model_fields if name in value.model_fields_set}
        return dict(value) if isinstance(value, Mapping) else value

    @classmethod
    def merged(cls, layers: Iterable[object]) -> Any:  # noqa: ANN401 - a dict, or the layer that is no mapping
        """Lay settings over each other, field by field: the later wins. Nothing that is given is changed.

        A layer that is no mapping is the result: validation will say so.
        """
        result: dict[str, Any] = {}
        for layer in map(cls.spelled_out, layers):
            if not isinstance(layer, dict):
                return layer
            for name, value in layer.items():
                section = cls.section_of(name)
                result[name] = section.merged((result.get(name), value)) if section else value
        return result

    @classmethod
    def paths_in(cls, layer: object) -> Iterator[str]:
        """Name the settings about which a layer says something."""
        said = cls.spelled_out(layer)
        for name, value in said.items() if isinstance(said, dict) else ():
            section = cls.section_of(name)
            yield from section.paths_in(value) if section else (cls.path_of(name),)

    def at(self, path: str) -> object:
        """Return the value at a full dotted path."""
        value: object = self
        for name in path.removeprefix(f"{self.dotted}." if self.dotted else "").split("."):
            value = getattr(value, name)
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _fail_with_one_config_error(
        cls, value: object, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        said = cls.spelled_out(value)
        if isinstance(said, dict):
            said = {name: {} for name in _required_sections(cls)} | said
        if _INSIDE.get():
            return handler(said)
        origin = info.context if isinstance(info.context, Origin) else Origin()
        token = _INSIDE.set(True)
        try:
            settings, wrong = _settings_and_what_is_wrong(cls, said, handler, origin)
        finally:
            _INSIDE.reset(token)
        # What is well in itself may still contradict what else is well.
        complaints = [*wrong.values(), *_contradictions(settings, wrong, origin)]
        if complaints:
            of = f" of {origin.source}" if origin.source else ""
            message = f"The settings{of} do not hold: {'; '.join(complaints)}."
            raise ConfigError(message, operation="configure")
        return settings


SectionT = TypeVar("SectionT", bound=Section)


def _settings_and_what_is_wrong(
    cls: type[SectionT], said: object, handler: ModelWrapValidatorHandler[SectionT], origin: Origin
) -> tuple[SectionT, dict[str, str]]:
    """Validate; where that fails, validate what is left without the wrong parts. What is wrong is told by its path."""
    try:
        return handler(said), {}
    except ValidationError as error:
        details = error.errors(include_url=False)
    wrong = dict(_problem(cls, detail, origin) for detail in details)
    return handler(_without(cls, said, wrong)), wrong


def _required_sections(cls: type[Section]) -> Iterator[str]:
    return (name for name, info in cls.model_fields.items() if info.is_required() and cls.section_of(name))


def _without(cls: type[Section], said: object, wrong: Mapping[str, str]) -> dict[str, Any]:
    data = said if isinstance(said, dict) else {}
    kept: dict[str, Any] = {}
    for name, info in cls.model_fields.items():
        if section := cls.section_of(name):
            kept[name] = _without(section, section.spelled_out(data.get(name)), wrong)
        elif name in data and cls.path_of(name) not in wrong:
            kept[name] = data[name]
        elif info.is_required():
            kept[name] = _STAND_IN
    return kept


def _contradictions(settings: Section, wrong: Iterable[str], origin: Origin) -> Iterator[str]:
    for clash in _clashes_below(settings):
        places = [part.path for part in clash if isinstance(part, At)]
        if not any(f"{place}.".startswith(f"{path}.") for place in places for path in wrong):
            yield "".join(part if isinstance(part, str) else _said(settings, part, origin) for part in clash)


def _clashes_below(section: Section) -> Iterator[Clash]:
    yield from section.clashes()
    for name in type(section).model_fields:
        if isinstance(child := getattr(section, name), Section):
            yield from _clashes_below(child)


def _said(settings: Section, place: At, origin: Origin) -> str:
    value = settings.at(place.path)
    kind = _kind(dict(type(settings).fields_below())[place.path])
    notes = [_shown(value)] if kind.shown and value is not None else []
    if place.path in origin.variables:
        notes.append(f"from {origin.variables[place.path]}")
    return f"{place.path} ({', '.join(notes)})" if notes else place.path


def _problem(cls: type[Section], detail: Mapping[str, Any], origin: Origin) -> tuple[str, str]:
    """Say what is wrong at one place, by its dotted path."""
    *parents, name = (detail["loc"] or ("",))[:3]
    section = cls
    for parent in parents:
        section = section.section_of(str(parent)) or section
    path = section.path_of(str(name)) if name != "" else section.dotted
    info = section.model_fields.get(str(name))
    if info is None:
        return path, _problem_of_a_stranger(cls, section, name, path)
    if detail["type"] == "missing":
        offer = f": give it, or set {origin.offers[path]}" if path in origin.offers else ""
        return path, f"{path} is missing{offer}"
    subject = f"{path} (from {origin.variables[path]})" if path in origin.variables else path
    if detail["type"] == "value_error" and (own_words := str(detail["ctx"]["error"])):
        return path, f"{subject} {own_words}"
    kind = _kind(info)
    instead = f", not {_shown(detail['input'])}" if kind.shown else ""
    return path, f"{subject} must be {kind.expects}{instead}"


def _problem_of_a_stranger(root: type[Section], section: type[Section], name: object, path: str) -> str:
    if name == "":
        return f"{path or 'the whole'} must be a mapping of settings"
    elsewhere = [known for known, _ in root.fields_below() if known.rpartition(".")[2] == name]
    here = [section.path_of(near) for near in get_close_matches(str(name), section.model_fields, n=1, cutoff=0)]
    return f"{path} is unknown; the nearest setting is {(elsewhere + here)[0]}"


def _kind(info: FieldInfo) -> Kind:
    found = [*(mark for mark in info.metadata if isinstance(mark, Kind)), *_kinds_within(info.annotation)]
    return found[0] if found else Kind("a mapping of settings", shown=False)


def _kinds_within(annotation: object) -> Iterator[Kind]:
    if get_origin(annotation) is Literal:
        yield Kind(f"one of {', '.join(get_args(annotation))}")
    elif get_origin(annotation) is Annotated:
        yield from (mark for mark in get_args(annotation)[1:] if isinstance(mark, Kind))
    else:
        for part in get_args(annotation):
            yield from _kinds_within(part)


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > _LARGEST_SHOWN:
        return "so large a number"  # and Python refuses to print the largest
    if not isinstance(value, (bool, int, float, str)):
        return "None" if value is None else f"a value of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
