"""Arguments that are checked together: how a claim is asked for, kept, settled, or cut into portions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.arguments import (
    check_one_fate,
    checked_count,
    checked_flag,
    checked_reasons,
    checked_seconds,
    checked_session_ttl,
    checked_text,
    checked_ttl,
    is_number,
    shown,
)
from pawnqueue.claims import ClaimReference
from pawnqueue.claims.claim_making import ClaimRequest
from pawnqueue.claims.renewing import session_time
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import Decision
from pawnqueue.domain.object_sizes import MAX_CLAIM_PACKED_MESSAGES
from pawnqueue.errors import InvalidArgumentError
from pawnqueue.maintenance.letter_filter import LetterFilter
from pawnqueue.reads.portions import Portion, portions_of_claim, portions_of_topic
from pawnqueue.reads.selection import EVERYTHING, Selection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pawnqueue.arguments import Reference
    from pawnqueue.claims import Claim
    from pawnqueue.claims.claim import OneMessage
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_terms import ClaimTerms
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.settings import Settings

#: The reason that pawn-queue's nack gives where its caller gives none.
NACK = "nack"


@dataclass(frozen=True, slots=True)
class Holding:
    """How many seconds a claim is held, its session is trusted, and its taker waits for it."""

    ttl: float
    session_ttl: float
    wait: float

    @classmethod
    def checked(  # noqa: PLR0913 - as they were given
        cls, settings: Settings, topic: str, operation: str, *, ttl: object, session_ttl: object, wait: object
    ) -> Holding:
        """Check the times of a claim, or of an attachment."""
        time = checked_ttl(settings, ttl)
        session = checked_session_ttl(settings, session_ttl, time)
        return cls(time, session, checked_seconds(wait, "wait", topic, operation))


def checked_renewal(
    settings: Settings, claim: Claim, ttl: object, session_ttl: object
) -> tuple[float | None, float | None]:
    """Return the ttl and the session's ttl that a renewal gives a claim; None: the time that it had."""
    time = None if ttl is None else checked_ttl(settings, ttl)
    return time, None if session_ttl is None else checked_session_ttl(settings, session_ttl, time or claim.ttl)


@dataclass(frozen=True, slots=True)
class CheckedTerms:
    """The terms of a claim, checked, with the settings' values where none were given."""

    consumer: str
    owner: str
    claim_id: str | None
    max_messages: int
    max_bytes: float
    times: Holding

    @classmethod
    def of(cls, settings: Settings, terms: ClaimTerms) -> CheckedTerms:
        """Check the terms that ``PawnQueue.claim`` was called with."""
        consumer = layout.checked_holder(terms.consumer, "consumer")
        owner = consumer if terms.owner is None else layout.checked_holder(terms.owner, "owner")
        claim_id = None if terms.claim_id is None else layout.checked_claim_id(terms.claim_id)
        max_messages = settings.polling.max_messages_per_poll
        if terms.max_messages is not None:
            max_messages = checked_count(terms.max_messages, "max_messages", "claim")
        max_bytes = math.inf if terms.max_bytes is None else checked_count(terms.max_bytes, "max_bytes", "claim")
        max_messages = min(max_messages, MAX_CLAIM_PACKED_MESSAGES)  # a record of more could not be read
        times = Holding.checked(
            settings, terms.topic, "claim", ttl=terms.ttl, session_ttl=terms.session_ttl, wait=terms.wait
        )
        return cls(consumer, owner, claim_id, max_messages, max_bytes, times)

    def request(self, topic: TopicRecord) -> ClaimRequest:
        """Return what is requested of a topic. Each attempt adds its own session."""
        return ClaimRequest(
            topic=topic,
            claim_id=self.claim_id or "",
            generation=0,
            owner=self.owner,
            consumer=self.consumer,
            session="",
            max_messages=self.max_messages,
            max_bytes=self.max_bytes,
            ttl=self.times.ttl,
            session_ttl=self.times.session_ttl,
            named=self.claim_id is not None,
        )

    def is_settled(self, claim: Claim) -> bool:
        """Return whether a claim without messages will stay without messages."""
        return self.claim_id is not None and claim.was_handed_out


def checked_keeping(settings: Settings, claim: Claim, ttl: object, interval: object) -> tuple[float, float]:
    """Return how many seconds a background renewal gives a claim, and how many seconds pass between two.

    The claim stays trusted from one renewal to the next.
    """
    margin = settings.claims.margin_seconds
    own = claim.ttl if claim.ttl > margin else None  # a claim that found nothing has no ttl
    time = checked_ttl(settings, own if ttl is None else ttl)
    trusted = min(time, session_time(claim, time)) - margin
    if interval is None:
        return time, min(settings.polling.lease_refresh_interval_seconds, trusted / 3)
    if is_number(interval) and 0 < interval < trusted:
        return time, float(interval)
    raise InvalidArgumentError(
        f"interval={interval!r}: pass a number of seconds between 0 and {trusted:g}, for which the claim is "
        "trusted after a renewal; or none, to have it renewed three times in that time.",
        topic=claim.topic,
        operation="keep_alive",
    )


