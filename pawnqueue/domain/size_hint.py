"""What LIST can tell of a lease, a claim or a write: its state, and the order of magnitude of its time to live.

A body is padded with spaces so that its size, modulo 64, encodes both. It saves reading thousands of leases that
cannot be overdue; what is done to one is decided by its body, never by its size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

LEASE_STATES: Mapping[str, int] = MappingProxyType({"held": 0, "released": 1, "moving": 2})
#: The states of leases of packs that have no time, and share a number: the magnitude tells them apart.
TIMELESS_STATES = ("done", "split")
_TIMELESS = 3
RECORD_STATES: Mapping[str, int] = MappingProxyType({"open": 0, "expired": 1, "closed": 2})
WRITE_STATES: Mapping[str, int] = MappingProxyType({"begun": 0, "dropped": 1, "done": 2})

#: A closed claim record that has some of its time left is a trace of its messages, and kept for that only (§7).
TRACE_TTL_SECONDS = 1.0

#: Bodies of ours are at least this long, and pawn-queue's leases are shorter: those have no hint.
MIN_HINTED_BYTES = 512
_MODULUS = 64
_MAGNITUDES = 16
_LEASE_NAMES = {number: name for name, number in LEASE_STATES.items()}
_RECORD_NAMES = {number: name for name, number in RECORD_STATES.items()}
_WRITE_NAMES = {number: name for name, number in WRITE_STATES.items()}


def of_lease(state: str, ttl: float) -> tuple[int, float]:
    """Return the number and the time that the size of a lease encodes."""
    if state in TIMELESS_STATES:
        return _TIMELESS, float(TIMELESS_STATES.index(state))
    return LEASE_STATES[state], ttl


def padded(body: bytes, state: int, ttl: float) -> bytes:
    """Return the body with spaces behind it, so that its size tells state and time to live."""
    magnitude = 0 if ttl <= 0 else min(max(math.ceil(math.log2(ttl)), 1), _MAGNITUDES - 1)
    code = state * _MAGNITUDES + magnitude
    short = max(len(body), MIN_HINTED_BYTES)
    return body + b" " * (short + (code - short) % _MODULUS - len(body))


@dataclass(frozen=True, slots=True)
class SizeHint:
    """What a LIST tells of a lease or record."""

    state: str
    #: Before this server time its own time cannot be over, unless it landed late: then reading it later does no harm.
    earliest: float
    #: After this server time it is over.
    latest: float

    @property
    def is_trace(self) -> bool:
        """Whether it is a claim record that is kept as a trace of its messages only."""
        return self.state == "closed" and self.latest > 0


def hint_of_lease(size: int, last_modified: datetime, *, is_of_pack: bool = False) -> SizeHint | None:
    """Read a lease's size, or return None where it tells nothing.

    ⚑ §5.7: garbage of any size holds a single message for a while only: of such leases, none is without a time.
    """
    state, magnitude = divmod(size % _MODULUS, _MAGNITUDES)
    if is_of_pack and size >= MIN_HINTED_BYTES and state == _TIMELESS and magnitude < len(TIMELESS_STATES):
        return SizeHint(TIMELESS_STATES[magnitude], math.inf, math.inf)
    return _hint(size, last_modified, _LEASE_NAMES)


def hint_of_record(size: int, last_modified: datetime) -> SizeHint | None:
    """Read a claim record's size, or return None where it tells nothing."""
    return _hint(size, last_modified, _RECORD_NAMES)


def hint_of_write(size: int, last_modified: datetime) -> SizeHint | None:
    """Read a write record's size, or return None where it tells nothing."""
    return _hint(size, last_modified, _WRITE_NAMES)


def _hint(size: int, last_modified: datetime, names: Mapping[int, str]) -> SizeHint | None:
    if size < MIN_HINTED_BYTES:
        return None
    state, magnitude = divmod(size % _MODULUS, _MAGNITUDES)
    if state not in names:
        return None
    if magnitude == 0:
        # It was over when it was written: by what the reader takes for the store's time, that may be still to come.
        return SizeHint(names[state], 0.0, 0.0)
    written = last_modified.timestamp()
    # Magnitude 1 means any time of up to two seconds.
    least = 2.0 ** (magnitude - 1) if magnitude > 1 else 0.0
    longest = math.inf if magnitude == _MAGNITUDES - 1 else written + 1 + 2.0**magnitude
    return SizeHint(names[state], written + least, longest)
