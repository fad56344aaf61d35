"""§5, redrive: a dead letter is given back once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock  # as below: it patches, and replaces nothing

from pawnqueue.catalog import letters, units
from pawnqueue.catalog.letters import ListedLetter
from pawnqueue.claims import finish_redrive
from pawnqueue.context import Context
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.bounds import LATEST_TIME
from pawnqueue.domain.identifiers import UnitId
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.records import LetterNotice, LetterNotices
from pawnqueue.maintenance import letter_expiry, redrive
from pawnqueue.maintenance.letter_expiry import LetterExpiry
from pawnqueue.maintenance.letter_filter import LetterFilter
from pawnqueue.registers.register import Versioned
from pawnqueue.stores.port import Done
from tests.sim.mutants.entering import Patches, mutant
from tools.kit.stores import ALL


@mutant("§5 A dead letter whose burial is not finished is not redriven", 403, 1868, 2836, arena="schedule")
def redrive_early() -> Patches:
    original = redrive._move

    class Unread:
        def __init__(self, lease: Any) -> None:
            self.create = lease.create

        async def read(self) -> None:
            return None

    async def move(context: Context, *rest: Any, packs: bool) -> Any:
        def lease(topic: str, uuid: str) -> Any:
            return Unread(context.lease(topic, uuid))

        return await original(_with(context, lease=lease), *rest, packs=packs)

    return [(redrive, "_move", move)]


@mutant("§5 A dead letter is redriven under a new uuid", 0, 2, 4)
def redrive_same_id() -> Patches:
    return [(units, "redriven_id", lambda uuid, _version: uuid)]


@mutant("§5 The new place is locked before the message is written there", 216, 470, arena="packs")
def redrive_no_lock() -> Patches:
    async def move(context: Context, topic: str, letter: ListedLetter, **_: Any) -> Any:
        name = units.redriven_name(letter.id, letter.version, letter.written_at.timestamp())
        key = letters.key_of(topic, letter.id)
        if not isinstance(await context.store.copy(key, units.key_of(topic, name)), Done):
            return False
        return not await context.store.delete([key, letters.reason_key_of(topic, letter.id)])

    return [(redrive, "_move", move)]


@mutant(
    "§5 The source is looked for after the lock was taken, and moved by COPY, never by GET and PUT",
    272,
    470,
    arena="packs",
)
def redrive_by_put() -> Patches:
    bodies: dict[str, bytes] = {}
    original_move, original_finish = redrive._move, finish_redrive.finish_move

    async def move(context: Context, topic: str, letter: ListedLetter, *, packs: bool) -> Any:
        found = await context.store.get(letters.key_of(topic, letter.id), ALL)
        if found is not None:
            bodies[letter.id] = found.body
        return await original_move(context, topic, letter, packs=packs)

    async def finish(context: Context, topic: str, uuid: str, found: Versioned[Lease]) -> bool:
        body = bodies.get(found.value.source)
        if body is None:
            return await original_finish(context, topic, uuid, found)
        await context.store.overwrite(units.key_of(topic, found.value.key), body)
        await context.store.delete([letters.key_of(topic, found.value.source)])
        return await finish_redrive._unlock(context, topic, uuid, found)

    return [(redrive, "_move", move), (finish_redrive, "finish_move", finish)]


@mutant("§5 The process that meets an overdue move finishes it", 0, 6, 3)
def nobody_finishes_moves() -> Patches:
    original = finish_redrive.finish_move

    async def finish(context: Context, topic: str, uuid: str, found: Versioned[Lease]) -> bool:
        overdue = context.is_due(found.value, await context.now())
        return not overdue and await original(context, topic, uuid, found)

    return [(finish_redrive, "finish_move", finish)]


@mutant("§5 Only letters with the reason that was asked for are redriven", 0, 2, 3, arena="letters")
def reasons_are_not_read() -> Patches:
    async def has_reason(*_: Any) -> bool:
        return True

    return [(LetterFilter, "has_reason", has_reason)]


@mutant("§5 Only letters of the age that was asked for are redriven", 2, 4, 12, arena="letters")
def ages_are_not_looked_at() -> Patches:
    return [(LetterFilter, "has_age", lambda *_: True)]


@mutant(
    "§5 What is buried while a redrive goes on is left for the next one",
    test="tests/pawnqueue/maintenance/test_redrive_filters.py::test_what_is_buried_meanwhile_is_left",
)
def redriven_as_often_as_buried() -> Patches:
    async def of_age(_self: Any, page: list[ListedLetter]) -> list[ListedLetter]:
        return page

    return [(redrive._Redrive, "_of_age", of_age)]


@mutant(
    "§5 What is moved to a place is the version of the letter for which it was made",
    test="tests/pawnqueue/maintenance/test_shared_uuids_of_letters.py",
)
def moves_any_letter() -> Patches:
    return [(finish_redrive, "_is_made_for", lambda _lock, _version: True)]


@mutant(
    "§5 Only the version of the letter that was moved is deleted",
    test="tests/pawnqueue/maintenance/test_shared_uuids_of_letters.py",
)
def deletes_any_letter() -> Patches:
    async def delete(context: Context, topic: str, source: str, _version: str) -> None:
        for key in (letters.key_of(topic, source), letters.reason_key_of(topic, source)):
            for error in (await context.store.delete([key])).values():
                raise error

    return [(finish_redrive, "_delete_letter", delete)]


EXPIRY = "tests/pawnqueue/maintenance/test_letter_expiry.py"


@mutant("§5 No dead letter is removed without a warning that is old enough", 0, 6, 7, arena="letters")
def removed_without_a_warning() -> Patches:
    async def notices(*_: Any) -> list[LetterNotice]:
        return [LetterNotice(at=0.0, through=LATEST_TIME)]

    return [(LetterExpiry, "_notices", notices)]


@mutant(
    "§5 A warning covers the letters that it has counted, and no other of the same second",
    27,
    arena="letters",
)
def a_warning_covers_a_whole_second() -> Patches:
    return [(LetterNotice, "last", property(lambda self: (self.through, "~")))]


@mutant(
    "§5 A dead letter that is being redriven is not removed",
    test=f"{EXPIRY}::test_a_letter_that_is_being_redriven_stays",
)
def removed_while_redriven() -> Patches:
    async def lock(self: Any, some: Sequence[ListedLetter]) -> Any:
        return {letter.id: (f"{self._topic}/leases/none.lease", "") for letter in some}

    return [(LetterExpiry, "_lock", lock)]


@mutant(
    "§5 A dead letter that is being buried is not removed",
    test=f"{EXPIRY}::test_a_letter_that_is_being_buried_stays",
)
def removed_while_buried() -> Patches:
    async def is_buried(*_: Any, **__: Any) -> bool:
        return True

    return [(letter_expiry, "is_buried", is_buried)]


@mutant(
    "§5 A warning counts for the limits under which it was given",
    test=f"{EXPIRY}::test_limits_can_be_changed_in_each_direction",
)
def warnings_outlive_their_limits() -> Patches:
    original = LetterExpiry._notices

    async def notices(self: Any) -> list[LetterNotice]:
        key = layout.letter_notices(self._topic)
        found = await self._scope.context.store.get(key, ALL)
        if found is None:
            return await original(self)
        return LetterNotices.decode(found.body, key).notices

    return [(LetterExpiry, "_notices", notices)]


@mutant("§5 A warning is given before it is noted", test=f"{EXPIRY}::test_it_is_given_before_it_is_noted")
def noted_without_a_warning() -> Patches:
    original = LetterExpiry._warn

    async def warn(self: Any, *rest: Any) -> None:
        told: list[Any] = []
        with mock.patch.object(type(self._scope.context.events), "tell", lambda _, event: told.append(event)):
            await original(self, *rest)
        for event in told:
            self._scope.context.events.tell(event)

    return [(LetterExpiry, "_warn", warn)]


@mutant(
    "§5 The lock of a removal names no letter: a process that finds it overdue moves nothing",
    test=f"{EXPIRY}::test_a_removal_that_was_cut_off_redrives_nothing",
)
def removals_are_finished_as_redrives() -> Patches:
    original = leases.moving

    async def lock(self: Any, some: Sequence[ListedLetter]) -> Any:
        sources = {units.redriven_id(letter.id, letter.version): letter.id for letter in some}

        def moving(uuid: str, name: str, *, source: str, until: float, ttl: float) -> Lease:
            return original(uuid, name, source=sources.get(UnitId(source), source), until=until, ttl=ttl)

        with mock.patch.object(leases, "moving", moving):
            return await lock_as_it_is(self, some)

    lock_as_it_is = LetterExpiry._lock
    return [(LetterExpiry, "_lock", lock)]


@mutant("§5 Only the letters past a limit are removed", test=f"{EXPIRY}::test_the_old_go_after_a_warning")
def all_that_was_warned_of_goes() -> Patches:
    original = LetterExpiry._sweep

    async def work(self: Any, oldest_first: Any, limits: Any) -> None:
        await original(self, oldest_first, limits.model_copy(update={"max_age_seconds": 1.0}))

    return [(LetterExpiry, "_sweep", work)]


def _with(context: Context, **changed: Any) -> Any:
    """Return a copy of a context with some parts replaced."""

    class Other:
        def __getattr__(self, name: str) -> Any:
            return changed.get(name) or getattr(context, name)

    return Other()
