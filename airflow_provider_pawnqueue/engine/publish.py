"""Publish: one PUT a message, concurrently; the outcome of each is known, or said to be unknown (§7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.clock import iso
from airflow_provider_pawnqueue.engine.errors import PublishError, StoreError
from airflow_provider_pawnqueue.engine.gather import each, together
from airflow_provider_pawnqueue.engine.records import Envelope
from airflow_provider_pawnqueue.engine.store.port import Done, Refused

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.context import Context

#: Two messages of one publisher are at least one of these apart in their keys: LIST is publish order. They are counted
#: in whole numbers, as seconds since 1970 in a float have only four steps to the microsecond.
TICKS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Result:
    landed: bool | None  # None: nobody can tell
    fault: StoreError | None = None


class Publisher:
    """Writes messages into topics of one bucket."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = 0  # in ticks

    async def publish(
        self, topic: str, payloads: Sequence[dict[str, Any]], *, producer_id: str, headers: dict[str, str]
    ) -> list[str]:
        """Publish checked payloads, and return their ids in order."""
        now = await self._context.time.now()
        # Id and key are fixed before the first attempt: whatever is sent again aims at the same object.
        envelopes = []
        for payload in payloads:
            self._last = max(round(now * TICKS), self._last + 1)
            stamp = self._last / TICKS
            envelope = Envelope(
                id=self._context.clock.uuid(),
                topic=topic,
                producer_id=producer_id,
                created_at=iso(stamp),
                payload=payload,
                headers=headers,
            )
            envelopes.append((layout.message_name(stamp, envelope.id), envelope))
        results = await each(lambda each_: self._send(topic, *each_), envelopes, at_once=self._context.at_once)
        ids = [envelope.id for _, envelope in envelopes]
        failed = {one: r.fault for one, r in zip(ids, results, strict=True) if r.fault and r.landed is False}
        unknown = {one: r.fault for one, r in zip(ids, results, strict=True) if r.fault and r.landed is None}
        if failed or unknown:
            raise _error(topic, ids, failed, unknown)
        return ids

    async def _send(self, topic: str, name: str, envelope: Envelope) -> _Result:
        key = layout.message(topic, name)
        body = envelope.encode()
        backoff = self._context.store.backoff()
        in_doubt = False
        while True:
            try:
                outcome = await self._context.store.put(key, body)
            except StoreError as error:
                return _Result(None if in_doubt else False, error)
            if isinstance(outcome, Done):
                return _Result(landed=True)
            if isinstance(outcome, Refused):  # a plain PUT has no condition; a store that says so did not take it
                return _Result(None if in_doubt else False, StoreError(f"The store refused {key}.", topic=topic))
            in_doubt = True
            try:
                if await self._landed(topic, name, envelope.id):
                    return _Result(landed=True)
            except StoreError as error:
                return _Result(None, error)
            if not await backoff.pause():
                return _Result(None, backoff.exceeded(outcome.fault))

    async def _landed(self, topic: str, name: str, uuid: str) -> bool:
        """Say whether an attempt without an answer arrived: the message, its lease or its dead letter is there.

        §7: a message that was claimed and settled meanwhile has left none of them, and is sent again. It is then
        delivered twice, under one id: the one duplicate that a publisher can make.
        """
        keys = (layout.message(topic, name), layout.lease(topic, uuid), layout.dead_letter(topic, uuid))
        return any(await together(*map(self._context.store.head, keys)))


def _error(topic: str, ids: list[str], failed: dict[str, StoreError], unknown: dict[str, StoreError]) -> PublishError:
    first = next(iter([*failed.values(), *unknown.values()]))
    parts = []
    if failed:
        parts.append(f"{len(failed)} were not published")
    if unknown:
        parts.append(f"of {len(unknown)} it could not be found out")
    return PublishError(
        f"Of {len(ids)} messages for topic {topic!r}, {' and '.join(parts)}: {first} "
        "The error's .failed, .unknown and .published name them; publish the failed ones again.",
        topic=topic,
        operation="publish",
        cause=first,
        ids=ids,
        failed=failed,
        unknown=unknown,
    )
