"""The messages of packs that a claim has: which of them it is given, and their bodies."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, overload

from pawnqueue.catalog import units
from pawnqueue.claims.claim import AllOfPack, LazyMessages, Message, as_message
from pawnqueue.domain import layout, numbers, pack, share
from pawnqueue.domain.claim_record import Decision, Member
from pawnqueue.domain.object_sizes import max_message_bytes
from pawnqueue.domain.pack import Line, PackEntry
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.errors import ObjectTooLargeError, PawnQueueError
from pawnqueue.runtime.concurrency import SharedWork, for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.lease import Lease
    from pawnqueue.domain.share import Share
    from pawnqueue.domain.unit import Unit


#: How many bytes of lines are read before others have their turn. Lines of many small values take a second for 4 MiB.
MAX_BYTES_A_TURN = 512 * 1024


def shares_of(unit: Unit, lease: Lease | None) -> list[Share]:
    """Return the shares of a pack: those that its lease tells, or one of all messages if nothing is known of them.

    ⚑ §5.6: there are none if the lease is another pack's under the same uuid. What of that one is finished is known
    from this lease alone, so it stays that one's.

    :param lease: of a slice that has no lease of its own, the lease by which its pack was split.
    """
    if lease is None or not lease.key:
        return share.fresh(unit.numbers)
    return share.only(lease.shares, unit.numbers) if lease.key == unit.name else []


async def told_of(context: Context, topic: str, pack_: Unit) -> list[tuple[Unit, Lease | None]]:
    """Return the units of a pack, each with the lease that tells of it: the pack itself, or its slices if it is split.

    A slice that no claim had has none of its own: the one by which its pack was split tells of it.
    """
    found = await context.lease(topic, pack_.id).read()
    lease = None if found is None else found.value
    if lease is None or lease.state != "split" or lease.key != pack_.name:
        return [(pack_, lease)]
    slices = pack_.slices(lease.length)
    own = await for_each(lambda each: context.lease(topic, each.id).read(), slices, at_once=context.at_once)
    return [(each, lease if one is None else one.value) for each, one in zip(slices, own, strict=True)]


def to_take(unit: Unit, lease: Lease | None, now: float, max_deliveries: int | None, unread: int = 0) -> int:
    """Return the numbers of those messages of a pack that a claim takes at most, by what its lease tells.

    ⚑ §5.6: one bad message does not bury the others. Messages whose claims ended without settling them are taken in
    ever smaller groups, and at the last delivery one by one, apart from the others.

    :param unread: the numbers of those that this process could not read before. They come after all others.
    """
    due = [one for one in shares_of(unit, lease) if one.until <= now]
    due = share.only(due, ~unread) or due
    if not due:
        return 0
    # ⚑ §5.7: no message waits until a bad one that is before it has no delivery left, or for one that is always
    # requeued: the one that was delivered least often comes first.
    first = min(due, key=lambda one: (one.deliveries, one.lapsed))
    if _is_at_last(first, unit.count, max_deliveries):
        return numbers.lowest(first.of, 1)
    alike = (one for one in due if one.lapsed == first.lapsed and not _is_at_last(one, unit.count, max_deliveries))
    return numbers.lowest(share.union(alike), _group_size(unit.count, first.lapsed, max_deliveries))


def is_to_be_alone(unit: Unit, lease: Lease | None, taken: int, max_deliveries: int | None) -> bool:
    """Say whether a claim may have nothing beside these messages of a pack.

    ⚑ §5.6: at its last delivery a message that may be bad does not lose the last one of another that may be.
    """
    return any(_is_at_last(one, unit.count, max_deliveries) for one in share.only(shares_of(unit, lease), taken))


def _is_at_last(one: Share, count: int, max_deliveries: int | None) -> bool:
    """Say whether messages that may have ended their claims are about to be delivered for the last time.

    Where there is no last time, it is asked whether they are taken one by one.
    """
    if max_deliveries is None:
        return one.lapsed > 0 and _group_size(count, one.lapsed, None) == 1
    return one.lapsed > 0 and one.deliveries + 1 == max_deliveries


def _group_size(count: int, lapsed: int, max_deliveries: int | None) -> int:
    if max_deliveries is None:
        return max(1, count >> lapsed)
    if lapsed == 0:
        return count
    return max(1, int(count ** max(0.0, 1 - lapsed / (max_deliveries - 1)))) if max_deliveries > 1 else count


def as_member(unit: Unit, shares: Sequence[Share], taken: int) -> Member:
    """Return a pack that is won as a member of its claim."""
    given = share.handed_out(shares, taken)
    return Member(name=unit.name, size=unit.size, shares=given, rest=share.union(shares) & ~taken)


def is_of(lease: Lease, member: Member) -> bool:
    """Say whether a pack's lease is the one by which its claim was given what the claim's record lists.

    ⚑ §5.4: a claim that began once more, and did not get as far as its record, has a newer lease. What the record tells
    of the pack's messages is carried out by then, and they have had other histories since.
    """
    return lease.taken == member.given and _deliveries(share.handed_out(lease.shares, lease.taken)) == _deliveries(
        member.shares
    )


def _deliveries(shares: Iterable[Share]) -> dict[int, int]:
    """Return the numbers of the messages that were delivered equally often, by how often that was."""
    found: dict[int, int] = {}
    for one in shares:
        found[one.deliveries] = found.get(one.deliveries, 0) | one.of
    return found


def after_hand_out(lease: Lease) -> Lease:
    """Return a pack's lease with what its claim was given counted as delivered, and as not settled."""
    handed_out = share.lapsed(share.handed_out(lease.shares, lease.taken))
    return lease.model_copy(
        update={"shares": share.merged([*handed_out, *share.only(lease.shares, ~lease.taken)]), "taken": 0}
    )


