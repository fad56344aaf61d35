"""The claims of a stream, in the process that plans it: made by fixed ids, renewed, acked, and left for a restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pawnqueue import ClaimBusyError, ClaimReference, LeaseLostError, PawnQueueError, StoreError
from pawnqueue.domain.claim_terms import SESSION_TTL_SECONDS
from pyspark_pawnqueue.done_pipe import DonePipe
from pyspark_pawnqueue.spark_errors import invalid_argument, shorten

if TYPE_CHECKING:
    from pawnqueue import Claim, Portion, SyncPawnQueue

Offset = dict[str, Any]

logger = logging.getLogger("pawnqueue.spark")

#: How long a restart waits for the session of its predecessor to end.
RESTART_WAIT_SECONDS: Final = 120.0
#: How long each question for new messages waits while the topic is empty: Spark asks a hundred times a second.
IDLE_PAUSE_SECONDS: Final = 0.5

#: What waits in the topic is counted at most this often for the query's progress, and takes at most this part of time.
MIN_RECOUNT_SECONDS: Final = 10.0
MAX_COUNTING_SHARE: Final = 0.05
#: Counting a longer backlog ends here, after a hundred LISTs of single messages.
MAX_COUNTED_MESSAGES: Final = 100_000

#: The keys of an offset.
STREAM, BATCH, CLAIM = "stream", "batch", "claim"
#: The keys of what waits in the topic, in the query's progress.
BACKLOG, OLDEST_AGE = "backlog", "oldestAgeSeconds"


def first_offset(stream: str) -> Offset:
    """Return the offset before the first batch of a stream."""
    return {STREAM: stream, BATCH: 0, CLAIM: None}


def checked_offset(given: object) -> Offset:
    """Return an offset of Spark's checkpoint, if this source made it.

    :raises InvalidArgumentError: another source made it.
    """
    if isinstance(given, dict) and {STREAM, BATCH, CLAIM} <= given.keys():
        stream, batch, claim = given[STREAM], given[BATCH], given[CLAIM]
        if isinstance(stream, str) and type(batch) is int and batch >= 0 and isinstance(claim, dict | None):
            return given
    raise invalid_argument(
        f"The checkpoint of this query belongs to another source: the format pawnqueue did not make its offset "
        f"{shorten(given)}. Give the query a checkpointLocation of its own."
    )


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large the batches of a stream may be, and what each waits for."""

    max_messages: int = 10_000
    max_bytes: int | None = None
    min_messages: int = 1
    max_delay_seconds: float = 900.0  # as long as Kafka's source waits


DEFAULT_LIMITS: Final = BatchLimits()


