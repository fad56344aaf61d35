"""Dead letters hold what was published, and come back by a redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.backends import claim_until, patiently, settled

if TYPE_CHECKING:
    from pawnqueue import PawnQueue, Settings
    from tests.e2e.backends import Backend

pytestmark = pytest.mark.servers

PAYLOAD = {"text": "Größe ✓ \u2028 \"'", "number": 0.1, "big": 2**53 - 1, "nested": [{"empty": {}}, [], None, False]}


async def test_a_dead_letter_is_the_message_byte_for_byte_and_comes_back(
    request: pytest.FixtureRequest, queue: PawnQueue, settings: Settings, backend: Backend, topic: str
) -> None:
    """A buried message is the published one, with the reason beside it; redriven, the payload comes under its id."""
    client = request.getfixturevalue(backend.server).client()
    where = settings.s3.key_prefix

    def body(key: str) -> bytes:
        return client.get_object(Bucket=settings.s3.bucket_name, Key=where + key)["Body"].read()

    [one] = await queue.publish(topic, [PAYLOAD], headers={"trace": "1"})
    pending = await queue.find(topic, one)
    assert pending is not None
    published = body(pending.key)
    [claim] = await claim_until(queue, topic, 1)
    settlement = await settled(queue.nack, claim, reason="unknown account", error="no account 17")
    assert settlement.buried == [one]

    found = await queue.find(topic, one)
    assert found is not None
    assert (found.state, found.reason, found.error) == ("dead", "unknown account", "no account 17")
    assert found.deliveries == 1
    assert body(found.key) == published
    assert (await patiently(lambda: queue.redrive(topic))).moved == [one]
    [again] = await claim_until(queue, topic, 1)
    [message] = again
    assert (message.id, message.payload, message.headers) == (one, PAYLOAD, {"trace": "1"})
    assert (await settled(queue.ack, again)).complete


async def test_acks_and_nacks_of_one_batch_do_not_mix(queue: PawnQueue, topic: str) -> None:
    """Of six messages the odd ones are buried and the even ones acked; nothing is left to deliver."""
    ids = await queue.publish(topic, [{"n": n} for n in range(6)])
    for claim in await claim_until(queue, topic, 6):
        odd = [message.id for message in claim if message.payload["n"] % 2]
        even = [message.id for message in claim if not message.payload["n"] % 2]
        assert (await settled(queue.nack, claim, odd)).buried == odd
        assert (await settled(queue.ack, claim, even)).acked == even

    stats = await queue.stats(topic)
    assert (stats.pending, stats.in_flight, stats.dead) == (0, 0, 3)
    states = [found.state if (found := await queue.find(topic, one)) else None for one in ids]
    assert states == [None, "dead"] * 3
    assert not await queue.claim(topic, "nobody else")
