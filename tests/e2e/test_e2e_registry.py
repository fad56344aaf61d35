"""Producers and consumers have one id each, for ever."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue
from tests.e2e.backends import patiently

if TYPE_CHECKING:
    from pawnqueue import Settings

pytestmark = pytest.mark.servers


async def test_six_registrations_have_six_ids_and_keep_them(queue: PawnQueue, settings: Settings, name: str) -> None:
    """Three producers and three consumers of the same names: six ids, listed once each, the same to later processes."""
    names = [f"{name}-{n}" for n in range(3)]

    async def register_all(with_: PawnQueue) -> list[str]:
        producers = [patiently(lambda one=one: with_.register_producer(one)) for one in names]
        consumers = [patiently(lambda one=one: with_.register_consumer(one)) for one in names]
        return [each.id for each in await asyncio.gather(*producers, *consumers)]

    ids = await register_all(queue)
    assert len(set(ids)) == 6
    assert {str(uuid.UUID(one, version=4)) for one in ids} == set(ids)
    async with PawnQueue.open(settings) as later:
        assert await register_all(later) == ids
        listed = [*await later.list_producers(), *await later.list_consumers()]
        assert [each.id for each in listed if each.name in names] == ids


async def test_a_name_that_two_register_at_once_has_one_id(queue: PawnQueue, settings: Settings, name: str) -> None:
    """The second process in a race gets the id of the first."""
    async with PawnQueue.open(settings) as other:
        both = [patiently(lambda one=one: one.register_consumer(name)) for one in (queue, other)]
        first, second = await asyncio.gather(*both)
    assert first.id == second.id
    assert [one.id for one in await queue.list_consumers() if one.name == name] == [first.id]
