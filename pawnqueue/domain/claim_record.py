"""The record of a claim: its members, and what was decided of each (§4)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from pawnqueue.domain import layout, size_hint
from pawnqueue.domain.bounds import (
    ByteCount,
    Count,
    Duration,
    HolderText,
    MessageName,
    ReasonText,
    Time,
    UuidText,
    check_id_size,
)
from pawnqueue.domain.identifiers import ClaimStem
from pawnqueue.domain.object_sizes import MAX_CLAIM_MESSAGES
from pawnqueue.domain.record import Part, Record, are_few_unknown, parts_of, to_json


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

    also_stored: ClassVar[frozenset[str]] = frozenset(_DECIDED_BY)

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
        text = f"{to_json(name)}:{to_json(part.model_dump(mode='json'))}"
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
    members: dict[UuidText, Member] = Field(default={})
    settled: dict[UuidText, Decision] = Field(default={})

    #: Shared by the copies of a record. A settlement changes few of its parts, and writes all of them.
    _members: _Texts = PrivateAttr(default_factory=_Texts)
    _settled: _Texts = PrivateAttr(default_factory=_Texts)

    @classmethod
    def is_bounded(cls, data: Mapping[str, Any]) -> bool:
        """See :meth:`Record.is_bounded`."""
        members, settled = parts_of(data.get("members")), parts_of(data.get("settled"))
        if max(len(members), len(settled)) > MAX_CLAIM_MESSAGES:
            return False
        return are_few_unknown((cls, [data]), (Member, members), (Decision, settled))

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
        """The claim's id and generation, as leases name the claim."""
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
        parts = {name: to_json(value) for name, value in self._as_json(but={"members", "settled"}).items()}
        parts["members"] = self._members.joined(self.members)
        parts["settled"] = self._settled.joined(self.settled)
        return "{" + ",".join(f"{to_json(name)}:{parts[name]}" for name in sorted(parts)) + "}"
