"""Topics: created once by many, changed by compare-and-set, listed without walking, deleted only when empty."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import (
    CompatibilityError,
    ConfigError,
    InvalidTopicError,
    PawnQueue,
    Settings,
    StoreError,
    TopicExistsError,
    TopicNotEmptyError,
    TopicNotFoundError,
)
from tests.pawnqueue.opened import BUCKET, both_clients
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered
from tests.support.clock import VirtualClock
from tests.support.faults import FaultServer
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from tools.kit.servers import S3Server

MARKER = "orders/.topic"


class ScriptedStore(HookedStore):
    """A store in memory in which something happens, once, before a PUT of a key or after its deletion."""

    def __init__(self) -> None:
        """Start without a script."""
        super().__init__()
        self.before_put: dict[str, Callable[[], Awaitable[object]]] = {}
        self.after_delete: dict[str, Callable[[], Awaitable[object]]] = {}
        self.undeletable: dict[str, StoreError] = {}

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Do what the script says as well."""
        if request.call == "delete":
            return await self._delete_what_can_be(request.keys)
        if request.call == "put":
            await self._happen(self.before_put, request.key)
        return await carry_out()

    async def _delete_what_can_be(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        failed = {key: self.undeletable[key] for key in keys if key in self.undeletable}
        await self.below.delete([key for key in keys if key not in failed])
        for key in keys:
            await self._happen(self.after_delete, key)
        return failed

    async def _happen(self, script: dict[str, Callable[[], Awaitable[object]]], key: str) -> None:
        happens = script.pop(key, None)
        if happens is not None:
            await happens()

    async def json(self, key: str) -> dict[str, Any]:
        """Return the stored object."""
        found = await self.get(key)
        assert found is not None
        return dict(json.loads(found.body))

    async def keys(self, folder: str) -> list[str]:
        """Return the keys below the folder."""
        return [info.key async for page in self.pages(folder) for info in page]


@pytest.fixture
def store() -> ScriptedStore:
    """A new bucket."""
    return ScriptedStore()


@pytest.fixture
async def queue(store: ScriptedStore) -> AsyncIterator[PawnQueue]:
    """A queue in it, which tries everything once, and by whose clock nobody waits."""
    async with PawnQueue.open(store=store, clock=VirtualClock(), retry={"budget_seconds": 0}) as opened:
        yield opened


def settings_of(server: FaultServer, client: str) -> Settings:
    """Settings for the server's bucket."""
    return Settings(s3=server.s3.address(BUCKET, client=client))


# --- create ---


async def test_creating_is_idempotent(queue: PawnQueue, store: ScriptedStore) -> None:
    """Creating a topic again, with the same settings or without any, changes nothing and returns what it has."""
    created = await queue.create_topic("orders", max_deliveries=3)
    assert created.settings.max_deliveries == 3
    stored = await store.get(MARKER)
    assert await queue.create_topic("orders") == created
    assert await queue.create_topic("orders", max_deliveries=3) == created
    assert await store.get(MARKER) == stored
    record = await queue.topic("orders")
    assert (record.name, record.settings) == ("orders", created.settings)
    assert record.created_at is not None
    assert record.created_at.utcoffset() == timedelta(0)


async def test_concurrent_creates_agree(store: ScriptedStore) -> None:
    """Of many processes that create a topic at once all return the same settings, and one marker is stored."""
    queues = [await PawnQueue.open(store=store) for _ in range(10)]
    created = await asyncio.gather(*(queue.create_topic("orders") for queue in queues))
    assert all(one == created[0] for one in created)
    records = await asyncio.gather(*(queue.topic("orders") for queue in queues))
    assert all(record == records[0] for record in records)
    assert await store.keys("orders/") == [MARKER]


async def test_concurrent_creates_with_other_settings_have_one_winner(store: ScriptedStore) -> None:
    """If processes want different settings at once, one gets its own and the others an error with the stored ones."""
    queues = [await PawnQueue.open(store=store) for _ in range(5)]
    wanted = [queue.create_topic("orders", max_deliveries=number + 1) for number, queue in enumerate(queues)]
    outcomes = await asyncio.gather(*wanted, return_exceptions=True)
    [winner] = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, TopicExistsError)]
    assert len(losers) == 4
    assert {str(loser) for loser in losers} == {
        (
            f"Topic 'orders' exists already, with max_deliveries={winner.settings.max_deliveries}: use update_topic to "
            "change it."
        )
    }


