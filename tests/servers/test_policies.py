"""The policies of docs/how-to/iam.md, on a server that denies whatever they do not allow."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from pawnqueue import PawnQueue, PawnQueueError, Settings, SyncPawnQueue

if TYPE_CHECKING:
    from tools.kit.servers import S3Server

pytestmark = pytest.mark.servers

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "iam.md"
BUCKET = "my-queue-bucket"
PREFIX = "team/queues/"
BLOCK = re.compile(r"^```json policy=(?P<role>\w+)\n(?P<policy>.*?)^```", re.MULTILINE | re.DOTALL)
POLICIES = {found["role"]: found["policy"] for found in BLOCK.finditer(PAGE.read_text())}

Job: TypeAlias = Callable[[PawnQueue, str], Awaitable[object]]


@dataclass(frozen=True)
class Place:
    """Where a test works: a topic of its own, below a prefix or none."""

    server: S3Server
    bucket: str
    prefix: str = PREFIX
    client: str = "obstore"
    topic: str = field(default_factory=lambda: f"orders-{uuid.uuid4().hex[:8]}")

    def policy(self, role: str) -> dict[str, Any]:
        """Return the page's policy for this bucket, and for the prefix as the page's last section says."""
        text = POLICIES[role].replace(f"{BUCKET}/", f"{self.bucket}/{self.prefix}").replace(BUCKET, self.bucket)
        policy: dict[str, Any] = json.loads(text)
        if self.prefix:
            [look] = [each for each in policy["Statement"] if each["Action"] == "s3:ListBucket"]
            look["Condition"] = {"StringLike": {"s3:prefix": f"{self.prefix}*"}}
        return policy

    def settings(self, server: S3Server) -> Settings:
        """Return settings with these keys; a denied request is not retried for long."""
        s3 = server.address(self.bucket, key_prefix=self.prefix, client=self.client)
        return Settings(s3=s3, retry={"budget_seconds": 2})

    async def work(self, policy: dict[str, Any], job: Job) -> None:
        """Do a job as a new user with this policy."""
        async with PawnQueue.open(self.settings(self.server.make_user(policy))) as queue:
            await job(queue, self.topic)


def without(policy: dict[str, Any], action: str, ending: str) -> dict[str, Any]:
    """Leave out of a policy that the action is allowed on the resource that ends so."""
    found = 0
    for statement in list(policy["Statement"]):
        resources = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        kept = [each for each in resources if not each.endswith(ending)]
        if statement["Action"] == action and kept != resources:
            found += 1
            statement["Resource"] = kept
            if not kept:
                policy["Statement"].remove(statement)
    assert found == 1, f"the page's policy does not allow {action} on {ending} by one statement"
    return policy


async def administer(queue: PawnQueue, topic: str) -> None:
    """Do what an administrator does; leave the topic with four messages in it."""
    await queue.publish(topic, [{"n": number} for number in range(4)], producer="admin", create=True)
    assert topic in await queue.list_topics()
    claim = await queue.claim(topic, "admin", max_messages=1)
    assert (await queue.nack(claim, reason="to be redriven")).complete
    assert len((await queue.redrive(topic)).moved) == 1
    assert not (await queue.sweep(topic)).failures
    await queue.create_topic(f"{topic}-scratch")
    await queue.publish(f"{topic}-scratch", [{"n": 1}])
    assert (await queue.purge(f"{topic}-scratch", dead_letters=True)).messages == 1
    await queue.delete_topic(f"{topic}-scratch", force=True)
    await queue.list_producers()


async def consume(queue: PawnQueue, topic: str) -> None:
    """Do what a consumer does, and insist that all of it was carried out."""
    consumer = f"billing of {topic}"
    await queue.register_consumer(consumer)
    claim = await queue.claim(topic, consumer, max_messages=4, ttl=30, wait=5)
    assert len(claim) == 4
    await queue.renew(claim)
    first, second, *others = claim.ids
    settled = [
        await queue.ack(claim, [first]),
        await queue.nack(claim, [second], reason="no such order"),
        await queue.nack(claim, others, requeue=True),
    ]
    for settlement in settled:
        if settlement.unfinished:
            raise PawnQueueError(" ".join(settlement.unfinished.values()))
        assert settlement.complete
    stats = await queue.stats(topic)
    assert (stats.pending, stats.in_flight, stats.dead) == (2, 0, 1)
    assert len(await queue.peek(topic)) == 2
    found = await queue.find(topic, second)
    assert found is not None
    assert found.state == "dead"


async def publish(queue: PawnQueue, topic: str) -> None:
    """Do what a publisher does."""
    await queue.publish(topic, [{"n": 5}], producer=f"shop of {topic}")


JOBS: dict[str, Job] = {"admin": administer, "consumer": consume, "publisher": publish}


@pytest.fixture(scope="module")
def prepared(seaweedfs: S3Server) -> str:
    """A bucket that was opened once: the probe takes seconds."""
    bucket = seaweedfs.make_bucket()
    place = Place(seaweedfs, bucket)
    with SyncPawnQueue.open(place.settings(seaweedfs)):
        return bucket


@pytest.fixture
async def place(seaweedfs: S3Server, prepared: str) -> Place:
    """A topic with four messages in it."""
    place = Place(seaweedfs, prepared)
    async with PawnQueue.open(place.settings(seaweedfs)) as queue:
        await queue.publish(place.topic, [{"n": number} for number in range(4)], create=True)
    return place


@pytest.mark.parametrize("prefix", ["", PREFIX])
@pytest.mark.parametrize("client", ["obstore", "boto3"])
async def test_each_role_can_do_its_work(seaweedfs: S3Server, client: str, prefix: str) -> None:
    """The page's three policies suffice, from a bucket that is empty, with and without a prefix."""
    place = Place(seaweedfs, seaweedfs.make_bucket(), prefix, client)
    for role, job in JOBS.items():
        await place.work(place.policy(role), job)


