"""§7, staged writes: each rule's test fails without it."""

from __future__ import annotations

from typing import Any

import msgspec

from pawnqueue.bucket.topics import KnownTopics
from pawnqueue.catalog import letters, units
from pawnqueue.claims import record_retention
from pawnqueue.domain import layout, pack
from pawnqueue.domain.record import Record
from pawnqueue.domain.write_record import WriteRecord
from pawnqueue.errors import StoreError
from pawnqueue.maintenance import removal
from pawnqueue.maintenance import sweep_writes as sweeping_writes
from pawnqueue.maintenance.sweep_claims import ClaimSweep
from pawnqueue.publish import decided_writes, staging, write_traces, writes
from pawnqueue.publish.decided_writes import DecidedWrite
from pawnqueue.publish.writes import Commit
from pawnqueue.registers.register import Versioned
from tests.sim.mutants.entering import Patches, mutant

_TESTS = "tests/pawnqueue/publish/test_writes.py"
_TRACES = "tests/pawnqueue/publish/test_write_traces.py"
_PACKED = "tests/pawnqueue/publish/test_packed_writes.py"
_GONE = "tests/pawnqueue/publish/test_writes_without_rows.py"


@mutant("§7 Nothing of a write is published before it is decided", test=f"{_TESTS}::test_every_crash_point_is_finished")
def published_before_the_decision() -> Patches:
    original = Commit._decide

    async def decide(self: Commit, standing: Versioned[WriteRecord] | None) -> Any:
        objects = [each for part in self.staged for each in part.objects]
        rows = staging.StagedReader(self.context, self.topic, self.write_id, objects)
        for row in await rows.take(sum(each.count for each in objects)):
            key = units.key_of(self.topic, units.name_at(0, row.id))
            assert row.envelope is not None
            await self.context.store.overwrite(key, row.envelope.encode())
        return await original(self, standing)

    return [(Commit, "_decide", decide)]


@mutant(
    "§7 A decision relies on no object that is not there",
    test="tests/pawnqueue/maintenance/test_staged_writes.py::test_what_is_dropped_is_never_relied_on",
)
def objects_are_not_looked_for() -> Patches:
    async def check(self: Commit, objects: Any, standing: Any) -> None:
        pass

    return [(Commit, "_check_stored", check)]


@mutant("§7 What is removed is decided against the commit", test=f"{_TESTS}::test_what_was_decided_is_not_aborted")
def dropped_whatever_happened() -> Patches:
    async def drop(*_: Any) -> bool:
        return True

    return [(writes, "drop", drop)]


@mutant("§7 Progress is noted by compare-and-set", test=f"{_TESTS}::test_who_is_late_sends_nothing")
def noted_whatever_happened() -> Patches:
    original = decided_writes.write_record

    async def write(
        context: Any, topic: str, record: Any, standing: Versioned[WriteRecord] | None
    ) -> Versioned[WriteRecord] | None:
        found = await original(context, topic, record, standing)
        if found is None and standing is not None:
            key = layout.write(topic, record.write_id)
            return Versioned(record, await context.registers.overwrite(key, record))
        return found

    return [(decided_writes, "write_record", write)]


@mutant("§7 A holder that may have been taken over sends nothing", test=f"{_TESTS}::test_who_is_late_sends_nothing")
def sent_past_its_time() -> Patches:
    return [(DecidedWrite, "_is_trusted", lambda _: True)]


@mutant("§7 The next committer waits", test=f"{_TESTS}::test_who_comes_while_another_commits_is_told")
def taken_over_early() -> Patches:
    original = decided_writes.take_over

    async def take_over(context: Any, topic: str, standing: Versioned[WriteRecord], *how: Any) -> Any:
        early = standing.value.model_copy(update={"until": 0.0})
        return await original(context, topic, Versioned(early, standing.version), *how)

    return [(decided_writes, "take_over", take_over)]


