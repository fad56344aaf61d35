"""What tests ask of a claim that its users have no use for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import LeaseLostError
from pawnqueue.claims.held import HeldClaim

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from pawnqueue import Claim, Settlement


def trusted_until(claim: Claim) -> float:
    """Return until when its holder trusts the claim, in the elapsed time of the holder's clock."""
    return HeldClaim.of(claim, "trusted_until").trusted_until()


def uuids_of(claim: Claim) -> Mapping[str, str]:
    """Return each message's id, by the uuid in the message's key."""
    return HeldClaim.of(claim, "uuids_of").uuids


async def late(settling: Awaitable[Settlement]) -> Settlement:
    """Await an ack or a nack of messages some of which others have: that is an error, which tells of each."""
    with pytest.raises(LeaseLostError, match=r"had lost \d+ of the \d+ messages") as told:
        await settling
    assert told.value.settlement is not None
    assert told.value.settlement.lost
    return told.value.settlement
