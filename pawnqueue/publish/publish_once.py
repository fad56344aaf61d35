"""One call of publish with deduplication keys: reserve, put, note, and find out about the keys of others (§7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pawnqueue.catalog import units
from pawnqueue.domain.dedup_segment import PublishedKey, ReservedKey, hash_of_key
from pawnqueue.domain.layout import read_stamp
from pawnqueue.domain.records import DEFAULT_DEDUP_WINDOW_SECONDS
from pawnqueue.errors import PawnQueueError, StoreError
from pawnqueue.events import Deduplicated, Published
from pawnqueue.publish.dedup_log import Admitted, Want
from pawnqueue.publish.deduplication import find_traces
from pawnqueue.publish.packing import NewUnits, only_some, stem_of, units_of
from pawnqueue.publish.publish_errors import publish_error, withdrawn_error
from pawnqueue.publish.sending import Sent, send, topic_may_exist
from pawnqueue.runtime.cancellation import finish_despite_cancellation
from pawnqueue.runtime.concurrency import all_of, for_each

if TYPE_CHECKING:
    from pawnqueue.bucket.topics import KnownTopics
    from pawnqueue.context import Context
    from pawnqueue.domain.dedup_segment import Attempt
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.publish.deduplication import Deduplication, Found
    from pawnqueue.publish.new_messages import Checked
    from pawnqueue.publish.packing import NewUnit
    from pawnqueue.publish.write_traces import KnownClaims
    from pawnqueue.settings import PacksSettings

#: How many single messages are sent after one reservation, which lasts for seconds.
MAX_SINGLES: Final = 250
#: How old a reservation is at most, if a request of its publisher may still land.
LATE_SECONDS: Final = 120.0
_UUID_CHARS: Final = len("-00000000-0000-0000-0000-000000000000")
_STAMP_CHARS: Final = len("20260101T000000_000000")


def may_keep_name(before: str, new: str, max_age: float | None) -> bool:
    """Say whether a message is published again under the name that a former attempt had, by both names.

    ⚑ §7: a name tells the message's lane, from when on it may be claimed, and how old it is. So the former one is kept
    only if it says the same, and as long as a request of the former attempt may land late.
    """
    began, now = (read_stamp(each[-_UUID_CHARS - _STAMP_CHARS :]) for each in (before, new))
    own = -_UUID_CHARS - _STAMP_CHARS
    if began is None or now is None or before[:own] != new[:own]:
        return False
    return -1 < now - began < min(LATE_SECONDS, math.inf if max_age is None else max_age / 2)


class PublishedIds(list[str]):
    """The ids of a call's messages, in order."""

    duplicates: tuple[int, ...]
    """The places in this list of the messages that were not published, as another one with their deduplication key was.
    There the list has that one's id."""

    def __init__(self, ids: Sequence[str] = (), duplicates: Sequence[int] = ()) -> None:
        super().__init__(ids)
        self.duplicates = tuple(duplicates)


@dataclass(frozen=True, slots=True)
class _Reserved:
    """A key of this call that is reserved."""

    key_hash: bytes
    attempt: Attempt
    at: float


