"""The claims of a stream, in the process that plans it: made by their ids, kept, acked, and left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from pawnqueue import ClaimBusyError, ClaimReference, InvalidArgumentError, LeaseLostError, PawnQueueError, StoreError
from pawnqueue.domain.claim_terms import SESSION_TTL_SECONDS

if TYPE_CHECKING:
    from pawnqueue import Claim, Portion, SyncPawnQueue

Offset = dict[str, Any]

logger = logging.getLogger("pawnqueue.spark")

#: For so long a restart waits for the session of its former self.
PATIENCE: Final = 120.0
#: Where there is nothing, Spark asks a hundred times a second: each question waits for so long.
PAUSE: Final = 0.5

#: How many characters of an offset an error shows.
_SHOWN_CHARACTERS: Final = 60

STREAM, BATCH, CLAIM = "stream", "batch", "claim"


def first_offset(stream: str) -> Offset:
    """Return the offset before the first batch of a stream."""
    return {STREAM: stream, BATCH: 0, CLAIM: None}


def checked_offset(given: object) -> Offset:
    """Return an offset as Spark has kept it, if it is one of ours.

    :raises InvalidArgumentError: it is another source's.
    """
    if isinstance(given, dict) and {STREAM, BATCH, CLAIM} <= given.keys():
        stream, batch, claim = given[STREAM], given[BATCH], given[CLAIM]
        if isinstance(stream, str) and type(batch) is int and batch >= 0 and isinstance(claim, dict | None):
            return given
    shown = repr(given)
    raise InvalidArgumentError(
        f"The checkpoint of this query is another source's: the format pawnqueue has not made its offset "
        f"{shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + '…'}. Give the query a "
        "checkpointLocation of its own.",
        operation="spark",
    )


class StreamClaims:
    """The claims of a stream, in the process that makes them."""

    def __init__(self, queue: SyncPawnQueue, topic: str, consumer: str, *, ttl: float) -> None:
        self._queue = queue
        self._topic = topic
        self._consumer = consumer
        self._ttl, self._session_ttl = ttl, min(SESSION_TTL_SECONDS, ttl)
        self._held: dict[str, Claim] = {}
        self._keeping: dict[str, ExitStack] = {}
        self._unread: set[str] = set()  # the ids of claims that were found again without their messages
        self._finished = 0  # the number of the last batch that is: Spark does one after the other
        self._is_restarted = True  # as far as it knows
        self._left: int | None = None  # of what was there in the beginning, where nothing later is to be taken
        self._next_look = 0.0
        self._closed = threading.Event()

    def take_what_is_there(self) -> None:
        """Take so many messages as there are now, and no more."""
        self._left = self._queue.backlog(self._topic).pending

    def following(self, start: Mapping[str, Any], most: int) -> dict[str, Any]:
        """Claim the batch after this one, or find it again; return the start where there is nothing."""
        number = int(start[BATCH])
        while True:
            number += 1
            claim = self._claimed(f"{start[STREAM]}-{number}", most)
            if claim:
                # ⚑ §4, Sessions: it names no session. Who reads it in the checkpoint was handed nothing, and waits
                # until this process has left the claim, or its time is over: both may be alive.
                reference = ClaimReference(claim.topic, claim.claim_id, claim.generation, session="")
                return {STREAM: start[STREAM], BATCH: number, CLAIM: reference.to_dict()}
            if claim is None or not (claim.recorded and claim.was_handed_out):
                return dict(start)
            # It was claimed before a restart, and others have had it since: the next one is ours.
            logger.warning(
                "Claim %s of topic %r, which this stream had claimed before it was restarted, has ended: others have "
                "its messages. A longer ttl keeps them for a query that is down for longer.",
                claim.stem,
                claim.topic,
            )

    def portions(self, end: Mapping[str, Any], parts: int | None) -> list[Portion]:
        """Plan a batch. One whose claim has ended has no rows: it is acked, or its messages are others'.

        That of a topic which was empty when the stream began has none either: Spark makes a batch of every beginning.

        ⚑ A batch without rows is noted as done, and then acked. So only what has ended for good has none, which nobody
        can ack any more: a claim whose time is over, and which nobody has taken, is taken up again, or the query fails.

        :raises LeaseLostError: its time was over once more before it was planned.
        """
        if end[CLAIM] is None:
            return []
        try:
            return self._planned(end, parts)
        except LeaseLostError:
            return self._planned(end, parts)

    def _planned(self, end: Mapping[str, Any], parts: int | None) -> list[Portion]:
        claim = self._attached(end)
        if claim is None:
            return []
        try:
            if claim.claim_id in self._unread:
                self._settle_overwritten(claim)
                self._unread.remove(claim.claim_id)
            return self._queue.portions(end[CLAIM], parts=parts)
        except LeaseLostError:
            self._release(claim)
            raise

    def _settle_overwritten(self, claim: Claim) -> None:
        """Take out of a batch that is planned again what others have overwritten since it was claimed.

        ⚑ §4: only that. The sink may have the batch and leave out its replay, so a message that is as it was claimed
        stays in it: given back, it would come a second time in a later batch.
        """
        ids = self._queue.settle_overwritten(claim)
        if ids:
            logger.warning(
                "Others have overwritten or removed %d of the messages of claim %s of topic %r (%s, say). The batch is "
                "planned again without them. Dead letters have what is not a message any more.",
                len(ids),
                claim.stem,
                claim.topic,
                ids[0],
            )

    def finish(self, offset: Mapping[str, Any]) -> None:
        """Ack a batch that the sink has; one that was acked before is left alone."""
        reference = offset[CLAIM]
        if reference is None or offset[BATCH] <= self._finished:
            return
        claim = self._attached(offset)
        if claim is not None:
            try:
                ack(self._queue, claim)
            except LeaseLostError as error:
                warn_of_loss(error)
            self._release(claim)
        self._finished = offset[BATCH]

    def close(self) -> None:
        """Leave what is not acked to whoever comes by its id, who need not wait."""
        self._closed.set()
        for keeping in self._keeping.values():
            with suppress(PawnQueueError):  # then nothing keeps it
                keeping.close()
        self._queue.close(keep_claims=True)

    def _claimed(self, claim_id: str, most: int) -> Claim | None:
        """Claim by an id, now and then; None where it is not the time to look, or enough was taken."""
        if claim_id in self._held:
            return self._held[claim_id]
        is_old = self._is_restarted and claim_id in self._queue.known_claims(self._topic, [claim_id])
        if self._left is not None and not is_old:
            most = min(most, self._left)
            if most == 0:
                return None
        elif self._closed.wait(max(0.0, min(PAUSE, self._next_look - time.monotonic()))) or (
            time.monotonic() < self._next_look
        ):
            return None
        claim = self._patiently(claim_id, most)
        self._is_restarted = False
        if claim:
            self._keep(claim)
            if self._left is not None and not is_old:
                self._left -= len(claim)
        elif not claim.recorded:
            self._left = None if self._left is None else 0
            self._next_look = time.monotonic() + self._queue.settings.polling.interval_seconds
        return claim

    def _patiently(self, claim_id: str, most: int) -> Claim:
        """Claim, and wait for the former self of this query where it may be alive."""
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                return self._queue.claim(
                    self._topic,
                    self._consumer,
                    max_messages=most,
                    claim_id=claim_id,
                    owner=self._consumer,
                    ttl=self._ttl,
                    session_ttl=self._session_ttl,
                )
            except ClaimBusyError as busy:
                left = give_up - time.monotonic()
                if left <= 0 or self._closed.wait(min(max(busy.retry_after, 0.1), left)):
                    raise

    def _attached(self, offset: Mapping[str, Any]) -> Claim | None:
        """Return the claim of a batch, found again after a restart; None where it has ended."""
        reference = ClaimReference.of(offset[CLAIM])
        held = self._held.get(reference.claim_id)
        if held is not None:
            return held
        try:
            claim = self._queue.attach(
                reference, payloads=False, wait=PATIENCE, ttl=self._ttl, session_ttl=self._session_ttl
            )
        except LeaseLostError as error:
            warn_of_loss(error)
            return None
        if not claim:
            if claim.ended_unsettled:
                warn_of_loss(f"Claim {claim.stem} of topic {claim.topic!r} has ended before it was acked.")
            return None
        self._unread.add(claim.claim_id)
        self._keep(claim)
        return claim

    def _keep(self, claim: Claim) -> None:
        self._held[claim.claim_id] = claim
        keeping = self._keeping[claim.claim_id] = ExitStack()
        keeping.enter_context(self._queue.keep_alive(claim, on_lost=warn_of_loss))

    def _release(self, claim: Claim) -> None:
        del self._held[claim.claim_id]
        with suppress(PawnQueueError):  # it has ended, or is lost, which was told
            self._keeping.pop(claim.claim_id).close()


def ack(queue: SyncPawnQueue, claim: Claim) -> int:
    """Ack a batch, and return how many messages that are.

    ⚑ What the store has not answered counts as not done: else nobody would ask again, and the messages came twice.

    :raises LeaseLostError: others have some of them, or may have.
    :raises StoreError: nobody can tell whether it is acked; the query's restart asks again.
    """
    done = queue.ack(claim)
    if done.unknown:
        raise StoreError(
            f"It could not be found out whether claim {claim.stem} of topic {claim.topic!r} is "
            f"acked, whose {len(done.unknown):,} messages the sink has: start the query again before the claim's time "
            f"is over, which acks them, or finds them acked. {done.fault}",
            topic=claim.topic,
            operation="ack",
            transient=True,
        )
    return len(done.acked)


def warn_of_loss(why: object) -> None:
    """Tell that the sink has, or had, what others may be given."""
    logger.warning(
        "A batch was not acked, and others may have its messages, which the sink has as well, or in part: %s Let the "
        "sink tell by the column id what it has, or give the stream a longer ttl.",
        why,
    )
