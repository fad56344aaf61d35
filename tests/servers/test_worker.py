"""The workers of docs/how-to/worker.md as real processes on a real store: SIGTERM ends them in good order."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from pawnqueue import SyncPawnQueue
from tools.kit.servers import keys_of
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from tools.kit.servers import S3Server

pytestmark = pytest.mark.servers

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs" / "how-to" / "worker.md").read_text()
WORKERS = [each for each in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if "__main__" in each]
WORK = "print(message.payload)  # your work"
#: It says what it begins, and goes on when the test says so.
WAITING = {
    "async": "print(json.dumps(message.payload), flush=True); await asyncio.to_thread(os.read, 0, 1)",
    "sync": "print(json.dumps(message.payload), flush=True); os.read(0, 1)",
}
MESSAGES = 60
SECONDS = 60.0


@pytest.mark.parametrize(("kind", "worker", "concurrency"), [("async", WORKERS[0], 10), ("sync", WORKERS[1], 4)])
@pytest.mark.parametrize("packed", [False, True])
def test_a_worker_is_stopped_in_good_order(  # noqa: PLR0913 - what is run, and where
    seaweedfs: S3Server, tmp_path: Path, kind: str, worker: str, concurrency: int, *, packed: bool
) -> None:
    """What it has begun is done, what it has not begun is given back at once, and it ends with 0."""
    bucket = seaweedfs.make_bucket()
    sections = {"s3": seaweedfs.address(bucket)}

    def claims() -> int:
        return len(keys_of(seaweedfs.client(), bucket, "parcels/claims/"))

    (tmp_path / "config.yaml").write_text(yaml.safe_dump(sections))
    assert worker.count(WORK) == 1
    (tmp_path / "worker.py").write_text("import json\nimport os\n" + worker.replace(WORK, WAITING[kind]))
    with SyncPawnQueue.open(**sections) as queue:
        queue.create_topic("returns")
        queue.create_topic("parcels")
        ids = queue.publish("parcels", [{"parcel": number} for number in range(MESSAGES)], pack=packed)
        process = subprocess.Popen(
            [sys.executable, "worker.py"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(TOP)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                begun = [json.loads(process.stdout.readline())["parcel"] for _ in range(concurrency)]
                wait_until(lambda: claims() > 1, "more wait behind those", seconds=SECONDS)
                process.send_signal(signal.SIGTERM)
                if not packed:  # of a pack the lease changes when all of the claim is decided
                    wait_until(
                        lambda: queue.stats("parcels").in_flight == concurrency, "they are free", seconds=SECONDS
                    )
                process.stdin.write("\n" * concurrency)
                process.stdin.flush()
                report = process.stdout.read()
                assert process.wait(SECONDS) == 0
            finally:
                process.kill()
        stats = queue.stats("parcels")
        assert (stats.pending, stats.in_flight, stats.dead) == (MESSAGES - concurrency, 0, 0)
        left = {message.id for message in queue.peek("parcels", MESSAGES)}
        assert left == set(ids) - {ids[number] for number in begun}
    assert f"acked={concurrency}, requeued=0, buried=0, lost=0" in report
    given_back = re.findall(r"'([0-9a-f-]{36})'", report)
    assert given_back
    assert set(given_back) <= left
