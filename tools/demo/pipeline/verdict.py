"""Does it add up? What Spark wrote and what is dead, against what was published."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from tools.demo.checks import Check, Verdict
from tools.demo.pipeline.orders import Outcome

#: Requests an order may cost, all of Airflow's, the bell's and the janitor's among them, and so many for each run.
REQUESTS_AN_ORDER, REQUESTS_OF_ALL = 5.0, 3_000


def judge(  # noqa: PLR0913, PLR0917 - all that was found
    published: Sequence[str], expected: Outcome, found: Outcome, redelivered: int, left: int, requests: int
) -> Verdict:
    """Check what was found against what has to be.

    :param published: the ids that publishing has returned.
    :param redelivered: how many dead letters were delivered as often as the topic allows.
    :param left: what is left in the bucket that should not be.
    """
    verdict = Verdict()
    orders = expected.processed.total() + expected.dead.total()
    verdict.equal("published", orders, len(set(published)))
    verdict.equal("processed by Spark, each once", len(expected.processed), len(found.processed))
    verdict.equal("processed twice, or not published", 0, (found.processed - expected.processed).total())
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
    told = dict.fromkeys(expected.dead, 0)
    for reason, count in found.dead.items():
        told[next((each for each in expected.dead if each in reason), reason)] = (
            told.get(next((each for each in expected.dead if each in reason), reason), 0) + count
        )
    for reason, count in told.items():
        verdict.equal(f"dead: {reason}", expected.dead[reason], count)
    verdict.equal("redelivered before they were dead", expected.dead.total(), redelivered)
    verdict.equal("left in the topic after a sweep", 0, left)
    most = REQUESTS_AN_ORDER + REQUESTS_OF_ALL / max(orders, 1)
    each = requests / max(orders, 1)
    verdict.checks.append(Check("requests an order, all in all", f"at most {most:.1f}", f"{each:.1f}", each <= most))
    missing = sorted(expected.processed.keys() - found.processed.keys())
    twice = sorted(number for number, count in found.processed.items() if count > 1)
    verdict.broken += [f"order {number} was lost: it is neither in what Spark wrote nor dead" for number in missing]
    verdict.broken += [f"order {number} was processed {found.processed[number]} times" for number in twice]
    return verdict