class StreamClaims:
    """The claims of a stream, in the process that makes them."""

    def __init__(
        self, queue: SyncPawnQueue, topic: str, consumer: str, *, ttl: float, limits: BatchLimits = DEFAULT_LIMITS
    ) -> None:
        self._queue = queue
        self._topic = topic
        self._consumer = consumer
        self._ttl, self._session_ttl = ttl, min(SESSION_TTL_SECONDS, ttl)
        self._held: dict[str, Claim] = {}
        self._renewals: dict[str, ExitStack] = {}
        self._unread: set[str] = set()  # the ids of claims that were found again without their messages
        self._last_finished = 0  # the number of a batch: Spark does one batch after the other
        self._finishing = threading.Lock()  # Spark's next trigger and the done pipe may finish a batch at once
        self._done_pipe: DonePipe | None = None
        self._may_open_pipe = True
        self._may_be_restarted = True
        self._remaining: int | None = None  # how many messages of the backlog are left, if only those are wanted
        self._limits = limits
        self._next_look = 0.0
        self._waiting: dict[str, Any] | None = None
        self._next_count = 0.0
        self._closed = threading.Event()

    def limit_to_backlog(self) -> None:
        """Take as many messages as the topic has now, and no more."""
        self._remaining = self._queue.backlog(self._topic).pending

    def waiting(self) -> dict[str, Any] | None:
        """Return how many messages can be claimed, and the age of the oldest; None if that is not known.

        ⚑ Figures for an alert must not end the query: where the store does not answer, there are none.
        """
        begun = time.monotonic()
        if begun >= self._next_count:
            try:
                found = self._queue.backlog(self._topic, MAX_COUNTED_MESSAGES)
            except PawnQueueError as error:
                logger.warning("The backlog of topic %r is not known at the moment: %s", self._topic, error)
                self._waiting = None
            else:
                age = found.oldest_age_seconds
                self._waiting = {BACKLOG: found.pending, OLDEST_AGE: None if age is None else round(age, 1)}
            now = time.monotonic()
            pause = max(MIN_RECOUNT_SECONDS, self._queue.settings.polling.interval_seconds)
            self._next_count = now + max(pause, (now - begun) / MAX_COUNTING_SHARE)
        return self._waiting

    def claim_next(self, start: Mapping[str, Any], most: int, *, may_wait: bool = True) -> dict[str, Any]:
        """Claim the batch after this one, or find it again. Return the start if there are no messages.

        :param may_wait: leave messages where they are while they are too few.
        """
        number = int(start[BATCH])
        while True:
            number += 1
            claim = self._claim(_claim_id(start[STREAM], number), most, may_wait=may_wait)
            if claim:
                # ⚑ §4, Sessions: the reference names no session. A process that reads it from the checkpoint was
                # handed nothing: this process may be alive, so the other one waits until it left the claim or expired.
                reference = ClaimReference(claim.topic, claim.claim_id, claim.generation, session="")
                return {STREAM: start[STREAM], BATCH: number, CLAIM: reference.to_dict()}
            if claim is None or not (claim.recorded and claim.was_handed_out):
                return dict(start)
            # The stream claimed it before a restart, and others have claimed its messages since. Try the next number.
            logger.warning(
                "Claim %s of topic %r has ended, which this stream made before it was restarted. Other consumers have "
                "its messages. A longer ttl keeps them for a query that is down for longer.",
                claim.stem,
                claim.topic,
            )

    def plan(self, end: Mapping[str, Any], parts: int | None) -> list[Portion]:
        """Return the portions of a batch. A batch whose claim has ended has none: it is acked, or others have it.

        The batch of a topic that was empty when the stream began has none either: Spark plans it all the same.

        ⚑ Spark notes a batch without rows as done, and then it is acked. So only a claim that nobody can ack any more
        has no rows. A claim that has expired, and that nobody has taken, is taken up again, or the query fails.

        :raises LeaseLostError: the claim expired twice before it was planned.
        """
        if end[CLAIM] is None:
            return []
        try:
            return self._plan(end, parts)
        except LeaseLostError:
            return self._plan(end, parts)

    def _plan(self, end: Mapping[str, Any], parts: int | None) -> list[Portion]:
        claim = self._attach(end)
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
        """Take those messages out of a batch that were overwritten between its claim and its replay.

        ⚑ §4: only those. The sink may have the batch already, and leave out its replay. A message that is as it was
        claimed stays in the batch: if it were given back, it would come a second time in a later batch.
        """
        ids = self._queue.settle_overwritten(claim)
        if ids:
            logger.warning(
                "%d of the messages of claim %s of topic %r were overwritten or removed after the claim (for example "
                "%s). The batch is planned again without them. Those that are no longer messages are dead letters now.",
                len(ids),
                claim.stem,
                claim.topic,
                ids[0],
            )

    def finish(self, offset: Mapping[str, Any]) -> None:
        """Ack a batch that the sink has. A batch that was acked before stays as it is."""
        with self._finishing:
            if offset[CLAIM] is None or offset[BATCH] <= self._last_finished:
                return
            claim = self._attach(offset)
            if claim is not None:
                self._ack(claim)
            self._last_finished = offset[BATCH]

    def _finish_early(self, stream: str, number: int) -> None:
        """Ack a batch of which the driver says that the sink has it, if this process holds it."""
        with self._finishing:
            claim = self._held.get(_claim_id(stream, number))
            if claim is None or number <= self._last_finished:
                return
            try:
                self._ack(claim)
            except PawnQueueError as error:
                logger.warning("A batch is not acked yet. The next trigger tries again: %s", error)
            else:
                self._last_finished = number

    def _ack(self, claim: Claim) -> None:
        try:
            ack(self._queue, claim)
        except LeaseLostError as error:
            warn_of_lost_batch(error)
        self._release(claim)

    def close(self) -> None:
        """Leave the claims that are not acked to a restart, which need not wait for them."""
        self._closed.set()
        if self._done_pipe is not None:
            self._done_pipe.close()
        for renewal in list(self._renewals.values()):
            with suppress(PawnQueueError):  # its renewals have ended already
                renewal.close()
        self._queue.close(keep_claims=True)

    def _claim(self, claim_id: str, most: int, *, may_wait: bool) -> Claim | None:
        """Claim under an id. Return None if it is too early to look again, or the backlog is used up or too small."""
        if claim_id in self._held:
            return self._held[claim_id]
        is_old = self._may_be_restarted and claim_id in self._queue.known_claims(self._topic, [claim_id])
        self._may_be_restarted = is_old  # asked once
        if self._remaining is not None and not is_old:
            most = min(most, self._remaining)
            if most == 0:
                return None
        elif self._closed.wait(max(0.0, min(IDLE_PAUSE_SECONDS, self._next_look - time.monotonic()))) or (
            time.monotonic() < self._next_look
        ):
            return None
        elif may_wait and not is_old and not self._has_enough():
            self._look_later()
            return None
        claim = self._claim_after_predecessor(claim_id, most)
        self._may_be_restarted = False
        if claim:
            self._keep(claim)
            if self._remaining is not None and not is_old:
                self._remaining -= len(claim)
        elif not claim.recorded:
            self._remaining = None if self._remaining is None else 0
            self._look_later()
        return claim

    def _look_later(self) -> None:
        self._next_look = time.monotonic() + self._queue.settings.polling.interval_seconds

    def _has_enough(self) -> bool:
        """Return whether as many messages wait as a batch is to have, or one of them for long enough.

        ⚑ Those do not count that no claim of this process gets now, or each look would find enough because of them.
        They count when their pause is over: then one look tries them again.
        """
        if self._limits.min_messages == 1:
            return True  # the claim itself looks
        found = self._queue.backlog(self._topic, self._limits.min_messages, set_aside=False)
        age = found.oldest_age_seconds
        return found.pending >= self._limits.min_messages or (age is not None and age >= self._limits.max_delay_seconds)

    def _claim_after_predecessor(self, claim_id: str, most: int) -> Claim:
        """Claim under an id, and wait as long as a former process of this query may be alive."""
        give_up = time.monotonic() + RESTART_WAIT_SECONDS
        while True:
            try:
                return self._queue.claim(
                    self._topic,
                    self._consumer,
                    max_messages=most,
                    max_bytes=self._limits.max_bytes,
                    claim_id=claim_id,
                    owner=self._consumer,
                    ttl=self._ttl,
                    session_ttl=self._session_ttl,
                )
            except ClaimBusyError as busy:
                left = give_up - time.monotonic()
                if left <= 0 or self._closed.wait(min(max(busy.retry_after, 0.1), left)):
                    raise

    def _attach(self, offset: Mapping[str, Any]) -> Claim | None:
        """Return the claim of a batch, also after a restart; None if it has ended."""
        reference = ClaimReference.of(offset[CLAIM])
        held = self._held.get(reference.claim_id)
        if held is not None:
            return held
        claim = attach_ended(self._queue, reference, ttl=self._ttl, session_ttl=self._session_ttl)
        if claim is not None:
            self._unread.add(claim.claim_id)
            self._keep(claim)
        return claim

    def _keep(self, claim: Claim) -> None:
        if self._may_open_pipe:
            self._may_open_pipe = False
            stream = claim.claim_id.rpartition("-")[0]
            self._done_pipe = DonePipe.open(stream, lambda number: self._finish_early(stream, number))
        self._held[claim.claim_id] = claim
        renewal = self._renewals[claim.claim_id] = ExitStack()
        renewal.enter_context(self._queue.keep_alive(claim, on_lost=warn_of_lost_batch))

    def _release(self, claim: Claim) -> None:
        del self._held[claim.claim_id]
        with suppress(PawnQueueError):  # it has ended or is lost, which was logged
            self._renewals.pop(claim.claim_id).close()


