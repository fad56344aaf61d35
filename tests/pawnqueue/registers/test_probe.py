"""The probe finds out what a store really does, and is misled by no storm."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import CompatibilityError, MemoryStore, PawnQueue, Settings
from pawnqueue.errors import StoreError
from pawnqueue.registers.probe import ProbeResult, judge, probe
from pawnqueue.runtime.clock import SystemClock
from pawnqueue.settings import RetrySettings
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import (
    Done,
    Expect,
    ObjectInfo,
    Refusal,
    Refused,
    StoredObject,
    Unknown,
)
from pawnqueue.stores.retry import ResilientStore
from tests.pawnqueue.opened import BUCKET, both_clients
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
from tools.kit.stores import Answer, CarryOut, Hook, HookedStore, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from pawnqueue.stores.port import Outcome, Store
    from tests.support.faults import RecordedRequest
    from tools.kit.servers import S3Server

LOST = StoreError("The connection was lost.", transient=True)
DONE, TAKEN, SILENT = Done('"1"'), Refused(Refusal.CONDITION), Unknown(LOST)
FAILED = Unknown(LOST, answered=True)

#: Long enough that all contenders of a race overlap, on a busy machine too.
RACE = 0.05


def patient(store: Store, *, budget: float = 60.0) -> ResilientStore:
    """Return the store with many quick retries."""
    retry = RetrySettings(budget_seconds=budget, initial_delay_seconds=0.001, max_delay_seconds=0.02)
    return ResilientStore(store, retry, SystemClock())


@asynccontextmanager
async def through(server: FaultServer, client: str, *, budget: float = 60.0) -> AsyncIterator[ResilientStore]:
    """The server's bucket, through the client."""
    store = patient(connect(Settings(s3=server.s3.address(BUCKET, client=client)).s3), budget=budget)
    try:
        yield store
    finally:
        await store.aclose()


def is_conditional(request: RecordedRequest) -> bool:
    """Say whether the request has a condition."""
    return "if-match" in request.headers or "if-none-match" in request.headers


def has_if_match(request: RecordedRequest) -> bool:
    """Say whether the request wants to replace a version."""
    return "if-match" in request.headers


# --- each kind of store ---

STORES: dict[str, tuple[Behaviour, Fault | None, str, str]] = {
    "as AWS": (Behaviour(), None, "conditional_write", "held"),
    "as AWS under contention": (Behaviour(conflict_409=True), None, "conditional_write", "held"),
    "as SeaweedFS": (Behaviour(if_match_missing=412), None, "conditional_write", "held"),
    "as Ceph": (
        Behaviour(etag_form="unquoted_if_match", losers_get_500=True, if_match_missing=412),
        None,
        "conditional_write",
        "ETags unquoted",
    ),
    "racy creates": (Behaviour(if_none_match="racy", race_window=RACE), None, "csprng_verify", "concurrent"),
    "racy updates": (Behaviour(if_match="racy", race_window=RACE), None, "csprng_verify", "concurrent"),
    "no conditions": (
        Behaviour(if_none_match="ignored", if_match="ignored"),
        None,
        "csprng_verify",
        "If-None-Match: * overwrote",
    ),
    "no If-None-Match": (Behaviour(if_none_match="ignored"), None, "csprng_verify", "If-None-Match: * overwrote"),
    "no If-Match": (Behaviour(if_match="ignored"), None, "csprng_verify", "wrong If-Match overwrote"),
    "501 for If-None-Match": (
        Behaviour(if_none_match="not_implemented"),
        None,
        "csprng_verify",
        "If-None-Match: * of a new object is not implemented",
    ),
    "501 for If-Match": (
        Behaviour(if_match="not_implemented"),
        None,
        "csprng_verify",
        "If-Match is not implemented",
    ),
    "400 for conditions": (
        Behaviour(),
        Fault(Status(400, "InvalidArgument"), where=is_conditional),
        "csprng_verify",
        "is not implemented",
    ),
    "400 for If-Match": (
        Behaviour(),
        Fault(Status(400, "InvalidRequest"), where=has_if_match),
        "csprng_verify",
        "If-Match is not implemented",
    ),
    "412 for every If-Match": (
        Behaviour(),
        Fault(Status(412, "PreconditionFailed"), where=has_if_match),
        "csprng_verify",
        "right If-Match was refused",
    ),
    "412 for every If-None-Match": (
        Behaviour(),
        Fault(Status(412, "PreconditionFailed"), where=lambda request: "if-none-match" in request.headers),
        "csprng_verify",
        "of a new object was refused",
    ),
}


