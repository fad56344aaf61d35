"""What the driver listens to: Spark's progress events, which say that a batch is done."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from pawnqueue import InvalidArgumentError
from pyspark_pawnqueue.done_pipe import announce_done
from pyspark_pawnqueue.stream_claims import BATCH, STREAM, checked_offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger("pawnqueue.spark")


class DoneListener(StreamingQueryListener):
    """Announces each batch that Spark has noted as done.

    ⚑ Spark posts a batch's progress after the commit log has it. From then on no restart reads the batch again.
    """

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Announce the batches of this format that end where the progress ends."""
        for source in event.progress.sources:
            with suppress(InvalidArgumentError, ValueError):  # another format's offset
                end = checked_offset(json.loads(source.endOffset or "null"))
                try:
                    announce_done(end[STREAM], end[BATCH])
                except OSError as error:
                    logger.warning("ack_promptly has no effect, as the planning process is not reached: %s", error)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""
