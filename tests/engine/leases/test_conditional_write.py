"""``conditional_write``: a register changes hands once, whatever becomes of requests and answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pytest

from airflow_provider_pawnqueue.engine import CompatibilityError, Settings
from airflow_provider_pawnqueue.engine.clock import SystemClock
from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.leases.cas import Step
from airflow_provider_pawnqueue.engine.leases.conditional_write import ConditionalWrite
from airflow_provider_pawnqueue.engine.records import Record
from airflow_provider_pawnqueue.engine.settings import RetrySettings
from airflow_provider_pawnqueue.engine.store.connect import connect
from airflow_provider_pawnqueue.engine.store.port import Done, Expect, Refusal, Refused, Unknown
from airflow_provider_pawnqueue.engine.store.retry import ResilientStore
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
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from airflow_provider_pawnqueue.engine.clock import Clock
    from airflow_provider_pawnqueue.engine.store.port import Expectation, Outcome, Store

BUCKET = "queues"
KEY = "register"
LOST = StoreError("The connection was lost.", transient=True)
DENIED = StoreError("The store denied it.")

#: What befalls a PUT: done and answered; lost before or after it was done; done only when somebody else has asked for
#: something; met by another write; a store without conditions; a permanent error.
Fate: TypeAlias = str
FINE, DROPPED, ANSWER_LOST, LATE, CONFLICT, UNSUPPORTED, FORBIDDEN = (
    "fine",
    "dropped",
    "answer lost",
    "late",
    "conflict",
    "unsupported",
    "forbidden",
)


@dataclass(frozen=True)
class Landed:
    """A write that the store carried out."""

    body: bytes
    expect: Expectation
    version: str


class Scripted(HookedStore):
    """A bucket whose PUTs meet the fates they are given, and that remembers what it carried out."""

    def __init__(self, fate: Callable[[], Fate] = lambda: FINE) -> None:
        super().__init__()
        self.fate = fate
        self.sent: list[Expectation] = []
        self.landed: list[Landed] = []
        self.reads = 0
        #: What somebody else does just before the next read; what happens instead of it.
        self.before_read: list[Callable[[], object]] = []
        self.failing_reads: list[StoreError] = []
        self._late: list[tuple[str, bytes, Expectation]] = []

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Let PUTs meet their fates, and GETs what happens before them."""
        if request.call == "put":
            return await self._meet_fate(request.key, request.body, request.expect)
        if request.call == "get":
            self.reads += 1
            if self.failing_reads:
                raise self.failing_reads.pop(0)
            if self.before_read:
                self.before_read.pop(0)()
        return await carry_out()

    async def _meet_fate(self, key: str, body: bytes, expect: Expectation) -> Outcome:
        self.sent.append(expect)
        await self._land_what_is_late()
        match self.fate():
            case "dropped":
                return Unknown(LOST)
            case "late":
                self._late.append((key, body, expect))
                return Unknown(LOST)
            case "conflict":
                return Refused(Refusal.CONFLICT)
            case "unsupported":
                return Refused(Refusal.UNSUPPORTED)
            case "forbidden":
                raise DENIED
            case "answer lost":
                await self.carry_out(key, body, expect)
                return Unknown(LOST)
        return await self.carry_out(key, body, expect)

    async def carry_out(self, key: str, body: bytes, expect: Expectation) -> Outcome:
        """Do it, and remember that it was done."""
        outcome = await self.below.put(key, body, expect=expect)
        if isinstance(outcome, Done):
            self.landed.append(Landed(body, expect, outcome.version))
        return outcome

    async def _land_what_is_late(self) -> None:
        late, self._late = self._late, []
        for key, body, expect in late:
            await self.carry_out(key, body, expect)


def scripted(*fates: Fate) -> Scripted:
    """Return a bucket that deals out the fates in order, and is fine after them."""
    left = list(fates)
    return Scripted(lambda: left.pop(0) if left else FINE)


def registers(
    store: Store,
    kind: type[ConditionalWrite] = ConditionalWrite,
    *,
    budget: float = 20.0,
    unquoted: bool = False,
    clock: Clock | None = None,
) -> ConditionalWrite:
    """Return the strategy on the store, trying again at once."""
    clock = clock or SystemClock()
    retry = RetrySettings(budget_seconds=budget, initial_delay_seconds=0, max_delay_seconds=0)
    return kind(ResilientStore(store, retry, clock), clock, unquoted=unquoted, at_once=16)


def step(expect: str | Expect = Expect.NOTHING, **content: object) -> Step:
    """Return a compare-and-set of the register."""
    assert expect is not Expect.ANYTHING
    return Step(KEY, Record.model_validate(content), expect)  # type: ignore[arg-type]


