"""How many bytes of each kind of object are read. What is larger is not downloaded: nothing of ours is that large."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.domain import layout

if TYPE_CHECKING:
    from pawnqueue.settings import LimitsSettings

#: What an envelope may have around its payload: headers, names, and whatever fields other programs add.
ENVELOPE_OVERHEAD_BYTES = 64 * 1024
#: A record of one thing: a lease, a topic, a registration, the reason of a dead letter, what the bucket agreed on.
#: The largest that we write is a reason with four texts of 2,000 characters, each of at most six bytes.
MAX_SMALL_RECORD_BYTES = 128 * 1024
#: How many messages one claim takes at most, so that its record stays below the next bound.
MAX_CLAIM_MESSAGES = 100_000
#: Into how many parts the packs of one claim are divided at most, by deliveries and decisions. A pack of which not all
#: is decided counts one more: for the fence, which decides the others.
MAX_CLAIM_PARTS = 150_000
#: How many parts a claim begins with at most, by its messages' histories. The others are for what it decides.
MAX_CLAIM_FIRST_PARTS = 20_000
#: How many messages of packs one claim takes at most.
MAX_CLAIM_PACKED_MESSAGES = 2_000_000
#: A lease: that of a pack names each of its messages that is not finished, by their histories.
MAX_LEASE_BYTES = 768 * 1024
#: What a member takes of a claim's record at most, with name, decision and id, and without texts and numbers.
CLAIM_MEMBER_BYTES = 1150
#: The same of a part of a pack.
CLAIM_PART_BYTES = 230
#: ⚑ §1: how many times as much the numbers of a pack's messages take after a fence, which decides what is left of it.
FENCED_NUMBERS_FACTOR = 6
#: A claim's record: 310 bytes a message when all is settled, and the texts given with it, which are cut to fit.
MAX_CLAIM_RECORD_BYTES = 128 * 1024**2
#: The fields of a claim's or a write's record that this version does not know, all together: they are kept, and
#: written again.
MAX_UNKNOWN_BYTES = 64 * 1024
#: What a claim's record has beside its members at most, with the fields that this version does not know.
CLAIM_OTHER_BYTES = MAX_UNKNOWN_BYTES + 32 * 1024
#: A write's record: at most 112 bytes for each staged object, and what its progress takes.
MAX_WRITE_RECORD_BYTES = 64 * 1024**2
#: How many staged objects one write has at most, so that its record stays below that bound.
MAX_STAGED_OBJECTS = 500_000
#: A segment of a deduplication log: 48 bytes for each published key, and about 200 for each reserved one.
MAX_SEGMENT_BYTES = 4 * 1024**2
#: How many published keys a segment has at most. It is sealed much earlier, and may then get what was reserved in it.
MAX_SEGMENT_ROWS = 32_768
#: How many reservations a segment has at most.
MAX_SEGMENT_RESERVATIONS = 8_192
#: A staged object ends with the message that takes it past this size.
STAGED_OBJECT_BYTES = 4 * 1024**2


def max_message_bytes(limits: LimitsSettings) -> int:
    """Return how large an object with one message may be for this process, waiting or dead."""
    return limits.max_payload_bytes + ENVELOPE_OVERHEAD_BYTES


def max_staged_bytes(limits: LimitsSettings) -> int:
    """Return how large an object with staged messages may be for this process."""
    return STAGED_OBJECT_BYTES + max_message_bytes(limits)


def max_register_bytes(key: str) -> int:
    """Return how large the register with this key can be."""
    return _REGISTERS.get(layout.folder_name(key), MAX_SMALL_RECORD_BYTES)


_REGISTERS = {
    "leases": MAX_LEASE_BYTES,
    "claims": MAX_CLAIM_RECORD_BYTES,
    "writes": MAX_WRITE_RECORD_BYTES,
    "dedup": MAX_SEGMENT_BYTES,
}
