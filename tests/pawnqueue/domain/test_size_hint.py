"""What LIST tells of leases and records: the sizes of their bodies (§3)."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pawnqueue.domain import size_hint
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.domain.lease import Lease

YEARS = 10 * 365 * 86_400.0
NOW = 1_767_225_600
ttls = st.floats(1, YEARS) | st.integers(1, int(YEARS)).map(float) | st.integers(0, 28).map(lambda n: 2.0**n)
bodies = st.dictionaries(st.text(max_size=10), st.text(max_size=200), max_size=10).map(lambda d: json.dumps(d).encode())


@given(bodies, st.sampled_from(sorted(size_hint.LEASE_STATES)), ttls)
def test_a_leases_size_tells_state_and_magnitude(body: bytes, state: str, ttl: float) -> None:
    """From one second to ten years, the size is decoded to the state, and to a time that brackets the true one."""
    padded = size_hint.padded(body, size_hint.LEASE_STATES[state], ttl)
    hint = size_hint.hint_of_lease(len(padded), datetime.fromtimestamp(NOW, UTC))
    assert hint is not None
    assert hint.state == state
    assert hint.earliest <= NOW + ttl <= hint.latest
    if ttl <= 2**14:  # beyond that it says only "long"
        assert hint.latest - hint.earliest <= ttl + 1 + (2 if ttl <= 2 else 0)
    assert hint.earliest - NOW >= (ttl / 2 if 2 < ttl <= 2**14 else 0)


@given(st.sampled_from(["open", "expired", "closed"]), ttls, st.text(max_size=50), st.integers(0, 30))
def test_a_records_size_tells_state_and_magnitude(state: str, ttl: float, owner: str, members: int) -> None:
    """The same holds for claim records, whatever else is in them."""
    uuids = [f"00000000-0000-4000-8000-{number:012}" for number in range(members)]
    record = ClaimRecord(
        claim_id="a",
        state=state,
        ttl=max(ttl, 0.0),
        owner=owner,
        members={uuid: {"name": f"20260101T000000_000000-{uuid}.json"} for uuid in uuids},
    )
    body = record.encode()
    hint = size_hint.hint_of_record(len(body), datetime.fromtimestamp(NOW, UTC))
    assert hint is not None
    assert hint.state == state
    assert hint.earliest <= NOW + ttl <= hint.latest
    assert ClaimRecord.decode(body, "t/claims/a.0.json") == record


@given(bodies, st.integers(0, 2), st.floats(-10, YEARS))
def test_a_padded_body_is_the_same_json(body: bytes, state: int, ttl: float) -> None:
    """Spaces behind it change nothing, and there are fewer of them than two to the sixth, or than fill 512 bytes."""
    padded = size_hint.padded(body, state, ttl)
    assert json.loads(padded) == json.loads(body)
    assert padded.startswith(body)
    assert len(padded) >= size_hint.MIN_HINTED_BYTES
    assert len(padded) < max(len(body), size_hint.MIN_HINTED_BYTES) + 64


@given(st.floats(0, 1 - 1e-6), st.floats(1, YEARS), st.floats(0, 20))
def test_the_true_end_lies_between_earliest_and_latest(fraction: float, ttl: float, late: float) -> None:
    """Last-Modified is in whole seconds, and a write lands a little after its time was set."""
    begun = NOW + fraction
    landed = begun + min(late, ttl / 4)
    body = Lease(ttl=ttl, until=begun + ttl).encode()
    hint = size_hint.hint_of_lease(len(body), datetime.fromtimestamp(int(landed), UTC))
    assert hint is not None
    assert begun + ttl <= hint.latest
    if landed == begun:
        assert hint.earliest <= begun + ttl


@pytest.mark.parametrize("ttl", [0.0, -1.0, -math.inf])
def test_no_time_is_over_when_it_is_written(ttl: float) -> None:
    """What has no time to live is due at once, whatever the reader takes for the store's time."""
    hint = size_hint.hint_of_lease(len(size_hint.padded(b"{}", 1, ttl)), datetime.fromtimestamp(NOW, UTC))
    assert hint == size_hint.SizeHint("released", 0.0, 0.0)


@given(st.integers(0, 10_000))
def test_any_size_is_read_or_told_to_be_none(size: int) -> None:
    """A size that is none of ours tells nothing, and never a wrong state; a short one is pawn-queue's."""
    for hint, states in (
        (size_hint.hint_of_lease(size, datetime.fromtimestamp(NOW, UTC)), size_hint.LEASE_STATES),
        (size_hint.hint_of_record(size, datetime.fromtimestamp(NOW, UTC)), size_hint.RECORD_STATES),
    ):
        assert hint is None or (hint.state in states and hint.earliest <= hint.latest)
        assert (hint is None) == (size < 512 or size % 64 >= 48)
