"""Topics: created once, listed, changed, deleted; and one that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue, TopicExistsError, TopicNotEmptyError, TopicNotFoundError
from tests.e2e.backends import claim_until, patiently, settled

if TYPE_CHECKING:
    from pawnqueue import Settings

pytestmark = pytest.mark.servers


async def test_a_topic_is_created_once_and_seen_by_all(queue: PawnQueue, settings: Settings, topic: str) -> None:
    """Creating it again changes nothing, also from another process; other settings for it are an error."""
    async with PawnQueue.open(settings) as another:
        before = await another.topic(topic)
        await another.create_topic(topic)
        assert await queue.topic(topic) == before
        assert (await queue.list_topics()).count(topic) == 1
        with pytest.raises(TopicExistsError):
            await another.create_topic(topic, max_deliveries=3)
        assert (await patiently(lambda: another.update_topic(topic, max_deliveries=3))).settings.max_deliveries == 3
    assert (await queue.topic(topic)).settings.max_deliveries == 3


async def test_a_topic_that_is_not_there_is_an_error(queue: PawnQueue, name: str) -> None:
    """Neither publishing nor claiming creates it, and the error says how to."""
    with pytest.raises(TopicNotFoundError, match="create_topic"):
        await queue.publish(name, [{}])
    with pytest.raises(TopicNotFoundError, match="create_topic"):
        await queue.claim(name, "nobody")
    assert name not in await queue.list_topics()


async def test_only_an_empty_topic_is_deleted(queue: PawnQueue, topic: str) -> None:
    """While a message is in it, it stays; then it is gone for everyone."""
    await queue.publish(topic, [{}])
    with pytest.raises(TopicNotEmptyError):
        await queue.delete_topic(topic)
    for claim in await claim_until(queue, topic, 1):
        assert (await settled(queue.ack, claim)).complete

    await queue.delete_topic(topic)
    assert topic not in await queue.list_topics()