async def take(store: Store, expect: str | Expect = Expect.NOTHING, *, budget: float = 20.0) -> Outcome:
    """Make one compare-and-set."""
    [outcome] = await registers(store, budget=budget).write([step(expect)])
    return outcome


async def made(store: Scripted) -> str:
    """Put a register there, and return its version."""
    outcome = await store.carry_out(KEY, b'{"nonce":"first"}', Expect.NOTHING)
    assert isinstance(outcome, Done)
    return outcome.version


def interloper(store: Scripted) -> Callable[[], None]:
    """Return somebody who overwrites the register in an instant, by a compare-and-set of their own."""

    def act() -> None:
        body = b'{"nonce":"somebody else\'s"}'
        standing = store.below._objects[KEY].info.version
        store.landed.append(Landed(body, standing, store.below._write(KEY, body)))

    return act


# --- one write ---


async def test_a_create_is_done_once() -> None:
    """Where nothing stands a create is done, and a second one is refused; both in one request, without a look."""
    store = scripted()
    first = await take(store)
    assert first == Done(store.landed[0].version)
    assert await take(store) == Refused(Refusal.CONDITION)
    assert (len(store.landed), len(store.sent), store.reads) == (1, 2, 0)


async def test_an_update_is_done_once() -> None:
    """The expected version is replaced once; after that it is no longer the expected one."""
    store = scripted()
    version = await made(store)
    assert isinstance(await take(store, version), Done)
    assert await take(store, version) == Refused(Refusal.CONDITION)
    assert [landed.expect for landed in store.landed] == [Expect.NOTHING, version]


async def test_nothing_is_not_updated() -> None:
    """An update of what is not there is refused, after a lost answer too."""
    assert await take(scripted(), '"1"') == Refused(Refusal.CONDITION)
    assert await take(scripted(DROPPED), '"1"') == Refused(Refusal.CONDITION)


@pytest.mark.parametrize("update", [False, True], ids=["create", "update"])
@pytest.mark.parametrize("fates", [[ANSWER_LOST], [DROPPED, ANSWER_LOST], [CONFLICT, ANSWER_LOST]], ids=str)
async def test_an_unknown_write_that_landed_is_done(fates: list[Fate], *, update: bool) -> None:
    """The look finds our write id: it is done, with the version that stands there, and is not sent again."""
    store = scripted(*fates)
    expect = await made(store) if update else Expect.NOTHING
    already = len(store.landed)
    assert await take(store, expect) == Done(store.landed[-1].version)
    assert len(store.landed) == already + 1
    assert len(store.sent) == len(fates)


@pytest.mark.parametrize("update", [False, True], ids=["create", "update"])
async def test_an_unknown_write_that_did_not_land_is_sent_again(*, update: bool) -> None:
    """As long as the expected state stands there, the write is repeated until it is done."""
    store = scripted(DROPPED, DROPPED, DROPPED)
    expect = await made(store) if update else Expect.NOTHING
    assert await take(store, expect) == Done(store.landed[-1].version)
    assert store.sent == [expect] * 4


@pytest.mark.parametrize("update", [False, True], ids=["create", "update"])
async def test_our_own_late_write_is_not_a_refusal(*, update: bool) -> None:
    """An attempt that lands after the look has the next one refused; it was ours, so it is done."""
    store = scripted(LATE)
    expect = await made(store) if update else Expect.NOTHING
    already = len(store.landed)
    assert await take(store, expect) == Done(store.landed[-1].version)
    assert (len(store.landed), len(store.sent)) == (already + 1, 2)


@pytest.mark.parametrize("fates", [[ANSWER_LOST], [LATE]], ids=str)
async def test_a_write_that_somebody_has_overwritten_is_refused(fates: list[Fate]) -> None:
    """Whether ours landed or not, what stands there is somebody else's: refused, and it stays theirs."""
    store = scripted(*fates)
    version = await made(store)
    store.before_read = [interloper(store)]
    assert await take(store, version) == Refused(Refusal.CONDITION)
    assert b"somebody else's" in store.landed[-1].body
    assert len(store.sent) == 1


async def test_somebody_elses_create_is_a_refusal() -> None:
    """After a lost request, whoever stands there meanwhile has the register."""
    store = scripted(DROPPED)
    store.before_read = [lambda: store.below._write(KEY, b"what nobody can read")]
    assert await take(store) == Refused(Refusal.CONDITION)
    assert store.landed == []


