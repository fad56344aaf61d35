"""Claims: winning a batch, its record, keeping it, settling it, and taking over what others left."""

from pawnqueue.claims.claim import Claim, ClaimReference, Message
from pawnqueue.claims.keep_alive import KeepAlive
from pawnqueue.claims.open_claims import Claims
from pawnqueue.domain.settlement import Settlement

__all__ = ["Claim", "ClaimReference", "Claims", "KeepAlive", "Message", "Settlement"]
