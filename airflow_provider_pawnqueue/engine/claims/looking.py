"""Look at the messages of a claim without working for it: nothing is written, and whoever works for it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.claims.bodies import read_all
from airflow_provider_pawnqueue.engine.errors import LeaseLostError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.claim import ClaimReference, Message
    from airflow_provider_pawnqueue.engine.context import Context


async def messages(context: Context, reference: ClaimReference) -> list[Message]:
    """Read what a claim has not settled, in publish order: its record, and a body a message.

    :raises LeaseLostError: it has no record, or has ended, or its time is over: others have the messages, or may.
    """
    topic, stem = reference.topic, layout.claim_stem(reference.claim_id, reference.generation)
    standing = await records.read(context, topic, stem)
    if standing is None:
        raise _over(reference, "it has no record any more")
    record = standing.record
    if record.state != "closed" and record.unsettled:
        if record.state == "expired":
            raise _over(reference, "it was taken over")
        if context.is_over(record.until, await context.now()):
            raise _over(reference, "its time is over")
    return await read_all(context, topic, {uuid: record.members[uuid] for uuid in record.unsettled})


def _over(reference: ClaimReference, why: str) -> LeaseLostError:
    return LeaseLostError(
        f"Claim {reference.claim_id} of topic {reference.topic!r} cannot be looked at: {why}. Others have what was "
        "left of it, or may have it: claim anew.",
        topic=reference.topic,
        operation="messages",
    )