async def test_an_update_of_what_was_deleted_is_refused() -> None:
    """After a lost request, a register that is gone is refused, not made anew."""
    store = scripted(DROPPED)
    version = await made(store)
    store.before_read = [store.below._objects.clear]
    assert await take(store, version) == Refused(Refusal.CONDITION)
    assert store.below._objects == {}


@pytest.mark.parametrize("update", [False, True], ids=["create", "update"])
async def test_a_conflict_is_tried_again(*, update: bool) -> None:
    """A 409 says nothing of who will have it: the write is sent again, without a look, until it is decided."""
    store = scripted(CONFLICT, CONFLICT, CONFLICT)
    expect = await made(store) if update else Expect.NOTHING
    assert await take(store, expect) == Done(store.landed[-1].version)
    assert (len(store.sent), store.reads) == (4, 0)
    taken = scripted(CONFLICT)
    await made(taken)
    assert await take(taken) == Refused(Refusal.CONDITION)


async def test_an_exhausted_budget_is_unknown() -> None:
    """Where nobody can tell, nobody says: unknown, with the last fault."""
    assert await take(scripted(DROPPED, DROPPED), budget=0) == Unknown(LOST)
    store = Scripted(lambda: DROPPED)
    assert await take(store, budget=0.05) == Unknown(LOST)
    assert len(store.sent) > 1


async def test_endless_conflicts_are_a_conflict() -> None:
    """Conflicts to the end are refused as a conflict; after an unknown attempt, they are unknown."""
    assert await take(Scripted(lambda: CONFLICT), budget=0.05) == Refused(Refusal.CONFLICT)
    fates = [DROPPED]
    outcome = await take(Scripted(lambda: fates.pop() if fates else CONFLICT), budget=0.05)
    assert isinstance(outcome, Unknown)
    assert outcome.fault.transient


async def test_a_look_that_fails_is_unknown() -> None:
    """Where the look itself gets no answer within the budget, the outcome is unknown."""
    store = scripted(ANSWER_LOST)
    store.failing_reads = [LOST] * 3
    assert isinstance(await take(store), Done)
    store = scripted(ANSWER_LOST)
    store.failing_reads = [LOST]
    assert await take(store, budget=0) == Unknown(LOST)


async def test_a_permanent_error_concerns_its_key() -> None:
    """What no repetition mends is told at once, from the write and from the look, and ends no other step."""
    assert await take(scripted(FORBIDDEN)) == Unknown(DENIED)
    store = scripted(DROPPED)
    store.failing_reads = [DENIED]
    assert await take(store) == Unknown(DENIED)


async def test_a_store_that_lost_its_conditions_is_told() -> None:
    """A store that no longer does conditions cannot carry the bucket, and the error says what to do."""
    with pytest.raises(CompatibilityError, match="stop every process"):
        await take(scripted(UNSUPPORTED))


@pytest.mark.parametrize("unquoted", [False, True])
async def test_the_etag_is_sent_as_the_store_wants_it(*, unquoted: bool) -> None:
    """``unquoted`` sends a bare ETag and nothing else changes: a create is a create, and the look still fits."""
    store = scripted(FINE, DROPPED, ANSWER_LOST)
    version = await made(store)
    strategy = registers(store, unquoted=unquoted)
    [first] = await strategy.write([step(version)])
    assert isinstance(first, Done)
    [second] = await strategy.write([step(first.version)])
    assert second == Done(store.landed[-1].version)
    first_sent, *again = store.sent
    assert first_sent == (version.strip('"') if unquoted else version)
    assert set(again) == {first.version.strip('"') if unquoted else first.version}
    await strategy.write([Step("other", Record())])
    assert store.sent[-1] is Expect.NOTHING


async def test_every_write_has_a_write_id_of_its_own() -> None:
    """Equal records are written as different bodies, so that compare-and-set cannot take one for the other."""
    store = scripted()
    record = Record.model_validate({"nonce": "mine", "kept": {"by": "others"}})
    outcomes = await registers(store).write([Step(f"r/{number}", record) for number in range(20)])
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    bodies = [json.loads(landed.body) for landed in store.landed]
    assert len({body["nonce"] for body in bodies}) == 20
    assert all(len(body["nonce"]) == 64 for body in bodies)
    assert all(body["kept"] == {"by": "others"} for body in bodies)


