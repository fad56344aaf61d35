"""The hook has every call of the queue, by its name, and a twin of each for callers in a loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from airflow.exceptions import AirflowNotFoundException

from airflow_provider_pawnqueue.hooks.clients import Clients
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import ConfigError, PawnQueue, SyncPawnQueue

#: What the hook has in another way: it opens and closes its queues itself, and tells their settings.
OTHERWISE = {"open", "close", "closed", "run", "awaited", "strategy", "settings"}
CALLS = sorted(name for name in dir(SyncPawnQueue) if not name.startswith("_") and name not in OTHERWISE)


@pytest.mark.parametrize("name", CALLS)
def test_it_has_each_call_of_the_queue(name: str) -> None:
    """And its twin, which can be awaited; both say what they do."""
    assert hasattr(PawnQueue, name)
    ours, twin = getattr(PawnQueueHook, name), getattr(PawnQueueHook, f"a{name}")
    assert ours.__doc__
    assert twin.__doc__
    is_block = name == "keep_alive"
    assert inspect.iscoroutinefunction(inspect.unwrap(twin) if is_block else twin) or is_block
    assert not inspect.iscoroutinefunction(ours)


async def test_calls_and_twins_do_the_same(hook: PawnQueueHook) -> None:
    """One after the other, on one queue."""
    assert hook.topic("orders") == await hook.atopic("orders")
    assert hook.list_topics() == await hook.alist_topics() == ["orders"]
    ids = hook.publish("orders", [{"n": 0}], producer="shop") + await hook.apublish("orders", [{"n": 1}])
    assert [message.id for message in hook.peek("orders")] == ids
    assert await hook.apeek("orders") == hook.peek("orders")
    assert hook.backlog("orders").pending == (await hook.abacklog("orders")).pending == 2
    assert hook.stats("orders").pending == (await hook.astats("orders")).pending == 2
    claim = await hook.aclaim("orders", "c", claim_id="a")
    assert hook.known_claims("orders", ["a", "b"]) == await hook.aknown_claims("orders", ["a", "b"]) == {"a"}
    with hook.keep_alive(claim) as kept:
        assert not kept.lost.is_set()
    hook.renew(claim)
    assert hook.settle_overwritten(claim) == await hook.asettle_overwritten(claim) == []
    assert len(hook.nack(claim, reason="no").buried) == 2
    assert len(list(hook.dead_letters("orders"))) == len(list(await hook.adead_letters("orders"))) == 2
    assert hook.redrive("orders", ids[:1])
    assert await hook.aredrive("orders", ids[1:])
    assert (await hook.asweep("orders")) == hook.sweep("orders")
    assert hook.health().round_trip_seconds >= 0
    assert (await hook.ahealth()).round_trip_seconds >= 0
    assert hook.get_conn() is hook.queue


def test_a_connection_that_is_not_there(here: Clients) -> None:
    """Is told with what to do, sync and awaited."""
    hook = PawnQueueHook("not_there")
    with pytest.raises(AirflowNotFoundException, match="make one of type 'pawnqueue'"):
        _ = hook.settings
    with pytest.raises(AirflowNotFoundException, match="AIRFLOW_CONN_NOT_THERE"):
        asyncio.run(hook.alist_topics())


async def test_a_connection_that_is_wrong_is_told_to_both(here: Clients, connection: Callable[..., str]) -> None:
    """In the same sentence."""
    hook = PawnQueueHook(connection(extra={"bucket_nme": "queues"}))
    with pytest.raises(ConfigError, match="did you mean 'bucket_name'"):
        await hook.alist_topics()
    with pytest.raises(ConfigError, match="did you mean 'bucket_name'"):
        hook.list_topics()


def test_nothing_secret_shows(here: Clients, connection: Callable[..., str]) -> None:
    """In what is printed of a hook, its settings and its address."""
    hook = PawnQueueHook(connection(extra={"bucket_name": "queues"}, login="key", password="s3cr3t-s3cr3t"))
    shown: list[Any] = [hook, hook.settings, hook.address, vars(hook)]
    assert "s3cr3t-s3cr3t" not in repr(shown)


async def test_a_keeper_whose_caller_is_cancelled_keeps_nothing(hook: PawnQueueHook) -> None:
    """Whether it had begun or not."""
    hook.publish("orders", [{"n": 1}])
    claim = hook.claim("orders", "c")

    async def work() -> None:
        async with hook.akeep_alive(claim):
            await asyncio.sleep(60)

    for pause in (0.0, 0.001, 0.1):
        task = asyncio.create_task(work())
        await asyncio.sleep(pause)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.sleep(0.1)

    async def kept(queue: PawnQueue) -> int:
        return sum("pawnqueue-keep" in task.get_name() for task in asyncio.all_tasks())

    assert await hook.awaited(kept) == 0
