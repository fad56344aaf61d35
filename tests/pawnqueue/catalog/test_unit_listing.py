"""How a topic's units are listed again and again: by one LIST for single messages and packs while they are few."""

from __future__ import annotations

from pawnqueue.catalog import units
from pawnqueue.catalog.unit_listing import APART_SECONDS, MAX_OTHER_KEYS, UnitListing
from pawnqueue.domain import layout
from pawnqueue.domain.unit import Unit
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered

#: A LIST of each kind.
APART = {"LIST": 2}
TOGETHER = {"LIST": 1}


async def listed(process: Process, listing: UnitListing, *, after: str = "") -> tuple[list[Unit], dict[str, int]]:
    """The units that it shows, and the requests that it took."""
    with process.client.counting() as requests:
        found = [unit async for page in listing.pages(packs=True, after=after) for unit in page.units]
    return found, dict(requests)


def listing_of(process: Process) -> UnitListing:
    """A listing by this process that has not looked yet."""
    return UnitListing(process.queue._context, TOPIC)


async def test_a_topic_without_units_takes_one_list(ann: Process) -> None:
    """Each time."""
    listing = listing_of(ann)
    assert [await listed(ann, listing) for _ in range(3)] == [([], TOGETHER)] * 3


async def test_both_kinds_are_shown_in_publish_order(world: World, ann: Process) -> None:
    """By one LIST, whatever lies in the topic's other folders, or between those of units."""
    first = world.plant_pack(2)
    await world.later(1)
    [second] = world.fill([{"id": "a", "payload": {}}])
    await world.later(1)
    third = world.plant_pack(3)
    for key in ("claims/x", "messages/notes", "nothing/x", "packs", "packs/notes", "writes/x"):
        world.bucket.plant(f"{TOPIC}/{key}", b"")
    found, requests = await listed(ann, listing_of(ann))
    assert [unit.id for unit in found] == [first, second, third]
    assert requests == TOGETHER


async def test_a_topic_with_many_units_is_listed_kind_by_kind(world: World, ann: Process) -> None:
    """A LIST that does not show all of them is not tried again for a while."""
    world.bucket.page_size = 3
    world.fill(numbered(3))
    world.plant_pack(2)
    listing = listing_of(ann)
    found, requests = await listed(ann, listing)
    assert len(found) == 4
    assert requests["LIST"] > 2
    again, requests = await listed(ann, listing)
    assert again == found
    assert requests == APART
    await world.later(APART_SECONDS)
    assert (await listed(ann, listing))[1]["LIST"] > 2


async def test_units_that_end_with_a_page_are_all(world: World, ann: Process) -> None:
    """The page is full, and what comes behind it is no unit."""
    world.bucket.page_size = 3
    world.fill(numbered(2))
    for write in "abc":
        world.bucket.plant(layout.write(TOPIC, write), b"")
    found, requests = await listed(ann, listing_of(ann))
    assert (len(found), requests) == (2, TOGETHER)


async def test_a_page_that_ends_among_the_packs_is_not_all(world: World, ann: Process) -> None:
    """Whatever character their names begin with: one of §1's lanes comes behind all letters."""
    world.bucket.page_size = 3
    now = world.clock.server()
    names = [f"~{units.pack_name_at(now + number, world.clock.uuid(), 2)}" for number in range(4)]
    for name in names:
        world.bucket.plant(units.key_of(TOPIC, name), b"")
    found, _ = await listed(ann, listing_of(ann))
    assert [unit.name for unit in found] == names


async def test_other_keys_behind_the_units_do_not_cost_each_look(world: World, ann: Process) -> None:
    """Where staged writes have left many records, each kind is listed by itself."""
    for number in range(MAX_OTHER_KEYS + 1):
        world.bucket.plant(layout.write(TOPIC, f"w{number}"), b"")
    world.plant_pack(2)
    listing = listing_of(ann)
    first, second = await listed(ann, listing), await listed(ann, listing)
    assert (len(first[0]), first[1]) == (1, TOGETHER)
    assert (second[0], second[1]) == (first[0], APART)


async def test_what_comes_behind_a_place_is_listed_kind_by_kind(world: World, ann: Process) -> None:
    """No single LIST begins in the middle of both."""
    world.fill(numbered(3))
    world.plant_pack(2)
    listing = listing_of(ann)
    found, _ = await listed(ann, listing)
    assert await listed(ann, listing, after=found[0].name) == (found[1:], APART)
