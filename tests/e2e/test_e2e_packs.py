"""Packs on real servers: published, split, settled one by one, and deleted in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.backends import claim_until, patiently, settled

if TYPE_CHECKING:
    from pawnqueue import PawnQueue, Settings
    from tests.e2e.backends import Backend

pytestmark = pytest.mark.servers

#: With every kind of character that a write's id may have: it becomes part of the key that a COPY names.
WRITE = "run__2026-01-01T00:00:00.5+02:00"


@pytest.mark.parametrize("most", [4, 100], ids=["split", "whole"])
async def test_a_pack_is_consumed_and_deleted(
    request: pytest.FixtureRequest, queue: PawnQueue, settings: Settings, topic: str, most: int
) -> None:
    """Each message of a pack is delivered and settled by itself. In the end neither pack nor lease is left."""
    backend: Backend = request.getfixturevalue("backend")
    client = request.getfixturevalue(backend.server).client()
    await patiently(lambda: queue.update_topic(topic, packs=True))
    ids = await queue.publish(topic, [{"n": number} for number in range(12)], pack=True)
    had: list[int] = []
    while len(had) < 12:
        for claim in await claim_until(queue, topic, min(most, 12 - len(had))):
            had += [message.payload["n"] for message in claim]
            bad = [message for message in claim if message.payload["n"] == 5]
            if bad:
                await settled(queue.nack, claim, bad, reason="bad")
            await settled(queue.ack, claim)
    assert sorted(had) == list(range(12))
    [letter] = await queue.dead_letters(topic)
    assert letter.message is not None
    assert letter.message.id == ids[5]
    listed = client.list_objects_v2(Bucket=settings.s3.bucket_name, Prefix=f"{settings.s3.key_prefix}{topic}/")
    keys = [each["Key"].removeprefix(settings.s3.key_prefix) for each in listed["Contents"]]
    assert not [key for key in keys if "/packs/" in key or "/leases/" in key]


async def test_a_staged_write_is_copied(
    request: pytest.FixtureRequest, queue: PawnQueue, settings: Settings, topic: str
) -> None:
    """The commit copies what was staged as packs. Each message is delivered once, and nothing staged is left."""
    backend: Backend = request.getfixturevalue("backend")
    client = request.getfixturevalue(backend.server).client()
    await patiently(lambda: queue.update_topic(topic, packs=True))
    parts = [
        await queue.stage(topic, WRITE, part, [{"n": 6 * part + number} for number in range(6)]) for part in (0, 1)
    ]
    written = await patiently(lambda: queue.commit_write(topic, WRITE, parts, wait=60))
    assert written.count == 12
    assert (await patiently(lambda: queue.commit_write(topic, WRITE, parts, wait=60))).already
    listed = client.list_objects_v2(Bucket=settings.s3.bucket_name, Prefix=f"{settings.s3.key_prefix}{topic}/")
    folders = [
        each["Key"].removeprefix(f"{settings.s3.key_prefix}{topic}/").split("/")[0] for each in listed["Contents"]
    ]
    assert folders.count("packs") == 2
    assert not {"messages", "staged"} & set(folders)
    had: list[int] = []
    while len(had) < 12:
        for claim in await claim_until(queue, topic, min(5, 12 - len(had))):
            assert {message.write_id for message in claim} == {WRITE}
            had += [message.payload["n"] for message in claim]
            await settled(queue.ack, claim)
    assert sorted(had) == list(range(12))
