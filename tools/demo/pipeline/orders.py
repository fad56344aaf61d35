"""What is published, and what has to become of it: counted from the orders themselves, not from what anybody found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

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