LEFT_OUT = [
    ("admin", "s3:ListBucket", "", "ListObjects"),
    ("publisher", "s3:ListBucket", "", "ListObjects _registry/producers/"),
    ("publisher", "s3:GetObject", "/*", "GetObject _registry/bucket.json"),
    ("publisher", "s3:PutObject", "/messages/*", "PutObject {topic}/messages/"),
    ("publisher", "s3:PutObject", "/producers/*", "PutObject _registry/producers/"),
    ("publisher", "s3:PutObject", "/_probe/*", "PutObject _probe/"),
    ("consumer", "s3:ListBucket", "", "ListObjects"),
    ("consumer", "s3:GetObject", "/*", "GetObject _registry/bucket.json"),
    ("consumer", "s3:PutObject", "/leases/*", "PutObject {topic}/leases/"),
    ("consumer", "s3:PutObject", "/claims/*", "PutObject {topic}/claims/"),
    ("consumer", "s3:PutObject", "/dead-letter/*", "PutObject {topic}/dead-letter/"),
    ("consumer", "s3:PutObject", "/consumers/*", "PutObject _registry/consumers/"),
    ("consumer", "s3:PutObject", "/_probe/*", "PutObject _probe/"),
    ("consumer", "s3:DeleteObject", "/messages/*", "DeleteObjects {topic}/messages/"),
    ("consumer", "s3:DeleteObject", "/leases/*", "DeleteObjects {topic}/leases/"),
]


@pytest.mark.parametrize(("role", "action", "ending", "request_"), LEFT_OUT)
async def test_what_is_left_out_is_named(place: Place, role: str, action: str, ending: str, request_: str) -> None:
    """Where an action is missing, the error names the request, the bucket and the actions to grant."""
    policy = without(place.policy(role), action, ending)
    with pytest.raises(PawnQueueError) as raised:
        await place.work(policy, JOBS[role])
    told = str(raised.value)
    assert f"denied {request_.format(topic=place.topic)}" in told
    assert f"in bucket {place.bucket!r}" in told
    assert re.search(rf"grant [^.]*{action}", told)


async def _publish_pack(queue: PawnQueue, topic: str) -> None:
    await queue.publish(f"{topic}-in-packs", [{"n": 1}], pack=True)


async def test_a_publisher_may_publish_packs(seaweedfs: S3Server, place: Place) -> None:
    """A publisher's policy suffices for packs, and without their folder in it the error names that folder."""
    async with PawnQueue.open(place.settings(seaweedfs)) as queue:
        await queue.create_topic(f"{place.topic}-in-packs", packs=True)
    await place.work(place.policy("publisher"), _publish_pack)
    policy = without(place.policy("publisher"), "s3:PutObject", "/packs/*")
    with pytest.raises(PawnQueueError, match=f"denied PutObject {place.topic}-in-packs/packs/"):
        await place.work(policy, _publish_pack)


async def _claim(queue: PawnQueue, topic: str) -> None:
    await queue.claim(topic, "shop")


async def _create(queue: PawnQueue, topic: str) -> None:
    await queue.create_topic(f"{topic}-of-mine")


async def _delete(queue: PawnQueue, topic: str) -> None:
    await queue.delete_topic(topic, force=True)


@pytest.mark.parametrize(
    ("role", "job"),
    [
        ("publisher", _claim),
        ("publisher", _create),
        ("publisher", _delete),
        ("consumer", publish),
        ("consumer", _create),
        ("consumer", _delete),
    ],
)
async def test_no_role_can_do_anothers_work(seaweedfs: S3Server, place: Place, role: str, job: Job) -> None:
    """A publisher cannot claim, a consumer cannot publish, and neither makes or deletes topics: nothing has changed."""
    with pytest.raises(PawnQueueError, match="denied"):
        await place.work(place.policy(role), job)
    async with PawnQueue.open(place.settings(seaweedfs)) as queue:
        assert f"{place.topic}-of-mine" not in await queue.list_topics()
        stats = await queue.stats(place.topic)
        assert (stats.pending, stats.in_flight, stats.dead) == (4, 0, 0)
