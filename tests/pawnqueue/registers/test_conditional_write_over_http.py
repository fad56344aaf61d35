"""``conditional_write`` through the real clients, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import Settings
from pawnqueue.runtime.clock import SystemClock
from pawnqueue.settings import RetrySettings
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Done, Expect, Refusal, Refused
from pawnqueue.stores.retry import ResilientStore
from tests.pawnqueue.opened import BUCKET
from tests.pawnqueue.registers.contending import CONTENDERS, contend
from tests.pawnqueue.registers.scripted import KEY, registers, step, take
from tests.support.faults import (
    AppliedThenDropped,
    AppliedThenStatus,
    Behaviour,
    Dropped,
    Effect,
    Fault,
    FaultServer,
    LandsLate,
    Status,
)
from tools.kit.stores import ALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pawnqueue.stores.port import Store

STORM: tuple[tuple[Effect, float], ...] = (
    (Dropped(), 0.15),
    (AppliedThenDropped(), 0.25),
    (AppliedThenStatus(500), 0.25),
    (Status(503, "SlowDown"), 0.15),
    (LandsLate(0.005, Status(500)), 0.15),
    (Status(409, "ConditionalRequestConflict"), 0.15),
)


@pytest.fixture
async def store(server: FaultServer, client: str) -> AsyncIterator[Store]:
    """The server's bucket, through the client."""
    store = connected(server, client)
    yield store
    await store.aclose()


def connected(server: FaultServer, client: str) -> Store:
    """Return a store in the server's bucket."""
    return connect(Settings(s3=server.s3.address(BUCKET, client=client)).s3)


def puts(server: FaultServer) -> int:
    """Return how many PUTs arrived."""
    return sum(request.operation == "PutObject" for request in server.requests)


@pytest.mark.parametrize("effect", [AppliedThenDropped(), AppliedThenStatus(500)], ids=str)
async def test_a_real_write_whose_answer_was_lost_is_done(server: FaultServer, store: Store, effect: Effect) -> None:
    """A create and an update that were applied are done after one PUT each, whatever was answered."""
    server.inject(Fault(effect, operation="PutObject"))
    created = await take(store)
    assert isinstance(created, Done)
    updated = await take(store, created.version)
    found = await store.get(KEY, ALL)
    assert found is not None
    assert updated == Done(found.info.version)
    assert puts(server) == 2


@pytest.mark.parametrize(
    "effect", [Dropped(), Status(503, "SlowDown"), Status(500), Status(409, "ConditionalRequestConflict")], ids=str
)
async def test_a_real_write_that_was_lost_is_sent_again(server: FaultServer, store: Store, effect: Effect) -> None:
    """A create and an update that did not happen are sent again until they are done."""
    for expect in (Expect.NOTHING, None):
        found = await store.get(KEY, ALL)
        server.inject(Fault(effect, operation="PutObject", times=3))
        outcome = await take(store, expect or (found.info.version if found else ""))
        found = await store.get(KEY, ALL)
        assert found is not None
        assert outcome == Done(found.info.version)
    assert puts(server) == 8


async def test_a_real_update_without_quotes(client: str) -> None:
    """On a store that wants bare ETags, updates succeed with ``unquoted`` and are refused without."""
    with FaultServer(Behaviour(etag_form="unquoted_if_match"), buckets=(BUCKET,)) as server:
        store = connected(server, client)
        created = await take(store)
        assert isinstance(created, Done)
        assert await take(store, created.version) == Refused(Refusal.CONDITION)
        [outcome] = await registers(store, unquoted=True).write([step(created.version)])
        assert isinstance(outcome, Done)
        sent = [request.headers["if-match"] for request in server.requests if "if-match" in request.headers]
        assert sent == [created.version, created.version.strip('"')]
        await store.aclose()


@pytest.mark.parametrize(
    "behaviour",
    [{}, {"losers_get_500": True, "race_window": 0.005}, {"conflict_409": True, "race_window": 0.005}],
    ids=["aws", "ceph", "aws under contention"],
)
@pytest.mark.parametrize("seed", range(2))
async def test_real_contenders_win_in_one_order(client: str, behaviour: dict[str, object], seed: int) -> None:
    """Through a storm in front of each kind of store, each round has one winner, which built on the last."""
    with FaultServer(Behaviour(seed=seed, **behaviour), buckets=(BUCKET,)) as server:  # type: ignore[arg-type]
        for effect, probability in STORM:
            server.inject(Fault(effect, operation="PutObject", probability=probability))
        server.inject(Fault(Dropped(), operation="GetObject", probability=0.2))
        store = connected(server, client)
        patient = ResilientStore(store, RetrySettings(initial_delay_seconds=0), SystemClock())
        history = await contend([registers(store) for _ in range(CONTENDERS)], patient)
        assert history.violations(server.objects(BUCKET)[KEY]) == []
        await store.aclose()