class PublishOnce:
    """One call of publish with deduplication keys."""

    def __init__(  # noqa: PLR0913 - what a publisher has, and what a call says
        self,
        context: Context,
        topics: KnownTopics,
        deduplication: Deduplication,
        *,
        place: Callable[[float, int], int],
        topic: TopicRecord,
        producer_id: str,
    ) -> None:
        self._context = context
        self._topics = topics
        self._deduplication = deduplication
        self._place = place
        self._topic = topic
        self._producer_id = producer_id
        self._window = topic.settings.dedup_window_seconds or DEFAULT_DEDUP_WINDOW_SECONDS
        self._messages: Sequence[Checked] = ()
        self._hashes: list[bytes] = []
        self._ids: dict[int, str] = {}  # by the messages' places in the call
        self._duplicates: set[int] = set()
        self._sent: dict[str, Sent] = {}

    async def publish(self, messages: Sequence[Checked], packs: PacksSettings | None) -> PublishedIds:
        """Publish the messages, and return their ids, or raise what became of them."""
        self._messages = messages
        self._hashes = [hash_of_key(message.dedup_key or "") for message in messages]
        first: dict[bytes, int] = {}
        for position, key_hash in enumerate(self._hashes):
            first.setdefault(key_hash, position)
        unique = list(first.values())
        size = packs.messages if packs else MAX_SINGLES
        for start in range(0, len(unique), size):
            try:
                await self._publish_some(unique[start : start + size], packs)
            except StoreError as error:
                if not self._sent and not self._duplicates:
                    raise  # nothing was published
                for position in unique:
                    if position not in self._ids:
                        self._ids[position] = self._context.clock.uuid()
                        self._sent[self._ids[position]] = Sent(landed=False, fault=error)
                break
        if self._duplicates:
            await self._require_topic()
        for position, key_hash in enumerate(self._hashes):
            if position != first[key_hash]:
                self._ids[position] = self._ids[first[key_hash]]
                self._duplicates.add(position)
        return self._conclude()

    def _conclude(self) -> PublishedIds:
        ids = [self._ids[position] for position in range(len(self._messages))]
        failed: dict[str, StoreError] = {}
        unknown: dict[str, StoreError] = {}
        for message_id, result in self._sent.items():
            if result.fault is not None:
                (unknown if result.landed is None else failed)[message_id] = result.fault
        topic, events = self._topic.name, self._context.events
        new = [message_id for message_id, result in self._sent.items() if result.landed]
        if new:
            events.tell(Published(topic=topic, ids=tuple(new)))
        if self._duplicates:
            events.tell(Deduplicated(topic=topic, ids=tuple(ids[position] for position in sorted(self._duplicates))))
        if failed or unknown:
            raise publish_error(topic, ids, failed, unknown)
        return PublishedIds(ids, sorted(self._duplicates))

    async def _publish_some(self, positions: Sequence[int], packs: PacksSettings | None) -> None:
        busy = await self._attempt(positions, await self._make_units(positions, packs), {})
        waited = 0
        known_claims: KnownClaims = {}
        while busy:
            found = await self._deduplication.resolve(self._topic, [key for _, key in busy], waited, known_claims)
            busy = await self._go_on(busy, found, packs)
            waited += 1

    async def _go_on(
        self, busy: Sequence[tuple[int, ReservedKey]], known: Sequence[Found], packs: PacksSettings | None
    ) -> list[tuple[int, ReservedKey]]:
        """Publish what other attempts have not published, and never will; return what is not decided yet."""
        named: list[tuple[int, NewUnit]] = []
        rest: list[tuple[int, str]] = []
        instead_of: dict[int, Attempt] = {}
        for (position, key), found in zip(busy, known, strict=True):
            if isinstance(found, StoreError):
                self._ids[position] = self._context.clock.uuid()
                self._sent[self._ids[position]] = Sent(landed=False, fault=found)
            elif found is None:
                rest.append((position, self._context.clock.uuid()))
            else:
                instead_of[position] = key.attempt
                if not key.unit.endswith(f"-{key.message_id}"):  # it was to be in a pack
                    rest.append((position, key.message_id))
                    continue
                # ⚑ §7: a request of the other attempt that lands late writes the same message, and no second one.
                [unit] = (await self._make_units([position], None, [key.message_id])).units
                keeps_name = may_keep_name(key.unit, stem_of(unit.name), self._topic.settings.max_age_seconds)
                named.append((position, replace(unit, name=f"{key.unit}.json") if keeps_name else unit))
        positions = [position for position, _ in (*named, *rest)]
        made = NewUnits([unit.message_ids[0] for _, unit in named], [unit for _, unit in named])
        if rest:
            others = await self._make_units([position for position, _ in rest], packs, [each for _, each in rest])
            made = NewUnits(made.ids + others.ids, made.units + others.units)
        return await self._attempt(positions, made, instead_of) if positions else []

    async def _attempt(
        self, positions: Sequence[int], made: NewUnits, instead_of: Mapping[int, Attempt]
    ) -> list[tuple[int, ReservedKey]]:
        """Reserve the keys of some messages, and put those that are new into the topic.

        :param instead_of: the earlier attempts at some of them, which have published nothing.
        :return: the messages whose keys others have reserved.
        """
        stems = {message_id: stem_of(unit.name) for unit in made.units for message_id in unit.message_ids}
        wants = [
            Want(self._hashes[position], message_id, stems[message_id], instead_of.get(position))
            for position, message_id in zip(positions, made.ids, strict=True)
        ]
        verdicts = await self._deduplication.reserve(self._topic, wants, self._window)
        reserved: dict[str, _Reserved] = {}
        busy = []
        for position, want, verdict in zip(positions, wants, verdicts, strict=True):
            if isinstance(verdict, ReservedKey):
                busy.append((position, verdict))
            elif isinstance(verdict, PublishedKey):
                self._note_duplicate(position, verdict)
            else:
                self._ids[position] = want.message_id
                if isinstance(verdict, Admitted):
                    attempt = (want.unit, verdict.until)
                    reserved[want.message_id] = _Reserved(want.key_hash, attempt, verdict.at)
                else:
                    self._sent[want.message_id] = Sent(landed=False, fault=verdict)
        put = [
            unit
            for each in made.units
            if (unit := only_some(each, reserved)) is not None and self._is_reserved(each, unit, reserved)
        ]
        if put:
            await self._put(put, reserved)
        if sum(len(unit.message_ids) for unit in put) < len(reserved):
            await self._deduplication.free(self._topic)
        return busy

    def _is_reserved(self, whole: NewUnit, unit: NewUnit, reserved: Mapping[str, _Reserved]) -> bool:
        """Say whether a unit may be sent; if not, free its keys.

        :param whole: the unit with the messages that are left out of it.
        """
        faults = [self._sent[message_id] for message_id in whole.message_ids if message_id in self._sent]
        if not faults:
            return True
        # ⚑ §7: a reservation without an answer may land, and says that its message is in this unit.
        self._sent.update(dict.fromkeys(unit.message_ids, faults[0]))
        for each in (reserved[message_id] for message_id in unit.message_ids):
            self._deduplication.note(self._topic, each.key_hash, each.attempt, "failed")
        return False

    def _note_duplicate(self, position: int, known: PublishedKey) -> None:
        self._ids[position] = known.message_id
        self._duplicates.add(position)

    async def _make_units(
        self, positions: Sequence[int], packs: PacksSettings | None, ids: Sequence[str] = ()
    ) -> NewUnits:
        context = self._context
        place = self._place(await context.time.now(), len(positions))
        return units_of(
            context.clock,
            self._topic.name,
            [self._messages[position] for position in positions],
            [self._producer_id] * len(positions),
            place=place,
            packs=packs,
            error_seconds=context.time.error,
            ids=ids,
        )

    async def _put(self, made: Sequence[NewUnit], reserved: Mapping[str, _Reserved]) -> None:
        """Put units into the topic, ask beside that whether it is the same one, and note what became of their keys."""
        results, there = await all_of(
            for_each(
                lambda unit: self._send(unit, [reserved[each] for each in unit.message_ids]),
                made,
                at_once=self._context.at_once,
            ),
            topic_may_exist(self._topic.name, lambda _: self._topics.is_same(self._topic)),
        )
        for unit, result in zip(made, results, strict=True):
            self._sent.update(dict.fromkeys(unit.message_ids, result))
        if not there:
            left = await finish_despite_cancellation(lambda: self._withdraw(made, results, reserved))
            raise withdrawn_error(self._topic.name, list(self._sent), left)
        any_failed = False
        for unit, result in zip(made, results, strict=True):
            if result.landed is None:
                continue  # the next attempt at its keys finds out
            any_failed = any_failed or not result.landed
            for each in (reserved[message_id] for message_id in unit.message_ids):
                self._deduplication.note(
                    self._topic, each.key_hash, each.attempt, "published" if result.landed else "failed"
                )
        if any_failed:
            await self._deduplication.free(self._topic)
        else:
            await self._deduplication.note_if_crowded(self._topic)

    async def _send(self, unit: NewUnit, keys: Sequence[_Reserved]) -> Sent:
        context, topic = self._context, self._topic.name
        key, body = units.key_of(topic, unit.name), unit.body()
        until = min(each.attempt[1] for each in keys)
        attempt = ReservedKey(
            keys[0].key_hash, unit.message_ids[0], stem_of(unit.name), min(each.at for each in keys), until
        )

        def may_send() -> bool:
            # ⚑ §7: the next publisher of the key may not find what is sent later than that.
            return context.clock.elapsed() < context.time.trusted_until(until, context.margin, in_doubt=True)

        async def is_sent() -> bool:
            # ⚑ §7: a consumer that has already claimed and acked it has left a trace in its claim record.
            [trace] = await find_traces(context, topic, [attempt])
            if trace is None:
                raise StoreError(
                    f"It is not known whether {key} was published: a claim record that may name it cannot be read.",
                    topic=topic,
                    operation="publish",
                    transient=True,
                )
            return trace

        sent = await send(
            context, topic, unit.name, unit.id, lambda: context.store.put(key, body), may_send=may_send, is_sent=is_sent
        )
        if sent.landed or sent.fault is not None:
            return sent
        return Sent(
            sent.landed,
            StoreError(
                f"{key} could not be sent in the {until - attempt.at:.0f} seconds for which its deduplication key was "
                "reserved.",
                topic=topic,
                operation="publish",
                transient=True,
            ),
        )

    async def _require_topic(self) -> None:
        """Let duplicates fail if it is not known that the topic is the one into which others were published.

        ⚑ §7: a message is never kept out of a topic by what was published into a former one.
        """
        try:
            is_same = await self._topics.is_same(self._topic)
        except StoreError as error:
            for position in self._duplicates:
                self._ids[position] = self._context.clock.uuid()
                self._sent[self._ids[position]] = Sent(landed=False, fault=error)
            self._duplicates.clear()
            return
        if not is_same:
            raise withdrawn_error(self._topic.name, list({*self._ids.values(), *self._sent}), self._all_left())

    def _all_left(self) -> set[str]:
        """Return the ids of messages of this call that may be in the topic."""
        return {message_id for message_id, sent in self._sent.items() if sent.landed is not False}

    async def _withdraw(
        self, made: Sequence[NewUnit], results: Sequence[Sent], reserved: Mapping[str, _Reserved]
    ) -> set[str]:
        """Remove units from a topic that was deleted meanwhile; return the ids of messages that may be left.

        What this call has put before stays: its keys are noted, and other calls may have returned its ids.
        """
        landed = [unit for unit, result in zip(made, results, strict=True) if result.landed]
        ids = {message_id for unit in landed for message_id in unit.message_ids}
        attempts = {reserved[each].key_hash: (reserved[each].attempt, each) for each in ids}
        left = self._all_left()
        try:
            # ⚑ §7: first the log, then the messages. So no key is kept by a message that is gone.
            stay = await self._deduplication.retract(self._topic, attempts)
        except PawnQueueError:
            return left
        gone = {units.key_of(self._topic.name, unit.name): unit for unit in landed if stay.isdisjoint(unit.message_ids)}
        kept = set(await self._context.store.delete(list(gone)))
        return left.difference(*(unit.message_ids for key, unit in gone.items() if key not in kept))
