"""The books of ``make demo``: whatever is not as it has to be is noticed, and named."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tools.demo.needs import TooLittleError, free_memory, need_memory
from tools.demo.pipeline.bill import Bill
from tools.demo.pipeline.orders import MALFORMED, POISON, Outcome, fault_of, judge, order
from tools.demo.pipeline.picture import Sample, letters, svg

ORDERS = 400
EXPECTED = Outcome.expected(range(ORDERS))
#: As it is found where all is well.
FOUND: dict[str, Any] = {
    "published": [f"id-{number}" for number in range(ORDERS)],
    "expected": EXPECTED,
    "found": Outcome(
        EXPECTED.processed, EXPECTED.revenue, Counter({f"failed: {why}: …": n for why, n in EXPECTED.dead.items()})
    ),
    "redelivered": EXPECTED.dead.total(),
    "left": 0,
}


def found(**other: Any) -> Outcome:
    """Return what is found, with something else in it."""
    outcome: Outcome = FOUND["found"]
    return replace(outcome, **other)


def test_all_is_well() -> None:
    """Then each number is as it has to be; also as the orders themselves tell it."""
    verdict = judge(**FOUND)
    assert verdict.adds_up, verdict.checks
    faults = Counter(fault_of(number) for number in range(ORDERS))
    assert faults == {"": ORDERS - 3, MALFORMED: 1, POISON: 2}
    assert EXPECTED.processed.total() == faults[""]
    plums = [order(number) for number in range(ORDERS) if order(number)["item"] == "plum" and not fault_of(number)]
    assert EXPECTED.revenue["plum"] == sum(each["quantity"] * Decimal(each["price"]) for each in plums)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"published": FOUND["published"][1:]}, ["published"]),
        ({"found": found(processed=EXPECTED.processed - Counter({7: 1}))}, ["processed by Spark"]),
        ({"found": found(processed=EXPECTED.processed + Counter({7: 1}))}, ["processed twice"]),
        (
            {"found": found(processed=EXPECTED.processed + Counter({-1: 1}))},
            ["processed by Spark", "processed, but never published as good"],
        ),
        ({"found": found(revenue={**EXPECTED.revenue, "plum": Decimal(1)})}, ["revenue, plum"]),
        ({"found": found(revenue={**EXPECTED.revenue, "kiwi": Decimal(1)})}, ["revenue, kiwi"]),
        ({"found": found(dead=EXPECTED.dead - Counter({POISON: 1}))}, [f"dead: {POISON}"]),
        ({"found": found(dead=EXPECTED.dead + Counter({"lightning": 1}))}, ["dead: lightning"]),
        ({"redelivered": 0}, ["delivered twice before they were dead"]),
        ({"left": 1}, ["messages and leases left in the bucket"]),
    ],
    ids=", ".join,
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], named: list[str]) -> None:
    """Each number is checked by itself, and one that is wrong is enough."""
    verdict = judge(**{**FOUND, **wrong})
    assert [check.what for check in verdict.checks if not check.holds] == named
    assert not verdict.adds_up


def test_lost_and_doubled_orders_are_told_by_number() -> None:
    """So that one can look for them."""
    processed = EXPECTED.processed - Counter({7: 1}) + Counter({8: 1})
    told = judge(**{**FOUND, "found": found(processed=processed)}).broken
    assert told == ["order 7 was lost: it is neither in what Spark wrote nor dead", "order 8 was processed 2 times"]


def test_a_bill() -> None:
    """Reads are cheap, deletes are free, and everything else is a write."""
    bill = Bill(Counter({"GET": 10_000, "PUT": 1_000, "LIST": 1_000, "DELETE": 500}))
    assert bill.total == 12_500
    assert bill.dollars == pytest.approx(0.004 + 0.005 + 0.005)
    assert bill.told().startswith("10,000 GET, ")


SAMPLES = [Sample(0.0, 0, 0, 0), Sample(1.0, 100, 0, 0), Sample(30.0, 0, 100, 0), Sample(60.0, 0, 0, 2)]


def test_the_picture_in_letters() -> None:
    """Each line is to its own measure, and says which; where there was nothing, nothing is drawn."""
    pending, in_flight, dead, scale = letters(SAMPLES, 60)
    assert pending.endswith("100 at most")
    assert dead.endswith("2 at most")
    assert len({len(line) for line in (pending, in_flight, dead)}) == 1
    assert pending[10:70] == " " + "█" * 29 + " " * 30
    assert in_flight[10:70] == " " * 30 + "█" * 29 + " "
    assert scale.split() == ["0", "s", "60", "s"]


def test_the_picture_as_an_image() -> None:
    """It is XML, has a strip a series, and the words are inside it wherever their mark is."""
    root = ET.fromstring(svg(SAMPLES, [(0.0, "1 < 2 & published"), (59.0, "run 1 settles")], "a title"))  # noqa: S314 - our own
    space = {"s": "http://www.w3.org/2000/svg"}
    assert len(root.findall("s:path", space)) == 3
    words = {text.text: text for text in root.findall("s:text", space)}
    assert {"1 < 2 & published", "pending", "in flight", "dead", "at most 100", "at most 2", "60 s"} <= words.keys()
    assert words["run 1 settles"].get("text-anchor") == "end"


def test_too_little_memory_is_a_sentence() -> None:
    """It says how much there is and how much it needs, and what to do."""
    need_memory(1)
    with pytest.raises(
        TooLittleError, match=r"it needs 9,?\d+.* GiB of free memory, and there are [\d.]+ GiB: end .*demo-queue"
    ):
        need_memory(9999 << 30)
    assert free_memory() > 1 << 20


def test_words_in_the_picture_do_not_meet() -> None:
    """What happens at one moment is written in rows below each other; what has no room is left out."""
    marks = [(float(at), f"what {at}") for at in (10, 10, 11, 11, 40)]
    root = ET.fromstring(svg(SAMPLES, marks, "a title"))  # noqa: S314 - our own
    rows = {
        text.text: text.get("y")
        for text in root.findall("{http://www.w3.org/2000/svg}text")
        if (text.text or "").startswith("what")
    }
    assert rows == {"what 10": "27.0", "what 11": "40.0", "what 40": "14.0"}