@pytest.mark.parametrize(
    ("name", "client"),
    [
        *((name, "obstore") for name in STORES),
        *((name, "boto3") for name in ("as AWS", "as Ceph", "racy updates", "no If-Match", "501 for If-None-Match")),
        ("400 for conditions", "boto3"),
    ],
)
async def test_each_kind_of_store_is_recognised(name: str, client: str) -> None:
    """The strategy follows from what the store does, the reason says what it did, and no probe object is left."""
    behaviour, fault, strategy, reason = STORES[name]
    with FaultServer(behaviour, buckets=(BUCKET,)) as server:
        if fault:
            server.inject(fault)
        async with through(server, client) as store:
            finding = await probe(store, SystemClock())
        assert finding.strategy == strategy
        assert reason in finding.reason
        assert finding.unquoted_if_match == (behaviour.etag_form == "unquoted_if_match")
        assert server.objects(BUCKET) == {}


@pytest.mark.parametrize(
    "name", ["as AWS", "as Ceph", "no If-Match", "racy updates", "no If-None-Match", "racy creates"]
)
async def test_creates_and_updates_are_told_apart(name: str) -> None:
    """What a store keeps of the one says nothing of the other: a strategy may need only one of them."""
    behaviour = STORES[name][0]
    with FaultServer(behaviour, buckets=(BUCKET,)) as server:
        async with through(server, "obstore") as store:
            finding = await probe(store, SystemClock())
    assert (not finding.creates) == (behaviour.if_none_match == "atomic")
    if not finding.creates:
        assert (not finding.updates) == (behaviour.if_match == "atomic")
    else:
        assert name == "racy creates" or finding.updates == finding.creates


async def test_a_memory_store_carries_conditional_writes(caplog: pytest.LogCaptureFixture) -> None:
    """The finding is logged at INFO with its reason, and nothing else is at that level or above."""
    caplog.set_level(logging.INFO, logger="pawnqueue")
    store = MemoryStore()
    finding = await probe(patient(store), SystemClock())
    reason = "If-None-Match and If-Match held in sequence and in a race"
    assert finding == ProbeResult("conditional_write", reason, conditional_deletes=True)
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert "conditional_write" in record.getMessage()
    assert finding.reason in record.getMessage()
    assert store._objects == {}


async def test_an_open_queue_probes_again() -> None:
    """``PawnQueue.probe`` says what a fresh probe finds, and leaves the bucket as it was."""
    store = MemoryStore()
    async with PawnQueue.open(store=store) as queue:
        before = dict(store._objects)
        assert (await queue.probe()).strategy == queue.strategy == "conditional_write"
        assert store._objects == before


# --- storms ---

