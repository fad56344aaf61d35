"""What is said of a settlement: an event, a line in the log where it is not known, an error where messages are lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pawnqueue.errors import InvalidArgumentError, LeaseLostError
from pawnqueue.events import Settled, logger_of

if TYPE_CHECKING:
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context
    from pawnqueue.domain.settlement import Settlement

logger = logger_of("claims")

#: How many characters of an id an error shows: an id is what its publisher has written.
LONGEST_ID_SHOWN = 60


def answered(
    context: Context, claim: HeldClaim, done: Settlement, operation: str, *, tells_unknown: bool = True
) -> Settlement:
    """Tell what became of messages that a consumer settled, and return it.

    :param tells_unknown: log it if the outcome of some is not known.
    :raises LeaseLostError: others have some of them. It is raised after everything else was settled.
    """
    context.events.tell(
        Settled(
            topic=claim.topic,
            claim=claim.stem,
            acked=tuple(done.acked),
            buried=tuple(done.buried),
            released=tuple(done.released),
            lost=tuple(done.lost),
        )
    )
    if done.unknown and tells_unknown:
        logger.warning(
            "Of %d messages of claim %s of topic %r it could not be found out whether they are settled (%s, say): "
            "settle them again, or they may be delivered again. %s",
            len(done.unknown),
            claim.stem,
            claim.topic,
            done.unknown[0],
            done.fault,
        )
    if done.lost:
        raise _loss_error(claim, done, operation)
    return done


def not_its_own_error(claim: HeldClaim, strangers: Sequence[str], operation: str) -> InvalidArgumentError:
    """Return the error for ids and messages that a claim does not have."""
    first = strangers[0] if len(strangers[0]) <= LONGEST_ID_SHOWN else f"{strangers[0][:LONGEST_ID_SHOWN]}…"
    more = f", and {len(strangers) - 1} more" if len(strangers) > 1 else ""
    return InvalidArgumentError(
        f"Claim {claim.claim_id} of topic {claim.topic!r} has no message {first!r}{more}, so nothing was settled: pass "
        "messages of this claim, or ids from its .ids.",
        topic=claim.topic,
        message=strangers[0],
        operation=operation,
    )


def _loss_error(claim: HeldClaim, done: Settlement, operation: str) -> LeaseLostError:
    """Return the error for messages that others have, and mark the claim as lost if it was taken over."""
    if claim.given_away:
        why = "this process has handed it over: settle them where it was attached to"
    else:
        why = "others have them, or may have; a longer ttl, or keep_alive, keeps a claim over long work"
        if claim.state != "open" or not claim.is_ours():
            claim.lose("it was taken over")
    return LeaseLostError(
        f"Claim {claim.claim_id} of topic {claim.topic!r} had lost {len(done.lost)} of the "
        f"{len(list(done))} messages that were to be settled ({done.lost[0]!r}): {why}. The error's "
        ".settlement tells what became of each.",
        topic=claim.topic,
        message=done.lost[0],
        operation=operation,
        settlement=done,
    )
