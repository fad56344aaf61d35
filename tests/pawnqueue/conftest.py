"""A world for each test, and two processes in it; or a bucket behind HTTP, and the clients for it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from pawnqueue.publish import decided_writes
from tests.pawnqueue.opened import BUCKET
from tests.pawnqueue.publish.written import SMALL
from tests.pawnqueue.virtual import Process, World
from tests.support.faults import FaultServer


@pytest.fixture(autouse=True)
def the_usual_level() -> Iterator[None]:
    """The log is at Python's own level: Airflow, which other tests have imported, sets another one for good."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.WARNING)
    yield
    root.setLevel(before)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A bucket with a topic, in which time is virtual."""
    async with World() as world:
        yield world


@pytest.fixture(params=["conditional_write", "csprng_verify"])
async def packed_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A bucket of either strategy, with a topic that allows packs."""
    async with World(request.param) as world:
        world.topic(packs=True)
        yield world


@pytest.fixture
async def ann(world: World) -> Process:
    """A process that has opened the queue."""
    return await world.process()


@pytest.fixture
async def bob(world: World) -> Process:
    """Another one."""
    return await world.process()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit notes its progress after every third message: a handful of messages has several notes."""
    monkeypatch.setattr(decided_writes, "PIECES_PER_NOTE", SMALL)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A well-behaved store with an empty bucket."""
    with FaultServer(buckets=(BUCKET,)) as started:
        yield started


@pytest.fixture(params=["obstore", "boto3"])
def client(request: pytest.FixtureRequest) -> str:
    """Each client."""
    return str(request.param)
