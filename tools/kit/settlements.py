"""Settling, where it does not matter that some of it comes too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue import LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pawnqueue import Settlement


async def settlement_of(settling: Awaitable[Settlement]) -> Settlement:
    """Await an ack or a nack, and return what became of each message, whether or not some were lost."""
    try:
        return await settling
    except LeaseLostError as error:
        if error.settlement is None:
            raise
        return error.settlement
