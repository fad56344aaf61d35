"""The hook has every call of the queue, by its name, with the queue's arguments."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from airflow.exceptions import AirflowNotFoundException

from airflow_provider_pawnqueue.hooks.clients import Clients
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import ConfigError, SyncPawnQueue

#: What the hook has in another way: it opens and closes its queues itself, and tells their settings. All tasks of a
#: process share its queue, so no single one drains it: a worker opens a queue of its own.
OTHERWISE = {
    "open", "close", "closed", "run", "awaited", "strategy", "settings", "listen", "drain", "is_draining",
}  # fmt: skip
CALLS = sorted(name for name in dir(SyncPawnQueue) if not name.startswith("_") and name not in OTHERWISE)


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return what a call takes."""
    return list(inspect.signature(call).parameters.values())


@pytest.mark.parametrize("name", CALLS)
def test_it_has_each_call_of_the_queue(name: str) -> None:
    """With a docstring, and the names and defaults of its arguments; ``messages`` has ``shared`` as well."""
    ours, theirs = getattr(PawnQueueHook, name), getattr(SyncPawnQueue, name)
    assert ours.__doc__
    of_hook, of_queue = ([(each.name, each.default) for each in parameters(call)] for call in (ours, theirs))
    assert name == "messages" or of_hook == of_queue


async def test_it_makes_calls_and_awaits_them(hook: PawnQueueHook) -> None:
    """One after the other, on one queue."""
    assert hook.topic("orders") == await hook.awaited(lambda queue: queue.topic("orders"))
    ids = hook.publish("orders", [{"n": 0}], producer="shop") + hook.publish("orders", [{"n": 1}])
    assert [message.id for message in hook.peek("orders")] == ids
    assert hook.backlog("orders").pending == 2
    assert hook.stats("orders").pending == 2
    claim = await hook.awaited(lambda queue: queue.claim("orders", "c", claim_id="a"))
    assert hook.known_claims("orders", ["a", "b"]) == {"a"}
    with hook.keep_alive(claim) as kept:
        assert not kept.lost.is_set()
    hook.renew(claim)
    assert hook.settle_overwritten(claim) == []
    assert len(hook.nack(claim, reason="no").buried) == 2
    assert len(list(hook.dead_letters("orders"))) == 2
    assert hook.redrive("orders", ids[:1])
    assert hook.sweep("orders").topic == "orders"
    assert hook.health().round_trip_seconds >= 0
    assert hook.get_conn() is hook.queue


def test_a_connection_that_is_not_there(here: Clients) -> None:
    """The error says what to do, in sync and in async calls."""
    hook = PawnQueueHook("not_there")
    with pytest.raises(AirflowNotFoundException, match="make one of type 'pawnqueue'"):
        _ = hook.settings
    with pytest.raises(AirflowNotFoundException, match="AIRFLOW_CONN_NOT_THERE"):
        asyncio.run(hook.awaited(lambda queue: queue.list_topics()))


async def test_a_connection_that_is_wrong_is_told_to_both(here: Clients, connection: Callable[..., str]) -> None:
    """Sync and async calls raise the same sentence."""
    hook = PawnQueueHook(connection(extra={"bucket_nme": "queues"}))
    with pytest.raises(ConfigError, match="did you mean 'bucket_name'"):
        await hook.awaited(lambda queue: queue.list_topics())
    with pytest.raises(ConfigError, match="did you mean 'bucket_name'"):
        hook.list_topics()


def test_nothing_secret_shows(here: Clients, connection: Callable[..., str]) -> None:
    """A hook, its settings and its address print no secret."""
    hook = PawnQueueHook(connection(extra={"bucket_name": "queues"}, login="key", password="s3cr3t-s3cr3t"))
    shown: list[Any] = [hook, hook.settings, hook.address, vars(hook)]
    assert "s3cr3t-s3cr3t" not in repr(shown)
