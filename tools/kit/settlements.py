"""Settling for tests in which a settlement may come too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue import LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pawnqueue import Settlement


async def settlement_of(settling: Awaitable[Settlement]) -> Settlement:
    """Await an ack or a nack. Return what became of each message, also if some were lost."""
    try:
        return await settling
    except LeaseLostError as error:
        if error.settlement is None:
            raise
        return error.settlement