#: As much as half of the writes and a third of the reads.
STORMS: dict[str, list[Fault]] = {
    "503": [Fault(Status(503, "SlowDown"), probability=0.5)],
    "dropped": [Fault(Dropped(), probability=0.4)],
    "applied then dropped": [Fault(AppliedThenDropped(), probability=0.4)],
    "applied then 500": [Fault(AppliedThenStatus(500), probability=0.4)],
    "lands late": [Fault(LandsLate(0.02, Status(500)), operation="PutObject", probability=0.4)],
    "everything": [
        Fault(effect, operation=operation, probability=0.15)
        for effect, operation in (
            (Status(503, "SlowDown"), None),
            (Dropped(), None),
            (AppliedThenDropped(), None),
            (AppliedThenStatus(500), None),
            (LandsLate(0.02), "PutObject"),
        )
    ],
}
ANSWERS: dict[str, tuple[Behaviour, bool, str]] = {
    "atomic": (Behaviour(), False, "conditional_write"),
    "as Ceph": (Behaviour(etag_form="unquoted_if_match", losers_get_500=True), True, "conditional_write"),
    "racy creates": (Behaviour(if_none_match="racy", race_window=RACE), False, "csprng_verify"),
    "racy updates": (Behaviour(if_match="racy", race_window=RACE), False, "csprng_verify"),
    "no If-Match": (Behaviour(if_match="ignored"), False, "csprng_verify"),
    "501": (Behaviour(if_none_match="not_implemented"), False, "csprng_verify"),
}


async def found_in_a_storm(behaviour: Behaviour, storm: Sequence[Fault], client: str, seed: int) -> ProbeResult:
    """Probe in a storm, and see to it that nothing is left but what landed late."""
    with FaultServer(replace(behaviour, seed=seed), buckets=(BUCKET,)) as server:
        for fault in storm:
            server.inject(fault)
        async with through(server, client) as store:
            finding = await probe(store, SystemClock())
        # A write that lands after its object was deleted stays: nobody can wait for it. The janitor takes it.
        late = any(isinstance(fault.effect, LandsLate) for fault in storm)
        assert late or server.objects(BUCKET) == {}
        assert all(key.startswith("_probe/") for key in server.objects(BUCKET))
    return finding


@pytest.mark.parametrize(
    ("kind", "storm"),
    [
        *itertools.product(("atomic", "racy updates"), STORMS),
        *itertools.product(("as Ceph", "racy creates", "no If-Match", "501"), ("everything",)),
    ],
)
async def test_a_storm_changes_no_answer(kind: str, storm: str) -> None:
    """In three storms of each kind, over each kind of store, the finding is that of fair weather."""
    behaviour, unquoted, strategy = ANSWERS[kind]
    findings = await asyncio.gather(*(found_in_a_storm(behaviour, STORMS[storm], "obstore", seed) for seed in range(3)))
    assert {(finding.strategy, finding.unquoted_if_match) for finding in findings} == {
        (strategy, unquoted and strategy == "conditional_write")
    }


@pytest.mark.parametrize("kind", ["atomic", "racy updates"])
async def test_a_storm_changes_no_answer_through_boto3(kind: str) -> None:
    """The same through the other client."""
    behaviour, _, strategy = ANSWERS[kind]
    findings = await asyncio.gather(
        *(found_in_a_storm(behaviour, STORMS["everything"], "boto3", seed) for seed in range(2))
    )
    assert {finding.strategy for finding in findings} == {strategy}


