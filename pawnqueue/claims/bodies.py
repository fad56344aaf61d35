"""The bodies of a claim's messages: reading them, and finding those that must not be handed out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from pawnqueue.catalog import units
from pawnqueue.claims import expiry
from pawnqueue.claims.claim import Message, as_message
from pawnqueue.claims.packs import (
    ClaimedPack,
    FetchedPack,
    PackedMessages,
    PackReader,
    ReadPack,
    fetch_pack,
    read_pack,
)
from pawnqueue.domain import layout, numbers
from pawnqueue.domain.claim_record import Decision
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.object_sizes import max_message_bytes
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.errors import CompatibilityError, PawnQueueError, StoreError
from pawnqueue.runtime.concurrency import for_each, for_each_within

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord, Member
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.domain.share import Share

#: The reason of a message that was delivered too often, if no consumer gave one.
OUT_OF_DELIVERIES = "max_deliveries"


@dataclass(slots=True)
class Bodies:
    """The messages of a claim by their unit ids, and the decisions about the units that are not handed out."""

    messages: dict[str, Message] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    aside: dict[str, PawnQueueError] = field(default_factory=dict)
    """Units that this process cannot read, or not now. They are given back and never buried."""

    sizes: dict[str, int] = field(default_factory=dict)
    """The sizes of the objects that were read."""

    unread: list[str] = field(default_factory=list)
    """Messages that are not read, as the claim names them. Their names are used in place of their ids."""

    packs: dict[str, ClaimedPack] = field(default_factory=dict)
    """The packs of a claim that has packs, by their units."""

    @property
    def is_empty(self) -> bool:
        """Whether none of the messages can be handed out."""
        return not self.messages and not any(pack.of for pack in self.packs.values())

    @property
    def readable(self) -> tuple[Message, ...] | PackedMessages:
        """The messages that can be handed out, in order."""
        return PackedMessages(list(self.packs.values())) if self.packs else tuple(self.messages.values())

    @classmethod
    def not_read(cls, record: ClaimRecord) -> Self:
        """Return the undecided messages of a claim as ones that are not read."""
        return cls(
            unread=[
                name
                for unit_id in record.unsettled
                for name in (
                    [layout.entry_of(unit_id, number) for number in numbers.each(record.undecided(unit_id))]
                    if record.members[unit_id].is_pack
                    else [unit_id]
                )
            ]
        )

    @classmethod
    async def fetch(  # noqa: PLR0913 - what is known of the members
        cls,
        context: Context,
        topic: TopicRecord,
        members: Mapping[str, Member],
        seconds: float,
        *,
        is_resumed: bool = False,
        fresh: Collection[str] = (),
    ) -> Self:
        """Read the members' messages, for at most this many seconds.

        ⚑ §5.6: bad messages do not block good ones. A message that is malformed, or was delivered too often, is to be
        buried: it was claimed like any other, so no other consumer works on it. A message that only this process cannot
        read, because the store refuses it or its format is newer, is given back: another process may be able to.

        :param is_resumed: these messages were handed out before, so none is too old.
        :param fresh: the units that had no lease before. So they were not redriven, and their names tell their ages.
        """
        bodies = cls()
        has_age = topic.settings.max_age_seconds is not None and not is_resumed
        now = await context.now() if has_age else 0.0
        old = expiry.expired(topic, members, now, context.margin) if has_age else {}
        over = {**old, **_delivered_too_often(topic, members)}
        if over:
            # ⚑ §4: by the topic's settings of now. What this process has read of them may be a minute old.
            try:
                found_topic = await context.with_budget(seconds).topic_marker(topic.name).look()
            except (StoreError, CompatibilityError) as error:
                for entry in over:
                    bodies.aside[layout.parse_entry(entry)[0]] = error
                    bodies.decisions[entry] = Decision(how="released", by="claim")
            else:
                topic = found_topic.value if found_topic is not None else topic
                for entry, history in _delivered_too_often(topic, members).items():
                    bodies.decisions[entry] = _out_of_deliveries(topic, history)
                old = expiry.expired(topic, members, now, context.margin) if old else {}
                await bodies._bury_expired(context, topic, members, old, now, seconds, fresh)
        # Of a pack that is too old, nothing is read before it is buried.
        whole = {unit_id for unit_id in expiry.units_of(old) if members[unit_id].is_pack}
        wanted = [uuid for uuid in members if uuid not in bodies.decisions and uuid not in whole]

        found = await _fetch_all(
            context, topic.name, {uuid: members[uuid] for uuid in wanted}, seconds, sizes=bodies.sizes
        )
        for uuid, body in found.items():
            if isinstance(body, Message):
                bodies.messages[uuid] = body
            elif isinstance(body, ReadPack):
                bodies._take_pack(uuid, body)
            elif isinstance(body, Decision):
                bodies.decisions[uuid] = body
            else:
                bodies.aside[uuid] = body
                bodies.decisions[uuid] = Decision(how="released", by="claim")
        return bodies

    async def _bury_expired(  # noqa: PLR0913, PLR0917 - what a claim has, and what it knows of it
        self,
        context: Context,
        topic: TopicRecord,
        members: Mapping[str, Member],
        old: Mapping[str, Member | Share],
        now: float,
        seconds: float,
        fresh: Collection[str],
    ) -> None:
        """Decide to bury messages that are too old, unless they are redriven ones that are not."""
        unsure = {
            unit_id: members[unit_id].name
            for unit_id in old
            if unit_id in members and unit_id not in fresh and unit_id not in self.decisions
        }
        kept = await expiry.kept_by_date(context, topic, unsure, now, seconds) if unsure else {}
        buried = expiry.decision_of(topic) if old else None
        for entry in old:
            if entry in self.decisions:
                continue
            looked = kept.get(entry)
            if isinstance(looked, Decision):
                self.decisions[entry] = looked
            elif isinstance(looked, PawnQueueError):
                self.aside[entry] = looked
                self.decisions[entry] = Decision(how="released", by="claim")
            elif entry not in kept and buried is not None:
                self.decisions[entry] = buried

    def give_back_all(self, members: Mapping[str, Member]) -> None:
        """Decide to give back, unseen, all that is not decided."""
        given_back = Decision(how="released", by="claim")
        for uuid in self.messages:
            self.decisions[uuid] = given_back
        self.messages.clear()
        for unit_id, pack in self.packs.items():
            entries = (layout.entry_of(unit_id, number) for number in numbers.each(pack.of & members[unit_id].given))
            self.decisions.update(dict.fromkeys(entries, given_back))
            self.packs[unit_id] = replace(pack, of=0)

    def unread_numbers(self, unit_id: str) -> int:
        """Return the numbers of those messages of a pack that this process cannot read, and gives back."""
        entries = (layout.parse_entry(each) for each, decision in self.decisions.items() if decision.how == "released")
        return sum(1 << number for unit, number in entries if unit == unit_id and number is not None)

    def _take_pack(self, unit_id: str, found: ReadPack) -> None:
        # What was delivered too often is decided before anything is read.
        of = found.pack.of if self.decisions else 0
        late = sum(1 << number for number in numbers.each(of) if layout.entry_of(unit_id, number) in self.decisions)
        self.packs[unit_id] = replace(found.pack, of=found.pack.of & ~late)
        self.decisions.update({entry: each for entry, each in found.decisions.items() if entry not in self.decisions})
        if found.fault is not None:
            self.aside[unit_id] = found.fault

    def give_back_surplus(self, members: Mapping[str, Member], max_messages: int, max_bytes: float) -> bool:
        """Decide to give back the good messages beyond these limits, unseen. Return whether there are any.

        ⚑ §5.7: after bad messages, a batch that is won is larger than what the claim wants.
        """
        used = 0
        surplus = []
        for number, uuid in enumerate(self.messages):
            used += members[uuid].size
            if number and (number >= max_messages or used > max_bytes):
                surplus.append(uuid)
        for uuid in surplus:
            del self.messages[uuid]
            self.decisions[uuid] = Decision(how="released", by="claim")
        return self._give_back_packed(max_messages, max_bytes) or bool(surplus)

    def _give_back_packed(self, max_messages: int, max_bytes: float) -> bool:
        """Decide to give back messages of packs beyond these limits. Their sizes are known only when they are read."""
        used = given = 0
        is_any = False
        given_back = Decision(how="released", by="claim")
        for unit_id, pack in self.packs.items():
            kept = numbers.lowest(pack.of, max_messages - given)
            for place, size in pack.sizes() if math.isfinite(max_bytes) else ():
                used += size
                if used > max_bytes and (given or kept & ((1 << place) - 1)):
                    kept &= ~(1 << place)
            if kept != pack.of:
                is_any = True
                surplus = (layout.entry_of(unit_id, number) for number in numbers.each(pack.of & ~kept))
                self.decisions.update(dict.fromkeys(surplus, given_back))
                self.packs[unit_id] = replace(pack, of=kept)
            given += kept.bit_count()
        return is_any


def _delivered_too_often(topic: TopicRecord, members: Mapping[str, Member]) -> dict[str, Member | Share]:
    """Return the messages that were delivered too often, as the claim names them, with their histories."""
    most = topic.settings.max_deliveries
    if most is None:
        return {}
    found: dict[str, Member | Share] = {}
    for uuid, member in members.items():
        if member.is_pack:
            late = [share for share in member.shares if share.deliveries > most]
            found.update({layout.entry_of(uuid, n): share for share in late for n in numbers.each(share.of)})
        elif member.deliveries > most:
            found[uuid] = member
    return found


async def read_each(
    context: Context, topic: str, members: Mapping[str, Member]
) -> list[tuple[list[Message], Decision | None]]:
    """Return each member's messages, in their order, and the decision about what is malformed or gone.

    :raises PawnQueueError: this process cannot read one of them, or not now.
    """
    # ⚑ §1: one pack after the other, as its lines have many times its size.
    return [await _messages_in(each) for each in await fetch_members(context, topic, members)]


async def fetch_members(
    context: Context, topic: str, members: Mapping[str, Member]
) -> list[Message | FetchedPack | Decision]:
    """Fetch each member: its message, a pack of which nothing is read, or the decision about what is malformed or gone.

    :raises PawnQueueError: this process cannot read one of them, or not now.
    """
    most = max_message_bytes(context.settings.limits)
    reader = PackReader(context, topic)

    async def fetch(unit_id: str) -> Message | FetchedPack | Decision:
        member = members[unit_id]
        if member.is_pack:
            return await fetch_pack(context, topic, unit_id, member, reader) or Decision(how="gone", by="claim")
        body = await context.store.body(units.key_of(topic, member.name), member.size, most)
        return _understood(body, topic, member)

    return await for_each(fetch, members, at_once=context.at_once)


async def _messages_in(fetched: Message | FetchedPack | Decision) -> tuple[list[Message], Decision | None]:
    if isinstance(fetched, Message):
        return [fetched], None
    found = await fetched.read_in_turns(with_entries=True) if isinstance(fetched, FetchedPack) else fetched
    if isinstance(found, Decision):
        return [], found
    if found.fault is not None:
        raise found.fault
    return found.pack.as_messages(found.entries), next(iter(found.decisions.values()), None)


async def read_ids(context: Context, topic: str, members: Mapping[str, Member], seconds: float) -> dict[str, str]:
    """Return the ids of messages, by what the claim names them. One without a message has its own name.

    What could not be read is left out.
    """
    found = await _fetch_all(context, topic, members, seconds)
    ids: dict[str, str] = {}
    for uuid, body in found.items():
        if isinstance(body, ReadPack):
            unread = {entry for entry, decision in body.decisions.items() if decision.how == "released"}
            of = {number: layout.entry_of(uuid, number) for number in numbers.each(members[uuid].given)}
            ids.update({entry: body.pack.ids[number] or entry for number, entry in of.items() if entry not in unread})
        elif isinstance(body, Decision) and members[uuid].is_pack:
            entries = (layout.entry_of(uuid, number) for number in numbers.each(members[uuid].given))
            ids.update((entry, entry) for entry in entries)
        elif not isinstance(body, PawnQueueError):
            ids[uuid] = body.id if isinstance(body, Message) else uuid
    return ids


async def _fetch_all(
    context: Context, topic: str, members: Mapping[str, Member], seconds: float, *, sizes: dict[str, int] | None = None
) -> dict[str, Message | Decision | ReadPack | PawnQueueError]:
    patient = context.with_budget(seconds)
    reader = PackReader(patient, topic)

    async def fetch(uuid: str) -> Message | Decision | ReadPack | PawnQueueError:
        body: Message | Decision | ReadPack
        try:
            if members[uuid].is_pack:
                body = await read_pack(patient, topic, uuid, members[uuid], reader)
                size = body.size if isinstance(body, ReadPack) else 0
            else:
                body, size = await _fetch(patient, topic, members[uuid])
        except (StoreError, CompatibilityError) as error:
            return error
        if sizes is not None:
            sizes[uuid] = size
        return body

    # A read without an answer fails like one with an error.
    found = await for_each_within(
        fetch, members, at_once=context.at_once, clock=context.clock, seconds=seconds, late=lambda _: _late(seconds)
    )
    return dict(zip(members, found, strict=True))


async def _fetch(context: Context, topic: str, member: Member) -> tuple[Message | Decision, int]:
    """Return a message, or the decision about it, and the size of its object."""
    # ⚑ §2: the object's date is read too. It may show, before the claim is made, that this machine's clock was stopped.
    # ⚑ §5.6: a message that was overwritten by a larger object is given back, like one that was listed as too large.
    most = max_message_bytes(context.settings.limits)
    found = await context.store.get(units.key_of(topic, member.name), most)
    body = None if found is None else found.body
    return _understood(body, topic, member), len(body or b"")


def _understood(body: bytes | None, topic: str, member: Member) -> Message | Decision:
    """Return the message that a body holds, or the decision about it."""
    if body is None:
        return Decision(how="gone", by="claim")
    try:
        envelope = Envelope.decode(body, units.key_of(topic, member.name))
    except UnreadableRecordError as problem:
        return _dead("malformed", str(problem))
    return as_message(envelope, topic, member.name, deliveries=member.deliveries)


def _late(seconds: float) -> PawnQueueError:
    return StoreError(
        f"The message was not read within {seconds:g} seconds: try again later.", transient=True, operation="claim"
    )


def _out_of_deliveries(topic: TopicRecord, member: Member | Share) -> Decision:
    """Bury a message for its deliveries, with the reason for which it was last given back."""
    most = topic.settings.max_deliveries
    if member.reason:
        dead = _dead(member.reason, member.error)
    else:
        dead = _dead(OUT_OF_DELIVERIES, member.error or f"delivered {most} times without a settlement")
    return dead.model_copy(update={"max_deliveries": most})


def _dead(reason: str, error: str) -> Decision:
    return Decision(how="dead", reason=reason, error=error, by="claim")
