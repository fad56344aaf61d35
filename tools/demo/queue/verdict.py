"""Does it add up? Every number is found in another way than it is expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tools.demo.checks import Check, Verdict

if TYPE_CHECKING:
    from tools.crew.crew import Blow, Remains
    from tools.crew.plan import Plan
    from tools.crew.worker import Worker
    from tools.kit.history import History


def judge(
    plan: Plan, history: History, remains: Remains, blows: Sequence[Blow], consumers: Sequence[Worker]
) -> Verdict:
    """Check what the diaries say, what is in the bucket, and both against what was asked for."""
    verdict = Verdict()
    published = history.published
    acked = {message_id for _, message_id, _ in history.acked}
    verdict.equal("published", plan.orders, len(published))
    verdict.equal("acked", plan.orders - plan.poison, len(acked), holds=acked == published - remains.dead)
    verdict.equal("dead", plan.poison, len(remains.dead), holds=remains.dead <= published)

    times = Counter(message_id for _, message_id, _ in history.delivered)
    again = {message_id for message_id, count in times.items() if count > 1}
    had = frozenset[str]().union(*(blow.ids for blow in blows))
    verdict.checks.append(Check("redelivered", f"at least {len(had):,}", f"{len(again):,}", had <= again))

    verdict.broken = history.violations(left=remains.dead.union(remains.messages))
    twice = sum(one.startswith("held twice") for one in verdict.broken)
    verdict.equal("held twice", 0, twice)
    verdict.equal("lost, settled twice, or back after an ack", 0, len(verdict.broken) - twice)
    verdict.equal("left in the bucket after a sweep", 0, remains.left)

    settled = sum(len(one.acked) + len(one.dead) for one in consumers)
    requests = sum(one.requests for one in consumers)
    verdict.figures["requests a message, claim and ack"] = f"{requests / max(1, settled):.2f}"
    return verdict