@mutant(
    "§7 An attempt whose requests may land keeps its time",
    test=f"{_TESTS}::test_a_commit_whose_requests_may_land_keeps_its_time",
)
def time_is_given_back_whatever_is_under_way() -> Patches:
    original = DecidedWrite._give_back

    async def give_back(self: DecidedWrite, error: Any) -> bool:
        self._may_land = False
        return await original(self, error)

    return [(DecidedWrite, "_give_back", give_back)]


@mutant(
    "§7 Of the chunk in doubt only that is sent which left no trace",
    test=f"{_TRACES}::test_what_was_consumed_is_not_sent_again",
)
def sent_without_a_look() -> Patches:
    async def without_trace(self: DecidedWrite, chunk: Any) -> Any:
        return list(chunk)

    return [(DecidedWrite, "_without_trace", without_trace)]


@mutant("§7 Claims that were settled are a trace", test=f"{_TRACES}::test_what_was_consumed_is_not_sent_again")
def claims_are_no_trace() -> Patches:
    async def claimed_since(self: DecidedWrite) -> set[str]:
        return set()

    return [(DecidedWrite, "_claimed_since", claimed_since)]


@mutant(
    "§7 A claim of packs tells of which writes they are",
    test=f"{_TRACES}::test_what_claims_without_an_id_consumed_is_not_sent_again",
)
def packs_name_no_write() -> Patches:
    original = pack.read_entry

    def read_entry(line: bytes, key: str) -> pack.PackEntry:
        return msgspec.structs.replace(original(line, key), write_id="")

    return [(pack, "read_entry", read_entry)]


@mutant(
    "§7 A topic whose consumers look for no packs gets none of a write",
    test=f"{_PACKED}::test_a_topic_that_was_created_anew_without_packs_gets_none",
)
def written_packs_are_put_anywhere() -> Patches:
    original = KnownTopics.exists

    async def exists(self: KnownTopics, topic: str, *, with_packs: bool = False) -> bool:
        return await original(self, topic)

    return [(KnownTopics, "exists", exists)]


@mutant(
    "§7 Versions that know no packs leave a write with packs alone",
    test=f"{_PACKED}::test_versions_without_packs_leave_such_a_write_alone",
)
def writes_of_packs_have_the_old_format() -> Patches:
    return [(WriteRecord, "stamped", Record.stamped)]


@mutant("§7 A note of progress ends between two packs", test=f"{_PACKED}::test_a_record_ends_between_two_packs")
def notes_end_within_packs() -> Patches:
    return [(WriteRecord, "_is_little_in_doubt", lambda _: True)]


@mutant("§7 A trace counts under the row's own name only", 91, 105, arena="writing")
def traces_count_by_uuid() -> Patches:
    async def has_landed(context: Any, topic: str, name: str, uuid: str) -> bool:
        return any(
            [
                await context.store.head(units.key_of(topic, name)),
                await context.registers.head(layout.lease(topic, uuid)),
                await context.store.head(letters.key_of(topic, uuid)),
            ]
        )

    return [(decided_writes, "has_landed", has_landed)]


@mutant(
    "§7 A write waits for claim records that cannot be read",
    test=f"{_TRACES}::test_a_claim_record_that_can_be_read_again_is_a_trace",
)
def unread_claims_are_no_trace() -> Patches:
    return [(write_traces, "MAX_WAIT_FOR_RECORDS_SECONDS", 0.0)]


@mutant(
    "§7 A write does not wait for ever for claim records that cannot be read",
    test=f"{_TRACES}::test_a_claim_record_that_cannot_be_read_holds_a_write_up_for_a_while",
)
def writes_wait_for_ever() -> Patches:
    original = DecidedWrite._give_back

    async def give_back(self: DecidedWrite, _: Any) -> bool:
        return await original(self, None)

    return [(DecidedWrite, "_give_back", give_back)]


