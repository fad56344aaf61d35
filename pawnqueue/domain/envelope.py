"""A message as it is stored: its payload, and what its publisher says beside it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, field_validator

from pawnqueue.domain import layout
from pawnqueue.domain.bounds import MOST_COUNT, MOST_PAYLOAD_DEPTH, check_id_size
from pawnqueue.domain.identifiers import MessageId
from pawnqueue.domain.record import Record


class Envelope(Record):
    """``{topic}/messages/…``: one message. pawn-queue writes the first five fields."""

    what: ClassVar[str] = "message"
    max_depth: ClassVar[int] = MOST_PAYLOAD_DEPTH + 1  # the envelope around it

    id: Annotated[MessageId, AfterValidator(check_id_size)]
    topic: str = ""
    producer_id: str = ""
    created_at: str = ""
    payload: dict[str, Any]
    headers: dict[str, str] = Field(default={})
    dedup_key: str | None = None
    priority: int = Field(default=0, ge=-MOST_COUNT, le=MOST_COUNT)
    write_id: str = ""  # the staged write that published it, and whose record tells whether that is done

    @field_validator("write_id", mode="before")
    @classmethod
    def _checked_write_id(cls, given: object) -> str:
        # A stranger's field of this name is ignored: it is not an error, and never gets into a key.
        return given if layout.is_write_id(given) else ""

    def _as_json(self, *, but: Collection[str] = ()) -> dict[str, Any]:
        left_out = {"payload"} if self.write_id else {"payload", "write_id"}  # a payload is JSON already, too
        return {**super()._as_json(but={*left_out, *but}), "payload": self.payload}
