"""The record of a claim: its members, and what was decided of each (§4)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from pawnqueue.domain import layout, numbers, size_hint
from pawnqueue.domain.bounds import (
    ByteCount,
    Count,
    Duration,
    HolderText,
    MessageName,
    ReasonText,
    Time,
    UnitText,
    check_id_size,
)
from pawnqueue.domain.identifiers import ClaimStem
from pawnqueue.domain.numbers import Numbers
from pawnqueue.domain.object_sizes import (
    CLAIM_MEMBER_BYTES,
    CLAIM_OTHER_BYTES,
    CLAIM_PART_BYTES,
    FENCED_NUMBERS_FACTOR,
    MAX_CLAIM_MESSAGES,
    MAX_CLAIM_PARTS,
    MAX_CLAIM_RECORD_BYTES,
)
from pawnqueue.domain.record import FORMAT, NEWEST_FORMAT, Part, Record, are_few_unknown, parts_of, to_json
from pawnqueue.domain.share import Share, are_disjoint, only, union

#: The stored fields of a decision that say who made it.
_DECIDED_BY: Mapping[str, str] = MappingProxyType({"unseen": "claim", "returned": "closing", "lost": "other"})


class Decision(Part):
    """What was decided of a message. Its effects can be carried out by anyone, any number of times."""

    also_stored: ClassVar[frozenset[str]] = frozenset(_DECIDED_BY)

    #: ``mixed``: of a pack, the parts of whose member tell it.
    how: Literal["acked", "dead", "released", "gone", "mixed"]
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

    def counted(self, deliveries: int) -> int:
        """Return how often a message was delivered, this claim included if the message was handed out.

        ⚑ §4: deliveries are hand-outs. If nobody was given the message, this one does not count.
        """
        return max(deliveries - 1, 0) if self.by == "claim" else deliveries

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


class PartDecision(Decision):
    """What was decided of some messages of a pack."""

    of: Numbers


def _part_of(decision: Decision, of: int) -> PartDecision:
    return PartDecision.model_validate({**decision.model_dump(), "of": of})


def _joined(parts: Iterable[PartDecision], key: Callable[[PartDecision], Hashable]) -> list[PartDecision]:
    """Return the decisions with those joined that have the same key. The longest of their delays counts for all."""
    joined: dict[Hashable, PartDecision] = {}
    for part in parts:
        alike = joined.setdefault(key(part), part)
        if alike is not part:
            together = {"of": alike.of | part.of, "until": max(alike.until, part.until)}
            joined[key(part)] = alike.model_copy(update=together)
    return list(joined.values())


def _all_but_numbers(part: PartDecision) -> Hashable:
    known = (part.how, part.until, part.reason, part.error, part.max_deliveries, part.by, part.id)
    return (*known, to_json(part.model_extra) if part.model_extra else "")


class Member(Part):
    """A unit that a claim won: a single message, or a pack."""

    name: MessageName
    size: ByteCount = 0  # of its body, as a LIST has told it; 0: nobody knows
    deliveries: Count = 1  # how often it was handed out, this time included
    reason: ReasonText = ""  # given when it was last given back, and the error beside it
    error: ReasonText = ""
    #: Of a pack: the messages that the claim was given, with their deliveries and reasons. The fields above have none.
    shares: list[Share] = Field(default=[])
    rest: Numbers = 0  # of a pack: the messages that are not finished, and that the claim was not given
    decided: list[PartDecision] = Field(default=[])  # of a pack of which not all is decided alike

    @property
    def is_pack(self) -> bool:
        """Whether it is a pack."""
        return bool(self.shares)

    @property
    def given(self) -> int:
        """The numbers of the messages of a pack that the claim was given."""
        return union(self.shares)

    @property
    def decided_numbers(self) -> int:
        """The numbers of the messages of which ``decided`` tells."""
        found = 0
        for part in self.decided:
            found |= part.of
        return found

    def with_decisions(self, new: Mapping[int | None, Decision]) -> tuple[Member, Decision | None]:
        """Return the pack with decisions by its numbers (None: all that is left), and the one about all of it, if any.

        ⚑ §4: if two decide about the same message, the first wins.
        """
        left = self.given & ~self.decided_numbers
        together: dict[int, tuple[Decision, int]] = {}  # the numbers of each decision, by the decision's identity
        for number, decision in new.items():
            of = left if number is None else left & 1 << number
            if of:
                together[id(decision)] = decision, together.get(id(decision), (decision, 0))[1] | of
                left &= ~of
        parts = [*self.decided, *(_part_of(decision, of) for decision, of in together.values())]
        parts = _joined(parts, _all_but_numbers)
        if left:
            return self.model_copy(update={"decided": parts}), None
        if len(parts) == 1:
            whole = Decision.model_validate(parts[0].model_dump(exclude={"of"}))
            return self.model_copy(update={"decided": []}), whole
        return self.model_copy(update={"decided": parts}), Decision(how="mixed", by=parts[0].by)

    def with_fewer_parts(self) -> Member:
        """Return a pack with its decisions joined where they differ by delays, reasons and errors alone."""
        return self.model_copy(update={"decided": _joined(self.decided, lambda part: (part.how, part.by))})

    def has_parts_of(self, covers: tuple[int, int] | None) -> bool:
        """⚑ Say whether a pack's numbers agree with each other, and another member has none."""
        if covers is None:
            return not (self.shares or self.rest or self.decided)
        given, decided, whole = self.given, self.decided_numbers, numbers.between(*covers)
        return (
            bool(self.shares)
            and are_disjoint(self.shares, whole)
            and self.rest & given == 0
            and self.rest & whole == self.rest
            and decided & given == decided
            and sum(part.of.bit_count() for part in self.decided) == decided.bit_count()
            and all(part.of for part in self.decided)
        )

    @model_serializer(mode="wrap")
    def _write_single_without_parts(self, as_dict: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = as_dict(self)
        left_out = {"deliveries", "reason", "error"} if self.shares else {"shares"}
        left_out |= {name for name in ("rest", "decided") if not fields[name]}
        return {name: value for name, value in fields.items() if name not in left_out}


def _parts_in(member: Mapping[str, Any]) -> list[object]:
    return [*parts_of(member.get("shares")), *parts_of(member.get("decided"))]


def _undecided_packs(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    members, settled = record.get("members"), record.get("settled", {})
    if not isinstance(members, Mapping) or not isinstance(settled, Mapping):
        return []
    return [
        each for key, each in members.items() if key not in settled and isinstance(each, Mapping) and "shares" in each
    ]


def _numbers_bytes(member: object) -> float:
    """Return how long the numbers of messages are in a stored member; endless where they are not texts."""
    if not isinstance(member, Mapping):
        return 0
    of = [part.get("of", "") for part in _parts_in(member) if isinstance(part, Mapping)]
    texts = [member.get("rest", ""), *of]
    return sum(len(text) if isinstance(text, str) else math.inf for text in texts)


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
    newest: ClassVar[int] = NEWEST_FORMAT

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
    members: dict[UnitText, Member] = Field(default={})
    settled: dict[UnitText, Decision] = Field(default={})
    #: Whether what is acked is logged, and how: as the topic's settings were when it was claimed.
    completed: Annotated[str, StringConstraints(max_length=16)] = ""

    #: Shared by the copies of a record. A settlement changes few of its parts, and writes all of them.
    _members: _Texts = PrivateAttr(default_factory=_Texts)
    _settled: _Texts = PrivateAttr(default_factory=_Texts)

    @classmethod
    def is_bounded(cls, data: Mapping[str, Any]) -> bool:
        """See :meth:`Record.is_bounded`."""
        members, settled = parts_of(data.get("members")), parts_of(data.get("settled"))
        if max(len(members), len(settled)) > MAX_CLAIM_MESSAGES:
            return False
        parts = [part for member in members if isinstance(member, Mapping) for part in _parts_in(member)]
        # ⚑ §1: a claim that can be read can be fenced. Its fence decides what is left of each pack, in one more part.
        undecided = _undecided_packs(data)
        needed: float = CLAIM_MEMBER_BYTES * len(members) + CLAIM_PART_BYTES * (len(parts) + len(undecided))
        needed += sum(map(_numbers_bytes, members)) + (FENCED_NUMBERS_FACTOR - 1) * sum(map(_numbers_bytes, undecided))
        if len(parts) + len(undecided) > MAX_CLAIM_PARTS or needed > MAX_CLAIM_RECORD_BYTES - CLAIM_OTHER_BYTES:
            return False
        return are_few_unknown((cls, [data]), (Member, members), (Decision, settled), (PartDecision, parts))

    def fits(self, key: str) -> bool:
        """See :meth:`Record.fits`."""
        # What is settled is carried out by the names of the members, under their uuids.
        return (
            layout.parse_claim(key) == (self.claim_id, self.generation)
            and self.settled.keys() <= self.members.keys()
            and all(
                layout.is_name_of(each.name, unit_id) and each.has_parts_of(layout.range_of(unit_id))
                for unit_id, each in self.members.items()
            )
            # A version that knows no packs cannot read this record, and would not see that single messages are taken.
            and len({each.is_pack for each in self.members.values()}) <= 1
            and all(
                each.how != "mixed" or self.members[unit_id].given == self.members[unit_id].decided_numbers
                for unit_id, each in self.settled.items()
            )
        )

    def stamped(self, nonce: str) -> Self:
        """See :meth:`Record.stamped`. ⚑ §4: a version that knows no packs leaves a record with packs alone."""
        return self.model_copy(update={"nonce": nonce, "v": NEWEST_FORMAT if self.has_packs else FORMAT})

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
    def has_packs(self) -> bool:
        """Whether its members are packs. A claim has packs or single messages, never both."""
        return any(member.is_pack for member in self.members.values())

    @property
    def leaves_rest(self) -> bool:
        """Whether packs of it have messages that it was not given. They can be claimed once it is settled."""
        return any(member.rest for member in self.members.values())

    def has(self, entry: str) -> bool:
        """Say whether a unit is a member, or a message was given to the claim as part of one."""
        unit_id, number = layout.parse_entry(entry)
        member = self.members.get(unit_id)
        return member is not None and (number is None or member.given >> number & 1 == 1)

    def decision_of(self, entry: str) -> Decision | None:
        """Return what was decided of a unit as a whole, or of one message of a pack."""
        unit_id, number = layout.parse_entry(entry)
        if number is None:
            return self.settled.get(unit_id)
        return next((part for part in self.parts_of(unit_id) if part.of >> number & 1), None)

    @property
    def needed_parts(self) -> int:
        """How many parts its packs have once all of it is decided, at most as far as the fence decides it."""
        return sum(
            len(member.shares) + len(member.decided) + (unit_id not in self.settled)
            for unit_id, member in self.members.items()
            if member.is_pack
        )

    def parts_of(self, unit_id: str) -> list[PartDecision]:
        """Return what was decided of the messages of a pack."""
        member, decision = self.members.get(unit_id), self.settled.get(unit_id)
        if member is None:
            return []
        if decision is None or decision.how == "mixed":
            return member.decided
        return [_part_of(decision, member.given)]

    def decisions_of(self, unit_id: str) -> list[tuple[Decision, int]]:
        """Return what was decided of the messages of a member, each time with how many messages it concerns."""
        member, decision = self.members.get(unit_id), self.settled.get(unit_id)
        if member is not None and member.is_pack:
            return [(part, part.of.bit_count()) for part in self.parts_of(unit_id)]
        return [] if decision is None else [(decision, 1)]

    def undecided(self, unit_id: str) -> int:
        """Return the numbers of the messages of a pack of which nothing is decided."""
        return 0 if unit_id in self.settled else self.members[unit_id].given & ~self.members[unit_id].decided_numbers

    def unsettled_part(self, unit_id: str) -> Member:
        """Return a member with only those messages of which nothing is decided, and the decisions about the others."""
        member = self.members[unit_id]
        if not member.is_pack:
            return member
        return member.model_copy(update={"shares": only(member.shares, self.undecided(unit_id))})

    def all_decisions(self) -> Iterator[Decision]:
        """Give all decisions, those about parts of packs too."""
        for unit_id, decision in self.settled.items():
            if decision.how != "mixed":
                yield decision
            else:
                yield from self.members[unit_id].decided
        for unit_id, member in self.members.items():
            if unit_id not in self.settled:
                yield from member.decided

    def with_decisions(self, new: Mapping[str, Decision]) -> Self:
        """Return the record with these decisions, by units and by messages of packs. What was decided before stays.

        What is decided of a pack as a whole concerns those of its messages that no other decision concerns.
        """
        settled, members = dict(self.settled), dict(self.members)
        parts: dict[str, dict[int | None, Decision]] = defaultdict(dict)
        for entry, decision in new.items():
            unit_id, number = layout.parse_entry(entry)
            if members[unit_id].is_pack:
                parts[unit_id][number] = decision
            else:
                settled.setdefault(unit_id, decision)
        for unit_id, by_number in parts.items():
            if unit_id not in settled:
                member, whole = members[unit_id].with_decisions(by_number)
                members[unit_id] = member
                if whole is not None:
                    settled[unit_id] = whole
        return self.model_copy(update={"members": members, "settled": settled})

    @property
    def unsettled(self) -> list[str]:
        """The ids of the members of which not all is decided, in publish order: JSON has sorted them by their ids."""
        left = [uuid for uuid in self.members if uuid not in self.settled]
        return sorted(left, key=lambda uuid: (self.members[uuid].name, layout.range_of(uuid)))

    @property
    def messages_left(self) -> dict[str, int]:
        """Of how many messages of each unsettled member nothing was decided."""
        return {
            unit_id: self.undecided(unit_id).bit_count() if self.members[unit_id].is_pack else 1
            for unit_id in self.unsettled
        }

    @property
    def is_settled(self) -> bool:
        """Whether something was decided of every member."""
        return self.members.keys() <= self.settled.keys()

    @property
    def was_handed_out(self) -> bool:
        """Whether its owner was, or may have been, given any message of it."""
        return not self.is_settled or any(decision.by != "claim" for decision in self.all_decisions())

    @property
    def was_returned(self) -> bool:
        """Whether its owner's process has closed its queue, and given back what it had not finished with."""
        return any(decision.by == "closing" for decision in self.all_decisions())

    def encode(self) -> bytes:
        """Return the body. Its size shows state and time to live in a LIST."""
        return size_hint.padded(super().encode(), size_hint.RECORD_STATES[self.state], self.ttl)

    @model_serializer(mode="wrap")
    def _write_log_if_any(self, as_dict: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = as_dict(self)
        return {name: value for name, value in fields.items() if value or name != "completed"}

    def _as_text(self) -> str:
        others = self._as_json(but={"members", "settled"})
        runs = [
            to_json({name: value for name, value in others.items() if name < "members"}),
            f'{{"members":{self._members.joined(self.members)}}}',
            to_json({name: value for name, value in others.items() if "members" < name < "settled"}),
            f'{{"settled":{self._settled.joined(self.settled)}}}',
            to_json({name: value for name, value in others.items() if name > "settled"}),
        ]
        return "{" + ",".join(run[1:-1] for run in runs if run != "{}") + "}"