async def test_other_settings_are_an_error(queue: PawnQueue) -> None:
    """Creating a topic with settings that it does not have is refused, naming those it has; nothing is changed."""
    await queue.create_topic("orders", max_deliveries=3)
    with pytest.raises(TopicExistsError, match=r"exists already, with max_deliveries=3: use update_topic") as caught:
        await queue.create_topic("orders", max_deliveries=None)
    assert (caught.value.topic, caught.value.operation) == ("orders", "create_topic")
    assert (await queue.topic("orders")).settings.max_deliveries == 3


@pytest.mark.parametrize("settings", [{"max_deliveries": 0}, {"max_deliveries": "many"}, {"colour": "red"}])
async def test_wrong_settings_are_named(queue: PawnQueue, store: ScriptedStore, settings: dict[str, Any]) -> None:
    """A setting that is unknown or out of range is named in the error, and no request is made for it."""
    [name] = settings
    with pytest.raises(ConfigError, match=name):
        await queue.create_topic("orders", **settings)
    assert await store.get(MARKER) is None


@pytest.mark.parametrize("name", ["", ".x", "a/b", "a b", "ä", "x" * 129, "_registry", "a\n", None])
async def test_no_topic_has_such_a_name(queue: PawnQueue, name: str | None) -> None:
    """Whatever is done with a bad name, the error says what a name is."""
    for call in (queue.create_topic, queue.update_topic, queue.topic, queue.delete_topic):
        with pytest.raises(InvalidTopicError, match=r"is not a valid topic name: use 1 to 128 of A-Z a-z 0-9 \. _ -"):
            await call(name)


# --- update ---


async def test_a_new_topic_allows_packs(queue: PawnQueue, store: ScriptedStore) -> None:
    """A topic that is created here allows packs, and one that is created without them is stored as it always was."""
    assert (await queue.create_topic("orders")).settings.packs is True
    assert (await store.json(MARKER))["settings"] == {"max_deliveries": 10, "packs": True}
    await queue.publish("bills", [{}], create=True)
    assert (await queue.topic("bills")).settings.packs is True
    for packs in (False, None):
        assert (await queue.create_topic(f"single-{packs}", packs=packs)).settings.packs is None
        assert (await store.json(f"single-{packs}/.topic"))["settings"] == {"max_deliveries": 10}


async def test_creating_a_topic_again_does_not_change_its_packs(queue: PawnQueue, store: ScriptedStore) -> None:
    """A topic keeps what it says of packs, also one of the pawn-queue library or of an earlier version."""
    for name in ("theirs", "older", "ours"):
        settings = {"settings": {"max_deliveries": 10}} if name == "older" else {}
        if name == "ours":
            await queue.create_topic(name, packs=False)
        else:
            await store.put(f"{name}/.topic", json.dumps({"topic": name, "created_at": "", **settings}).encode())
        for same in (await queue.create_topic(name), await queue.create_topic(name, packs=False)):
            assert same.settings.packs is None
        with pytest.raises(TopicExistsError, match="packs=None: use update_topic"):
            await queue.create_topic(name, packs=True)
        await queue.publish(name, [{}], create=True)
        assert (await queue.topic(name)).settings.packs is None

    await queue.create_topic("orders")
    for packs in (False, None):
        with pytest.raises(TopicExistsError, match="packs=True: use update_topic"):
            await queue.create_topic("orders", packs=packs)
    await queue.update_topic("orders", packs=False)
    for same in (await queue.create_topic("orders"), await queue.create_topic("orders", packs=False)):
        assert same.settings.packs is False


async def test_a_topic_that_had_packs_never_forgets_it(queue: PawnQueue) -> None:
    """Packs may be allowed and forbidden again, but not forgotten: consumers would not find those that are stored."""
    await queue.create_topic("orders", packs=False)
    for packs in (False, None):
        assert (await queue.update_topic("orders", packs=packs)).settings.packs is None
    for packs in (True, False, True):
        assert (await queue.update_topic("orders", packs=packs)).settings.packs is packs
        with pytest.raises(ConfigError, match="Pass False"):
            await queue.update_topic("orders", packs=None)
    assert (await queue.update_topic("orders", max_deliveries=3)).settings.packs is True


