"""Messages that lie in the topic without anybody having published them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.domain import pack
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.record import canonical
from pawnqueue.domain.times import iso
from tests.sim.bucket import EPOCH
from tests.sim.pack_truth import PackStage
from tests.sim.prepared import TOPIC

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterable

    from tests.sim.stage import Stage


def plant_few(stage: Stage, most: int) -> None:
    """Leave one or ``most`` single messages; or in a topic with packs, a pack that somebody may have to split."""
    if isinstance(stage, PackStage):
        stage.create_topic(None, packs=True)
        plant(stage, stage.chance.randint(most, most + 1))
        return
    for _ in range(stage.chance.choice((1, most)) if most > 1 else 1):
        one = _uuid(stage.chance)
        body = Envelope(id=one, topic=TOPIC, payload={}).encode()
        stage.world.bucket.plant(units.key_of(TOPIC, units.name_at(EPOCH - 9, one)), body)


def plant(
    stage: PackStage, count: int, bad: Iterable[int] = (), *, newer: Collection[int] = (), body: bytes | None = None
) -> list[str]:
    """Leave a pack in the bucket, and return the ids of its messages.

    :param bad: the numbers of lines that are not messages.
    :param newer: and of those that only a later version can read.
    :param body: what is in its place.
    """
    chance, now = stage.chance, EPOCH + stage.world.loop.now
    ids = [_uuid(chance) for _ in range(count)]
    wrong = set(bad)
    lines = [
        chance.choice((b"{", b"", b'{"id":7}', b"\xff")) if number in wrong else _line(one, number, now)
        for number, one in enumerate(ids)
    ]
    for number in newer:
        lines[number] = lines[number].replace(b'"v":1}', b'"v":99}')
    name = units.pack_name_at(now, _uuid(chance), count)
    stage.world.bucket.plant(units.key_of(TOPIC, name), pack.pack_body(lines) if body is None else body)
    return [] if body is not None else [one for number, one in enumerate(ids) if number not in wrong]


def _uuid(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


def _line(message_id: str, number: int, now: float) -> bytes:
    return pack.entry_line(
        id=message_id,
        topic=TOPIC,
        producer_id="",
        created_at=iso(now),
        payload_json=canonical({"n": number}),
        headers={},
    )
