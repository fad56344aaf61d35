"""Keys that nobody of ours would write, planted by strangers, break nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from pawnqueue import PawnQueue, Settings
from pawnqueue.catalog import unit_listing, units
from pawnqueue.catalog.unit_listing import MAX_OTHER_KEYS
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Done
from tests.pawnqueue.opened import BUCKET
from tests.support.faults import FaultServer
from tools.kit.stores import ALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pawnqueue.stores.port import Store
    from tools.kit.servers import S3Server

LONGEST = "long/" + "/".join(["ß" * 100] * 5) + "/" + "x" * 14

#: Keys that obstore can name.
PLAIN = ["percent/%41", "percent/100%", "percent/%2F%00", "plus/a+b c", "query?x=1&y", "uml/ä", "xml/<&>\"'", LONGEST]
#: Keys that it cannot.
STRANGE = [
    "a//b",
    "//",
    "/leading",
    "dots/./x",
    "dots/../x",
    "control/\x01",
    "control/\x1f\x7f",
    "control/tab\tline\nend",
    "folder/",
    "deep/folder/",
]
NO_XML_HAS_IT = ["control/\x01", "control/\x1f\x7f", "control/return\rx"]


def test_the_longest_key_is_as_long_as_s3_allows() -> None:
    """1,024 bytes, of which no segment is longer than a file name."""
    assert len(LONGEST.encode()) == 1024
    assert max(len(segment.encode()) for segment in LONGEST.split("/")) <= 255


@pytest.fixture(params=["", "team/queues/"], ids=["whole bucket", "below a prefix"])
def prefix(request: pytest.FixtureRequest) -> str:
    """Where in the bucket."""
    return str(request.param)


def settings(server: FaultServer, client: str, prefix: str) -> Settings:
    """Settings for the server's bucket."""
    return Settings(s3=server.s3.address(BUCKET, client=client, key_prefix=prefix))


@pytest.fixture
async def store(server: FaultServer, client: str, prefix: str) -> AsyncIterator[Store]:
    """The server's bucket, through the client."""
    store = connect(settings(server, client, prefix).s3)
    yield store
    await store.aclose()


async def keys_of(store: Store, folder: str = "", start_after: str = "") -> list[str]:
    """List the keys below a folder."""
    return [info.key async for page in store.pages(folder, start_after=start_after) for info in page]


def agents(server: FaultServer) -> set[str]:
    """Return the clients that have made requests."""
    return {"boto3" if "Boto3" in request.headers["user-agent"] else "obstore" for request in server.requests}


async def test_a_listing_shows_strange_keys_as_they_are(server: FaultServer, store: Store, prefix: str) -> None:
    """Every key is listed once, in order, whatever is in it."""
    keys = sorted([*PLAIN, *STRANGE])
    for key in keys:
        server.put_object(BUCKET, prefix + key, b"1")
    assert await keys_of(store) == keys


async def test_a_listing_goes_on_behind_strange_keys(server: FaultServer, store: Store, prefix: str) -> None:
    """A strange key on the third page costs no key of the pages before and after it, and is none twice."""
    keys = sorted([*(f"m/{number:04d}" for number in range(2300)), "m/2100//x", "m/2100/\x02"])
    for key in keys:
        server.put_object(BUCKET, prefix + key, b"")
    assert await keys_of(store, "m/") == keys
    assert await keys_of(store, "m/", "m/1099") == [key for key in keys if key > "m/1099"]


async def test_a_listing_starts_behind_any_key(server: FaultServer, store: Store, prefix: str) -> None:
    """``start_after`` may be a stranger's key, which obstore cannot express: what is behind it is listed."""
    for cursor in [*PLAIN, *STRANGE, *NO_XML_HAS_IT, "m/~//x", "m/x/", "m//", "m/~/..", "m/\ufffe"]:
        folder = f"{cursor.partition('/')[0]}/" if "/" in cursor else ""
        around = sorted([f"{folder}!", cursor, f"{folder}~~~"])
        for key in around:
            server.put_object(BUCKET, prefix + key, b"")
        assert await keys_of(store, folder, cursor) == [key for key in around if key > cursor]
        await store.delete(around)


async def test_folders_are_listed_beside_strange_keys(server: FaultServer, store: Store, prefix: str) -> None:
    """``folders`` names each folder once, strange ones too, and is not disturbed by other objects."""
    for key in [*PLAIN, *STRANGE]:
        server.put_object(BUCKET, prefix + key, b"")
    expected = {key.partition("/")[0] + "/" for key in [*PLAIN, *STRANGE] if "/" in key}
    assert await store.folders() == sorted(expected)
    assert await store.folders("a/") == ["a//"]
    assert await store.folders("dots/") == ["dots/../", "dots/./"]
    assert await store.folders("deep/") == ["deep/folder/"]