async def test_many_steps_keep_their_order() -> None:
    """The outcomes of a batch are those of its steps, one by one, whichever comes back first."""
    chance = random.Random(3)  # noqa: S311
    store = Scripted(lambda: chance.choice([FINE, DROPPED, ANSWER_LOST, LATE, CONFLICT]))
    for number in range(0, 60, 2):
        store.below._write(f"r/{number}", b"taken")
    outcomes = await registers(store).write([Step(f"r/{number}", Record()) for number in range(60)])
    for number, outcome in enumerate(outcomes):
        standing = store.below._objects[f"r/{number}"]
        assert outcome == (Done(standing.info.version) if number % 2 else Refused(Refusal.CONDITION))
    assert await registers(store).write([]) == []


# --- many contenders for one register: a linearizability check ---

CONTENDERS, ROUNDS = 5, 4


@dataclass
class History:
    """What the contenders of a register were told, round by round; in a round all of them expect one version."""

    rounds: list[tuple[str | Expect, list[Outcome]]] = field(default_factory=list)

    def violations(self, final_body: bytes) -> list[str]:
        """Say where what was told is no one order of writes: each done once, each behind the one it expected."""
        found = []
        standing: str | Expect = Expect.NOTHING
        winner = None
        for number, (expected, outcomes) in enumerate(self.rounds):
            done = [(who, outcome) for who, outcome in enumerate(outcomes) if isinstance(outcome, Done)]
            if expected != standing:
                found.append(f"round {number} expected {expected}, and the last one done was {standing}")
            if len(done) != 1:
                return [*found, f"round {number} was not won by one: {outcomes}"]
            [(winner, outcome)] = done
            standing = outcome.version
        if json.loads(final_body)["by"] != [len(self.rounds) - 1, winner]:
            found.append(f"{final_body!r} stands there, and {winner} was told that it won")
        return found


async def contend(strategies: Sequence[ConditionalWrite], store: Store) -> History:
    """Let one contender a strategy go for the register, all at once, round after round."""
    history = History()
    expect: str | Expect = Expect.NOTHING
    for number in range(ROUNDS):
        answers = await asyncio.gather(
            *(strategy.write([step(expect, by=[number, contender])]) for contender, strategy in enumerate(strategies))
        )
        history.rounds.append((expect, [outcome for [outcome] in answers]))
        found = await store.get(KEY)
        expect = found.info.version if found else Expect.NOTHING
    return history


class TrustsRefusals(ConditionalWrite):
    """Broken on purpose: takes a 412 after an unknown attempt for somebody else's doing."""

    async def _look(self, step: Step, nonce: str) -> Outcome | None:
        seen = await super()._look(step, nonce)
        return Refused(Refusal.CONDITION) if isinstance(seen, Done) else seen


class TrustsItself(ConditionalWrite):
    """Broken on purpose: takes an unknown write for done."""

    async def _look(self, step: Step, nonce: str) -> Outcome | None:
        return Done('"0"')


class SendsAgain(ConditionalWrite):
    """Broken on purpose: sends an unknown write again without a look, until it is refused."""

    async def _look(self, step: Step, nonce: str) -> Outcome | None:
        return None


class LooksAfterUnknownOnly(ConditionalWrite):
    """Broken on purpose: looks when an answer was lost, and believes the 412 that comes after that."""

    async def _take(self, step: Step) -> Outcome:
        nonce = self._clock.nonce()
        body = step.record.stamped(nonce).encode()
        while True:
            outcome = await self._store.put(step.key, body, expect=self._sent(step.expect))
            if isinstance(outcome, Done) or outcome == Refused(Refusal.CONDITION):
                return outcome
            seen = await self._look(step, nonce) if isinstance(outcome, Unknown) else None
            if seen is not None:
                return seen


async def scripted_history(kind: type[ConditionalWrite], seed: int) -> list[str]:
    """Return the violations of a run on the scripted store."""
    chance = random.Random(seed)  # noqa: S311
    fates = [FINE, DROPPED, ANSWER_LOST, LATE, CONFLICT]
    store = Scripted(lambda: chance.choices(fates, weights=[3, 2, 3, 2, 2])[0])
    # A write id that was never found makes a broken one go on for its budget.
    strategies = [registers(store, kind, budget=0.05 if kind is SendsAgain else 20.0) for _ in range(CONTENDERS)]
    history = await contend(strategies, store)
    standing = await store.get(KEY)
    violations = history.violations(standing.body if standing else b"")
    # What landed is a chain by itself, or the store would not be atomic; the winners' versions are its links.
    told = [outcome.version for _, outcomes in history.rounds for outcome in outcomes if isinstance(outcome, Done)]
    landed = Counter(landed.version for landed in store.landed)
    violations += [
        f"{version} was told, and landed {landed[version]} times" for version in told if landed[version] != 1
    ]
    return violations


