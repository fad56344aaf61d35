"""Bodies in the bucket, as pydantic models: canonical JSON with a format version; unknown fields are kept."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pawnqueue.domain.bounds import MOST_COUNT, MOST_RECORD_DEPTH, NotJsonError, parse_json
from pawnqueue.domain.object_sizes import MAX_UNKNOWN_BYTES
from pawnqueue.errors import CompatibilityError

#: The format of a body that this version writes. A body of pawn-queue's counts as 0.
FORMAT = 1
#: The newest format of any body: that of a claim or a write with packs, which versions without packs leave alone.
NEWEST_FORMAT = 2


class UnreadableRecordError(ValueError):
    """A body that is not a record of this kind: garbage, or a stranger's. The sentence never quotes the body."""


class Part(BaseModel):
    """A part of a body. ⚑ §1: what does not fit the bounds makes the whole body garbage."""

    #: The stored fields that are none of the model's own: it reads and writes them in another form.
    also_stored: ClassVar[frozenset[str]] = frozenset()

    # A time that is not a number, or endless, would hold a message for ever.
    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class Record(Part):
    """A body of ours. A rewrite keeps the fields that this version does not know."""

    what: ClassVar[str] = "record"
    #: The newest format that this version reads.
    newest: ClassVar[int] = FORMAT
    #: How deeply it may be nested.
    max_depth: ClassVar[int] = MOST_RECORD_DEPTH

    v: int = Field(default=FORMAT, ge=0)
    #: The write id: fresh in every write, as equal bodies have equal ETags and compare-and-set would suffer ABA.
    nonce: str = ""

    def encode(self) -> bytes:
        """Return the body: canonical JSON in UTF-8."""
        # ⚑ §1: a record with half of a surrogate pair is garbage to its readers. A user's text, such as the reason of a
        # nack, may have one.
        return self._as_text().encode("utf-8", "replace")

    def _as_text(self) -> str:
        return to_json(self._as_json())

    def _as_json(self, *, but: Collection[str] = ()) -> dict[str, Any]:
        # ⚑ §1: what was read can be written. A field that this version does not know is JSON already, and may be nested
        # more deeply than pydantic can serialize.
        unknown = self.model_extra or {}
        left_out = {*but, *(unknown.keys() - type(self).model_fields.keys())}
        return {**self.model_dump(mode="json", by_alias=True, exclude=left_out), **unknown}

    @classmethod
    def decode(cls, body: bytes, key: str) -> Self:
        """Read a body, of our format or an older one.

        :raises CompatibilityError: the body has a newer format, which is named.
        :raises UnreadableRecordError: it is no record of this kind.
        """
        try:
            data = parse_json(body, max_depth=cls.max_depth)
        except NotJsonError as problem:
            why = f": {problem}" if str(problem) else ""
            raise UnreadableRecordError(f"{key} is not JSON{why}") from None
        if not isinstance(data, dict):
            raise UnreadableRecordError(f"{key} is not a JSON object")
        data.setdefault("v", 0)
        version = data["v"]
        if isinstance(version, int) and cls.newest < version <= MOST_COUNT:
            raise CompatibilityError(
                f"The {cls.what} {key} has format {version}, and this version of airflow-provider-pawnqueue "
                f"reads up to format {cls.newest}: upgrade it in this process."
            )
        try:
            record = cls.model_validate(data) if cls.is_bounded(data) else None
        except ValidationError:
            record = None
        if record is None or record.v > cls.newest or not record.fits(key):
            raise UnreadableRecordError(f"{key} is not a {cls.what}")
        return record

    @classmethod
    def is_bounded(cls, _data: Mapping[str, Any]) -> bool:
        """Say, before a record is made of it, whether there is no more in the body than in any of ours."""
        return True

    def fits(self, _key: str) -> bool:
        """Say whether the record can have this key, and its fields agree with each other."""
        return True

    def stamped(self, nonce: str) -> Self:
        """Return the record as it is about to be written: in our format, with a write id of its own."""
        return self.model_copy(update={"nonce": nonce, "v": FORMAT})


class _AnyRecord(Record):
    """A record of any kind, of which only the write id is read."""

    newest: ClassVar[int] = NEWEST_FORMAT


@cache
def _fields_of(model: type[BaseModel]) -> frozenset[str]:
    stored = frozenset(field.alias or name for name, field in model.model_fields.items())
    return stored | model.also_stored if issubclass(model, Part) else stored


def are_few_unknown(*models: tuple[type[BaseModel], Iterable[object]]) -> bool:
    """Say whether there is little text in fields that this version does not know: it keeps them for the next write."""
    return sum(_unknown_bytes(model, data) for model, parts in models for data in parts) <= MAX_UNKNOWN_BYTES


def _unknown_bytes(model: type[BaseModel], data: object) -> int:
    if not isinstance(data, Mapping) or data.keys() <= _fields_of(model):
        return 0
    return len(to_json({name: value for name, value in data.items() if name not in _fields_of(model)}).encode())


def parts_of(of: object) -> Collection[object]:
    """Return the parts of a body that are kept in an object or a list."""
    return of.values() if isinstance(of, Mapping) else of if isinstance(of, list) else ()


def nonce_of(body: bytes, key: str) -> str | None:
    """Return the write id in a register's body, or None where it is none of ours."""
    try:
        return _AnyRecord.decode(body, key).nonce
    except (UnreadableRecordError, CompatibilityError):
        return None


def canonical(data: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Write JSON in the bucket's one form: sorted keys, no spaces, UTF-8."""
    return to_json(data).encode()


def to_json(data: Any) -> str:  # noqa: ANN401 - any JSON value
    """Write JSON in the bucket's one form, as text."""
    return _ENCODER.encode(data)


#: ``json.dumps`` would make one for each call.
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
