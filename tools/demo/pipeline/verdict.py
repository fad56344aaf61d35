"""Does it add up? What Spark wrote and what is dead, against what was published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

from tools.demo.checks import Check, Verdict
from tools.demo.pipeline.orders import Outcome


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
    for item in sorted(expected.revenue):
        revenue = found.revenue.get(item, Decimal(0))
        verdict.checks.append(
            Check(
                f"revenue, {item}",
                f"${expected.revenue[item]:,.2f}",
                f"${revenue:,.2f}",
                expected.revenue[item] == revenue,
            )
        )
    for item in sorted(found.revenue.keys() - expected.revenue.keys()):
        verdict.checks.append(Check(f"revenue, {item}", "none", f"${found.revenue[item]:,.2f}", holds=False))
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
