"""A world for each test, and two processes in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.engine.virtual import Process, World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A bucket with a topic, in which time is virtual."""
    async with World() as world:
        yield world


@pytest.fixture
async def ann(world: World) -> Process:
    """A process that has opened the queue."""
    return await world.process()


@pytest.fixture
async def bob(world: World) -> Process:
    """Another one."""
    return await world.process()
