"""With ack_promptly, a batch is acked when the sink has it, however long it is until the next trigger."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from pyspark_pawnqueue.done_listener import DoneListener
from pyspark_pawnqueue.done_pipe import DonePipe, announce_done
from pyspark_pawnqueue.jobs import ack_promptly
from tests.spark.streams import Gate, Sink, Stream
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HOUR = {"processingTime": "1 hour"}
STREAM = "0123456789abcdef" * 2

on_spark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def listening(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The session of all tests, with prompt acks for one of them."""
    made: list[DoneListener] = []

    def note(listener: DoneListener) -> None:
        made.append(listener)

    monkeypatch.setattr(DoneListener, "__init__", note)
    ack_promptly(spark)
    yield
    for each in made:
        spark.streams.removeListener(each)


class TestOnSpark:
    """A real query that is triggered once an hour."""

    pytestmark = on_spark

    @pytest.mark.parametrize("packs", [False, True], ids=["single", "packs"])
    def test_a_batch_is_acked_within_seconds_of_its_end(self, stream: Stream, listening: None, *, packs: bool) -> None:
        """While the sink works, nothing is acked, also if the claim before it was announced. Afterwards all is."""
        del listening
        stream.queue.update_topic(stream.topic, packs=packs)
        gate = Gate()
        stream.queue.publish(stream.topic, [{"order_id": number} for number in range(30)], pack=packs)
        query = stream.start(Sink(gate), trigger=HOUR)
        assert gate.reached.wait(60)
        assert stream.counts() == (0, 30)
        gate.opened.set()

        wait_until(lambda: stream.counts() == (0, 0), "the batch was acked", seconds=20)
        assert query.isActive
        assert query.lastProgress is not None
        assert len(query.recentProgress) == 1

    def test_a_batch_that_was_replayed_is_acked_too(self, stream: Stream, listening: None) -> None:
        """A failed sink acks nothing. The restart, whose next trigger is an hour away, acks within seconds."""
        del listening
        ids = stream.publish(3)
        gate = Gate(fails=True)
        gate.opened.set()
        failed = stream.start(Sink(gate), "one", trigger=HOUR)
        with pytest.raises(StreamingQueryException, match="this sink fails"):
            failed.awaitTermination(60)
        assert stream.counts() == (0, 3)

        sink = Sink()
        stream.start(sink, "one", trigger=HOUR)
        wait_until(lambda: stream.counts() == (0, 0), "the batch was acked", seconds=60)
        assert sink.batches.keys() == {0}
        assert sink.ids == ids


class TestPipe:
    """The pipe between the driver and the process that plans, without Spark."""

    @pytest.fixture(autouse=True)
    def _own_place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def test_it_carries_the_numbers_of_batches_and_nothing_else(self) -> None:
        """What is not the number of a batch is ignored."""
        done: list[int] = []
        pipe = DonePipe.open(STREAM, done.append)
        assert pipe is not None
        announce_done(STREAM, 7)
        (path,) = _pipes()
        path.write_bytes(b"x\n\n-1\n7.5\n" + b"9" * 100 + b"\n")
        announce_done(STREAM, 8)
        announce_done(STREAM.replace("0", "f"), 9)

        wait_until(lambda: len(done) == 2, "both numbers came")
        pipe.close()
        assert done == [7, 8]
        assert _pipes() == []

    def test_a_pipe_of_a_killed_process_is_removed(self) -> None:
        """The driver finds that nobody reads it, or the next planning process. A stream with another name has none."""
        pipe = DonePipe.open(STREAM, print)
        assert pipe is not None
        (path,) = _pipes()
        pipe.close()
        os.mkfifo(path)
        announce_done(STREAM, 1)
        assert _pipes() == []

        os.mkfifo(path)
        other = DonePipe.open(STREAM.replace("0", "f"), print)
        assert other is not None
        assert path not in _pipes()
        other.close()
        assert DonePipe.open("../x", print) is None
        announce_done("*", 1)

    def test_a_folder_that_others_may_write_to_is_not_used(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The stream goes on without the pipe, and says so. The driver refuses the folder too."""
        folder = tmp_path / f"pawnqueue-spark-{os.geteuid()}"
        folder.mkdir()
        folder.chmod(0o777)

        assert DonePipe.open(STREAM, print) is None
        assert "ack_promptly has no effect on this stream" in caplog.text
        with pytest.raises(PermissionError, match="remove it"):
            announce_done(STREAM, 1)


def _pipes() -> list[Path]:
    return sorted(Path(tempfile.gettempdir()).glob("pawnqueue-spark-*/*"))