async def test_packs_under_a_marker_of_pawn_queue_are_found_again(world: World) -> None:
    """If pawn-queue has overwritten the marker, packs of a moment before wait, and are found once they are allowed."""
    world.topic(packs=True)
    ids = await (await world.process()).queue.publish(TOPIC, numbered(100))
    world.bucket.plant(f"{TOPIC}/.topic", json.dumps({"topic": TOPIC, "created_at": ""}))
    ann = await world.process()
    assert not await ann.queue.claim(TOPIC, "c", max_messages=100)
    await world.later(1)
    await ann.queue.publish(TOPIC, numbered(100))
    assert len(world.bucket.below("packs/")) == 1
    await ann.queue.update_topic(TOPIC, packs=True)
    await world.later(60)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=100)
    assert claim.ids == ids


@pytest.mark.parametrize("packs", ["yes", 1, 0, "auto", [True]], ids=repr)
async def test_packs_are_allowed_by_a_flag(queue: PawnQueue, packs: object) -> None:
    """Anything else is refused by its name."""
    with pytest.raises(ConfigError, match="packs of topic 'orders' is wrong: pass True, False or None"):
        await queue.create_topic("orders", packs=packs)  # type: ignore[typeddict-item]


async def test_an_update_keeps_what_others_changed(store: ScriptedStore) -> None:
    """A change of another process between our look and our write is kept, and so are fields nobody here knows."""
    queue = await PawnQueue.open(store=store)
    await queue.create_topic("orders", max_deliveries=3)

    async def newer_version_writes() -> None:
        record = await store.json(MARKER)
        record["settings"]["retention"] = 7
        record["colour"] = {"of": "the topic"}
        await store.below.put(MARKER, json.dumps(record).encode())

    store.before_put[MARKER] = newer_version_writes
    changed = await queue.update_topic("orders", max_deliveries=5)
    assert changed.settings.max_deliveries == 5
    stored = await store.json(MARKER)
    assert stored["settings"] == {"max_deliveries": 5, "packs": True, "retention": 7}
    assert stored["colour"] == {"of": "the topic"}


async def test_concurrent_updates_are_all_made(store: ScriptedStore) -> None:
    """Many processes that change a topic at once each see their change made, one after the other."""
    queues = [await PawnQueue.open(store=store) for _ in range(8)]
    await queues[0].create_topic("orders")
    made = await asyncio.gather(
        *(queue.update_topic("orders", max_deliveries=number + 1) for number, queue in enumerate(queues))
    )
    assert [one.settings.max_deliveries for one in made] == list(range(1, 9))


async def test_an_update_without_a_change_writes_nothing(queue: PawnQueue, store: ScriptedStore) -> None:
    """Setting what is set already leaves the marker as it is."""
    await queue.create_topic("orders", max_deliveries=3)
    before = await store.get(MARKER)
    await queue.update_topic("orders", max_deliveries=3)
    assert await store.get(MARKER) == before


# --- markers of others ---


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[]",
        b"null",
        b'{"topic": 5}',
        b'{"topic": "orders", "settings": {"max_deliveries": -1}}',
        b"[" * 100_000 + b"]" * 100_000,
        b"\xff\xfe\x00",
        b'{"topic": "orders", "settings": {"max_deliveries": 1}}' + b" " * 200_000,
    ],
    ids=["empty", "text", "list", "null", "wrong", "wrong-settings", "deep", "bytes", "large"],
)
async def test_any_marker_makes_a_topic(queue: PawnQueue, store: ScriptedStore, body: bytes) -> None:
    """Whatever is in a marker, the topic exists, with default settings, and can be changed and deleted."""
    await store.put(MARKER, body)
    assert await queue.list_topics() == ["orders"]
    assert (await queue.create_topic("orders")).settings.max_deliveries == 10
    assert (await store.get(MARKER) or pytest.fail("gone")).body == body
    assert (await queue.update_topic("orders", max_deliveries=2)).settings.max_deliveries == 2
    assert (await queue.topic("orders")).settings.max_deliveries == 2
    assert (await store.json(MARKER))["topic"] == "orders"
    await queue.delete_topic("orders")
    assert await store.get(MARKER) is None


