"""Settling, where what is tested is that some of it comes too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pawnqueue import Settlement


async def late(settling: Awaitable[Settlement]) -> Settlement:
    """Await an ack or a nack of messages some of which others have: that is an error, which tells of each."""
    with pytest.raises(LeaseLostError, match=r"had lost \d+ of the \d+ messages") as told:
        await settling
    assert told.value.settlement is not None
    assert told.value.settlement.lost
    return told.value.settlement
