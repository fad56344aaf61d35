"""What is stored in the bucket, as pydantic models: canonical JSON with a format version; unknown fields are kept."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from pawnqueue.domain import layout, size_hint
from pawnqueue.domain.bounds import (
    LATEST_PLACE,
    MIN_STAGED_ROW_BYTES,
    MOST_COUNT,
    MOST_PAYLOAD_DEPTH,
    MOST_RANGES,
    MOST_RECORD_DEPTH,
    MOST_WRITE_BYTES,
    ByteCount,
    Count,
    Duration,
    HolderText,
    MessageName,
    NotJsonError,
    PlainText,
    ReasonText,
    Time,
    UuidText,
    check_id_size,
    parse_json,
)
from pawnqueue.domain.identifiers import ClaimStem, MessageId
from pawnqueue.domain.object_sizes import MAX_CLAIM_MESSAGES, MAX_STAGED_OBJECTS, MAX_UNKNOWN_BYTES
from pawnqueue.errors import CompatibilityError

#: The newest format of a body that this version reads, and the one that it writes. A body of pawn-queue's counts as 0.
FORMAT = 1

#: Each message of one publisher, and of one write, has a time of its own: at least one tick after the message before
#: it, so that LIST is publish order. Ticks are whole numbers, as a float of seconds since 1970 has only four steps to
#: the microsecond.
TICKS_PER_SECOND = 1_000_000
#: How many messages a note of progress may leave in doubt: a taker holds them all in memory.
MOST_IN_DOUBT = 10_000


class UnreadableRecordError(ValueError):
    """A body that is not a record of this kind: garbage, or a stranger's. The sentence never quotes the body."""


class Part(BaseModel):
    """A part of a body. ⚑ §1: what does not fit the bounds makes the whole body garbage."""

    # A time that is not a number, or endless, would hold a message for ever.
    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class Record(Part):
    """A body of ours. A rewrite keeps the fields that this version does not know."""

    what: ClassVar[str] = "record"
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
        return _json(self._as_json())

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
        if isinstance(version, int) and FORMAT < version <= MOST_COUNT:
            raise CompatibilityError(
                f"The {cls.what} {key} has format {version}, and this version of airflow-provider-pawnqueue "
                f"reads up to format {FORMAT}: upgrade it in this process."
            )
        try:
            record = cls.model_validate(data) if cls.is_bounded(data) else None
        except ValidationError:
            record = None
        if record is None or record.v > FORMAT or not record.fits(key):
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


class BucketRecord(Record):
    """``_registry/bucket.json``: what all processes that use the bucket agree on."""

    what: ClassVar[str] = "bucket record"

    #: The name of one of those that ``leases/strategies.py`` lists, or, to an old process, of a newer one.
    strategy: PlainText
    #: The store wants the ETag of ``If-Match`` without its quotes.
    unquoted_if_match: bool = False
    #: The store keeps what a bulk DELETE with ETags does not expect. A record without the field says no.
    conditional_deletes: bool = False
    created_at: str = ""


class TopicSettings(Part):
    """What is set for one topic, for everyone who uses it."""

    max_deliveries: int | None = Field(
        default=10,
        ge=1,
        le=MOST_COUNT,
        description="A message is buried after this many deliveries without a settlement; None: never.",
    )


class TopicRecord(Record):
    """``{topic}/.topic``: the topic exists. pawn-queue writes the first two fields and reads none."""

    what: ClassVar[str] = "topic"

    #: What is stored as ``topic``. (A stored ``name``, of somebody else's, is an unknown field like any other.)
    name: str = Field(alias="topic")
    created_at: str = ""
    settings: TopicSettings = TopicSettings()


class SweptRecord(Record):
    """``{topic}/.swept``: a janitor has swept the topic to the end. When, the object's date tells."""

    what: ClassVar[str] = "note of a sweep"

    topic: str


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


class Envelope(Record):
    """``{topic}/messages/…``: one message. pawn-queue writes the first five fields."""

    what: ClassVar[str] = "message"
    max_depth: ClassVar[int] = MOST_PAYLOAD_DEPTH + 1  # the envelope around it

    id: Annotated[MessageId, AfterValidator(check_id_size)]
    topic: str = ""
    producer_id: str = ""
    created_at: str = ""
    payload: dict[str, Any]
    headers: dict[str, str] = {}
    dedup_key: str | None = None
    priority: int = Field(default=0, ge=-MOST_COUNT, le=MOST_COUNT)
    write_id: str = ""  # the staged write that published it, and whose record tells whether that is done

    @field_validator("write_id", mode="before")
    @classmethod
    def _checked_write_id(cls, given: object) -> str:
        # A stranger's field of this name is ignored: it is not an error, and never gets into a key.
        return given if layout.is_write_id(given) else ""

    def _as_json(self, *, but: Collection[str] = ()) -> dict[str, Any]:
        left_out = {"payload"} if self.write_id else {"payload", "write_id"}  # a payload is JSON already, too
        return {**super()._as_json(but={*left_out, *but}), "payload": self.payload}


