"""What every store must do, as tests. The tests of an adapter subclass these and give a ``store`` fixture."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import ObjectTooLargeError
from pawnqueue.stores.port import Done, Expect, Refusal, Refused, StoredObject, Unknown
from tools.kit.stores import ALL

if TYPE_CHECKING:
    from pawnqueue.stores.port import Outcome, Store

# Keys that the layout makes, and keys that a client might mistake for something else.
KEYS = [
    "orders/.topic",
    "orders/messages/20260102T030405_000006-0f8fad5b-d9cb-469f-a165-70867728950e.json",
    "orders/messages/!8-20260102T030405_000006-0f8fad5b.json",
    "orders/messages/~20260102T030405_000006-0f8fad5b.json",
    "orders/messages/_-4-x.json",
    "a b/c+d",
    "percent/%41%2F",
    "query/a#b?c&d=e",
    "ümläut/日本",
    "brackets/{x}[y]*",
]


async def done(store: Store, key: str, body: bytes, expect: Expect | str = Expect.ANYTHING) -> str:
    """Write, and return the version."""
    outcome = await store.put(key, body, expect=expect)
    assert isinstance(outcome, Done)
    return outcome.version


async def everything(store: Store, folder: str, start_after: str = "") -> list[str]:
    """List the keys below a folder."""
    return [info.key async for page in store.pages(folder, start_after=start_after) for info in page]


async def stored(store: Store, key: str) -> StoredObject:
    """Read an existing object."""
    found = await store.get(key, ALL)
    assert found is not None
    return found


class PlainConformance:
    """What any S3-compatible bucket gives: no conditions."""

    @pytest.mark.parametrize("key", KEYS)
    async def test_what_was_put_is_read_back(self, store: Store, key: str) -> None:
        """An object has one key, body, size and version in GET, HEAD and LIST, whatever characters are in the key."""
        version = await done(store, key, b"body")
        found = await stored(store, key)
        assert (found.body, found.info.key, found.info.size, found.info.version) == (b"body", key, 4, version)
        head = await store.head(key)
        assert head is not None
        assert (head.key, head.size, head.version) == (key, 4, version)
        folder = key.rpartition("/")[0] + "/"
        [listed] = [info async for page in store.pages(folder) for info in page]
        assert (listed.key, listed.size, listed.version) == (key, 4, version)

    async def test_the_time_of_a_write_is_told(self, store: Store) -> None:
        """Last-Modified has a time zone and is the time of the write, in GET, HEAD and LIST."""
        await done(store, "t/x", b"1")
        head = await store.head("t/x")
        assert head is not None
        [listed] = [info async for page in store.pages("t/") for info in page]
        for told in (head.last_modified, listed.last_modified, (await stored(store, "t/x")).info.last_modified):
            assert abs(told - datetime.now(UTC)) < timedelta(minutes=5)

    async def test_what_is_not_there_is_none(self, store: Store) -> None:
        """GET and HEAD of a missing key are None, and an empty folder lists nothing."""
        assert await store.get("none/x", ALL) is None
        assert await store.head("none/x") is None
        assert await everything(store, "none/") == []
        assert await store.folders("none/") == []

    async def test_a_body_is_whole_whatever_size_was_told(self, store: Store) -> None:
        """The size of a listing is a hint: what has grown or shrunk since, or is not there, is read as it is."""
        for size in (0, 1, 3, 4, 5, 100):
            key = f"orders/{size}"
            assert await store.body(key, size, ALL) is None
            await done(store, key, b"body")
            assert await store.body(key, size, ALL) == b"body"
            await done(store, key, b"")
            assert await store.body(key, size, ALL) == b""

    async def test_a_body_that_is_too_large_is_refused(self, store: Store) -> None:
        """More than its reader takes is an error of that object, which tells its size and version."""
        version = await done(store, "l/x", b"body")
        for read in (store.get("l/x", 3), store.body("l/x", 4, 3), store.body("l/x", 2, 3), store.get("l/x", 0)):
            with pytest.raises(ObjectTooLargeError, match="l/x has 4 bytes") as caught:
                await read
            assert (caught.value.size, caught.value.version, caught.value.transient) == (4, version, False)
        assert (await stored(store, "l/x")).body == await store.body("l/x", 4, 4) == b"body"

    async def test_an_overwritten_object_has_a_new_version(self, store: Store) -> None:
        """PUT replaces, at once for every reader, and the version changes with the body."""
        first = await done(store, "o/x", b"1")
        second = await done(store, "o/x", b"2")
        assert first != second
        assert (await stored(store, "o/x")).body == b"2"
        assert [info.version async for page in store.pages("o/") for info in page] == [second]

    async def test_bodies_are_kept_to_the_byte(self, store: Store) -> None:
        """Empty, binary and 8 MiB bodies come back as they were; a large one is a single PUT with a plain ETag."""
        for body in (b"", bytes(range(256)), b"\r\n\x00", b"x" * (8 << 20)):
            version = await done(store, "b/x", body)
            found = await stored(store, "b/x")
            assert found.body == body
            assert found.info.version == version
            assert "-" not in version

    async def test_a_listing_is_in_key_order(self, store: Store) -> None:
        """LIST gives keys in the order of their UTF-8 bytes: the lanes of the layout rest on it."""
        names = ["!0", "!8", "0", "1a", "9", "A", "_-1", "_-4", "a", "~0", "~9"]
        for name in reversed(names):
            await done(store, f"l/{name}", b"")
        assert await everything(store, "l/") == [f"l/{name}" for name in names]

    async def test_a_listing_starts_behind_a_key(self, store: Store) -> None:
        """``start_after`` excludes the key itself, and need not exist."""
        for name in ("a", "b", "c"):
            await done(store, f"s/{name}", b"")
        assert await everything(store, "s/", "s/a") == ["s/b", "s/c"]
        assert await everything(store, "s/", "s/aa") == ["s/b", "s/c"]
        assert await everything(store, "s/", "s/c") == []

    async def test_a_listing_starts_behind_a_folder(self, store: Store) -> None:
        """Of several folders, it begins with one in their middle, and goes on with those behind it."""
        keys = [f"t/{name}" for name in (".topic", "leases/x", "messages/1", "messages/2", "packs/1", "writes/w")]
        for key in (*keys, "u/messages/1"):
            await done(store, key, b"")
        for behind in ("t/messages/", "t/messages/ "):
            assert await everything(store, "t/", behind) == keys[2:]
        await store.delete(keys[2:4])
        for behind in ("t/messages/", "t/messages/ "):
            assert await everything(store, "t/", behind) == keys[4:]
        await store.delete(keys[4:])
        assert await everything(store, "t/", "t/messages/ ") == []

    async def test_a_folder_is_no_prefix(self, store: Store) -> None:
        """``ab/`` is not below ``a/``, and a listing goes down into folders."""
        for key in ("a/x", "a/b/y", "ab/z"):
            await done(store, key, b"")
        assert sorted(await everything(store, "a/")) == ["a/b/y", "a/x"]
        assert sorted(await everything(store, "")) == ["a/b/y", "a/x", "ab/z"]

    async def test_folders_are_told_without_what_is_in_them(self, store: Store) -> None:
        """``folders`` names what is directly below, once each, and no objects."""
        for key in ("p/x", "p/y", "q/r/s", "_u/v", "top"):
            await done(store, key, b"")
        assert await store.folders() == ["_u/", "p/", "q/"]
        assert await store.folders("q/") == ["q/r/"]

    async def test_a_copy_is_the_same_body(self, store: Store) -> None:
        """COPY copies to the byte, overwrites, and leaves its source."""
        await done(store, "c/from ü", b"1")
        await done(store, "c/to", b"old")
        assert isinstance(await store.copy("c/from ü", "c/to"), Done)
        assert (await stored(store, "c/to")).body == b"1"
        assert (await stored(store, "c/from ü")).body == b"1"

    async def test_a_copy_of_nothing_is_refused(self, store: Store) -> None:
        """COPY without a source is refused as missing, and makes nothing."""
        assert await store.copy("c/none", "c/to") == Refused(Refusal.MISSING)
        assert await store.get("c/to", ALL) is None

    async def test_deleting_is_bulk_and_repeatable(self, store: Store) -> None:
        """DELETE takes many keys, those that are not there too; what it returns is empty when all are gone."""
        keys = [f"d/{key}" for key in KEYS]
        for key in keys:
            await done(store, key, b"")
        assert await store.delete([*keys, "d/none"]) == {}
        assert await everything(store, "d/") == []
        assert await store.delete(keys) == {}
        assert await store.delete([]) == {}

    async def test_closing_twice_is_harmless(self, store: Store) -> None:
        """``aclose`` may be called again."""
        await store.head("x")
        await store.aclose()
        await store.aclose()


class ConditionalConformance:
    """What a store with conditional PUTs gives, one request after another."""

    async def test_a_create_is_refused_where_something_is(self, store: Store) -> None:
        """Create succeeds once, and the second one changes nothing."""
        await done(store, "k/x", b"1", Expect.NOTHING)
        assert await store.put("k/x", b"2", expect=Expect.NOTHING) == Refused(Refusal.CONDITION)
        assert (await stored(store, "k/x")).body == b"1"

    async def test_a_deleted_key_can_be_created(self, store: Store) -> None:
        """After a DELETE the object is gone."""
        await done(store, "k/x", b"1", Expect.NOTHING)
        await store.delete(["k/x"])
        await done(store, "k/x", b"2", Expect.NOTHING)

    async def test_a_replace_needs_the_version(self, store: Store, bare_etags: bool) -> None:  # noqa: FBT001 - a fixture
        """Replace succeeds with the present version, from PUT, GET or LIST, and with no other."""

        def sent(version: str) -> str:
            return version.strip('"') if bare_etags else version

        first = await done(store, "k/x", b"1")
        second = await done(store, "k/x", b"2", sent(first))
        assert await store.put("k/x", b"3", expect=sent(first)) == Refused(Refusal.CONDITION)
        assert (await stored(store, "k/x")).body == b"2"
        assert (await stored(store, "k/x")).info.version == second
        [listed] = [info.version async for page in store.pages("k/") for info in page]
        await done(store, "k/x", b"4", sent(listed))

    async def test_nothing_can_not_be_replaced(self, store: Store) -> None:
        """Replace is refused where there is no object, and makes none."""
        version = await done(store, "k/x", b"1")
        await store.delete(["k/x"])
        assert await store.put("k/x", b"2", expect=version) == Refused(Refusal.CONDITION)
        assert await store.get("k/x", ALL) is None


class ConditionalDeleteConformance:
    """What a store with ETags in bulk DELETEs gives."""

    async def test_a_bulk_delete_goes_by_versions(self, store: Store) -> None:
        """Each key is deleted if it has the version that is expected; another one is refused, and nothing is done."""
        old = await done(store, "v/changed", b"1")
        new = await done(store, "v/changed", b"2")
        versions = {"v/changed": old, "v/same": await done(store, "v/same", b"3"), "v/none": new, "v/any": Version("")}
        await done(store, "v/any", b"4")
        assert await store.delete_versions(versions) == {"v/changed": Refused(Refusal.CONDITION)}
        assert await everything(store, "v/") == ["v/changed"]
        assert await store.delete_versions({"v/changed": new}) == {}
        assert await everything(store, "v/") == []
        assert await store.delete_versions({}) == {}

    async def test_more_versions_than_a_request_holds(self, store: Store) -> None:
        """Any number of keys can be given; those that are refused are named."""
        keys = [f"v/{number:04d}" for number in range(1100)]
        versions = dict(zip(keys, await asyncio.gather(*(done(store, key, key.encode()) for key in keys)), strict=True))
        wrong = {"v/0007": versions["v/0008"], "v/1050": versions["v/0008"]}
        refused = await store.delete_versions({**versions, **wrong})
        assert refused == dict.fromkeys(wrong, Refused(Refusal.CONDITION))
        assert await everything(store, "v/") == list(wrong)


class ConcurrentConformance:
    """What a store must hold to be trusted with leases: conditions under concurrency."""

    async def test_one_of_many_creates_wins(self, store: Store) -> None:
        """Of eight creates at once exactly one is done, and its body is stored."""
        bodies = [uuid.uuid4().bytes for _ in range(8)]
        outcomes = await asyncio.gather(*(store.put("r/x", body, expect=Expect.NOTHING) for body in bodies))
        assert (await stored(store, "r/x")).body == _winner(outcomes, bodies)

    async def test_one_of_many_replaces_wins(self, store: Store, bare_etags: bool) -> None:  # noqa: FBT001 - a fixture
        """Of eight replacements of one version at once exactly one is done, and its body is stored."""
        version = await done(store, "r/x", b"1")
        expect = version.strip('"') if bare_etags else version
        bodies = [uuid.uuid4().bytes for _ in range(8)]
        outcomes = await asyncio.gather(*(store.put("r/x", body, expect=expect) for body in bodies))
        assert (await stored(store, "r/x")).body == _winner(outcomes, bodies)

    async def test_many_requests_at_once_keep_their_answers_apart(self, store: Store) -> None:
        """A hundred objects written and read at once are each read as they were written."""
        keys = [f"m/{number:03d}" for number in range(100)]
        await asyncio.gather(*(done(store, key, key.encode()) for key in keys))
        found = await asyncio.gather(*(stored(store, key) for key in keys))
        assert [one.body for one in found] == [key.encode() for key in keys]
        assert await everything(store, "m/") == keys


def _winner(outcomes: list[Outcome], bodies: list[bytes]) -> bytes:
    # A loser may get no answer that says so (Ceph's 500): if it had won after all, another body would be stored.
    winners = [body for outcome, body in zip(outcomes, bodies, strict=True) if isinstance(outcome, Done)]
    assert len(winners) == 1
    assert all(isinstance(outcome, Done | Refused | Unknown) for outcome in outcomes)
    return winners[0]