async def test_contenders_win_in_one_order() -> None:
    """In 150 runs through lost, late and conflicting writes, each round has one winner, who built on the last."""
    for seed in range(150):
        assert await scripted_history(ConditionalWrite, seed) == [], f"seed {seed}"


@pytest.mark.parametrize("broken", [TrustsRefusals, TrustsItself, SendsAgain, LooksAfterUnknownOnly])
async def test_the_check_sees_what_is_broken(broken: type[ConditionalWrite]) -> None:
    """Without one of its rules the strategy does not pass the check above."""
    for seed in range(20):
        if await scripted_history(broken, seed):
            return
    pytest.fail(f"{broken.__name__} was not noticed in 20 runs")


async def test_free_running_contenders_never_both_win() -> None:
    """Who reads and steps at will: no version has two who replaced it, and nobody won by a write that never landed."""
    for seed in range(40):
        chance = random.Random(seed)  # noqa: S311
        store = Scripted(lambda chance=chance: chance.choice([FINE, DROPPED, ANSWER_LOST, LATE, CONFLICT]))  # type: ignore[misc]
        wins: list[tuple[str | Expect, str]] = []

        async def run(_: int, store: Scripted = store, wins: list[tuple[str | Expect, str]] = wins) -> None:
            for _ in range(4):
                found = await store.below.get(KEY)
                expect = found.info.version if found else Expect.NOTHING
                outcome = await take(store, expect)
                if isinstance(outcome, Done):
                    wins.append((expect, outcome.version))

        await each(run, range(CONTENDERS), at_once=CONTENDERS)
        landed = {(landed.expect, landed.version) for landed in store.landed}
        assert set(wins) <= landed, f"seed {seed}"
        assert len({expect for expect, _ in wins}) == len({version for _, version in wins}) == len(wins)
        # Nobody has overwritten the last one, so whoever wrote it knows that it was theirs.
        assert (store.landed[-1].expect, store.landed[-1].version) in wins


# --- through the real clients, over HTTP ---

STORM: tuple[tuple[Effect, float], ...] = (
    (Dropped(), 0.15),
    (AppliedThenDropped(), 0.25),
    (AppliedThenStatus(500), 0.25),
    (Status(503, "SlowDown"), 0.15),
    (LandsLate(0.005, Status(500)), 0.15),
    (Status(409, "ConditionalRequestConflict"), 0.15),
)


@pytest.fixture(params=["obstore", "boto3"])
def client(request: pytest.FixtureRequest) -> str:
    """Each client."""
    return str(request.param)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A well-behaved store."""
    with FaultServer(buckets=(BUCKET,)) as started:
        yield started


@pytest.fixture
async def store(server: FaultServer, client: str) -> AsyncIterator[Store]:
    """The server's bucket, through the client."""
    store = connected(server, client)
    yield store
    await store.aclose()


def connected(server: FaultServer, client: str) -> Store:
    """Return a store in the server's bucket."""
    s3 = {
        "bucket_name": BUCKET,
        "endpoint_url": server.endpoint,
        "aws_access_key_id": server.s3.access_key,
        "aws_secret_access_key": server.s3.secret_key,
        "client": client,
    }
    return connect(Settings(s3=s3).s3)


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
    found = await store.get(KEY)
    assert found is not None
    assert updated == Done(found.info.version)
    assert puts(server) == 2


@pytest.mark.parametrize(
    "effect", [Dropped(), Status(503, "SlowDown"), Status(500), Status(409, "ConditionalRequestConflict")], ids=str
)
async def test_a_real_write_that_was_lost_is_sent_again(server: FaultServer, store: Store, effect: Effect) -> None:
    """A create and an update that did not happen are sent again until they are done."""
    for expect in (Expect.NOTHING, None):
        found = await store.get(KEY)
        server.inject(Fault(effect, operation="PutObject", times=3))
        outcome = await take(store, expect or (found.info.version if found else ""))
        found = await store.get(KEY)
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
    """Through a storm in front of each kind of store, each round has one winner, who built on the last."""
    with FaultServer(Behaviour(seed=seed, **behaviour), buckets=(BUCKET,)) as server:  # type: ignore[arg-type]
        for effect, probability in STORM:
            server.inject(Fault(effect, operation="PutObject", probability=probability))
        server.inject(Fault(Dropped(), operation="GetObject", probability=0.2))
        store = connected(server, client)
        patient = ResilientStore(store, RetrySettings(initial_delay_seconds=0), SystemClock())
        history = await contend([registers(store) for _ in range(CONTENDERS)], patient)
        assert history.violations(server.objects(BUCKET)[KEY]) == []
        await store.aclose()