class Stormy(HookedStore):
    """A bucket in memory whose writes are answered, lost, or answered wrongly, by seeded chance.

    :param racy: conditions are checked, and after a while the write is made.
    """

    def __init__(self, seed: int, weather: float, *, racy: bool) -> None:
        super().__init__()
        self._chance = random.Random(seed)  # noqa: S311
        self._weather = weather
        self._racy = racy

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Let a PUT meet its fate."""
        if request.call != "put":
            return await carry_out()
        fate = self._chance.choice(["lost", "answer lost"]) if self._chance.random() < self._weather else "fine"
        if fate == "lost":
            return Unknown(LOST)
        outcome = await (self._late_put(request) if self._racy else carry_out())
        return Unknown(LOST) if fate == "answer lost" else outcome

    async def _late_put(self, request: Request) -> Outcome:
        found = self.below._objects.get(request.key)
        if request.expect is Expect.NOTHING and found is not None:
            return TAKEN
        if isinstance(request.expect, str) and (found is None or found.info.version != request.expect):
            return TAKEN
        for _ in range(self._chance.randrange(1, 4)):
            await asyncio.sleep(0)
        return Done(self.below._write(request.key, request.body))


@pytest.mark.parametrize(("racy", "strategy"), [(False, "conditional_write"), (True, "csprng_verify")])
@pytest.mark.parametrize("weather", [0.0, 0.3, 0.5])
async def test_no_seed_changes_the_answer(weather: float, strategy: str, *, racy: bool) -> None:
    """Of a hundred storms none makes an atomic store look racy, or a racy one atomic; none leaves an object."""
    for seed in range(100):
        store = Stormy(seed, weather, racy=racy)
        retry = RetrySettings(budget_seconds=60, initial_delay_seconds=0, max_delay_seconds=0)
        finding = await probe(ResilientStore(store, retry, SystemClock()), SystemClock())
        assert finding.strategy == strategy, f"seed {seed}"
        assert store.below._objects == {}, f"seed {seed}"


# --- a storm that does not end ---


def from_the(number: int, operations: str) -> Callable[[RecordedRequest], bool]:
    """Return the condition of a storm that begins with the so-manieth of such requests."""
    count = itertools.count(1)
    lock = threading.Lock()

    def concerns(request: RecordedRequest) -> bool:
        if request.operation not in operations:
            return False
        with lock:
            return next(count) >= number

    return concerns


@pytest.mark.parametrize("begins", [1, 3, 5, 9, 20])
@pytest.mark.parametrize(
    ("effect", "client"),
    [
        (Status(503, "SlowDown"), "obstore"),
        (Dropped(), "obstore"),
        (AppliedThenDropped(), "obstore"),
        (AppliedThenDropped(), "boto3"),
        (AppliedThenStatus(500), "obstore"),
    ],
    ids=str,
)
async def test_a_storm_without_end_decides_nothing(effect: Effect, begins: int, client: str) -> None:
    """Whenever it begins, the probe gives up with a transient error; no task goes on, and no object is left."""
    with FaultServer(buckets=(BUCKET,)) as server:
        server.inject(Fault(effect, where=from_the(begins, "PutObject")))
        async with through(server, client, budget=0.05) as store:
            with pytest.raises(StoreError, match=r"nothing was decided|given up after") as caught:
                await probe(store, SystemClock())
            assert caught.value.transient
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert server.objects(BUCKET) == {}


@pytest.mark.parametrize("operation", ["GetObject", "ListObjectsV2", None], ids=str)
async def test_a_store_that_is_down_decides_nothing(operation: str | None) -> None:
    """Reads that fail to the end, or everything that does, end in a transient error, and no record is written."""
    with FaultServer(buckets=(BUCKET,)) as server:
        server.inject(Fault(Status(503, "SlowDown"), operation=operation, key="_probe/*"))
        settings = {"s3": server.s3.address(BUCKET), "retry": {"budget_seconds": 0.05}}
        with pytest.raises(StoreError) as caught:
            await PawnQueue.open(settings)
        assert caught.value.transient
        assert server.objects(BUCKET) == {}
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_probe_that_is_cancelled_cleans_up() -> None:
    """Cancelled in the middle of its races, the probe removes what it had written, and leaves no task."""
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def held(request: Request, carry_out: CarryOut) -> Answer:
        answer = await carry_out()
        if request.call == "put" and len(bucket._objects) > 6:
            reached.set()
            await go_on.wait()
        return answer

    bucket = MemoryStore()
    store = HookedStore(bucket, held)
    probing = asyncio.create_task(probe(patient(store), SystemClock()))
    await reached.wait()
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing
    assert bucket._objects == {}
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- no read-after-write ---


async def get_is_stale(request: Request, carry_out: CarryOut) -> Answer:
    """GET shows the former object."""
    return None if request.call == "get" else await carry_out()


def get_is_old() -> Hook:
    """GET shows a new object, and goes on to show it when it is overwritten."""
    first: dict[str, StoredObject] = {}

    async def answer(request: Request, carry_out: CarryOut) -> Answer:
        found = await carry_out()
        return first.setdefault(request.key, found) if isinstance(found, StoredObject) else found

    return answer


async def list_is_stale(request: Request, carry_out: CarryOut) -> Answer:
    """LIST does not know yet."""
    return None if request.call == "pages" else await carry_out()


async def get_has_other_etags(request: Request, carry_out: CarryOut) -> Answer:
    """GET and PUT call one object by different versions."""
    found = await carry_out()
    if not isinstance(found, StoredObject):
        return found
    return replace(found, info=replace(found.info, version='"other"'))


async def list_has_other_etags(request: Request, carry_out: CarryOut) -> Answer:
    """LIST has a version of its own."""
    page = await carry_out()
    if request.call != "pages" or page is None:
        return page
    return [replace(info, version='"other"') for info in page]


@pytest.mark.parametrize(
    ("hook", "missing"),
    [
        (get_is_stale, "a GET right after a PUT"),
        (get_is_old(), "a GET right after a PUT"),
        (list_is_stale, "a LIST right after a PUT"),
        (get_has_other_etags, "different ETags"),
        (list_has_other_etags, "another ETag"),
    ],
    ids=["get is stale", "get is old", "list is stale", "other ETags in get", "other ETags in list"],
)
async def test_an_inconsistent_store_is_no_store(hook: Hook, missing: str) -> None:
    """A store that does not show what was written cannot carry a queue: the error names what is missing."""
    bucket = MemoryStore()
    with pytest.raises(CompatibilityError, match=missing) as caught:
        await probe(patient(HookedStore(bucket, hook)), SystemClock())
    assert "read-after-write consistency" in str(caught.value)
    assert bucket._objects == {}


@both_clients
async def test_a_stale_server_is_no_store(client: str) -> None:
    """The same over HTTP; the probe object is removed, though the store may go on to show it."""
    with FaultServer(Behaviour(read_after_write=False, stale_writes=1), buckets=(BUCKET,)) as server:
        async with through(server, client) as store:
            with pytest.raises(CompatibilityError, match="a GET right after a PUT does not show what was written"):
                await probe(store, SystemClock())
        assert server.objects(BUCKET) == {}


async def test_a_permanent_error_is_raised() -> None:
    """A bucket that may not be written to is no store without conditions: the error says so, and nothing is decided."""
    with FaultServer(buckets=(BUCKET,)) as server:
        server.inject(Fault(Status(403, "AccessDenied"), operation="PutObject"))
        async with through(server, "obstore") as store:
            with pytest.raises(StoreError, match="s3:PutObject") as caught:
                await probe(store, SystemClock())
            assert not caught.value.transient


# --- the judge ---


def judged(outcomes: Sequence[Outcome], standing: int | None, *, silence_is_refusal: bool = False) -> str | None:
    """Judge a race with these answers, which left the body of one contender, or nothing."""
    bodies = [str(number).encode() for number in range(len(outcomes))]
    info = ObjectInfo("x", 1, '"1"', datetime.now(UTC))
    final = None if standing is None else StoredObject(info, bodies[standing])
    return judge(outcomes, bodies, final, silence_is_refusal=silence_is_refusal)


@pytest.mark.parametrize("silence_is_refusal", [False, True])
def test_one_winner_is_right(*, silence_is_refusal: bool) -> None:
    """One won, at least one other was refused, and the winner's body is stored."""
    for others in ([TAKEN, TAKEN], [TAKEN, SILENT], [Refused(Refusal.CONFLICT), SILENT]):
        assert judged([DONE, *others], 0, silence_is_refusal=silence_is_refusal) == ""