async def test_a_topic_of_the_published_library_is_adopted(queue: PawnQueue, store: ScriptedStore) -> None:
    """pawn-queue's marker is a topic with default settings; changing it keeps the time at which it was created."""
    await store.put(MARKER, json.dumps({"topic": "orders", "created_at": "2025-01-02T03:04:05.000006+00:00"}).encode())
    record = await queue.topic("orders")
    assert record.settings.max_deliveries == 10
    await queue.update_topic("orders", max_deliveries=2)
    stored = await store.json(MARKER)
    assert stored["created_at"] == "2025-01-02T03:04:05.000006+00:00"
    assert (stored["v"], stored["settings"]) == (1, {"max_deliveries": 2})


async def test_a_newer_marker_is_refused_by_name(queue: PawnQueue, store: ScriptedStore) -> None:
    """A topic of a newer format is listed, and whatever reads it says what to do."""
    body = b'{"topic": "orders", "v": 2}'
    await store.put(MARKER, body)
    assert await queue.list_topics() == ["orders"]
    for call in (queue.create_topic, queue.topic, queue.delete_topic, queue.update_topic):
        with pytest.raises(CompatibilityError, match=r"topic orders/\.topic has format 2.*upgrade"):
            await call("orders")
    assert (await store.get(MARKER) or pytest.fail("gone")).body == body


# --- list ---


@both_clients
async def test_listing_never_walks(server: FaultServer, client: str) -> None:
    """Topics are listed by folder: one LIST and a HEAD each, however many messages there are."""
    for number in range(3000):
        server.put_object(BUCKET, f"orders/messages/{number:05d}.json", b"")
    for topic in ("orders", "empty", "Big.name_1-2"):
        server.put_object(BUCKET, f"{topic}/.topic", b"{}")
    for key in ("ghost/messages/x.json", "_registry/producers/x.json", "_probe/x.probe", "-x/.topic", "top"):
        server.put_object(BUCKET, key, b"")
    async with PawnQueue.open(settings_of(server, client)) as queue:
        server.forget_requests()
        assert await queue.list_topics() == ["Big.name_1-2", "empty", "orders"]
        lists = [request for request in server.requests if request.operation == "ListObjectsV2"]
        assert [request.query.get("delimiter") for request in lists] == ["/"]
        assert [request.query.get("prefix", "") for request in lists] == [""]
        heads = sorted(request.key for request in server.requests if request.operation != "ListObjectsV2")
        assert heads == ["Big.name_1-2/.topic", "empty/.topic", "ghost/.topic", "orders/.topic"]


@both_clients
async def test_there_may_be_more_than_a_thousand_topics(server: FaultServer, client: str) -> None:
    """All topics are listed, sorted, over as many pages as it takes."""
    names = [f"t{number:04d}" for number in range(1050)]
    for name in names:
        server.put_object(BUCKET, f"{name}/.topic", b"{}")
    async with PawnQueue.open(settings_of(server, client)) as queue:
        server.forget_requests()
        assert await queue.list_topics() == names
        lists = [request for request in server.requests if request.operation == "ListObjectsV2"]
        assert [request.query.get("delimiter") for request in lists] == ["/", "/"]


@pytest.mark.servers
@both_clients
async def test_an_empty_marker_of_a_real_store_is_listed(
    seaweedfs: S3Server, settings_for: Callable[..., Settings], client: str
) -> None:
    """An empty object made by hand makes a topic on a real server too."""
    async with PawnQueue.open(settings_for(seaweedfs, s3={"client": client})) as queue:
        assert await queue.list_topics() == []
        await queue._context.store.put(MARKER, b"")
        assert await queue.list_topics() == ["orders"]
        await queue.delete_topic("orders")
        assert await queue.list_topics() == []


async def test_an_empty_bucket_has_no_topics(queue: PawnQueue) -> None:
    """Opening a queue makes no topic."""
    assert await queue.list_topics() == []


# --- delete ---

FOLDERS = ["messages", "packs", "leases", "claims", "dead-letter"]


