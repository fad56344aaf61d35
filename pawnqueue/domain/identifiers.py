"""A type for each kind of name that is easily mistaken for another one. To Python all of them are texts."""

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
