"""§7, deduplication: without one of its rules a key is published twice, or a message is swallowed."""

from __future__ import annotations

import math
from typing import Any

from pawnqueue.claims import record_retention
from pawnqueue.domain import layout
from pawnqueue.domain.dedup_segment import DedupSegment, PublishedKey, SegmentRows
from pawnqueue.maintenance.sweep_dedup import DedupSweep
from pawnqueue.publish import dedup_log, publish_once, sending
from pawnqueue.publish.dedup_log import DedupLog
from pawnqueue.publish.deduplication import Deduplication
from pawnqueue.publish.publish_once import PublishOnce
from tests.sim.mutants.entering import Patches, mutant

_TESTS = "tests/pawnqueue/publish/test_deduplication.py"
_FAULTS = "tests/pawnqueue/publish/test_deduplication_faults.py"


@mutant("§7 A reservation is waited for: its publisher may send until its time is over", 47, 61, arena="keys")
def reservations_are_not_waited_for() -> Patches:
    original = Deduplication._judge

    def judge(self: Deduplication, topic: Any, key: Any, now: float, *, trace: Any) -> Any:
        return original(self, topic, key, math.inf if trace is False else now, trace=trace)

    return [(Deduplication, "_judge", judge)]


@mutant(
    "§7 A publisher sends nothing after the time of its reservation",
    test=f"{_TESTS}::test_a_publisher_that_is_late_sends_nothing",
)
def keys_are_sent_past_their_time() -> Patches:
    async def send(*args: Any, **more: Any) -> Any:
        more.pop("may_send")
        return await sending.send(*args, **more)

    return [(publish_once, "send", send)]


@mutant("§7 What is reserved is not taken for published", 0, 1, arena="keys")
def reserved_is_published() -> Patches:
    def judge(self: Deduplication, topic: Any, key: Any, now: float, *, trace: Any) -> Any:
        del self, topic, now, trace
        return PublishedKey(key.message_id, int(key.at) + 1)

    return [(Deduplication, "_judge", judge)]


@mutant("§7 A claim of messages with keys keeps its record until the keys are resolved", 13, 24, arena="keys")
def claims_of_keys_leave_no_trace() -> Patches:
    original = record_retention.keep_if_needed

    async def keep(context: Any, claim: Any) -> None:
        claim.has_keys = False
        await original(context, claim)

    return [(record_retention, "keep_if_needed", keep)]


@mutant(
    "§7 A sweep resolves keys before it removes the records that tell of them",
    test=f"{_TESTS}::test_a_sweep_keeps_the_traces_of_what_is_reserved",
)
def records_go_before_their_keys() -> Patches:
    original = DedupSweep.sweep

    async def sweep(self: DedupSweep) -> None:
        await original(self)
        self.unresolved_since = math.inf

    async def resolve(*_: Any) -> None:
        pass

    return [(DedupSweep, "sweep", sweep), (DedupSweep, "_resolve", resolve)]


@mutant(
    "§7 What was never sent keeps its id: a late request makes no second message",
    test=f"{_TESTS}::test_what_was_never_sent_has_its_id",
)
def unsent_keys_are_freed() -> Patches:
    original = SegmentRows.conclude

    def conclude(self: SegmentRows, attempt: Any, fate: Any) -> bool:
        return original(self, attempt, "failed" if fate == "unsent" else fate)

    return [(SegmentRows, "conclude", conclude)]


@mutant("§7 What is reserved in a sealed segment goes on in the next", 2, 3, arena="keys")
def reservations_end_with_their_segment() -> Patches:
    def successor(self: SegmentRows) -> SegmentRows:
        del self
        return SegmentRows()

    return [(SegmentRows, "successor", successor)]


@mutant(
    "§7 A pack is sent only if all reservations for its messages have an answer",
    test=f"{_TESTS}::test_a_pack_is_not_sent_without_one_of_its_keys",
)
def packs_are_sent_without_some_keys() -> Patches:
    def is_reserved(*_: Any) -> bool:
        return True

    return [(PublishOnce, "_is_reserved", is_reserved)]


@mutant("§2 A refusal may follow a reservation of ours that was made", 94, 103, arena="keys-csprng")
def refused_reservations_are_others() -> Patches:
    original = dedup_log._Shard._judge

    def judge(*args: Any) -> Any:
        return original(*args[:-1], set())

    return [(dedup_log._Shard, "_judge", judge)]


@mutant("§7 What a sealed segment says counts", test=f"{_TESTS}::test_segments_follow_each_other")
def sealed_segments_are_not_read() -> Patches:
    original = dedup_log._Shard._find_published

    def find(self: Any, rows: Any, key_hash: bytes, window: float, now: float) -> Any:
        self._sealed.clear()
        return original(self, rows, key_hash, window, now)

    return [(dedup_log._Shard, "_find_published", find)]


@mutant(
    "§7 A segment is begun behind the last one of a listing of now",
    test=f"{_TESTS}::test_a_publisher_that_slept_begins_no_old_segment",
)
def segments_are_begun_by_hearsay() -> Patches:
    original = DedupLog.segments

    async def segments(self: DedupLog, shard: int, since: float) -> Any:
        return await original(self, shard, -math.inf if self._listed else since)

    return [(DedupLog, "segments", segments)]


@mutant(
    "§7 A topic that is created again has no keys",
    test=f"{_TESTS}::test_what_is_left_of_a_former_topics_log_does_not_count",
)
def keys_outlive_their_topic() -> Patches:
    return [(layout, "dedup_tag", lambda _: "00000000")]


@mutant("§7 No time is trusted that no publisher writes", test=f"{_TESTS}::test_forged_times_swallow_nothing_for_ever")
def forged_reservations_are_believed() -> Patches:
    original = SegmentRows.of

    def of(record: DedupSegment, latest: float, latest_until: float) -> SegmentRows:
        del latest, latest_until
        return original(record, math.inf, math.inf)

    return [(SegmentRows, "of", staticmethod(of))]


@mutant(
    "§7 What others have noted is not withdrawn",
    test=f"{_FAULTS}::test_a_message_that_another_publisher_has_noted_is_not_withdrawn",
)
def noted_messages_are_withdrawn() -> Patches:
    async def retract(*_: Any) -> set[str]:
        return set()

    return [(Deduplication, "retract", retract)]


@mutant("§7 A withdrawn message frees its key", test=f"{_FAULTS}::test_a_withdrawn_message_frees_its_key")
def withdrawn_keys_stay_reserved() -> Patches:
    async def retract(*_: Any) -> set[str]:
        return set()

    return [(DedupLog, "retract", retract)]


@mutant("§7 What is over makes room in a full shard", test=f"{_FAULTS}::test_forged_reservations_do_not_fill_a_shard")
def what_is_over_fills_shards() -> Patches:
    def make_room(*_: Any) -> int:
        return 0

    return [(SegmentRows, "make_room", make_room)]


@mutant("§7 No number is the last one of a log", test=f"{_FAULTS}::test_a_forged_number_stops_no_shard")
def numbers_are_believed() -> Patches:
    def is_possible(*_: Any) -> bool:
        return True

    return [(dedup_log, "is_possible", is_possible)]


@mutant("§7 A former attempt's name says how old it is", test=f"{_FAULTS}::test_a_retry_is_no_older_than_it_is")
def names_are_kept_for_ever() -> Patches:
    def may_keep_name(*_: Any) -> bool:
        return True

    return [(publish_once, "may_keep_name", may_keep_name)]
