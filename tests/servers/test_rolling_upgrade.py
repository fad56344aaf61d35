"""A rolling upgrade: processes of the version before packs go on, on a topic that gets packs from newer ones."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
import tarfile
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.backends import CONDITIONAL, CSPRNG, Backend, patiently
from tools.crew.crew import crew
from tools.crew.plan import TOPIC, Plan
from tools.crew.worker import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tools.crew.crew import Crew

pytestmark = [pytest.mark.servers, pytest.mark.full]

#: The last commit whose queue knows nothing of packs.
BEFORE_PACKS = "5ea02d6e70ebf8dccbbaa24e9497c8dd5dd596d1"
PLAN = Plan(orders=800, poison_every=1_000_000, publishers=4, batch=25, ttl=4.0, margin=1.0, seconds_per_batch=0.5)
#: What an operator may look at, and change, with the commands of the old version.
LOOK = """
import json, sys
import pawnqueue
from pawnqueue import Settings, StoreError, SyncPawnQueue

settings, topic = json.loads(sys.argv[1]), sys.argv[2]
with SyncPawnQueue.open(Settings.from_dict(settings, environ={})) as queue:
    assert topic in queue.list_topics()
    queue.create_topic(topic)
    for left in reversed(range(20)):
        try:
            queue.update_topic(topic, max_deliveries=20)
            break
        except StoreError as error:
            if not (error.transient and left):
                raise
    letters, shown = queue.dead_letters(topic), queue.peek(topic, 5)
    stats, topic = queue.stats(topic), queue.topic(topic)
    found = [queue.find(topic.name, message_id) for message_id in sys.argv[3:]]
print(json.dumps({"code": pawnqueue.__file__, "letters": len(letters), "peeked": len(shown), "pending": stats.pending,
                  "found": sum(one is not None for one in found)}))
"""


@pytest.fixture(scope="session")
def old_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version before packs, out of the history of this clone."""
    command = ["git", "-C", str(ROOT), "archive", BEFORE_PACKS, "pawnqueue", "tools"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        pytest.fail(
            f"This test runs the version before packs, commit {BEFORE_PACKS}, which this clone does not have: "
            f"`git fetch --unshallow` gets it. git says: {archive.stderr.decode()}"
        )
    tree = tmp_path_factory.mktemp("before-packs")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tree, filter="data")
    assert not (tree / "pawnqueue/domain/pack.py").exists()
    return tree


class Feed:
    """Publishes a batch of single messages and a pack each second, while a consumer is awaited that shall have some.

    Else others might be faster than that one, each time.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.in_packs: set[str] = set()
        self._next_at = math.inf

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Publish for the length of a block."""
        self._next_at = 0.0
        yield
        self._next_at = math.inf

    def __call__(self, it: Crew) -> None:
        """Publish if it is time to."""
        if it.clock.elapsed() < self._next_at:
            return
        self._next_at = it.clock.elapsed() + 1.0
        orders = [PLAN.order(0)] * PLAN.batch
        packed = it.queue.publish(TOPIC, orders, pack=True)
        self.in_packs.update(packed)
        self.ids += [*packed, *it.queue.publish(TOPIC, orders, pack=False)]


@pytest.mark.timeout(300)  # most of it is waiting for claims to lapse; a busy machine adds to that
@pytest.mark.parametrize("backend", [CONDITIONAL, CSPRNG], ids=str)
def test_old_processes_neither_lose_nor_bury_nor_stop(
    request: pytest.FixtureRequest, backend: Backend, old_tree: Path
) -> None:
    """Each message is acked once, though one consumer of either version is killed, and an old janitor sweeps."""
    server = request.getfixturevalue(backend.server)
    feed = Feed()
    with crew(server, PLAN, feed, sections={"concurrency": backend.sections["concurrency"]}) as it:
        assert it.queue.strategy == backend.strategy
        _allow_packs(it, allowed=False)
        it.start_janitors([1], old_tree)
        old_ones = it.start_consumers([1, 2], old_tree)
        it.start_publishers([1], old_tree)
        it.wait(lambda: it.settled >= PLAN.batch, "the old version is at work")

        _allow_packs(it, allowed=True)
        [packer] = it.start_publishers([2])
        it.wait(lambda: packer.ended, "packs are published")
        assert it.remains().packs
        it.start_publishers([3], old_tree)
        new_ones = it.start_consumers([3, 4])
        with feed.flowing():
            of_new = it.kill(new_ones[0], feed.in_packs)
        swept_at = it.queue.topic(TOPIC).swept_at
        seen = _look(it, old_tree, of_new.ids)
        assert seen["code"].startswith(str(old_tree))
        assert seen["found"] == 0, "the old version sees no packs"

        it.end(old_ones[:1])
        it.start_publishers([4])
        new_ones += it.start_consumers([5])
        with feed.flowing():
            of_old = it.kill(old_ones[1])
        it.wait(lambda: it.queue.topic(TOPIC).swept_at != swept_at, "the old janitor sweeps meanwhile")
        it.wait_for_takeover(of_new)
        it.wait_for_takeover(of_old)
        assert of_old.ids <= set().union(*(one.received for one in new_ones))

        it.start_janitors([2])
        it.wait_for_publishers()
        it.wait_until_empty()
        it.end(it.consumers)
        it.wait(lambda: not it.remains().left, "the janitors have left nothing", seconds=PLAN.ttl + 2 * PLAN.margin)
        assert _look(it, old_tree)["letters"] == 0
        it.end(it.janitors)
        _judge(it, feed)


def _allow_packs(it: Crew, *, allowed: bool) -> None:
    it.queue.run(lambda queue: patiently(lambda: queue.update_topic(TOPIC, packs=allowed)))


def _judge(it: Crew, feed: Feed) -> None:
    """Check that every message was acked once, that none was buried, and that no process met a defect."""
    history = it.history()
    assert not [one.name for one in it.everyone if "Traceback" in one.log]
    assert history.violations() == []
    assert it.remains().dead == set()
    assert Counter(message_id for _, message_id, _ in history.acked) == Counter([*history.published, *feed.ids])
    assert it.queue.topic(TOPIC).settings.packs, "the old version keeps the setting that it does not know"


def _look(it: Crew, old_tree: Path, ids: Iterable[str] = ()) -> dict[str, Any]:
    """Return what the commands of the old version show."""
    command = [sys.executable, "-c", LOOK, json.dumps(it.settings), TOPIC, *ids]
    ended = subprocess.run(command, cwd=old_tree, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)
