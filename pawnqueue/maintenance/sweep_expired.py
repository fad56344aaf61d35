"""Bury what is too old in a topic that nobody consumes (§4, Age)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from pawnqueue.claims import expiry
from pawnqueue.claims.candidates import Finder
from pawnqueue.claims.claim_making import ClaimRequest
from pawnqueue.claims.claiming import Attempt, NoClaim
from pawnqueue.claims.contention import Contention
from pawnqueue.claims.set_aside import MAX_BAD_BATCH
from pawnqueue.context import PER_OBJECT_RETRY_SECONDS

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.domain.unit import Unit
    from pawnqueue.maintenance.sweep_report import SweepReport

#: One sweep buries no more messages than this, and begins no batch after this time. The next sweep goes on.
MAX_EXPIRED_PER_SWEEP: Final = 5000
MAX_EXPIRY_SECONDS: Final = 30.0
#: The consumer that the dead letters name.
JANITOR: Final = "janitor"


async def bury_expired(
    context: Context, topic: TopicRecord, units: Sequence[Unit], leased: Collection[str], report: SweepReport
) -> None:
    """Claim messages that are too old and that nobody has ever claimed, and bury them. Of the others nothing is known.

    A redriven message has a lease, and may be younger than its name says: consumers decide about it.

    :param units: of the topic, as they were listed.
    :param leased: the ids of the units with a lease.
    """
    if topic.settings.max_age_seconds is None:
        return
    now = await context.now()
    old = [unit for unit in units if unit.id not in leased and expiry.is_expired(topic, unit.name, now, context.margin)]
    if report.dry_run:
        report.expired += sum(unit.count for unit in old)
    elif old:
        report.expired += await _bury(context, topic)


async def _bury(context: Context, topic: TopicRecord) -> int:
    finder = Finder(context, topic.name)
    contention = Contention(context.clock, by_the_piece=context.registers.is_certain)
    began, buried = context.clock.elapsed(), 0
    try:
        while buried < MAX_EXPIRED_PER_SWEEP and context.clock.elapsed() - began < MAX_EXPIRY_SECONDS:
            attempt = Attempt(context, finder, contention, _request(context, topic), PER_OBJECT_RETRY_SECONDS)
            result = await attempt.run()
            buried += attempt.buried
            if result is not NoClaim.BAD or not attempt.buried:
                break
    finally:
        await finder.background.close(MAX_EXPIRY_SECONDS)
    return buried


def _request(context: Context, topic: TopicRecord) -> ClaimRequest:
    ttl = context.settings.polling.visibility_timeout_seconds
    return ClaimRequest(
        topic=topic,
        claim_id=context.clock.uuid(),
        generation=0,
        owner=JANITOR,
        consumer=JANITOR,
        session=context.clock.uuid(),
        max_messages=MAX_BAD_BATCH,
        ttl=ttl,
        session_ttl=ttl,
        named=False,
        buries_only=True,
    )
