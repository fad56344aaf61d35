"""A type for each kind of name that is easily mistaken for another one. To Python all of them are texts."""

from __future__ import annotations

from typing import NewType

#: What a unit's lease is named after: of a single message the uuid in its key, under which its dead letter is kept too;
#: of a pack ``{uuid}.0-{count}``, and of a slice of one ``{uuid}.{number of its first message}-{number behind it}``.
UnitId = NewType("UnitId", str)

#: The id in a message's envelope, which its consumers see. It stays the same when the message is redriven.
MessageId = NewType("MessageId", str)

#: One generation of a claim, as its record's key and its leases name it: ``{claim_id}.{generation}``.
ClaimStem = NewType("ClaimStem", str)

#: What a store or a strategy tells of an object or a register, and what a step expects: to everyone else, no more.
Version = NewType("Version", str)
