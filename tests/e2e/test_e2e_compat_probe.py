"""Which strategy a store is used with, and that csprng_verify lets one win of ten."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from pawnqueue import CompatibilityError, ConfigError, PawnQueue, StoreError
from tests.e2e.backends import CONDITIONAL, CSPRNG, CSPRNG_FORCED, Backend, Deadline, settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from pawnqueue import Claim, Settings

pytestmark = pytest.mark.servers

CONTENDERS = 10


@pytest.mark.parametrize("backend", [CONDITIONAL, CSPRNG, CSPRNG_FORCED], ids=str)
async def test_the_strategy_is_detected_and_all_follow(queue: PawnQueue, settings: Settings, backend: Backend) -> None:
    """A bucket that nobody has used gets the strategy that its store can carry, or the one that was set."""
    assert queue.strategy == backend.strategy
    async with PawnQueue.open(settings) as another:
        assert another.strategy == backend.strategy


@pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)
async def test_a_setting_that_contradicts_the_bucket_is_refused(queue: PawnQueue, settings: Settings) -> None:
    """Mixed strategies do not exclude each other: the error says how to change the bucket's strategy."""
    with pytest.raises(ConfigError, match="agreed on conditional_write"):
        await PawnQueue.open(settings, concurrency={"strategy": "csprng_verify"})


@pytest.mark.parametrize("backend", [CSPRNG], ids=str)
async def test_conditional_write_is_refused_where_it_would_not_hold(
    request: pytest.FixtureRequest, backend: Backend, settings_for: Callable[..., Settings]
) -> None:
    """A setting that insists on it raises an error that says what the store does instead."""
    server = request.getfixturevalue(backend.server)
    with pytest.raises(CompatibilityError, match="cannot carry it"):
        await PawnQueue.open(settings_for(server, concurrency={"strategy": "conditional_write"}))


@pytest.mark.parametrize("backend", [CSPRNG, CSPRNG_FORCED], ids=str)
async def test_one_of_ten_wins_with_csprng_verify(queue: PawnQueue, settings: Settings, topic: str) -> None:
    """Ten consumers claim one message at the same moment: one is given it, and nine are given nothing."""
    deadline = Deadline()
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(PawnQueue.open(settings)) for _ in range(CONTENDERS)]

        async def contend(number: int) -> Claim | None:
            try:
                return await queues[number].claim(topic, f"consumer-{number}", max_messages=1, ttl=30)
            except StoreError as error:
                if not error.transient:
                    raise
                return None

        winners: list[Claim] = []
        # On a machine that is too busy a round may have no winner, as a late PUT proves nothing; never two.
        while not winners:
            deadline.check("a round with a winner")
            [one] = await queue.publish(topic, [{}])
            winners = [claim for claim in await asyncio.gather(*map(contend, range(CONTENDERS))) if claim]
            assert len(winners) <= 1
        [winner] = winners
        assert winner.ids == [one]
        [holder] = [each for number, each in enumerate(queues) if winner.consumer == f"consumer-{number}"]
        assert (await settled(holder.ack, winner)).acked == [one]