async def test_a_strange_object_is_an_object(server: FaultServer, store: Store, prefix: str) -> None:
    """Written, read, copied both ways and deleted like any other, and only itself."""
    server.put_object(BUCKET, f"{prefix}bystander", b"")
    for key in [*PLAIN, *STRANGE, *NO_XML_HAS_IT]:
        written = await store.put(key, b"1")
        assert isinstance(written, Done)
        found, head = await store.get(key, ALL), await store.head(key)
        assert found is not None
        assert head is not None
        assert (found.body, found.info.key, found.info.version) == (b"1", key, written.version)
        assert (head.key, head.size, head.version) == (key, 1, written.version)
        assert isinstance(await store.copy(key, "copy"), Done)
        assert isinstance(await store.copy("bystander", key), Done)
        standing = {"bystander": b"", "copy": b"1", key: b""}
        assert server.objects(BUCKET) == {prefix + name: body for name, body in standing.items()}
        assert await store.delete([key, "copy"]) == {}
        assert list(server.objects(BUCKET)) == [f"{prefix}bystander"]
        assert await store.get(key, ALL) is None


async def test_one_strange_key_does_not_spoil_a_bulk_delete(server: FaultServer, store: Store, prefix: str) -> None:
    """Of many keys all are deleted, in whatever way each of them can be."""
    keys = [*PLAIN, *STRANGE, *NO_XML_HAS_IT, *(f"m/{number:04d}" for number in range(1200))]
    for key in keys:
        server.put_object(BUCKET, prefix + key, b"")
    assert await store.delete(keys) == {}
    assert server.objects(BUCKET) == {}


async def test_obstore_does_all_that_it_can(server: FaultServer) -> None:
    """boto3 is asked only where obstore cannot name a key: not for plain keys, nor beside strange ones elsewhere."""
    store = connect(settings(server, "obstore", "").s3)
    for key in PLAIN:
        await store.put(key, b"1")
        await store.get(key, ALL)
        await store.head(key)
        await store.copy(key, f"{key[:500]}.copy")
    assert await keys_of(store)
    assert await store.folders()
    await store.delete(PLAIN)
    assert agents(server) == {"obstore"}

    server.put_object(BUCKET, "elsewhere//x", b"1")
    server.forget_requests()
    assert len(await keys_of(store, "percent/")) == 3
    assert await store.folders("percent/") == []
    assert agents(server) == {"obstore"}

    server.forget_requests()
    assert "elsewhere//x" in await keys_of(store)
    assert agents(server) == {"obstore", "boto3"}

    server.forget_requests()
    await store.get("elsewhere//x", ALL)
    await store.head("elsewhere//x")
    assert agents(server) == {"boto3"}
    await store.aclose()


async def test_units_are_listed_by_obstore(server: FaultServer) -> None:
    """Single messages and packs by one LIST: no poll, no sweep and no look at a topic needs boto3."""
    async with PawnQueue.open(settings(server, "obstore", "")) as queue:
        await queue.create_topic("orders")
        await queue.publish("orders", [{"n": 1}])
        server.forget_requests()
        await queue.claim("orders", "me")
        await queue.stats("orders")
        await queue.sweep("orders")
        assert agents(server) == {"obstore"}


async def test_a_folder_marker_is_listed_without_its_slash_by_obstore(server: FaultServer) -> None:
    """A limit of obstore's, pinned: ``x/`` is listed as ``x`` unless something stranger sends the listing to boto3."""
    for key in ("f/x/", "f/y"):
        server.put_object(BUCKET, key, b"")
    stores = {client: connect(settings(server, client, "").s3) for client in ("obstore", "boto3")}
    assert {client: await keys_of(store, "f/") for client, store in stores.items()} == {
        "obstore": ["f/x", "f/y"],
        "boto3": ["f/x/", "f/y"],
    }
    for store in stores.values():
        assert await store.folders("f/") == ["f/x/"]
        await store.aclose()


