"""The queue's side of a claim: what this process knows of its record and its leases, and what it changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn, Self

from pawnqueue.claims.claim import Claim, Meant, Message, OneMessage
from pawnqueue.claims.packs import PackedMessages
from pawnqueue.domain import layout, numbers
from pawnqueue.errors import InvalidArgumentError, PawnQueueError
from pawnqueue.events import ClaimLost, HandedOver
from pawnqueue.registers.register import Versioned
from pawnqueue.runtime.concurrency import SharedWork

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord, Decision
    from pawnqueue.domain.settlement import SettledMembers


class HeldClaim(Claim):
    """A claim as the queue works with it. Its users see a :class:`Claim`, and can change nothing of it."""

    def __init__(  # noqa: PLR0913 - the parts of one thing, made in one place
        self,
        context: Context,
        topic: str,
        found: Versioned[ClaimRecord],
        messages: tuple[Message, ...] | PackedMessages = (),
        *,
        uuids: Mapping[str, str],
        leases: Mapping[str, str],
        deadline: float,
        session_ttl: float,
        is_fleeting: bool = False,
        unread: Sequence[str] = (),
    ) -> None:
        super().__init__(topic, found, messages, uuids, unread)
        self._unknown = set(unread)
        # The ids of messages of packs, by the packs' units. They stay known when the messages are withheld.
        self._packs = messages.packs if isinstance(messages, PackedMessages) else []
        self._pack_ids: dict[str, Callable[[int], list[str]]] = {pack.unit_id: pack.ids_of for pack in self._packs}
        self._by_id: dict[str, list[str]] | None = None  # what uuids_by_id returns, where it is known
        self._context = context
        self._pid = os.getpid()
        self._deadline = deadline
        self._session_ttl = session_ttl
        self._is_fleeting = is_fleeting
        self._is_trace = False
        self.writes: dict[str, datetime] = {}  # the staged writes that it has messages of, with the latest one's time
        written = [(each.write_id, each.published_at) for each in self._packs] or [
            (each.write_id, each.created_at) for each in messages
        ]
        for write_id, at in written:
            if write_id:
                self.writes[write_id] = max(self.writes.get(write_id, at), at)
        #: Whether a publisher may look for its messages in the record, as they have deduplication keys.
        self.has_keys = any(each.has_keys for each in self._packs) or (
            not self._packs and any(each.dedup_key is not None for each in messages)
        )
        self.leases = dict(leases)  # of each member's key, the version of its lease, where it is known
        self.is_logged = False  # whether the completed log has been written, or tried to be
        self.done: set[str] = set()  # members whose decision is known to be carried out
        # Members on which this session has decided, when (elapsed), and of which nothing is carried out by it yet.
        self.untried: dict[str, float] = {}
        self.under_way: set[str] = set()  # and those where it is being carried out
        self.settlements: SharedWork[int, SettledMembers] = SharedWork()
        self.gathering: dict[str, Decision] = {}  # what the next settlement decides
        self.lock = asyncio.Lock()  # one change of the record at a time: our own refusals would only cost requests

    @classmethod
    def of(cls, claim: object, operation: str, context: Context | None = None) -> Self:
        """Return a claim that a user passes to the queue as the queue works with it.

        :param context: of the queue that is to work with it, if one is.
        :raises InvalidArgumentError: it is not a claim, or belongs to another queue.
        """
        if isinstance(claim, cls):
            if context is not None and not claim.is_of(context):
                raise InvalidArgumentError(
                    f"Claim {claim.claim_id} was given out by another queue (or before this process was forked), which "
                    "alone can work with it: hand it over there (claim.hand_over()), and attach() to it here.",
                    topic=claim.topic,
                    operation=operation,
                )
            return claim
        example = f": {operation}(claim, message)" if isinstance(claim, Message) else ""
        raise InvalidArgumentError(
            f"{operation} takes a claim first, as claim() or attach() gave it, and was given a "
            f"{type(claim).__name__}{example}.",
            operation=operation,
        )

    def is_of(self, context: Context) -> bool:
        """Say whether this hold on the bucket gave it out, in this very process.

        Its lock belongs to one event loop, and nobody releases a forked child's copy of it.
        """
        return self._context.time is context.time and self._pid == os.getpid()  # every copy of a hold has its time

    @property
    def record(self) -> ClaimRecord:
        """The record, as it was last seen."""
        return self._record

    @property
    def found(self) -> Versioned[ClaimRecord]:
        """The record and its version."""
        return Versioned(self._record, self._version)

    @property
    def uuids(self) -> Mapping[str, str]:
        """The id of each message, by the uuid in its key."""
        return self._uuids

    @property
    def _packed(self) -> PackedMessages | None:
        """Its messages, if they are those of packs."""
        return self._messages if isinstance(self._messages, PackedMessages) else None

    @property
    def each(self) -> Sequence[Meant]:
        """Its messages, each by itself, or a pack at a time; without payloads, the ids under which they are kept."""
        if self._unread:
            return self._unread
        packed = self._packed
        if packed is not None:
            return packed.each
        return [OneMessage(message.id, message.unit) for message in self._messages]

    def given_of(self, unit_id: str) -> int:
        """Return the numbers of those messages of a pack that this process was given."""
        packs = self._packed.packs if self._packed is not None else []
        return next((pack.of for pack in packs if pack.unit_id == unit_id), 0)

    def only_given(self, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
        """Return decisions about units in which those about whole packs concern only what this process was given.

        ⚑ §5.1: another message of such a pack is undecided where it was to be buried or given back before the hand-out,
        and the store has not taken that decision.
        """
        found = dict(decisions)
        for unit_id, decision in decisions.items():
            member = self._record.members.get(unit_id)
            if member is None or not member.is_pack:
                continue
            given = self.given_of(unit_id)
            if self._record.undecided(unit_id) & ~given:
                del found[unit_id]
                for number in numbers.each(given):
                    found.setdefault(layout.entry_of(unit_id, number), decision)
        return found

    def ids_in(self, unit_id: str, of: int) -> list[str]:
        """Return the ids of messages of a pack, by their numbers."""
        known = self._pack_ids.get(unit_id)
        if known is not None:
            return known(of)
        return [self._id_of(layout.entry_of(unit_id, number)) for number in numbers.each(of)]

    def id_of(self, unit_id: str) -> str:
        """Return the id of a single message, by the uuid under which it is kept; that uuid where it is not known."""
        return self._uuids.get(unit_id, unit_id)

    def _id_of(self, entry: str) -> str:
        """See :class:`Claim`."""
        if entry in self._uuids:
            return self._uuids[entry]
        unit_id, number = layout.parse_entry(entry)
        known = self._pack_ids.get(unit_id)
        return entry if known is None or number is None else known(1 << number)[0]

    @property
    def former_outcomes(self) -> set[str]:
        """What was decided of the packs of a claim that has ended, where the ids of their messages are not known."""
        if self._record.unsettled or not self._record.has_packs:
            return set()
        unknown = [unit_id for unit_id in self._record.settled if unit_id not in self._pack_ids]
        parts = [part for unit_id in unknown for part in self._record.parts_of(unit_id) if part.by != "claim"]
        return {"lost" if part.by == "other" else part.how for part in parts}

    @property
    def left(self) -> list[str]:
        """The uuids of the members that are not settled."""
        return self._record.unsettled

    @property
    def messages_left(self) -> int:
        """How many messages are not settled."""
        return sum(self._record.messages_left.values())

    @property
    def unlisted(self) -> list[str]:
        """The messages and packs that it was given, and that its record does not list."""
        return [
            each for each in (*self._uuids, *self._pack_ids) if layout.parse_entry(each)[0] not in self._record.members
        ]

    @property
    def given_away(self) -> bool:
        """Whether this process has left it to others."""
        return self._given_away

    @property
    def is_fleeting(self) -> bool:
        """Whether nobody else can know its id, so that its record is deleted when the claim is done."""
        return self._is_fleeting and not self._given_away

    @property
    def seconds_left(self) -> float:
        """See :class:`Claim`."""
        if self._lost is not None or not self.is_ours() or self.state != "open" or not self.left:
            return 0.0  # also of a claim that was given back, or is settled
        return max(0.0, self.trusted_until() - self._context.clock.elapsed())

    @property
    def deadline(self) -> datetime:
        """See :class:`Claim`."""
        return datetime.fromtimestamp(self._context.clock.wall(), UTC) + timedelta(seconds=self.seconds_left)

    @property
    def session_ttl(self) -> float:
        """See :class:`Claim`."""
        return min(self._session_ttl, self.ttl)

    def trusted_until(self, *, in_doubt: bool = True) -> float:
        """Return when this process stops trusting the claim, in the elapsed seconds of its clock.

        ⚑ §2: it is counted from when the claim was asked for. If our clock has stopped since, as far as we know by now,
        the store's time counts.

        :param in_doubt: also count what is only suspected of our clock. Renewing does not: it samples the store's time.
        """
        if not self._version:
            return self._deadline
        # ⚑ §4: the earlier of the claim's time and its session's.
        by_the_store = self._context.time.trusted_until(
            self._record.session_end, self._context.margin, in_doubt=in_doubt
        )
        return min(self._deadline, by_the_store)

    def is_ours(self) -> bool:
        """Say whether this process works for it, as far as is known."""
        return self._record.session == self.session and not self._given_away

    def is_held(self, now: float) -> bool:
        """Say whether this process holds any message of the claim, at this moment of its elapsed time."""
        is_ours = self.state == "open" and self.is_ours() and self._lost is None
        return is_ours and self.trusted_until(in_doubt=False) > now and not self._record.is_settled

    def is_unfinished(self) -> bool:
        """Say whether this process has decided something of the claim that is not carried out."""
        # ⚑ §5.5: a decision is final, also if another process has ended the claim since.
        is_ours = self._record.state != "closed" and self._record.session == self.session
        return is_ours and not self.done.issuperset(self._record.settled)

    def is_done(self, about_to_finish: Collection[str] = ()) -> bool:
        """Say whether all its members are settled and their effects carried out, counting those about to finish."""
        return self._record.is_settled and self.done.union(about_to_finish).issuperset(self._record.settled)

    def has(self, message_id: str) -> bool:
        """See :class:`Claim`."""
        return message_id in self.uuids_by_id()

    def uuids_by_id(self) -> dict[str, list[str]]:
        """Return under which uuids each message is kept: two redriven copies of one message have one id.

        In a claim without payloads, each is also known by the uuid under which it is kept, which is what its user sees.
        """
        if self._by_id is not None:
            return self._by_id
        found: dict[str, list[str]] = {}
        self._by_id = found
        # Also those that it was given and that are withheld, and those of which a former session has decided.
        for pack in self._packs:
            for number, message_id in enumerate(pack.ids):
                if message_id:
                    found.setdefault(message_id, []).append(layout.entry_of(pack.unit_id, number))
        # What it was given stays in it, although the record of a process that fenced it may list nothing.
        for uuid in ({} if self._record.has_packs else self._record.members) | self._uuids:
            decision = self._record.settled.get(uuid)
            message_id = (decision.id if decision else "") or self._uuids.get(uuid, uuid)
            found.setdefault(message_id, []).append(uuid)
        for uuid in self._unread:
            if uuid not in found.get(uuid, ()):
                found[uuid] = [uuid]
        return found

    def units_of(self, meant: Iterable[Meant]) -> dict[Meant, Sequence[str]]:
        """Return what the claim names each of these by. An id means all messages that have it.

        ⚑ §4: a message means itself. Anybody may publish another message under its id, which is not settled with it.
        """
        members = self._record.members
        found: dict[Meant, Sequence[str]] = {}
        for each in meant:
            if isinstance(each, str):
                found[each] = self.uuids_by_id().get(each, ())
            else:
                is_known = layout.parse_entry(each.unit)[0] in members or each.unit in self._uuids
                found[each] = [each.unit] if is_known else ()
        return found

    def meant_by(self, ids: Collection[str]) -> list[str]:
        """Return the uuids of members that these ids may mean, and whose messages have to be read to know that.

        Only a claim without payloads has any, and only for ids that it does not know.
        """
        if not self._unknown:
            return []
        known = self.uuids_by_id()
        if all(message_id in known for message_id in ids):
            return []
        if not self._record.has_packs:
            return [uuid for uuid in self.left if uuid in self._unknown and uuid not in ids]
        units_ = {layout.parse_entry(entry)[0] for entry in self._unknown}
        return [unit_id for unit_id in self.left if unit_id in units_]

    def learn_ids(self, ids: Mapping[str, str]) -> None:
        """Take over the ids of messages that were read, by the uuids under which they are kept."""
        self._by_id = None
        self._uuids.update(ids)
        self._unknown.difference_update(ids)

    def unknown_in(self, unit_ids: Collection[str]) -> set[str]:
        """Return the messages of these units whose ids are not known, as the claim names them."""
        return {each for each in self._unknown if layout.parse_entry(each)[0] in unit_ids}

    def remember(self, found: Versioned[ClaimRecord]) -> None:
        """Keep this as the record that is stored in the bucket now."""
        self._record = found.value
        self._version = found.version

    def remember_deletion(self) -> None:
        """Keep the record as closed: it was deleted when nothing was left to do."""
        self._record = self._record.model_copy(update={"state": "closed"})

    def trust(self, deadline: float, session_ttl: float) -> None:
        """Trust the claim until this moment of elapsed time, and keep for how long its session was renewed."""
        self._deadline = deadline
        self._session_ttl = session_ttl

    def __reduce__(self) -> NoReturn:
        raise PawnQueueError(
            f"Claim {self.claim_id} of topic {self.topic!r} stays in its process: pass claim.hand_over() to another "
            "one, which attaches to it.",
            topic=self.topic,
            operation="pickle",
        )

    def lose(self, why: str) -> None:
        """Remember why it is lost, unless it was left to others."""
        if self._given_away:
            return
        if self._lost is None and self:
            self._context.events.tell(ClaimLost(topic=self.topic, claim=self.stem, messages=len(self), why=why))
        self._lost = why

    def lose_after_all(self, why: str) -> None:
        """Remember that it was lost before it was left to others."""
        self._given_away = False
        self.lose(why)

    def give_away(self) -> None:
        """Leave it to the next session: this process no longer works on it."""
        if self._given_away:
            return
        self._given_away = True
        self._context.events.tell(HandedOver(topic=self.topic, claim=self.stem))

    def keep_record(self) -> None:
        """Let its record be closed in the end, and not deleted, although nobody else can know its id."""
        self._is_fleeting = False

    def keep_trace(self) -> None:
        """Let its record be closed in the end, and be removed by the next sweep that needs no trace of its messages."""
        self._is_fleeting, self._is_trace = False, True

    @property
    def is_trace(self) -> bool:
        """Whether its record is kept for a while, and only because it tells of its messages."""
        return self._is_trace and not self._given_away

    def withhold(self, uuids: Iterable[str]) -> None:
        """Take these messages out of the claim: another consumer has them, or may have them soon."""
        self._by_id = None
        withheld = set(uuids)
        packed = self._packed
        if packed is not None:
            self._messages = packed.without(withheld)
        else:
            self._messages = tuple(message for message in self._messages if message.unit not in withheld)
        self._unread = tuple(
            each for each in self._unread if each not in withheld and layout.parse_entry(each)[0] not in withheld
        )

    async def refresh(self, context: Context) -> None:
        """Read the record again: another process has changed it, or an earlier request of ours has landed late."""
        self._by_id = None  # another process, which knew other ids, may have settled it
        found = await context.claim_record(self.topic, self._record.stem).read()
        if found is None:
            # Only closed records are deleted: all that it had decided was carried out, and nothing is ours any more.
            self._record = self._record.model_copy(update={"state": "expired"})
        else:
            self.remember(found)

    async def replace_record(self, context: Context, changed: ClaimRecord) -> bool:
        """Replace the record by compare-and-set; return False if another process has changed it.

        :raises StoreError: it is not known whether it was written: :meth:`refresh` tells.
        """
        found = await context.claim_record(self.topic, self._record.stem).replace(self.found, changed)
        if found is not None:
            self.remember(found)
        return found is not None
