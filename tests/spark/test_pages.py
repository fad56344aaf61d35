"""The Spark examples of docs/spark.md and the README run, one after another, as one job for a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from airflow_provider_pawnqueue.spark.job_folder import JobFolder
from pawnqueue import SyncPawnQueue
from tests.test_docs import TOP, blocks
from tools.kit.spark import submit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pawnqueue import Settings
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(400)]

GOOD = [{"order_id": number, "item": "tea" if number % 2 else "milk", "price": 1.5} for number in range(29)]
BAD = {"order_id": "forty", "item": "tea", "price": 1.5}
LATER = [{"order_id": number, "item": "salt", "price": 1.5} for number in range(30, 40)]


def test_the_jobs_of_the_page_run(
    tmp_path: Path, seaweedfs: S3Server, settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read a claim, report corrupt messages, look at a topic, stream from it, and write to another one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pages = (TOP / "docs" / "spark.md", TOP / "README.md")
    page = "\n".join(block.body for one in pages for block in blocks(one) if block.kind == "python spark")
    page += "\nassert orders.where('item is not null').count() == 30, 'what the README reads'\n"
    for written in ("out/", "stream/", "checkpoints/", "tables/"):  # the JVM's working directory is nobody's to choose
        assert f'"{written}' in page
        page = page.replace(f'"{written}', f'"{tmp_path}/{written}')
    job, folder, settings = tmp_path / "job.py", JobFolder(), settings_for(seaweedfs)
    folder.create(settings)
    job.write_text(page)

    with SyncPawnQueue.open(settings) as queue:
        for topic in ("orders", "invoices"):
            queue.create_topic(topic)
        ids = queue.publish("orders", [*GOOD, BAD, *LATER])
        reference = queue.leave(queue.claim("orders", "spark", max_messages=30, ttl=600, claim_id="run"))
        done = submit(job, env=folder.variables([reference]), seconds=300)
        invoices, orders = queue.stats("invoices"), queue.stats("orders")

    assert done.status == 0, done.output + done.log
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"claim={reference.stem}"]
    sums = pq.read_table(tmp_path / "out" / f"claim={reference.stem}").to_pydict()
    assert sorted(zip(sums["item"], sums["sum(price)"], strict=True)) == [("milk", 22.5), ("tea", 21.0)]
    [claim_folder] = (tmp_path / "tables" / "orders").iterdir()
    assert pq.read_table(claim_folder / "orders").num_rows == 29
    assert folder.read_report() == {ids[29]: "the payload does not fit"}
    assert invoices.pending == 29
    assert pq.read_table(tmp_path / "stream" / "batch=0")["order_id"].to_pylist() == [*range(30, 40)]
    assert (orders.pending, orders.in_flight) == (0, 30), "the stream has acked its batch, and nobody the claim"
