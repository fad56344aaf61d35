"""What tests ask of a claim that its users have no use for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.claims.held import HeldClaim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pawnqueue import Claim


def trusted_until(claim: Claim) -> float:
    """Return until when its holder trusts the claim, in the elapsed time of the holder's clock."""
    return HeldClaim.of(claim, "trusted_until").trusted_until()


def uuids_of(claim: Claim) -> Mapping[str, str]:
    """Return each message's id, by the uuid in the message's key."""
    return HeldClaim.of(claim, "uuids_of").uuids