@pytest.mark.parametrize("folder", FOLDERS)
async def test_a_topic_with_anything_left_is_not_deleted(queue: PawnQueue, store: ScriptedStore, folder: str) -> None:
    """Any object of a message, in any folder, refuses the deletion, and is named; nothing is deleted."""
    await queue.create_topic("orders", max_deliveries=3)
    for key in (f"orders/{folder}/x", "orders/dedup/y"):
        await store.put(key, b"")
    before = await store.keys("orders/")
    told = rf"1 object that is not the queue's \(orders/{folder}/x\)"
    with pytest.raises(TopicNotEmptyError, match=rf"'orders' was not deleted, as it holds {told}\. "):
        await queue.delete_topic("orders")
    assert await store.keys("orders/") == before
    await store.delete([f"orders/{folder}/x"])
    await queue.delete_topic("orders")
    assert await store.keys("orders/") == []


@pytest.mark.parametrize("folder", FOLDERS)
async def test_what_arrives_meanwhile_brings_the_topic_back(
    queue: PawnQueue, store: ScriptedStore, folder: str
) -> None:
    """A message that arrives while its topic is being deleted is not lost, and the topic is as it was."""
    await queue.create_topic("orders", max_deliveries=3)
    store.after_delete[MARKER] = lambda: store.put(f"orders/{folder}/x", b"late")
    with pytest.raises(TopicNotEmptyError):
        await queue.delete_topic("orders")
    assert (await queue.topic("orders")).settings.max_deliveries == 3
    assert await queue.list_topics() == ["orders"]
    assert await store.keys("orders/") == sorted([MARKER, f"orders/{folder}/x"])


async def test_deleting_removes_what_is_left_over(queue: PawnQueue, store: ScriptedStore) -> None:
    """Markers of deduplication and logs go with the topic; other topics keep theirs."""
    await queue.create_topic("orders")
    await queue.create_topic("orders-2")
    leftovers = [f"orders/dedup/{number:04d}" for number in range(1500)]
    for key in (*leftovers, "orders/completed/2026/x.json", "orders/strange", "orders-2/dedup/x"):
        await store.put(key, b"")
    await queue.delete_topic("orders")
    assert await store.keys("orders/") == []
    assert await store.keys("orders-2/") == ["orders-2/.topic", "orders-2/dedup/x"]
    assert await queue.list_topics() == ["orders-2"]


async def test_a_deletion_that_failed_can_be_repeated(queue: PawnQueue, store: ScriptedStore) -> None:
    """A leftover that cannot be deleted is named; the topic is there until deleting it again succeeds."""
    await queue.create_topic("orders", max_deliveries=3)
    await store.put("orders/dedup/x", b"")
    store.undeletable["orders/dedup/x"] = StoreError("The disk is full.", transient=True)
    with pytest.raises(StoreError, match=r"deleted in part only: orders/dedup/x .*Delete it again") as caught:
        await queue.delete_topic("orders")
    assert caught.value.transient
    assert (await queue.topic("orders")).settings.max_deliveries == 3
    store.undeletable.clear()
    await queue.delete_topic("orders")
    assert await store.keys("orders/") == []


async def test_a_purge_that_failed_can_be_repeated(queue: PawnQueue, store: ScriptedStore) -> None:
    """A message that cannot be removed is named, as one of a purge, until purging again succeeds."""
    await queue.create_topic("orders")
    await queue.publish("orders", [{"n": 1}])
    [key] = await store.keys("orders/messages/")
    store.undeletable[key] = StoreError("The disk is full.", transient=True)
    with pytest.raises(StoreError, match=rf"purged in part only: {key} .*Purge it again") as caught:
        await queue.purge("orders")
    assert caught.value.transient
    assert caught.value.operation == "purge"
    store.undeletable.clear()
    assert (await queue.purge("orders")).messages == 1
    assert await store.keys("orders/messages/") == []


async def test_a_marker_that_cannot_be_deleted_is_told(queue: PawnQueue, store: ScriptedStore) -> None:
    """Where the marker itself cannot be deleted the topic is as it was."""
    await queue.create_topic("orders", max_deliveries=3)
    store.undeletable[MARKER] = StoreError("Denied.")
    with pytest.raises(StoreError, match=r"orders/\.topic still exists") as caught:
        await queue.delete_topic("orders")
    assert not caught.value.transient
    assert (await queue.topic("orders")).settings.max_deliveries == 3