@dataclass(frozen=True, slots=True)
class ClaimedPack:
    """The messages of one pack that a claim was given. They are made anew from its bytes whenever somebody looks."""

    topic: str
    unit_id: str
    name: str
    body: bytes
    ids: Sequence[str]
    """Of all messages of the pack, by their numbers; "" for what is not a message."""
    of: int
    """The numbers of those that the claim was given."""
    shares: Sequence[Share]
    write_id: str = ""
    """The staged write that published it; empty where none did."""
    has_keys: bool = False
    """Whether its messages have deduplication keys."""

    @property
    def published_at(self) -> datetime:
        """When it was published, by its name. What its lines say may be earlier."""
        return _published_at(self.name)

    @property
    def own_ids(self) -> list[str]:
        """The ids of the messages that the claim was given, in order."""
        if self.of == numbers.first(len(self.ids)):
            return list(self.ids)
        return [self.ids[number] for number in numbers.each(self.of)]

    def ids_of(self, of: int) -> list[str]:
        """Return the ids of these messages, by their numbers."""
        return self.own_ids if of == self.of else [self.ids[number] for number in numbers.each(of)]

    def sizes(self) -> list[tuple[int, int]]:
        """Return the numbers of the messages that the claim was given, and the bytes of their lines."""
        lines = pack.lines_of(self.body, len(self.ids), units.key_of(self.topic, self.name))
        return [(number, len(lines[number])) for number in numbers.each(self.of)]

    def messages(self) -> list[Message]:
        """Return the messages that the claim was given, in order."""
        key = units.key_of(self.topic, self.name)
        lines = pack.lines_of(self.body, len(self.ids), key)
        return self.as_messages(pack.read_entry(lines[number], key) for number in numbers.each(self.of))

    def as_messages(self, entries: Iterable[PackEntry]) -> list[Message]:
        """Return the messages that the claim was given, whose lines hold these entries."""
        return [
            as_message(entry, self.topic, self.name, deliveries=deliveries, unit=layout.entry_of(self.unit_id, number))
            for number, deliveries, entry in zip(numbers.each(self.of), self.deliveries, entries, strict=True)
        ]

    @property
    def deliveries(self) -> list[int]:
        """How often each of the messages was delivered that the claim was given, in order."""
        return _deliveries_of(self.shares, self.of)


def _parts_of(given: Sequence[int], lines: Sequence[bytes], most_bytes: int) -> Iterator[Sequence[int]]:
    """Cut numbers of lines into parts of at most this many bytes, or of one line."""
    start = size = 0
    for position, number in enumerate(given):
        size += len(lines[number])
        if size > most_bytes and position > start:
            yield given[start:position]
            start, size = position, len(lines[number])
    if given:
        yield given[start:]