@mutant(
    "§7 A write does not wait for ever for a process that can read its rows",
    test="tests/pawnqueue/publish/test_unread_rows.py::test_a_write_is_finished_without_rows_that_nobody_reads",
)
def writes_wait_for_their_rows_for_ever() -> Patches:
    async def is_over(_: DecidedWrite) -> bool:
        return False

    return [(DecidedWrite, "_is_wait_for_rows_over", is_over)]


@mutant(
    "§7 A process that cannot read rows leaves them to others",
    test="tests/pawnqueue/publish/test_unread_rows.py::test_a_process_that_can_read_the_rows_publishes_all",
)
def unread_rows_are_gone() -> Patches:
    async def is_over(_: DecidedWrite) -> bool:
        return True

    return [(DecidedWrite, "_is_wait_for_rows_over", is_over)]


@mutant(
    "§7 The record of a claim without an id is kept while a write that it had messages of is not done",
    test=f"{_TRACES}::test_what_claims_without_an_id_consumed_is_not_sent_again",
)
def claims_without_an_id_leave_no_trace() -> Patches:
    async def keep_if_needed(*_: Any) -> None:
        pass

    return [(record_retention, "keep_if_needed", keep_if_needed)]


@mutant(
    "§7 A write that is done is done for messages up to now only",
    test=f"{_TRACES}::test_a_message_with_a_false_time_says_nothing_of_a_later_write",
)
def messages_tell_the_time() -> Patches:
    original = record_retention._is_done

    async def is_done(context: Any, topic: str, write_id: str, latest: Any) -> bool:
        found = await original(context, topic, write_id, latest)
        if found:
            context.done_writes.add(topic, write_id, latest)
        return found

    return [(record_retention, "_is_done", is_done)]


@mutant(
    "§7 Records are kept while a write is not done",
    test=f"{_TRACES}::test_records_are_kept_while_a_write_cannot_be_finished",
)
def records_go_before_their_writes() -> Patches:
    original = ClaimSweep.__init__

    def init(self: ClaimSweep, *given: Any, **_: Any) -> None:
        original(self, *given)

    return [(ClaimSweep, "__init__", init)]


@mutant(
    "§7 A write whose rows are gone comes to an end",
    test=f"{_GONE}::test_a_decision_that_lands_in_a_topic_made_anew_is_dropped",
)
def writes_without_rows_stay() -> Patches:
    async def drop(self: DecidedWrite) -> Any:
        raise StoreError(f"An object of write {self._found.value.write_id} is gone.")

    return [(DecidedWrite, "_drop", drop)]


@mutant(
    "§7 What is staged is dropped by compare-and-set before its topic is deleted",
    test=f"{_GONE}::test_what_is_staged_is_dropped_before_its_topic_is_deleted",
)
def topics_are_deleted_under_their_writes() -> Patches:
    async def drop(*_: Any) -> bool:
        return True

    return [(removal.writes, "drop", drop)]


@mutant(
    "§5.4 Records of what has ended go last with their topic",
    test="tests/pawnqueue/maintenance/test_removal.py::test_a_deletion_that_fails_forgets_nothing_that_has_ended",
)
def records_go_with_their_topic() -> Patches:
    original = removal._Removal.__init__

    def init(self: Any, *given: Any) -> None:
        original(self, *given)
        self._records = ("nothing",)

    return [(removal._Removal, "__init__", init)]


@mutant("§5.5 What was decided is finished by the janitor", 1, 3, 5, arena="writing")
def nobody_finishes_writes() -> Patches:
    async def finish(self: Any, write_id: str) -> None:
        pass

    return [(sweeping_writes.WriteSweep, "_finish", finish)]


@mutant(
    "§7 Rows of a write that was done without any are not left out unsaid",
    test=f"{_TESTS}::test_rows_of_a_write_that_was_done_without_any",
)
def empty_writes_swallow_rows() -> Patches:
    def check_same_rows(*_: Any, **__: Any) -> None:
        pass

    return [(writes, "check_same_rows", check_same_rows)]
