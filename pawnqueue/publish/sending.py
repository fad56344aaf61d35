"""One PUT for a unit, repeated until its outcome is known: stored, failed or unknown (§7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import DeadReason
from pawnqueue.errors import CompatibilityError, ObjectTooLargeError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.runtime.concurrency import all_of
from pawnqueue.stores.port import Done, Refusal, Refused, Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.stores.port import Outcome

logger = logger_of("publish")


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of one unit."""

    landed: bool | None  # None: unknown
    fault: StoreError | None = None  # None although it did not land: it was not to be sent any more


async def send(  # noqa: PLR0913 - a unit, its place, and two questions that only some ask
    context: Context,
    topic: str,
    name: str,
    unit_id: str,
    put: Callable[[], Awaitable[Outcome]],
    *,
    may_send: Callable[[], bool] | None = None,
    is_sent: Callable[[], Awaitable[bool]] | None = None,
) -> Sent:
    """Put a unit into the topic. Before a retry, look whether an earlier attempt has landed.

    :param put: makes one attempt: a PUT, or a COPY of what was staged.
    :param may_send: called before each attempt.
    :param is_sent: says whether an attempt without an answer has landed, in place of :func:`has_landed`.
    """
    key = units.key_of(topic, name)
    backoff = context.store.backoff()
    in_doubt = False
    while True:
        if may_send is not None and not may_send():
            return Sent(None if in_doubt else False)
        try:
            outcome = await put()
        except StoreError as error:
            return Sent(None if in_doubt else False, error)
        if not isinstance(outcome, Unknown):
            # Without a condition: a store that refuses it has not stored it.
            refused = None if isinstance(outcome, Done) else StoreError(_refusal(key, outcome), topic=topic)
            return Sent((None if in_doubt else False) if refused else True, refused)
        in_doubt = True
        try:
            if await (is_sent() if is_sent is not None else has_landed(context, topic, name, unit_id)):
                return Sent(landed=True)
        except StoreError as error:
            return Sent(None, error)
        if not await backoff.pause():
            return Sent(None, backoff.exceeded(outcome.fault))


def _refusal(key: str, outcome: Refused) -> str:
    is_gone = outcome.why is Refusal.MISSING
    return f"What was staged for {key} is gone." if is_gone else f"The store refused {key}."


async def has_landed(context: Context, topic: str, name: str, unit_id: str) -> bool:
    """Say whether an attempt without an answer has landed: the unit, its lease or its dead letter is stored.

    §7: a unit that was claimed and settled meanwhile has left none of them, and is sent again. It is then delivered
    twice, under the same ids: the only duplicate that a publisher can make. Dead letters do not tell of which pack they
    are: a pack leaves itself or its lease.

    ⚑ §7: a lease or a dead letter is a trace of the unit whose full name is in its body, and of no other one. Another
    unit may have the same uuid: anybody can publish one, and so does a write whose id is used again. If the body has no
    name, the unit is sent again, as a duplicate is better than a loss.
    """
    is_pack = layout.is_of_pack(unit_id)
    stored, leased, buried = await all_of(
        context.store.head(units.key_of(topic, name)),
        _leased_name(context, topic, unit_id),
        _no_name() if is_pack else _buried_name(context, topic, unit_id),
    )
    return stored is not None or name in (leased, buried)


async def _no_name() -> str:
    return ""


async def _leased_name(context: Context, topic: str, unit_id: str) -> str:
    """Return the name of the unit whose lease is kept under this id; "" where there is none, or it has no name."""
    key = layout.lease(topic, unit_id)
    found = await context.registers.look(key)
    try:
        return Lease.decode(found.body, key).key if found is not None else ""
    except (UnreadableRecordError, CompatibilityError):
        return ""


async def _buried_name(context: Context, topic: str, uuid: str) -> str:
    """Return the name that the dead letter under this uuid had, from its reason, which is written before the letter."""
    key = letters.reason_key_of(topic, uuid)
    try:
        found = await context.store.get(key, MAX_SMALL_RECORD_BYTES)
        return DeadReason.decode(found.body, key).name if found is not None else ""
    except (ObjectTooLargeError, UnreadableRecordError, CompatibilityError):
        return ""


async def topic_may_exist(topic: str, ask: Callable[[str], Awaitable[bool]]) -> bool:
    """Say whether the topic exists, or may exist as the store does not answer.

    Published messages are delivered if the topic exists, or is created again.
    """
    try:
        return await ask(topic)
    except StoreError as error:
        logger.warning("It is not known whether topic %r still exists: %s", topic, error)
        return True