def _deliveries_of(shares: Sequence[Share], of: int) -> list[int]:
    """Return how often each of these messages of a pack was delivered, in order."""
    if len(shares) == 1:
        return [shares[0].deliveries] * of.bit_count()
    found = {number: one.deliveries for one in shares for number in numbers.each(one.of & of)}
    return [found[number] for number in numbers.each(of)]


def _published_at(name: str) -> datetime:
    return datetime.fromtimestamp(units.published_at(name) or 0.0, UTC)


class PackedMessages(LazyMessages):
    """The messages of the packs of a claim, in order. It keeps the messages of one pack at a time."""

    def __init__(self, packs: Sequence[ClaimedPack]) -> None:
        self.packs = [each for each in packs if each.of]
        self._ends = list(accumulate(each.of.bit_count() for each in self.packs))
        self._last: tuple[int, list[Message]] = (-1, [])

    @property
    def ids(self) -> list[str]:
        """The ids of all of them."""
        return [message_id for each in self.packs for message_id in each.own_ids]

    def without(self, withheld: Collection[str]) -> PackedMessages:
        """Return those that are neither in these packs, by their units' ids, nor named here themselves."""
        left = []
        for each in self.packs:
            if each.unit_id not in withheld:
                gone = {n for one in withheld if (n := _number_in(each, one)) is not None}
                left.append(replace(each, of=each.of & ~sum(1 << number for number in gone)))
        return PackedMessages(left)

    def __len__(self) -> int:
        """Count them."""
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Message]:
        """Give them in order, a pack in memory at a time."""
        for number in range(len(self.packs)):
            yield from self._of_pack(number)

    @overload
    def __getitem__(self, position: int) -> Message: ...

    @overload
    def __getitem__(self, position: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, position: int | slice) -> Message | tuple[Message, ...]:
        """Return one by its place, or a slice of them."""
        if isinstance(position, slice):
            return tuple(self[each] for each in range(*position.indices(len(self))))
        place = position + len(self) if position < 0 else position
        if not 0 <= place < len(self):
            raise IndexError(position)
        number = bisect_right(self._ends, place)
        return self._of_pack(number)[place - (self._ends[number - 1] if number else 0)]

    def _of_pack(self, number: int) -> list[Message]:
        if self._last[0] != number:
            self._last = number, self.packs[number].messages()
        return self._last[1]

    @property
    def each(self) -> list[AllOfPack]:
        """All of them, a pack at a time, as a settlement means them."""
        return [AllOfPack(each.unit_id) for each in self.packs]


def _number_in(pack_: ClaimedPack, entry: str) -> int | None:
    unit_id, number = layout.parse_entry(entry)
    return number if unit_id == pack_.unit_id else None


@dataclass(frozen=True, slots=True)
class ReadPack:
    """What the body of a pack holds for a claim."""

    pack: ClaimedPack
    decisions: Mapping[str, Decision]
    """About messages that must not be handed out, by their names in the claim."""
    fault: PawnQueueError | None
    """Why this process cannot read some of them. They are given back."""
    size: int
    """The size of its object."""
    entries: Sequence[PackEntry] = ()
    """What the messages hold that are handed out, if that was asked for."""


class _Turns:
    """A reading that pauses now and then."""

    def __init__(self, reading: Generator[None, None, ReadPack | Decision]) -> None:
        self._reading = reading
        self.found: ReadPack | Decision

    def __iter__(self) -> Iterator[None]:
        """Read to the end."""
        self.found = yield from self._reading


@dataclass(frozen=True, slots=True)
class PackPart:
    """Some messages of a pack."""

    name: str
    """The pack's."""
    entries: Sequence[Line | PackEntry]
    """What their lines hold."""
    deliveries: Sequence[int]
    """How often each was delivered."""
    size: int
    """The bytes of their lines."""

    def only(self, positions: Iterable[int]) -> PackPart:
        """Return some of them, by their positions."""
        some = list(positions)
        deliveries = [self.deliveries[each] for each in some]
        return PackPart(self.name, [self.entries[each] for each in some], deliveries, self.size)