@pytest.mark.parametrize("silence_is_refusal", [False, True])
def test_violations_are_named(*, silence_is_refusal: bool) -> None:
    """Two winners, a winner that was overwritten or vanished, a store that has no conditions: each is reported."""

    def told(outcomes: Sequence[Outcome], standing: int | None) -> str:
        verdict = judged(outcomes, standing, silence_is_refusal=silence_is_refusal)
        assert verdict
        return verdict

    assert told([DONE, DONE, TAKEN], 1).startswith("2 of 3")
    assert told([DONE, SILENT, DONE, DONE], 1).startswith("3 of 4")
    assert "overwritten" in told([DONE, TAKEN], 1)
    assert "overwritten" in told([DONE, SILENT], 1)
    assert "overwritten" in told([DONE, TAKEN], None)
    assert "does not implement" in told([DONE, Refused(Refusal.UNSUPPORTED)], 0)
    assert "does not implement" in told([Refused(Refusal.UNSUPPORTED)] * 2, None)


def test_an_error_says_nothing_at_first() -> None:
    """A race whose losers were answered with an error is repeated, until that is the store's way to refuse."""
    assert judged([DONE, FAILED, SILENT], 0) is None
    assert judged([DONE, FAILED, SILENT], 0, silence_is_refusal=True) == ""


