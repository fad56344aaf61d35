"""On which terms a claim is asked for, kept, and given back: arguments that are checked together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.arguments import (
    checked_count,
    checked_seconds,
    checked_session_ttl,
    checked_text,
    checked_ttl,
    is_number,
)
from pawnqueue.claims.claiming import ClaimRequest
from pawnqueue.claims.renewing import session_time
from pawnqueue.domain import layout
from pawnqueue.domain.object_sizes import MAX_CLAIM_MESSAGES
from pawnqueue.domain.records import Decision
from pawnqueue.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pawnqueue.claims import Claim
    from pawnqueue.domain.claim_terms import ClaimTerms
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.settings import Settings


@dataclass(frozen=True, slots=True)
class Holding:
    """For how long a claim is held, and its session trusted; and how long to wait for it."""

    ttl: float
    session_ttl: float
    wait: float

    @classmethod
    def checked(  # noqa: PLR0913 - as they were given
        cls, settings: Settings, topic: str, operation: str, *, ttl: object, session_ttl: object, wait: object
    ) -> Holding:
        """Check the times that a claim, or an attachment, is asked for with."""
        time = checked_ttl(settings, ttl)
        session = checked_session_ttl(settings, session_ttl, time)
        return cls(time, session, checked_seconds(wait, "wait", topic, operation))


@dataclass(frozen=True, slots=True)
class Renewal:
    """Which times a renewal gives a claim; None: those that it had."""

    ttl: float | None
    session_ttl: float | None

    @classmethod
    def checked(cls, settings: Settings, claim: Claim, *, ttl: object, session_ttl: object) -> Renewal:
        """Check the times that a renewal is asked for."""
        time = None if ttl is None else checked_ttl(settings, ttl)
        session = None if session_ttl is None else checked_session_ttl(settings, session_ttl, time or claim.ttl)
        return cls(time, session)


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
        max_messages = min(max_messages, MAX_CLAIM_MESSAGES)  # a record of more could not be read
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


@dataclass(frozen=True, slots=True)
class Keeping:
    """What each renewal in the background gives a claim, and how often there is one."""

    ttl: float
    interval: float

    @classmethod
    def checked(cls, settings: Settings, claim: Claim, *, ttl: object, interval: object) -> Keeping:
        """Check that a claim that is renewed so is trusted from one renewal to the next."""
        margin = settings.claims.margin_seconds
        own = claim.ttl if claim.ttl > margin else None  # one that found nothing has none, and needs none
        time = checked_ttl(settings, own if ttl is None else ttl)
        trusted = min(time, session_time(claim, time)) - margin
        if interval is None:
            return cls(time, min(settings.polling.lease_refresh_interval_seconds, trusted / 3))
        if is_number(interval) and 0 < interval < trusted:
            return cls(time, float(interval))
        raise InvalidArgumentError(
            f"interval={interval!r}: pass a number of seconds between 0 and {trusted:g}, for which the claim is "
            "trusted after a renewal; or none, to have it renewed three times in that time.",
            topic=claim.topic,
            operation="keep_alive",
        )


@dataclass(frozen=True, slots=True)
class NotDone:
    """What is to become of messages that were not done, and why."""

    requeue: bool
    delay: float
    reason: str
    error: str

    @classmethod
    def checked(  # noqa: PLR0913 - as they were given
        cls, topic: str, operation: str, *, requeue: bool, delay: object = 0.0, reason: object, error: object = ""
    ) -> NotDone:
        """Check what a consumer says of messages that it could not do.

        :param operation: the method that was called. All that bury have to say why, but for pawn-queue's ``nack``.
        """
        why = checked_text(reason, "reason", topic, operation)
        details = checked_text(error, "error", topic, operation)
        later = checked_seconds(delay, "delay", topic, operation)
        if not requeue and not why.strip() and operation != "nack":
            raise InvalidArgumentError(
                "bury takes a reason, which is what its dead letter is found by.", topic=topic, operation=operation
            )
        return cls(requeue, later, why, details)

    def decided(self, now: float) -> Decision:
        """Return the decision, by the store's time."""
        if not self.requeue:
            return Decision(how="dead", until=now, reason=self.reason, error=self.error)
        until = now + self.delay if self.delay else 0.0
        return Decision(how="released", until=until, reason=self.reason, error=self.error)