@dataclass(frozen=True, slots=True)
class FetchedPack:
    """The bytes of a pack, and which of its messages a claim has. Reading them takes many times their memory."""

    topic: str
    unit_id: str
    member: Member
    body: bytes
    most: int
    """How large a message may be that this process reads."""

    async def read_in_turns(self, *, with_entries: bool = False) -> ReadPack | Decision:
        """Read the messages, or return the decision about all of it.

        ⚑ §5.6: a small object may expand to so much that other claims of this process would not be renewed meanwhile.

        :param with_entries: keep what the messages hold.
        """
        turns = _Turns(self._read(with_entries=with_entries))
        for _ in turns:
            await asyncio.sleep(0)
        return turns.found

    def read(self) -> ReadPack | Decision:
        """Read the messages at once, in a thread that has nothing else to do."""
        turns = _Turns(self._read(with_entries=False))
        for _ in turns:
            pass
        return turns.found

    def parts(self, most_bytes: int, check: Callable[[ReadPack | Decision], object]) -> Iterator[PackPart]:
        """Read the messages a part at a time. Leave out what cannot be read.

        ⚑ §1: a small object may expand to 64 MiB, and what is read of that may take much more.

        :param most_bytes: how many bytes of lines a part has; one line may have more.
        :param check: is called with what the whole pack holds, if a line needs a closer look. It may raise.
        """
        key = units.key_of(self.topic, self.member.name)
        try:
            lines = pack.lines_of(self.body, layout.count_in(self.member.name), key)
        except UnreadableRecordError:
            check(self.read())
            return
        given = numbers.each(self.member.given)
        deliveries = dict(zip(given, _deliveries_of(self.member.shares, self.member.given), strict=True))
        whole: ReadPack | Decision | None = None
        for part in _parts_of(given, lines, most_bytes):
            of = part
            read: Sequence[Line | PackEntry] | None = None
            if max(len(lines[number]) for number in part) <= self.most:
                read = pack.read_quickly([lines[number] for number in part])
            if read is None:
                if whole is None:
                    whole = self.read()
                    check(whole)
                well = whole.pack.of if isinstance(whole, ReadPack) else 0
                of = [number for number in part if well >> number & 1]
                read = [pack.read_entry(lines[number], key) for number in of]
            size = sum(len(lines[number]) for number in of)
            yield PackPart(self.member.name, read, [deliveries[number] for number in of], size)

    @property
    def published_at(self) -> datetime:
        """When it was published, by its name."""
        return _published_at(self.member.name)

    async def messages(self) -> list[Message]:
        """Read the messages, and leave out what is malformed or cannot be read."""
        found = await self.read_in_turns(with_entries=True)
        return [] if isinstance(found, Decision) else found.pack.as_messages(found.entries)

    def _read(self, *, with_entries: bool) -> Generator[None, None, ReadPack | Decision]:
        """Read the messages, and pause after each half a megabyte of lines."""
        unit_id, member = self.unit_id, self.member
        key, count = units.key_of(self.topic, member.name), layout.count_in(member.name)
        try:
            lines = pack.lines_of(self.body, count, key)
        except UnreadableRecordError as problem:
            return Decision(how="dead", reason="malformed", error=str(problem), by="claim")
        decisions: dict[str, Decision] = {}
        ids = [""] * count
        write_id, has_keys = "", False
        fault: PawnQueueError | None = None
        given = member.given
        unfit = read = 0
        given_back = Decision(how="released", by="claim")
        bad: dict[str, Decision] = {}
        kept: list[PackEntry] = []
        for number in numbers.each(given):
            line = lines[number]
            read += len(line)
            if read > MAX_BYTES_A_TURN:
                yield
                read = 0
            try:
                if len(line) > self.most:
                    raise _too_large(key, number, len(line), self.most)
                entry = pack.read_entry(line, key)
            except UnreadableRecordError as problem:
                dead = bad.setdefault(
                    str(problem), Decision(how="dead", reason="malformed", error=str(problem), by="claim")
                )
                decisions[layout.entry_of(unit_id, number)] = dead
                unfit |= 1 << number
            except PawnQueueError as error:
                fault = fault or error
                decisions[layout.entry_of(unit_id, number)] = given_back
                unfit |= 1 << number
            else:
                ids[number] = entry.id
                write_id = write_id or entry.write_id  # all lines of a staged pack have the same
                has_keys = has_keys or entry.dedup_key is not None
                if with_entries:
                    kept.append(entry)
        for number in numbers.each(member.decided_numbers & ~given):
            # What its owner has decided is shown by these ids, whatever became of the lines since.
            with suppress(UnreadableRecordError, PawnQueueError):
                ids[number] = pack.read_entry(lines[number], key).id
        well = given & ~unfit
        claimed = ClaimedPack(self.topic, unit_id, member.name, self.body, ids, well, member.shares, write_id, has_keys)
        return ReadPack(claimed, decisions, fault, len(self.body), kept)


