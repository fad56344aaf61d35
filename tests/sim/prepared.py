"""What a schedule begins with, so that it need not be made in each of them: settings, and a bucket that was opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue import Settings
from pawnqueue.domain import layout
from pawnqueue.domain.records import BucketRecord, TopicRecord, TopicSettings
from pawnqueue.domain.times import iso
from pawnqueue.registers.csprng_verify import shortest_verification
from pawnqueue.stores.server_time import MAX_DRIFT
from tests.sim.bucket import EPOCH

if TYPE_CHECKING:
    from tests.sim.bucket import SimBucket

#: The topic of all schedules.
TOPIC = "orders"

SETTINGS = Settings(s3={"bucket_name": "simulated"}, registry={"register_consumers": False})

#: The assumption of ``csprng_verify``: no PUT of a register lands later than the shortest verification after the look
#: on which it rests, by any clock. Clocks differ a little in speed.
WITHIN = shortest_verification(SETTINGS.concurrency.csprng_verify) * (1 - 2 * MAX_DRIFT)


def establish(
    bucket: SimBucket, *topics: str, packs: bool | None = None, dedup_window_seconds: float | None = None
) -> None:
    """Leave the bucket as its first process does: with what all agree on, and with these topics.

    :param packs: whether they allow packs.
    :param dedup_window_seconds: how long a message keeps others with its key from being published.
    """
    strategy = "conditional_write" if bucket.conditional else "csprng_verify"
    record = BucketRecord(strategy=strategy, conditional_deletes=bucket.conditional_deletes, created_at=iso(EPOCH))
    bucket.plant(layout.BUCKET_RECORD, record.encode())
    for topic in topics:
        settings = TopicSettings(packs=packs, dedup_window_seconds=dedup_window_seconds)
        record_of_topic = TopicRecord(topic=topic, created_at=iso(EPOCH), settings=settings)
        bucket.plant(layout.topic_marker(topic), record_of_topic.encode())
