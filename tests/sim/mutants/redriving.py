"""§5, redrive: a dead letter is given back once."""

from __future__ import annotations

from typing import Any

from pawnqueue.catalog import letters, units
from pawnqueue.catalog.letters import ListedLetter
from pawnqueue.claims import finish_redrive
from pawnqueue.context import Context
from pawnqueue.domain.lease import Lease
from pawnqueue.maintenance import redrive
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


@mutant("§5 The new place is locked before the message is written there", 225, arena="packs")
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
    209,
    250,
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


def _with(context: Context, **changed: Any) -> Any:
    """Return a copy of a context with some parts replaced."""

    class Other:
        def __getattr__(self, name: str) -> Any:
            return changed.get(name) or getattr(context, name)

    return Other()
