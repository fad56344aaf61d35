"""What texts stand for: a type for each of the names that are easily taken for one another. To Python all are texts."""

from __future__ import annotations

from typing import NewType

#: The uuid in a message's key, under which its lease and its dead letter are kept.
UnitId = NewType("UnitId", str)

#: The id in a message's envelope, which its consumers see. It stays the same when the message is redriven.
MessageId = NewType("MessageId", str)

#: One generation of a claim, as its record's key and its leases name it: ``{claim_id}.{generation}``.
ClaimStem = NewType("ClaimStem", str)

#: What a store or a strategy tells of an object or a register, and what a step expects: to everyone else, no more.
Version = NewType("Version", str)