class Member(Part):
    """A message that a claim won."""

    name: MessageName
    size: ByteCount = 0  # of its body, as a LIST has told it; 0: nobody knows
    deliveries: Count = 1  # how often it was handed out, this time included
    reason: ReasonText = ""  # given when it was last given back, and the error beside it
    error: ReasonText = ""


#: The stored fields of a decision that say who made it.
_DECIDED_BY: Mapping[str, str] = MappingProxyType({"unseen": "claim", "returned": "closing", "lost": "other"})


class Decision(Part):
    """What was decided of a message. Its effects can be carried out by anyone, any number of times."""

    how: Literal["acked", "dead", "released", "gone"]
    until: Time = 0.0  # released: not to be delivered before
    reason: ReasonText = ""  # dead: for the record beside the dead letter; released: for the same, if it comes to that
    error: ReasonText = ""
    max_deliveries: Count | None = None  # dead, as it had been delivered this often: the topic's limit
    by: Literal["consumer", "claim", "closing", "other"] = "consumer"
    """Who decided it.

    ``consumer``: the consumer that holds the claim.
    ``claim``: the claim itself, before the consumer was given the message.
    ``closing``: the queue, as its process closed it before the consumer had finished.
    ``other``: a janitor, or a release by id, instead of the holder, whose later settlement is rejected.

    It is stored as three fields, one for each answer but the first.
    """
    #: Of the message, where it is not the uuid in its key: a redriven one's.
    id: Annotated[str, AfterValidator(check_id_size)] = ""

    @model_validator(mode="before")
    @classmethod
    def _read_by(cls, given: object) -> object:
        if not isinstance(given, Mapping) or "by" in given:
            return given
        flags = {flag: given.get(flag, False) for flag in _DECIDED_BY}
        if any(not isinstance(value, bool) for value in flags.values()):
            raise ValueError("a field that says who decided is true or false")
        by = next((who for flag, who in _DECIDED_BY.items() if flags[flag]), "consumer")
        return {**{name: value for name, value in given.items() if name not in flags}, "by": by}

    @model_serializer(mode="wrap")
    def _write_by(self, as_dict: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = as_dict(self)
        by = fields.pop("by")
        return fields | {flag: by == who for flag, who in _DECIDED_BY.items()}


class _Texts(dict[str, tuple[object, str]]):
    """Parts of a record as JSON, each with the part that it is of. They make no difference between two records."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Texts)

    __hash__ = None

    def joined(self, parts: Mapping[str, BaseModel]) -> str:
        """Return parts as a JSON object, by their names. What was returned before is not made again."""
        return "{" + ",".join([self._text(name, parts[name]) for name in sorted(parts)]) + "}"

    def _text(self, name: str, part: BaseModel) -> str:
        known = self.get(name)
        if known is not None and known[0] is part:
            return known[1]
        text = f"{_json(name)}:{_json(part.model_dump(mode='json'))}"
        self[name] = (part, text)
        return text


class ClaimRecord(Record):
    """``{topic}/claims/{claim_id}.{gen}.json``: the register of a batch that was claimed together (§4).

    ``open`` until somebody fences it (``expired``); ``closed`` when all that was decided has been carried out.
    It has two times. The claim lives until ``until``, which its session, its run's janitor and its run renew. The
    process that works on it is trusted until ``session_until``, which only that process renews.
    """

    what: ClassVar[str] = "claim record"

    claim_id: str
    generation: int = 0
    owner: HolderText = ""
    consumer: HolderText = ""
    session: HolderText = ""
    state: Literal["open", "expired", "closed"] = "open"
    created_at: Time = 0.0
    until: Time = 0.0
    session_until: Time | None = None  # None: a record from before sessions had a time of their own
    ttl: Time = 0.0  # what was left of its time when it was written: the record's size tells it
    lasts: Duration = 0.0  # what a renewal gives it
    members: dict[UuidText, Member] = {}
    settled: dict[UuidText, Decision] = {}

    #: Shared by the copies of a record. A settlement changes few of its parts, and writes all of them.
    _members: _Texts = PrivateAttr(default_factory=_Texts)
    _settled: _Texts = PrivateAttr(default_factory=_Texts)

    @classmethod
    def is_bounded(cls, data: Mapping[str, Any]) -> bool:
        """See :meth:`Record.is_bounded`."""
        members, settled = _parts(data.get("members")), _parts(data.get("settled"))
        if max(len(members), len(settled)) > MAX_CLAIM_MESSAGES:
            return False
        return _are_few_unknown((cls, [data]), (Member, members), (Decision, settled))

    def fits(self, key: str) -> bool:
        """See :meth:`Record.fits`."""
        # What is settled is carried out by the names of the members, under their uuids.
        return (
            layout.parse_claim(key) == (self.claim_id, self.generation)
            and self.settled.keys() <= self.members.keys()
            and all(layout.is_name_of(each.name, uuid) for uuid, each in self.members.items())
        )

    @property
    def stem(self) -> ClaimStem:
        """The record's name, as leases have it."""
        return ClaimStem(f"{self.claim_id}.{self.generation}")

    @property
    def session_end(self) -> float:
        """When its session stops to be trusted: the earlier of its two times."""
        return self.until if self.session_until is None else min(self.until, self.session_until)

    @property
    def free_at(self) -> float:
        """When, but for the margin, its messages may be taken: an open claim lives on without its session."""
        return self.until if self.state == "open" else self.session_end

    @property
    def unsettled(self) -> list[str]:
        """The uuids of the members of which nothing was decided, in publish order: JSON has sorted them by uuid."""
        left = [uuid for uuid in self.members if uuid not in self.settled]
        return sorted(left, key=lambda uuid: self.members[uuid].name)

    @property
    def is_settled(self) -> bool:
        """Whether something was decided of every member."""
        return self.members.keys() <= self.settled.keys()

    @property
    def was_handed_out(self) -> bool:
        """Whether its owner was, or may have been, given any message of it."""
        return any(uuid not in self.settled or self.settled[uuid].by != "claim" for uuid in self.members)

    @property
    def was_returned(self) -> bool:
        """Whether its owner's process has closed its queue, and given back what it had not finished with."""
        return any(decision.by == "closing" for decision in self.settled.values())

    def encode(self) -> bytes:
        """Return the body. Its size shows state and time to live in a LIST."""
        return size_hint.padded(super().encode(), size_hint.RECORD_STATES[self.state], self.ttl)

    def _as_text(self) -> str:
        parts = {name: _json(value) for name, value in self._as_json(but={"members", "settled"}).items()}
        parts["members"] = self._members.joined(self.members)
        parts["settled"] = self._settled.joined(self.settled)
        return "{" + ",".join(f"{_json(name)}:{parts[name]}" for name in sorted(parts)) + "}"


class StagedObject(Part):
    """An object with rows of a write, as they were staged."""

    name: str  # of its key below the write's folder
    size: ByteCount
    count: Count  # of the messages in it


class Rows(Part):
    """Some rows of a write that follow each other."""

    first: Count  # counted from 0, over all parts
    count: Count


class WriteRecord(Record):
    """``{topic}/writes/{write_id}.json``: the register of a write that becomes visible as a whole (§7).

    ``begun`` as soon as it is decided: the next process that finds it finishes it. ``done`` when all was published.
    ``dropped``: nothing of it is visible, and some of what had been staged for it is removed, or will be.
    """

    what: ClassVar[str] = "write record"

    write_id: str
    state: Literal["begun", "done", "dropped"] = "begun"
    created_at: Time = 0.0
    until: Time = 0.0  # until then, its writer is trusted to go on with it
    holder: HolderText = ""  # who wrote this: one attempt at carrying it out
    ttl: Time = 0.0  # the same from when it was written: the record's size tells it
    place: int = Field(default=0, ge=0, le=LATEST_PLACE)  # of the first message, in ticks since 1970
    count: Count = 0  # of all messages
    size: int = Field(default=0, ge=0, le=MOST_WRITE_BYTES)  # of all that was staged for them, in bytes
    published: Count = 0  # of those from the first on, how many are known to be in the topic
    begun: Count = 0  # those behind them, up to here, may be
    objects: list[StagedObject] = []
    dropped: list[str] = []  # the names of objects that no commit may rely on
    lost: list[Rows] = Field(default=[], max_length=MOST_RANGES)  # not published: gone after the decision
    unread_since: Time = 0.0  # since then it waits for claim records that cannot be read
    rows_unread_since: Time = 0.0  # since then some process could not read some of its staged rows

    @classmethod
    def is_bounded(cls, data: Mapping[str, Any]) -> bool:
        """See :meth:`Record.is_bounded`."""
        objects, dropped, lost = (_parts(data.get(name)) for name in ("objects", "dropped", "lost"))
        # ⚑ §1: a write that is begun can note its progress, and be dropped: its record has room for that.
        if objects and len(objects) + len(dropped) > MAX_STAGED_OBJECTS:
            return False
        return _are_few_unknown((cls, [data]), (StagedObject, objects), (Rows, lost))

    def fits(self, key: str) -> bool:
        """See :meth:`Record.fits`."""
        # Whoever finishes a write reads as many rows as its record says, and goes on until all are published.
        names = [*self.dropped, *(each.name for each in self.objects)]
        return (
            layout.parse_write(key) == self.write_id
            and 0 <= self.published <= self.begun <= min(self.count, self.published + MOST_IN_DOUBT)
            and (self.state != "begun" or sum(each.count for each in self.objects) == self.count)
            and self._is_lost_in_order()
            and all(map(layout.is_staged_name, names))
            and len({each.name for each in self.objects}) == len(self.objects)
            and all(each.count * MIN_STAGED_ROW_BYTES <= each.size for each in self.objects)
        )

    def _is_lost_in_order(self) -> bool:
        # Each note adds rows behind those before, of which all were published or are gone.
        end = 0
        for each in self.lost:
            if each.first < end or not each.count:
                return False
            end = each.first + each.count
        return end <= self.published

    def encode(self) -> bytes:
        """Return the body. Its size shows state and time to live in a LIST."""
        return size_hint.padded(super().encode(), size_hint.WRITE_STATES[self.state], self.ttl)


class Lease(Record):
    """``{topic}/leases/{uuid}.lease``: which claim has the message (§3). pawn-queue writes the first four fields.

    ``expires_at`` is for pawn-queue's eyes only; our time is ``until``.
    """

    what: ClassVar[str] = "lease"

    consumer_id: HolderText = ""
    message_id: str = ""
    claimed_at: str = ""
    expires_at: str = ""
    state: Literal["held", "released", "moving"] = "held"
    until: Time = 0.0
    ttl: Time = 0.0
    key: MessageName | Literal[""] = ""  # the message's name
    claim: str = ""  # the stem of its record; none for a lease of pawn-queue's
    deliveries: Count = 0  # held: how often it was handed out if it is handed out by this lease; released: so far
    source: UuidText | Literal[""] = ""  # moving: the dead letter's uuid
    reason: ReasonText = ""  # released: given with it, and the error beside it
    error: ReasonText = ""

    def fits(self, key: str) -> bool:
        """See :meth:`Record.fits`."""
        uuid = layout.parse_lease(key)
        return (
            uuid is not None
            and (not self.key or layout.is_name_of(self.key, uuid))
            and (not self.claim or layout.parse_stem(self.claim) is not None)
            and (not self.claim or bool(self.key) or self.v == 0)  # whoever adopts it makes a member of it
            and (self.state != "moving" or bool(self.key and self.source))
        )

    def encode(self) -> bytes:
        """Return the body. Its size shows state and time to live in a LIST."""
        return size_hint.padded(super().encode(), size_hint.LEASE_STATES[self.state], self.ttl)


class DeadReason(Record):
    """``{topic}/dead-letter/{uuid}.reason.json``: why a message was given up on, and where it was."""

    what: ClassVar[str] = "reason"

    reason: ReasonText
    error: ReasonText = ""
    deliveries: Count = 0
    consumer: HolderText = ""
    claim: str = ""
    at: str = ""
    name: str = ""  # of the key that it had below messages/
    max_deliveries: Count | None = None  # the topic's limit, if it was reached: then reason is the last one given
    given_reason: ReasonText = ""  # when it was last given back, and the error beside it
    given_error: ReasonText = ""


@cache
def _fields_of(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in model.model_fields.items()).union(
        _DECIDED_BY if model is Decision else ()
    )


def _are_few_unknown(*models: tuple[type[BaseModel], Iterable[object]]) -> bool:
    """Say whether there is little text in fields that this version does not know: it keeps them for the next write."""
    return sum(_unknown_bytes(model, data) for model, parts in models for data in parts) <= MAX_UNKNOWN_BYTES


def _unknown_bytes(model: type[BaseModel], data: object) -> int:
    if not isinstance(data, Mapping) or data.keys() <= _fields_of(model):
        return 0
    return len(_json({name: value for name, value in data.items() if name not in _fields_of(model)}).encode())


def _parts(of: object) -> Collection[object]:
    return of.values() if isinstance(of, Mapping) else of if isinstance(of, list) else ()


def nonce_of(body: bytes, key: str) -> str | None:
    """Return the write id in a register's body, or None where it is none of ours."""
    try:
        return Record.decode(body, key).nonce
    except (UnreadableRecordError, CompatibilityError):
        return None


def canonical(data: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Write JSON in the bucket's one form: sorted keys, no spaces, UTF-8."""
    return _json(data).encode()


def _json(data: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
