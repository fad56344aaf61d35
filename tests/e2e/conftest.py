"""Queues on real servers, each backend below a key prefix of its own."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue, Settings
from tests.e2e.backends import CONDITIONAL, CSPRNG, Backend, patiently

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture(params=[CONDITIONAL, CSPRNG], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each store with the strategy that it is used with."""
    return request.param


@pytest.fixture(scope="session")
def shared_settings(
    request: pytest.FixtureRequest, settings_for: Callable[..., Settings]
) -> Callable[[Backend], Settings]:
    """The settings of each backend's queue: one for all tests, so that it is probed once."""
    made: dict[Backend, Settings] = {}

    def settings(backend: Backend) -> Settings:
        if backend not in made:
            made[backend] = settings_for(request.getfixturevalue(backend.server), **backend.sections)
        return made[backend]

    return settings


@pytest.fixture
def settings(shared_settings: Callable[[Backend], Settings], backend: Backend) -> Settings:
    """The settings of this test's backend."""
    return shared_settings(backend)


@pytest.fixture
async def queue(settings: Settings) -> AsyncIterator[PawnQueue]:
    """An open queue."""
    async with await patiently(lambda: PawnQueue.open(settings)) as queue:
        yield queue


@pytest.fixture
def name() -> str:
    """A name for a topic that no other test has."""
    return f"e2e-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def topic(queue: PawnQueue, name: str) -> str:
    """A topic."""
    await patiently(lambda: queue.create_topic(name))
    return name