def _claim_id(stream: str, number: int) -> str:
    return f"{stream}-{number}"


def attach_ended(queue: SyncPawnQueue, reference: ClaimReference, **ttls: float) -> Claim | None:
    """Take up the claim of a batch whose process has ended. If the claim has ended too, warn, and return None."""
    try:
        claim = queue.attach(reference, payloads=False, wait=RESTART_WAIT_SECONDS, **ttls)
    except LeaseLostError as error:
        warn_of_lost_batch(error)
        return None
    if claim:
        return claim
    if claim.ended_unsettled:
        warn_of_lost_batch(f"Claim {claim.stem} of topic {claim.topic!r} has ended before it was acked.")
    return None


def ack(queue: SyncPawnQueue, claim: Claim) -> int:
    """Ack a batch, and return how many messages it has.

    ⚑ An ack that the store has not answered counts as not done. Otherwise nobody would ack again, and the messages
    would come twice.

    :raises LeaseLostError: others have some of the messages, or may have them.
    :raises StoreError: it is not known whether the batch is acked. The query's restart acks again.
    """
    done = queue.ack(claim)
    if done.unknown:
        raise StoreError(
            f"The store did not say whether claim {claim.stem} of topic {claim.topic!r} is acked. The sink has its "
            f"{len(done.unknown):,} messages: start the query again before the claim expires, which acks them, or "
            f"finds them acked. {done.fault}",
            topic=claim.topic,
            operation="ack",
            transient=True,
        )
    return len(done.acked)


def warn_of_lost_batch(why: object) -> None:
    """Log that others may receive messages that the sink has, or has in part."""
    logger.warning(
        "A batch was not acked, so other consumers may receive its messages. The sink has them too, or some of them: "
        "%s Let the sink recognize messages by the column id, or give the stream a longer ttl.",
        why,
    )