@pytest.mark.parametrize("most_other_keys", [MAX_OTHER_KEYS, -1], ids=["one LIST", "a LIST of each kind"])
async def test_a_topic_whose_folders_have_markers(
    monkeypatch: pytest.MonkeyPatch, server: FaultServer, client: str, prefix: str, most_other_keys: int
) -> None:
    """As consoles make them, and as each publisher can: messages and packs are published, seen, claimed and swept."""
    monkeypatch.setattr(unit_listing, "MAX_OTHER_KEYS", most_other_keys)
    for folder in ("", "messages/", "packs/", "leases/", "claims/", "dead-letter/", "writes/", "staged/"):
        server.put_object(BUCKET, f"{prefix}orders/{folder}", b"")
    async with PawnQueue.open(settings(server, client, prefix)) as queue:
        await queue.create_topic("orders")
        await queue.publish("orders", [{"n": 0}])
        await queue.publish("orders", [{"n": 1}, {"n": 2}], pack=True)
        assert len(await queue.peek("orders", 9)) == 3
        for number in (1, 2):
            claim = await queue.claim("orders", "me")
            assert len(claim) == number
            await queue.ack(claim)
        assert (await queue.backlog("orders")).pending == (await queue.stats("orders")).pending == 0
        assert (await queue.sweep("orders")).failures == []
        await queue.purge("orders")


async def test_names_of_units_with_a_slash_behind_them_are_in_nobodys_way(server: FaultServer, client: str) -> None:
    """By obstore they are listed as units. A consumer tries each of them once, and not again at once."""
    now = 1_700_000_000.0
    for number in range(20):
        uuid = f"11111111-2222-4333-8444-{number:012}"
        for name in (units.name_at(now, uuid), units.pack_name_at(now, uuid, 3)):
            server.put_object(BUCKET, f"{units.key_of('orders', name)}/", b"x")
    async with PawnQueue.open(settings(server, client, "")) as queue:
        await queue.create_topic("orders")
        await queue.publish("orders", [{"n": 0}])
        claim = await queue.claim("orders", "me")
        assert [message.payload for message in claim] == [{"n": 0}]
        await queue.ack(claim)
        assert not await queue.claim("orders", "me")
        server.forget_requests()
        assert not await queue.claim("orders", "me")
        assert {request.method for request in server.requests} == {"GET"}


async def test_a_queue_opens_among_strangers(server: FaultServer, client: str, prefix: str) -> None:
    """In a bucket full of strange keys a queue opens, and shows topics only."""
    for key in [*PLAIN, *STRANGE, "orders//.topic", "_probe/\x01", "_registry//x", "_probe//"]:
        server.put_object(BUCKET, prefix + key, b"")
    async with PawnQueue.open(settings(server, client, prefix)) as queue:
        await queue.create_topic("orders")
        assert await queue.list_topics() == ["orders"]
        assert await queue.list_producers() == []
    for key in [*PLAIN, *STRANGE]:
        assert server.objects(BUCKET)[prefix + key] == b""


# --- real servers: what each of them takes differs, and what it took must not break anything ---


@pytest.mark.servers
@pytest.mark.parametrize("name", ["seaweedfs", "rclone", "moto"])
async def test_strangers_in_a_real_bucket(
    request: pytest.FixtureRequest, name: str, client: str, settings_for: Callable[..., Settings]
) -> None:
    """Beside whatever strange keys the server took, ours are listed and used; of the strange ones each is readable."""
    server: S3Server = request.getfixturevalue(name)
    chosen = settings_for(server, s3={"client": client})
    bucket, prefix = chosen.s3.bucket_name, chosen.s3.key_prefix
    planter = server.client()

    def plant(key: str) -> bool:
        try:
            planter.put_object(Bucket=bucket, Key=prefix + key, Body=b"1")
        except (BotoCoreError, ClientError):  # the server does not take it, in whatever words
            return False
        return True

    # One after the other: rclone fails, now and then, to put several objects at once into a new folder.
    taken = {key for key in PLAIN if plant(key)}
    with ThreadPoolExecutor() as threads:  # a refusal may take a second; which of these are taken does not matter
        list(threads.map(plant, STRANGE))
    store = connect(chosen.s3)
    await store.put("ours/x", b"2")
    assert await keys_of(store, "ours/") == ["ours/x"]
    assert "ours/x" in await keys_of(store)
    assert "ours/" in await store.folders()
    assert {*PLAIN} - {LONGEST} <= taken
    listed = await keys_of(store)
    for key in taken:
        assert await keys_of(store, "", key) == listed[listed.index(key) + 1 :], key
    for key in taken:
        found = await store.get(key, ALL)
        assert found is not None
        assert found.body == b"1"
        assert isinstance(await store.copy(key, "ours/copy"), Done)
        assert await store.delete([key]) == {}
        assert await store.head(key) is None
    assert set(await keys_of(store)) & set(PLAIN) == set()
    await store.aclose()
