"""What is stored in the bucket, as pydantic models: canonical JSON with a format version; unknown fields are kept."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_pawnqueue.engine.errors import CompatibilityError

#: The newest format of a body that this version reads, and the one that it writes. 0 stands for a body of pawn-queue's.
FORMAT = 1

StrategyName: TypeAlias = Literal["conditional_write", "csprng_verify"]


class UnreadableRecordError(ValueError):
    """A body that is no record of this kind: garbage, or a stranger's."""


class Record(BaseModel):
    """A body of ours. Fields that this version does not know are kept by whoever rewrites the record."""

    model_config = ConfigDict(extra="allow", frozen=True)

    what: ClassVar[str] = "record"

    v: int = FORMAT
    #: The write id: fresh in every write, as equal bodies have equal ETags and compare-and-set would suffer ABA.
    nonce: str = ""

    def encode(self) -> bytes:
        """Return the body: canonical JSON in UTF-8."""
        return canonical(self.model_dump(mode="json"))

    @classmethod
    def decode(cls, body: bytes, key: str) -> Self:
        """Read a body, of our format or an older one.

        :raises CompatibilityError: the body has a newer format, which is named.
        :raises UnreadableRecordError: it is no record of this kind.
        """
        try:
            data = json.loads(body)
        except (ValueError, RecursionError) as problem:
            raise UnreadableRecordError(f"{key} is not JSON") from problem
        if not isinstance(data, dict):
            raise UnreadableRecordError(f"{key} is not a JSON object")
        data.setdefault("v", 0)
        version = data["v"]
        if isinstance(version, int) and version > FORMAT:
            raise CompatibilityError(
                f"The {cls.what} {key} has format {version}, and this version of airflow-provider-pawnqueue "
                f"reads up to format {FORMAT}: upgrade it in this process."
            )
        try:
            return cls.model_validate(data)
        except ValidationError as problem:
            raise UnreadableRecordError(f"{key} is not a {cls.what}") from problem

    def stamped(self, nonce: str) -> Self:
        """Return the record as it is about to be written: in our format, with a write id of its own."""
        return self.model_copy(update={"nonce": nonce, "v": FORMAT})


class BucketRecord(Record):
    """``_registry/bucket.json``: what all processes that use the bucket agree on."""

    what: ClassVar[str] = "bucket record"

    strategy: StrategyName
    #: The store wants the ETag of ``If-Match`` without its quotes.
    unquoted_if_match: bool = False
    created_at: str = ""


class TopicSettings(BaseModel):
    """What is set for one topic, for everyone who uses it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    max_deliveries: int | None = Field(
        default=10,
        ge=1,
        description="After so many deliveries without a settlement a message is buried; None never buries.",
    )


class TopicRecord(Record):
    """``{topic}/.topic``: the topic exists. pawn-queue writes the first two fields and reads none."""

    what: ClassVar[str] = "topic"

    topic: str
    created_at: str = ""
    settings: TopicSettings = TopicSettings()


class Registration(Record):
    """``_registry/{role}/{id}.json``: a producer or a consumer, and when it was last here."""

    what: ClassVar[str] = "registration"

    role: str
    name: str
    entity_id: str
    registered_at: str
    last_seen: str


def canonical(data: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Write JSON in the bucket's one form: sorted keys, no spaces, UTF-8."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
