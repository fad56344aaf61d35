"""What docs/faq.md says that it costs, counted in requests and multiplied by the prices that it names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pawnqueue.virtual import TOPIC, World, numbered

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Process

PAGE = (Path(__file__).parents[2] / "docs" / "faq.md").read_text()
#: Dollars a million.
PRICES = {"PUT": 5.0, "COPY": 5.0, "LIST": 5.0, "GET": 0.4, "HEAD": 0.4, "DELETE": 0.0}
MONTH = 30 * 86_400.0
HOURS = 6 * 3600.0


def dollars(counted: Counter[str]) -> float:
    """Return what a million times these requests cost."""
    return sum(PRICES[kind] * count for kind, count in counted.items())


def row(beginning: str) -> list[float]:
    """Return the numbers of the table's row that begins so."""
    [line] = re.findall(rf"^\| {re.escape(beginning)} \|(.*)\|$", PAGE, re.MULTILINE)
    return [float(cell) for cell in line.split("|")]


def test_the_page_names_these_prices() -> None:
    """The page's prices are the ones that are reckoned with."""
    assert "PUT, COPY and\nLIST $5.00 a million, GET and HEAD $0.40, DELETE free" in PAGE


@pytest.mark.parametrize(("size", "batch"), [(1000, 10_000), (100, 10_000), (1000, 10), (1000, 1000), (100, 100)])
async def test_a_million_messages_in_packs(world: World, size: int, batch: int) -> None:
    """Publishing packs, and claiming and acking their messages in batches of each size, cost what the page says."""
    world.topic(packs=True)
    publisher = await world.process(packs={"messages": size})
    consumer = await world.process()
    count = 20_000 if batch > size else 20 * size if batch == size else 2_000
    at_once = batch if batch == size else min(count, 10_000)
    if batch == size:  # a process that has just begun makes a few requests more
        for queue in (publisher.queue, consumer.queue):
            await queue.publish(TOPIC, numbered(batch), producer="shop")
            await queue.ack(await queue.claim(TOPIC, "billing", max_messages=batch))
    with publisher.client.counting() as published:
        for _ in range(count // at_once):
            await publisher.queue.publish(TOPIC, numbered(at_once), producer="shop")
            await world.later(2)
    done = 0
    with consumer.client.counting() as consumed:
        while done < count:
            claim = await consumer.queue.claim(TOPIC, "billing", max_messages=batch)
            assert (await consumer.queue.ack(claim)).complete
            done += len(claim)
    told = row(f"{size:,}, claimed by {batch:,}")
    millions = [dollars(published) / count, dollars(consumed) / count]
    assert [*millions, sum(millions)] == pytest.approx(told, rel=0.02)
    if size == batch:
        assert sum(consumed.values()) / count == pytest.approx(figures()["REQUESTS"][batch], rel=0.02)


@pytest.mark.parametrize("batch", [1, 10, 100])
async def test_a_million_messages(world: World, batch: int) -> None:
    """Publishing, and claiming and acking, in batches of each size cost what the page says."""
    publisher, consumer = await world.process(), await world.process()
    for queue in (publisher.queue, consumer.queue):  # a process that has just begun makes a few requests more
        await queue.publish(TOPIC, numbered(batch), producer="shop")
        await queue.ack(await queue.claim(TOPIC, "billing", max_messages=batch))
    count = max(400, 10 * batch)
    with publisher.client.counting() as published:
        for _ in range(count // batch):
            await publisher.queue.publish(TOPIC, numbered(batch), producer="shop")
            await world.later(0.5 if batch == 1 else 2)
    done = 0
    with consumer.client.counting() as consumed:
        while claim := await consumer.queue.claim(TOPIC, "billing", max_messages=batch):
            assert (await consumer.queue.ack(claim)).complete
            done += len(claim)

    assert done == count
    told = row(str(batch))
    reckoned = [dollars(published) / count, dollars(consumed) / count]
    assert told == pytest.approx([*reckoned, sum(reckoned)], rel=0.02)
    assert sum(consumed.values()) / count == pytest.approx(COUNTED_REQUESTS[batch], rel=0.02)


async def _wait(consumer: Process, world: World, seconds: float) -> None:
    await consumer.queue.claim(TOPIC, "billing", wait=seconds)


async def _ask_each_minute(consumer: Process, world: World, _: float) -> None:
    await consumer.queue.claim(TOPIC, "billing")
    await world.later(60)


IDLE: list[tuple[str, float, Callable[[Process, World, float], Awaitable[None]]]] = [
    ("waits: `claim(..., wait=3600)`", 3600, _wait),
    ("waits half a minute at a time: `wait=30`", 30, _wait),
    ("asks once a minute: `wait=0`", 0, _ask_each_minute),
]


async def _a_month(world: World, consumer: Process, seconds: float, look: Callable[..., Awaitable[None]]) -> float:
    """Return what a month of a consumer costs that finds nothing."""
    await consumer.queue.register_consumer("billing")
    await look(consumer, world, seconds)
    began = world.clock.elapsed()
    with consumer.client.counting() as counted:
        while world.clock.elapsed() - began < HOURS:
            await look(consumer, world, seconds)
    return dollars(counted) / 1e6 * MONTH / (world.clock.elapsed() - began)


#: The ``packs`` of a topic as it is created by default, and with ``packs=False``.
BOTH = pytest.mark.parametrize("packs", [True, None])


@BOTH
@pytest.mark.parametrize(("beginning", "seconds", "look"), IDLE)
async def test_an_idle_month(
    world: World, beginning: str, seconds: float, look: Callable[..., Awaitable[None]], *, packs: bool | None
) -> None:
    """A consumer that finds nothing costs what the page says, heartbeat included, whether packs are allowed or not."""
    world.topic(packs=packs)
    month = await _a_month(world, await world.process(), seconds, look)
    assert row(beginning) == pytest.approx([month], abs=0.06)


@BOTH
async def test_looking_less_often(world: World, *, packs: bool | None) -> None:
    """Half a minute between two looks costs what the page says."""
    world.topic(packs=packs)
    consumer = await world.process(polling={"interval_seconds": 30})
    [told] = re.findall(r"from 5 to 30, and waiting costs (\d\.\d\d)", PAGE)
    assert float(told) == pytest.approx(await _a_month(world, consumer, 3600, _wait), abs=0.06)


@BOTH
async def test_a_janitors_round(world: World, *, packs: bool | None) -> None:
    """What a round without work costs, with the janitor's measuring of the topic, as its page says."""
    world.topic(packs=packs)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "janitor.md").read_text()
    janitor = await world.process()
    await janitor.queue.sweep(TOPIC)  # a process that has just begun makes a few requests more
    with janitor.client.counting() as counted:
        await janitor.queue.sweep(TOPIC)
        await janitor.queue.stats(TOPIC)
    assert (counted["LIST"], counted["PUT"]) == (10, 1)
    assert "ten LISTs and a PUT" in page
    rounds = MONTH / 60 / 1e6
    page = " ".join(page.split())
    assert f"{10 * rounds * dollars(counted):.0f} dollars a month if they are swept every minute" in page
    assert f"and {2 * rounds * dollars(counted):.0f} if every five minutes" in page


FLOW = (Path(__file__).parents[2] / "docs" / "how-to" / "flow-control.md").read_text()


async def test_a_busy_consumer_reads_its_topics_settings_every_five_seconds(world: World) -> None:
    """It hears of a pause by that, which is one GET; an idle one and one that waits on a paused topic cost no more."""
    publisher, consumer = await world.process(), await world.process()
    counted: Counter[str] = Counter()
    began = world.clock.elapsed()
    while world.clock.elapsed() - began < 600:
        await publisher.queue.publish(TOPIC, numbered(1))
        before = len(consumer.client.requests)
        await consumer.queue.ack(await consumer.queue.claim(TOPIC, "billing"))
        counted.update(kind for kind, key in consumer.client.requests[before:] if key == f"{TOPIC}/.topic")
        await world.later(0.5)
    assert counted == {"GET": pytest.approx(600 / 5, abs=2)}
    [told] = re.findall(r"one GET: (\d\.\d\d) dollars a month", FLOW)
    assert float(told) == pytest.approx(dollars(Counter(GET=1)) / 1e6 * MONTH / 5, abs=0.01)

    await publisher.queue.pause(TOPIC)
    await publisher.queue.publish(TOPIC, numbered(1))
    await world.later(60)
    paused = await _a_month(world, consumer, 3600, _wait)
    assert paused <= row(IDLE[0][0])[0] + 0.06


# --- docs/explanation/cost.md ---

COST = (Path(__file__).parents[2] / "docs" / "explanation" / "cost.md").read_text()
PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
COUNTED = re.compile(r"Claim and ack cost (\S+) requests a message alone, (\S+) in batches of 10, (\S+) of 100")
#: What the protocol's page says of single messages.
COUNTED_REQUESTS = dict(zip((1, 10, 100), map(float, COUNTED.findall(PROTOCOL)[0]), strict=True))


def figures() -> dict[str, Any]:
    """Return what the block of the page defines."""
    [block] = re.findall(r"^```python\n(.*?)^```$", COST, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - the page's own
    return names


def test_the_page_of_costs_starts_from_what_is_counted() -> None:
    """Its figures are those of the other pages, which are counted."""
    names = figures()
    for batch in (1, 10, 100, 1000):
        told = row(str(batch) if batch < 100 else f"{batch:,}, claimed by {batch:,}")
        assert [names["PUBLISH"][batch], names["CONSUME"][batch]] == told[:2]
        if batch < 100:
            assert names["REQUESTS"][batch] == COUNTED_REQUESTS[batch]
    assert [names["WAITING"]] == row(IDLE[0][0])


def test_the_page_of_costs_adds_up() -> None:
    """Each row is what the page's own functions return."""
    names = figures()
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", COST, re.MULTILINE)
    assert len(rows) == 5
    for a_day, at_a_time, dollars_told, requests_told, sqs_told in rows:
        traffic = int(a_day.replace(",", "")), int(at_a_time)
        assert dollars_told == f"{names['dollars'](*traffic):.2f}"
        assert requests_told == f"{names['requests_a_second'](*traffic):.1f}"
        assert sqs_told == f"{names['sqs'](*traffic):.2f}"


def test_a_month_in_which_nothing_comes() -> None:
    """What is idle costs what the figures of the other pages make of it."""
    docs = Path(__file__).parents[2] / "docs"
    idle = re.findall(r"^\| [^|]+ \| (\d\.\d\d) \| [^|]+ \|$", COST, re.MULTILINE)
    waiting, topic, janitor = map(float, idle)
    assert [waiting] == row(IDLE[0][0])

    [told] = re.findall(r"\[(\d+) requests a minute\]\S+, (\d+) of them LISTs", COST)
    counted, lists = map(int, told)
    assert f"requests of 20 idle topics | {20 * counted} a minute" in (docs / "airflow.md").read_text()
    a_minute = Counter(LIST=lists, GET=counted - lists)
    assert topic == pytest.approx(dollars(a_minute) / 1e6 * MONTH / 60, abs=0.01)

    [ten] = re.findall(r"ten topics cost (\d+) dollars a month", (docs / "how-to" / "janitor.md").read_text())
    assert janitor == float(ten) / 10
    assert f"costs {topic + janitor:.2f} dollars a month before its first message" in COST
    assert f"in Airflow {topic:.2f} for each topic, and {janitor:.2f} for its janitor" in PAGE


def test_one_range_everywhere() -> None:
    """A million messages cost the same on all pages: what the table says, in whole dollars."""
    totals = [row(batch)[2] for batch in ("1", "10", "100")]
    assert (round(min(totals)), round(max(totals))) == (11, 21)
    docs = Path(__file__).parents[2] / "docs"
    for page in ("faq.md", "explanation/cost.md", "how-to/aws.md", "how-to/from-sqs.md"):
        assert "leven to twenty-one" in (docs / page).read_text(), page

    names = figures()
    times = [row(str(batch))[2] / (names["sqs"](1_000_000, batch) / 30) for batch in (1, 10, 100)]
    assert f"is {min(times):.0f} to {max(times):.0f} times as much" in (docs / "how-to" / "from-sqs.md").read_text()
