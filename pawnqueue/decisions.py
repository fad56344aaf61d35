"""The part of the front door where a consumer decides what becomes of the messages that it has: ack, requeue, bury."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pawnqueue.arguments import (
    Chosen,
    Reasons,
    check_one_fate,
    checked_flag,
    checked_owners,
    checked_reasons,
    chosen,
)
from pawnqueue.bulk_desk import BulkDesk
from pawnqueue.claims.held import HeldClaim
from pawnqueue.domain import layout
from pawnqueue.domain.records import Decision
from pawnqueue.errors import InvalidArgumentError
from pawnqueue.terms import NotDone

if TYPE_CHECKING:
    from pawnqueue.claims import Claim, Settlement

#: The reason that pawn-queue's nack gives where its caller gives none.
NACK = "nack"


class Decisions(BulkDesk):
    """What an open queue decides of a claim's messages. Each method is one settlement of the protocol (§4)."""

    async def ack(self, claim: Claim, ids: Chosen | None = None) -> Settlement:
        """Settle messages as done. They are not delivered again.

        :param ids: one or many of the claim's messages; without it, all of them. A message means itself, an id all
            messages of the claim that have it.
        :returns: what became of each. ``.complete`` says whether all of it was decided and carried out.
        :raises LeaseLostError: others have some of them, or may have. Its ``.settlement`` tells what became of each;
            those that were still the claim's are acked all the same.
        :raises InvalidArgumentError: the claim does not have one of them; nothing was settled.
        """
        self._life.check_open()
        held = HeldClaim.of(claim, "ack", self._context)
        decisions = dict.fromkeys(chosen(held, ids, "ack"), Decision(how="acked"))
        return await self._claims.settle(held, decisions, "ack")

    async def requeue(
        self, claim: Claim, ids: Chosen | None = None, *, delay: float = 0.0, reason: str = "", error: str = ""
    ) -> Settlement:
        """Give messages back to the queue. They are delivered again, ``max_deliveries`` times in all.

        For what may go better later: a service that is down, a stock that is empty. A message that has been delivered
        that often becomes a dead letter, with the reason of its last requeue.

        :param ids: one or many of the claim's messages; without it, all of them. A message means itself, an id all
            messages of the claim that have it.
        :param delay: do not deliver them for this many seconds.
        :param reason: why. The dead letter begins with it, if it comes to that.
        :param error: details, 2,000 characters of them.
        :returns: what became of each.
        :raises LeaseLostError: others have some of them, or may have. Its ``.settlement`` tells what became of each.
        :raises InvalidArgumentError: the claim does not have one of them; nothing was settled.
        """
        return await self._not_done("requeue", claim, ids, requeue=True, delay=delay, reason=reason, error=error)

    async def bury(self, claim: Claim, ids: Chosen | None = None, *, reason: str, error: str = "") -> Settlement:
        """Make dead letters of messages. They are not delivered again, unless somebody redrives them.

        For what can never go well: a field that is missing, a customer that does not exist.

        :param ids: one or many of the claim's messages; without it, all of them. A message means itself, an id all
            messages of the claim that have it.
        :param reason: why, for those that look at the dead letter.
        :param error: details, 2,000 characters of them.
        :returns: what became of each.
        :raises LeaseLostError: others have some of them, or may have. Its ``.settlement`` tells what became of each.
        :raises InvalidArgumentError: the claim does not have one of them; nothing was settled.
        """
        return await self._not_done("bury", claim, ids, requeue=False, reason=reason, error=error)

    async def nack(  # noqa: PLR0913 - all but the claim have a default
        self,
        claim: Claim,
        ids: Chosen | None = None,
        *,
        requeue: bool = False,
        delay: float = 0.0,
        reason: str = NACK,
        error: str = "",
    ) -> Settlement:
        """Bury messages, as pawn-queue's nack does: without ``requeue=True`` it buries, and nothing is delivered again.

        For code that comes from pawn-queue. In SQS, AMQP and most other queues a nack means "again"; here ``requeue``
        does that, and ``bury`` makes dead letters. Those two say in their name what they do: use them in new code.

        :param ids: one or many of the claim's messages; without it, all of them. A message means itself, an id all
            messages of the claim that have it.
        :param requeue: give them back instead, as :meth:`requeue` does.
        :param delay: with ``requeue``, do not deliver them for this many seconds.
        :param reason: why.
        :param error: details, 2,000 characters of them.
        :returns: what became of each.
        :raises LeaseLostError: others have some of them, or may have. Its ``.settlement`` tells what became of each.
        :raises InvalidArgumentError: the claim does not have one of them; nothing was settled.
        """
        again = checked_flag(requeue, "requeue", "nack")
        if delay and not again:
            raise InvalidArgumentError(
                "delay is for messages that are given back: call requeue, or pass requeue=True.",
                operation="nack",
            )
        # The default is what a dead letter of pawn-queue's says. Given back, a message has no reason to remember.
        why = "" if again and reason == NACK else reason
        return await self._not_done("nack", claim, ids, requeue=again, delay=delay, reason=why, error=error)

    async def _not_done(  # noqa: PLR0913 - as the three methods above are given them
        self,
        operation: str,
        claim: Claim,
        ids: Chosen | None,
        *,
        requeue: bool,
        delay: float = 0.0,
        reason: str,
        error: str,
    ) -> Settlement:
        self._life.check_open()
        held = HeldClaim.of(claim, operation, self._context)
        meant = chosen(held, ids, operation)
        what = NotDone.checked(claim.topic, operation, requeue=requeue, delay=delay, reason=reason, error=error)
        now = await self._context.now() if meant or requeue else 0.0
        return await self._claims.settle(held, dict.fromkeys(meant, what.decided(now)), operation)

    async def settle(
        self,
        claim: Claim,
        *,
        requeue: Reasons | None = None,
        bury: Reasons | None = None,
        delay: float = 0.0,
    ) -> Settlement:
        """Settle all that a claim has, in one request: some messages are requeued, some buried, and the rest is acked.

        A message means itself, and an id all messages of the claim that have it.

        :param requeue: messages to give back, or their ids, and why.
        :param bury: messages to make dead letters of, or their ids, and why.
        :param delay: do not deliver those that are given back for this many seconds.
        :returns: what became of each.
        :raises LeaseLostError: others have some of them, or may have. Its ``.settlement`` tells what became of each.
        :raises InvalidArgumentError: the claim does not have one of them; nothing was settled.
        """
        self._life.check_open()
        held = HeldClaim.of(claim, "settle", self._context)
        again, dead = checked_reasons(held, requeue, "requeue"), checked_reasons(held, bury, "bury")
        check_one_fate(held, again, dead)
        what = {
            each: NotDone.checked(claim.topic, "settle", requeue=reasons is again, delay=delay, reason=why)
            for reasons in (again, dead)
            for each, why in reasons.items()
        }
        now = await self._context.now() if what else 0.0
        decisions = {message: each.decided(now) for message, each in what.items()}
        return await self._claims.settle(held, decisions, "settle", rest=Decision(how="acked"))

    async def settle_overwritten(self, claim: Claim) -> list[str]:
        """Settle those of a claim's messages that others have overwritten or removed since they were claimed.

        For a process that hands out a claim once more, as a stream does after its restart. It reads all messages of the
        claim. What is not a message any more becomes a dead letter. What only another process can read (it is larger
        than this one takes, or of a newer format) is given back. What was removed is noted as gone.

        :returns: the ids of those messages, by which they are kept. The rest of the claim can be read.
        :raises LeaseLostError: the claim is no longer ours.
        :raises CompatibilityError: a message has a newer format, and was not overwritten. Nothing was settled.
        :raises StoreError: a message cannot be read now, or is too large and was not overwritten. Nothing was settled,
            or nobody can tell: call it again.
        """
        self._life.check_open()
        return await self._claims.settle_overwritten(HeldClaim.of(claim, "settle_overwritten", self._context))

    async def release(self, topic: str, claim_id: str, owner: str | Iterable[str], *, reason: str = "") -> list[str]:
        """Give back all that the claim of this id has, without a session of it: its owner is not to have it any more.

        It is ``claim(...)`` by the id and ``requeue(claim)`` without a new claim where the last one has ended, and
        without reading messages.

        :param owner: on whose behalf it was made; or several, of which one has to be its owner.
        :param reason: why. The dead letter begins with it, if a message is given back once too often.
        :returns: the ids of the messages, by which they are kept: none, if its newest generation has ended, is another
            owner's, or is not there. If another process is releasing it at this moment, one of the two returns them.
        :raises ClaimBusyError: somebody works for it: who, until when, and when to try again.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        named, owners = layout.checked_claim_id(claim_id), checked_owners(owner)
        what = NotDone.checked(topic, "release", requeue=True, reason=reason)
        return await self._claims.release(await self._topic(topic, "release"), named, owners, what.decided(0.0))
