"""Priorities and delays on real servers, listed together and lane by lane."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from pawnqueue import NewMessage
from pawnqueue.catalog.unit_listing import UnitListing
from pawnqueue.claims import candidates
from tests.e2e.backends import patiently, settled

if TYPE_CHECKING:
    from pawnqueue import PawnQueue

pytestmark = pytest.mark.servers

DELAY = 2.0


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("pack", [False, True], ids=["single", "packs"])
async def test_priorities_and_delays(
    queue: PawnQueue, topic: str, monkeypatch: pytest.MonkeyPatch, *, pack: bool, is_large: bool
) -> None:
    """Higher priorities come first, and delayed messages come when they are due, and not before."""

    async def never(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(candidates, "OLDEST_FIRST_SHARE", 0.0)
    if is_large:
        monkeypatch.setattr(UnitListing, "_whole", never)
    await patiently(lambda: queue.update_topic(topic, priorities=True, delays=True, packs=True))
    messages = [NewMessage({"n": number}, priority=priority) for number, priority in ((5, -3), (3, 0), (1, 7))]
    messages += [NewMessage({"n": message.payload["n"] + 1}, priority=message.priority) for message in messages]
    began = time.monotonic()
    await queue.publish(topic, [NewMessage({"n": 7 + number}, delay=DELAY) for number in range(2)], pack=pack)
    await queue.publish(topic, messages, pack=pack)
    had: list[int] = []
    while len(had) < 8:
        claim = await queue.claim(topic, "c", max_messages=2, wait=30)
        had += [message.payload["n"] for message in claim]
        assert not {7, 8} & set(had) or time.monotonic() - began >= DELAY
        await settled(queue.ack, claim)
    assert [number for number in had if number < 7] == [1, 2, 3, 4, 5, 6]
