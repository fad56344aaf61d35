"""What is published, what has to become of it, and whether it did.

What has to be is counted from the orders themselves, not from what was found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

from tools.demo.checks import Verdict

PRICES = {"apple": Decimal("0.25"), "melon": Decimal("2.90"), "pear": Decimal("0.40"), "plum": Decimal("0.15")}
#: With what the job's reasons begin.
MALFORMED, POISON = "the payload does not fit the schema", "the quantity is not above zero"

_MALFORMED_EVERY, _POISON_EVERY = 400, 200


def order(number: int) -> dict[str, Any]:
    """Make one order: some have a text where a number belongs, and some order nothing."""
    item = list(PRICES)[number % len(PRICES)]
    quantity = 0 if fault_of(number) == POISON else 1 + number % 5
    order_id: object = f"no. {number}" if fault_of(number) == MALFORMED else number
    return {"order_id": order_id, "item": item, "quantity": quantity, "price": str(PRICES[item])}


def fault_of(number: int) -> str:
    """Say why the order with this number cannot be worked on; nothing where it can."""
    if number % _MALFORMED_EVERY == _MALFORMED_EVERY // 3:
        return MALFORMED
    return POISON if number % _POISON_EVERY == _POISON_EVERY // 2 else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of orders, or has to."""

    processed: Counter[int]
    """How often each order was worked on, by its number."""

    revenue: dict[str, Decimal]
    """By item."""

    dead: Counter[str]
    """How many orders were given up on, by the reason."""

    @classmethod
    def expected(cls, numbers: Iterable[int]) -> Self:
        """Return what has to become of these orders."""
        processed: Counter[int] = Counter()
        dead: Counter[str] = Counter()
        revenue: dict[str, Decimal] = {}
        for number in numbers:
            if fault := fault_of(number):
                dead[fault] += 1
                continue
            made = order(number)
            processed[number] += 1
            revenue[made["item"]] = revenue.get(made["item"], Decimal(0)) + made["quantity"] * PRICES[made["item"]]
        return cls(processed, revenue, dead)


def judge(published: Sequence[str], expected: Outcome, found: Outcome, redelivered: int, left: int) -> Verdict:
    """Check what was found against what has to be.

    :param published: the ids that publishing has returned.
    :param redelivered: how many dead letters were delivered as often as the topic allows.
    :param left: what is left in the bucket that should not be.
    """
    verdict = Verdict()
    orders = expected.processed.total() + expected.dead.total()
    verdict.equal("published", orders, len(set(published)))
    verdict.equal("processed by Spark", len(expected.processed), len(found.processed))
    twice = sorted(number for number, count in found.processed.items() if count > 1)
    strange = found.processed.keys() - expected.processed.keys()
    verdict.equal("processed twice", 0, len(twice))
    verdict.equal("processed, but never published as good", 0, len(strange))
    for item in sorted(expected.revenue.keys() | found.revenue.keys()):
        wanted, got = expected.revenue.get(item, Decimal(0)), found.revenue.get(item, Decimal(0))
        verdict.equal(f"revenue, {item}", wanted, got, shown="${:,.2f}")
    told = Counter(dict.fromkeys(expected.dead, 0))
    for reason, count in found.dead.items():
        told[next((each for each in expected.dead if each in reason), reason)] += count
    for reason, count in told.items():
        verdict.equal(f"dead: {reason}", expected.dead[reason], count)
    verdict.equal("delivered twice before they were dead", expected.dead.total(), redelivered)
    verdict.equal("messages and leases left in the bucket", 0, left)
    missing = sorted(expected.processed.keys() - found.processed.keys())
    verdict.broken += [f"order {number} was lost: it is neither in what Spark wrote nor dead" for number in missing]
    verdict.broken += [f"order {number} was processed {found.processed[number]} times" for number in twice]
    return verdict