@dataclass(frozen=True, slots=True)
class NotDone:
    """What becomes of messages that a consumer did not do, and why."""

    requeue: bool
    delay: float
    reason: str
    error: str

    @classmethod
    def checked(  # noqa: PLR0913 - as they were given
        cls, topic: str, operation: str, *, requeue: object, delay: object = 0.0, reason: object, error: object = ""
    ) -> NotDone:
        """Check what a consumer says of messages that it could not do.

        :param operation: the method that was called. ``bury`` and ``settle`` need a reason; pawn-queue's ``nack`` has
            one by default, which a message that is given back does not remember.
        """
        again = checked_flag(requeue, "requeue", operation)
        if operation == "nack" and delay and not again:
            raise InvalidArgumentError(
                "delay is for messages that are given back: call requeue, or pass requeue=True.", operation=operation
            )
        why = checked_text(reason, "reason", topic, operation)
        details = checked_text(error, "error", topic, operation)
        later = checked_seconds(delay, "delay", topic, operation)
        if operation == "nack" and again and why == NACK:
            why = ""
        if not again and not why.strip() and operation != "nack":
            raise InvalidArgumentError(
                "bury takes a reason, which is what its dead letter is found by.", topic=topic, operation=operation
            )
        return cls(again, later, why, details)

    def decided(self, now: float) -> Decision:
        """Return the decision, by the store's time."""
        if not self.requeue:
            return Decision(how="dead", until=now, reason=self.reason, error=self.error)
        until = now + self.delay if self.delay else 0.0
        return Decision(how="released", until=until, reason=self.reason, error=self.error)


def checked_settlement(
    claim: HeldClaim, requeue: object, bury: object, delay: object
) -> dict[str | OneMessage, NotDone]:
    """Return what ``settle`` is to do with each message that is named; all others are acked."""
    again, dead = checked_reasons(claim, requeue, "requeue"), checked_reasons(claim, bury, "bury")
    check_one_fate(claim, again, dead)
    return {
        each: NotDone.checked(claim.topic, "settle", requeue=reasons is again, delay=delay, reason=why)
        for reasons in (again, dead)
        for each, why in reasons.items()
    }


def checked_cut(
    of: Reference | str, parts: object, dead: object, max_messages: object, only: Selection | None
) -> tuple[str, Callable[[Context, TopicRecord], Awaitable[list[Portion]]]]:
    """Check what ``portions`` was given: the reference of a claim, or a topic with what to look at in it.

    Return the topic, and the function that makes the portions.
    """
    wanted = None if parts is None else checked_count(parts, "parts", "portions")
    if isinstance(of, str):
        most = None if max_messages is None else checked_count(max_messages, "max_messages", "portions")
        topic, is_dead = layout.checked_topic(of), checked_flag(dead, "dead", "portions")
        chosen = _checked_selection(only, topic, is_dead=is_dead)
        return topic, lambda context, known: portions_of_topic(
            context, topic, wanted, most, dead=is_dead, packs=known.may_have_packs, only=chosen
        )
    reference = ClaimReference.of(of)
    if dead is not False or max_messages is not None or only is not None:
        raise InvalidArgumentError(
            "dead=, max_messages= and only= are for the messages of a topic: a claim is cut as a whole.",
            topic=reference.topic,
            operation="portions",
        )
    return reference.topic, lambda context, _: portions_of_claim(context, reference, wanted)


def _checked_selection(only: Selection | None, topic: str, *, is_dead: bool) -> Selection:
    if only is None:
        return EVERYTHING
    if not isinstance(only, Selection):
        raise InvalidArgumentError(
            f"only= is a Selection, not a {type(only).__name__}: pass Selection(created_after=…).",
            topic=topic,
            operation="portions",
        )
    if only.is_for_letters and not is_dead:
        raise InvalidArgumentError(
            "buried_after, buried_before, reason and letter_ids select dead letters: pass dead=True with them.",
            topic=topic,
            operation="portions",
        )
    return only


def checked_portion(portion: object, operation: str, *, dead: bool = True) -> Portion:
    """Return a portion.

    :param dead: whether it may have dead letters.
    """
    if isinstance(portion, Portion) and portion.is_dead and not dead:
        raise InvalidArgumentError(
            f"This portion has dead letters of topic {portion.topic!r}, and {operation} is for messages: call read().",
            topic=portion.topic,
            operation=operation,
        )
    if isinstance(portion, Portion) and portion.is_cut_by_reading and operation == "fetch":
        raise InvalidArgumentError(
            f"This portion of topic {portion.topic!r} ends after {portion.most:,} selected messages, which only read() "
            "counts: call read().",
            topic=portion.topic,
            operation=operation,
        )
    if isinstance(portion, Portion):
        return portion
    raise InvalidArgumentError(
        f"A {type(portion).__name__} is not a portion: pass one of those that portions() returns.", operation=operation
    )


def checked_letter_filter(topic: str, reason: object, older_than: object, younger_than: object) -> LetterFilter:
    """Return what dead letters have to be like."""
    why = None if reason is None else checked_text(reason, "reason", topic, "redrive")
    older = None if older_than is None else checked_seconds(older_than, "older_than", topic, "redrive")
    younger = None if younger_than is None else checked_seconds(younger_than, "younger_than", topic, "redrive")
    if older is not None and younger is not None and older >= younger:
        raise InvalidArgumentError(
            f"No dead letter is older than {older:g} seconds and younger than {younger:g}: pass an older_than that is "
            "less than younger_than.",
            topic=topic,
            operation="redrive",
        )
    return LetterFilter(why, older, younger)


def checked_rate(per_second: object, topic: str) -> float | None:
    """Return how many letters a second are redriven at most; None: any number."""
    if per_second is None:
        return None
    if is_number(per_second) and 0 < per_second < math.inf:
        return float(per_second)
    raise InvalidArgumentError(
        f"per_second is a number above 0, not {shown(per_second)}: 10 for ten a second, 0.5 for one every two seconds.",
        topic=topic,
        operation="redrive",
    )