async def test_a_topic_that_is_created_anew_meanwhile_stays(queue: PawnQueue, store: ScriptedStore) -> None:
    """A process that creates the topic while another deletes it has it afterwards, with the new settings."""
    await queue.create_topic("orders", max_deliveries=3)
    await store.put("orders/completed/x", b"")
    other = await PawnQueue.open(store=store)
    store.after_delete[MARKER] = lambda: other.create_topic("orders", max_deliveries=7)
    await queue.delete_topic("orders")
    assert (await queue.topic("orders")).settings.max_deliveries == 7
    assert await store.keys("orders/") == [MARKER]


async def test_what_is_not_there_is_named_with_its_remedy(queue: PawnQueue) -> None:
    """Reading, changing or deleting a topic that does not exist says how to create it."""
    for call, operation in (
        (queue.topic, "topic"),
        (queue.update_topic, "update_topic"),
        (queue.delete_topic, "delete_topic"),
    ):
        with pytest.raises(TopicNotFoundError) as caught:
            await call("orders")
        assert str(caught.value) == (
            "Topic 'orders' does not exist: create it with create_topic('orders'), or look for its right name in "
            "list_topics()."
        )
        assert (caught.value.topic, caught.value.operation) == ("orders", operation)


async def test_a_topic_is_named_by_its_key(queue: PawnQueue, store: ScriptedStore) -> None:
    """Whatever name the body of a marker has, a copied one or one of pawn-queue's with a slash, its key is right."""
    await store.put(MARKER, b'{"topic":"team/orders","created_at":"2026-01-01T00:00:00+00:00"}')
    assert (await queue.topic("orders")).name == "orders"
    await queue.publish("orders", [{"n": 1}])
    assert len(await queue.claim("orders", "c")) == 1


# --- what a process knows of them ---


async def test_a_record_is_read_once_for_all_who_ask_at_once(world: World, ann: Process) -> None:
    """300 publishes that begin together read the topic's record once, and 300 that create it create it once."""
    ann.client.latency = 0.02
    await world.later(100)
    with ann.client.counting() as requests:
        await asyncio.gather(*(ann.queue.publish(TOPIC, []) for _ in range(300)))
    assert requests == {"GET": 1}
    with ann.client.counting() as requests:
        await asyncio.gather(*(ann.queue.publish("new", [], create=True) for _ in range(300)))
    assert requests == {"GET": 1, "PUT": 1}


async def test_who_asks_after_a_topic_was_made_finds_it(world: World, ann: Process) -> None:
    """A look that had begun before, for somebody else, is not relied upon where it found nothing."""
    made: list[asyncio.Task[list[str]]] = []

    async def find_nothing(request: Request, carry_out: CarryOut) -> Answer:
        found = await carry_out()
        # It is under way while the topic is made, and others ask for it.
        if request.call == "get" and found is None and not made:
            world.topic("new")
            made.extend(asyncio.create_task(ann.queue.publish("new", numbered(1))) for _ in range(20))
            await world.later(0.02)
        return found

    ann.client.hook = find_nothing
    early = asyncio.create_task(ann.queue.publish("new", numbered(1)))
    with pytest.raises(TopicNotFoundError):
        await early
    assert len(await asyncio.gather(*made)) == 20
    reads = [kind for kind, key in ann.client.requests if key == "new/.topic" and kind == "GET"]
    assert len(reads) == 2


async def test_what_was_read_before_a_change_is_not_relied_upon(world: World, ann: Process) -> None:
    """A read that a change of ours overtakes is used by the call that began it, and by none afterwards."""
    await world.later(100)

    async def read_slowly(request: Request, carry_out: CarryOut) -> Answer:
        found = await carry_out()
        if request.call == "get":
            await world.later(1)
        return found

    ann.client.hook = read_slowly
    reading = asyncio.create_task(ann.queue.publish(TOPIC, []))
    await world.later(0.5)
    ann.client.hook = None
    await ann.queue.update_topic(TOPIC, max_deliveries=1)
    await reading
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True)
    assert not await ann.queue.claim(TOPIC, "c")


async def test_who_is_cancelled_while_a_record_is_read_leaves_it_to_the_others(world: World, ann: Process) -> None:
    """One read goes on for those who still want it."""
    await world.later(100)
    ann.client.latency = 0.02
    asked = [asyncio.create_task(ann.queue.publish(TOPIC, [])) for _ in range(5)]
    await world.later(0.01)
    with ann.client.counting() as requests:
        asked[0].cancel()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [[]] * 4
    assert not requests
