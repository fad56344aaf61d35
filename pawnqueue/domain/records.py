"""Small records: of the bucket, a topic, a sweep, a producer or consumer, and of a dead letter's reason."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LONGEST_DURATION, MOST_COUNT, Count, HolderText, PlainText, ReasonText, Time
from pawnqueue.domain.record import Part, Record
from pawnqueue.domain.topic_limits import CompletedLog, DeadLetterLimits


class BucketRecord(Record):
    """``_registry/bucket.json``: what all processes that use the bucket agree on."""

    what: ClassVar[str] = "bucket record"

    #: The name of one of those that ``registers/strategies.py`` lists, or, to an old process, of a newer one.
    strategy: PlainText
    #: The store wants the ETag of ``If-Match`` without its quotes.
    unquoted_if_match: bool = False
    #: The store keeps what a bulk DELETE with ETags does not expect. A record without the field says no.
    conditional_deletes: bool = False
    created_at: str = ""


#: Settings with parts. One that is not set is not shown.
_GROUPS = frozenset({"completed", "dead_letters"})
#: The window of a topic into which somebody publishes with keys, if nobody has set another one.
DEFAULT_DEDUP_WINDOW_SECONDS = 3600.0
LONGEST_DEDUP_WINDOW_SECONDS = 30 * 86_400.0


class TopicSettings(Part):
    """What is set for one topic, for everyone who uses it."""

    max_deliveries: int | None = Field(
        default=10,
        ge=1,
        le=MOST_COUNT,
        description="A message is buried after this many deliveries without a settlement; None: never.",
    )
    packs: bool | None = Field(
        default=None,
        description="Whether many messages that are published at once become packs. False: not any more. None: no, and "
        "the topic never had any: it was created with ``packs=False``, by pawn-queue, or by a version that knows none.",
    )
    max_pending: int | None = Field(
        default=None,
        ge=1,
        le=MOST_COUNT,
        strict=True,
        description="How many messages that are not finished the topic may have before publishers are held up; None: "
        "any number.",
    )
    overload: Literal["raise", "block"] = Field(
        default="raise",
        description="What becomes of a call that publishes into a topic which has ``max_pending`` messages: it raises "
        "an error, or waits for room.",
    )
    overload_timeout_seconds: float = Field(
        default=30.0, ge=0, le=LONGEST_DURATION, strict=True, description="For how long such a call waits at most."
    )
    max_age_seconds: float | None = Field(
        default=None,
        ge=1,
        le=LONGEST_DURATION,
        strict=True,
        description="A message that is older than this is buried, and handed out to nobody; None: never.",
    )
    priorities: bool | None = Field(
        default=None,
        description="Whether messages may be published with a priority. False: not any more. None: no, and the topic "
        "never had any.",
    )
    delays: bool | None = Field(
        default=None,
        description="Whether messages may be published with a delay. False: not any more. None: no, and the topic "
        "never had any.",
    )
    paused: bool = Field(
        default=False, strict=True, description="Whether nobody is given messages of the topic until it is resumed."
    )
    dedup_window_seconds: float | None = Field(
        default=None,
        ge=1,
        le=LONGEST_DEDUP_WINDOW_SECONDS,
        description="For how long a message keeps others with its deduplication key from being published. None: nobody "
        "has published with a key yet; the first one who does makes it an hour.",
    )
    completed: CompletedLog | None = Field(
        default=None,
        description="The log of what was acked; None: the topic never had one.",
    )
    dead_letters: DeadLetterLimits | None = Field(
        default=None,
        description="Which dead letters the janitor removes, after a warning; None: all of them are kept.",
    )

    @model_serializer(mode="wrap")
    def _leave_out_groups(self, as_dict: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = as_dict(self)
        return {name: value for name, value in fields.items() if value is not None or name not in _GROUPS}


class TopicRecord(Record):
    """``{topic}/.topic``: the topic exists. pawn-queue writes the first two fields and reads none."""

    what: ClassVar[str] = "topic"

    #: What is stored as ``topic``. (A stored ``name``, of somebody else's, is an unknown field like any other.)
    name: str = Field(alias="topic")
    created_at: str = ""
    settings: TopicSettings = TopicSettings()
    #: Made anew whenever the limits of dead letters change: warnings that were given before do not count.
    limits_id: str = ""

    @property
    def may_have_packs(self) -> bool:
        """Whether the topic has packs, or had some. A topic that never had any costs its readers no LIST of packs."""
        return self.settings.packs is not None

    def _as_json(self, *, but: Collection[str] = ()) -> dict[str, Any]:
        data = super()._as_json(but=but)
        for name, field in TopicSettings.model_fields.items():
            # Other settings are stored only where they are used. Else the marker is as earlier versions write it.
            if name != "max_deliveries" and getattr(self.settings, name) == field.default:
                data["settings"].pop(name, None)
        if not self.limits_id:
            data.pop("limits_id", None)
        return data


class SweptRecord(Record):
    """``{topic}/.swept``: a janitor has swept the topic to the end. When, the object's date tells."""

    what: ClassVar[str] = "note of a sweep"

    topic: str


class LetterNotice(Part):
    """A warning that dead letters will be removed."""

    at: Time
    """When it was given, by the store's time."""
    through: Time
    """The date of the last letter that it was about."""
    through_id: str = ""
    """That letter's id. Without one, the warning covers only letters of an earlier date."""

    @property
    def last(self) -> tuple[float, str]:
        """The last letter that it was about: it covers those of earlier dates, and of this date and earlier ids."""
        return self.through, self.through_id


class LetterNotices(Record):
    """``{topic}/.dead-letters``: which dead letters the janitor has warned of, before it removes them."""

    what: ClassVar[str] = "note of warnings"

    topic: str
    limits_id: str = ""  # of the limits for which the warnings were given
    notices: list[LetterNotice] = Field(default=[])

    def fits(self, key: str) -> bool:
        """See :meth:`Record.fits`."""
        return key == layout.letter_notices(self.topic)


class RegistrationRecord(Record):
    """``_registry/{role}/{id}.json``: a producer or a consumer, and when it was last here."""

    what: ClassVar[str] = "registration"

    role: PlainText
    name: PlainText
    entity_id: PlainText
    registered_at: str
    last_seen: str

    def fits(self, key: str) -> bool:
        """See :meth:`Record.fits`."""
        # The key is made of the name by us, and of the id by pawn-queue.
        match layout.parse_registration(key):
            case None:
                return False
            case role, its_id:
                return self.role == role and its_id in {self.entity_id, layout.id_of_name(role, self.name)}


class DeadReason(Record):
    """``{topic}/dead-letter/{uuid}.reason.json``: why a message was given up on, and where it was."""

    what: ClassVar[str] = "reason"

    reason: ReasonText
    error: ReasonText = ""
    deliveries: Count = 0
    consumer: HolderText = ""
    claim: str = ""
    at: str = ""
    name: str = ""  # of the key that it had below messages/, or of the pack that it was in
    unit: str = ""  # where it was in a pack: the pack's unit
    max_deliveries: Count | None = None  # the topic's limit, if it was reached: then reason is the last one given
    given_reason: ReasonText = ""  # when it was last given back, and the error beside it
    given_error: ReasonText = ""