def test_silence_never_says_anything() -> None:
    """A race whose losers were not answered at all is repeated, however often."""
    assert judged([DONE, SILENT, SILENT], 0, silence_is_refusal=True) is None


@pytest.mark.parametrize("silence_is_refusal", [False, True])
def test_a_race_without_a_winner_says_nothing(*, silence_is_refusal: bool) -> None:
    """If no contender got the answer that it won, the race is repeated, whatever body is stored."""
    for outcomes in ([SILENT, SILENT], [TAKEN, SILENT], [TAKEN, TAKEN], [Refused(Refusal.CONFLICT)] * 2):
        for standing in (0, 1, None):
            assert judged(outcomes, standing, silence_is_refusal=silence_is_refusal) is None


# --- real servers ---


async def probed(settings: Settings) -> tuple[ProbeResult, list[Any]]:
    """Return the finding, and what is left of the probe."""
    store = patient(connect(settings.s3))
    try:
        return await probe(store, SystemClock()), [info async for page in store.pages("") for info in page]
    finally:
        await store.aclose()


@both_clients
@pytest.mark.servers
async def test_seaweedfs(client: str, seaweedfs: S3Server, settings_for: Callable[..., Settings]) -> None:
    """SeaweedFS carries conditional writes, with ETags as they are given."""
    finding, left = await probed(settings_for(seaweedfs, s3={"client": client}))
    assert (finding.strategy, finding.unquoted_if_match) == ("conditional_write", False)
    assert finding.conditional_deletes
    assert left == []


@both_clients
@pytest.mark.servers
async def test_rclone(client: str, rclone: S3Server, settings_for: Callable[..., Settings]) -> None:
    """Rclone ignores conditions, so csprng_verify is what it carries."""
    finding, left = await probed(settings_for(rclone, s3={"client": client}))
    assert (finding.strategy, finding.reason) == ("csprng_verify", "a PUT with If-None-Match: * overwrote an object")
    assert finding.look_to_answer is not None
    assert not finding.conditional_deletes
    assert left == []


@both_clients
@pytest.mark.ceph
@pytest.mark.timeout(300)
async def test_ceph(client: str, ceph: S3Server, settings_for: Callable[..., Settings]) -> None:
    """Ceph 16 carries conditional writes, with ETags unquoted."""
    finding, left = await probed(settings_for(ceph, s3={"client": client}))
    assert (finding.strategy, finding.unquoted_if_match) == ("conditional_write", True)
    assert left == []


@pytest.mark.servers
@pytest.mark.parametrize("seed", range(2))
async def test_seaweedfs_in_a_storm(seaweedfs: S3Server, settings_for: Callable[..., Settings], seed: int) -> None:
    """A storm in front of a real store changes nothing of what it carries."""
    with FaultServer(Behaviour(seed=seed), upstream=seaweedfs.endpoint) as server:
        for effect in (Status(503, "SlowDown"), Dropped(), AppliedThenDropped(), AppliedThenStatus(500)):
            server.inject(Fault(effect, probability=0.1))
        finding, _ = await probed(settings_for(seaweedfs, s3={"endpoint_url": server.endpoint}))
        assert (finding.strategy, finding.unquoted_if_match) == ("conditional_write", False)