class PackReader:
    """Reads packs for one claim: each of them once, however many of its slices the claim has.

    :param expanding: shared by several readers of which only one at a time is to expand a pack.
    """

    def __init__(self, context: Context, topic: str, expanding: asyncio.Lock | None = None) -> None:
        self._context = context
        self._topic = topic
        self._bodies: SharedWork[str, bytes | None] = SharedWork()
        #: ⚑ §1: held while a pack's lines are in memory, which have many times its size.
        self.expanding = expanding or asyncio.Lock()

    async def body(self, unit_id: str, member: Member) -> bytes | None:
        """Return the body of a pack; None: it is gone.

        ⚑ §4.3: it exists after the lease of the unit was won, which a HEAD says of a body that is known.

        :raises PawnQueueError: this process cannot read it, or not now.
        """
        key = units.key_of(self._topic, member.name)
        if layout.is_whole_pack(member.name, unit_id):
            found = await self._context.store.get(key, pack.MAX_STORED_PACK_BYTES)
            return None if found is None else found.body
        return await self._bodies.do(key, lambda: self._recent_body(key))

    async def _recent_body(self, key: str) -> bytes | None:
        recent = self._context.recent_packs
        known = recent.get(key)
        if known is not None:
            present = await self._context.store.head(key)
            if present is not None and present.version == known.info.version:
                return known.body
            recent.forget(key)
        found = await self._context.store.get(key, pack.MAX_STORED_PACK_BYTES)
        if found is None:
            return None
        recent.add(key, found)
        return found.body


async def read_pack(
    context: Context, topic: str, unit_id: str, member: Member, reader: PackReader | None = None
) -> ReadPack | Decision:
    """Read the messages of a pack that a claim has, or return the decision about all of it.

    :param reader: of the claim, if it reads several units.
    :raises PawnQueueError: this process cannot read it, or not now.
    """
    reader = reader or PackReader(context, topic)
    body = await reader.body(unit_id, member)
    if body is None:
        return Decision(how="gone", by="claim")
    async with reader.expanding:
        return await FetchedPack(
            topic, unit_id, member, body, max_message_bytes(context.settings.limits)
        ).read_in_turns()


async def fetch_pack(
    context: Context, topic: str, unit_id: str, member: Member, reader: PackReader
) -> FetchedPack | None:
    """Return a pack whose messages are to be read later; None: it is gone.

    :raises PawnQueueError: this process cannot read it, or not now.
    """
    body = await reader.body(unit_id, member)
    most = max_message_bytes(context.settings.limits)
    return None if body is None else FetchedPack(topic, unit_id, member, body, most)


def _too_large(key: str, number: int, size: int, most: int) -> ObjectTooLargeError:
    return ObjectTooLargeError(
        f"Message {number} of {key} has {size:,} bytes, and this process reads at most {most:,} of a message: it is "
        "left as it is.",
        operation="GetObject",
        size=size,
    )


async def read_lines(context: Context, topic: str, member: Member) -> list[bytes] | None:
    """Return the lines of a pack; None: it is gone.

    :raises UnreadableRecordError: it is not a pack.
    :raises PawnQueueError: this process cannot read it, or not now.
    """
    key = units.key_of(topic, member.name)
    found = await context.store.get(key, pack.MAX_STORED_PACK_BYTES)
    return None if found is None else pack.lines_of(found.body, layout.count_in(member.name), key)
