"""The lease's states, and what is made of a body that somebody else wrote (§3)."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pawnqueue import CompatibilityError
from pawnqueue.domain import lease as leases
from pawnqueue.domain.bounds import LATEST_TIME
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.size_hint import hint_of_lease
from pawnqueue.registers.leases import understand
from pawnqueue.stores.port import ObjectInfo, StoredObject

NOW = 1_767_225_600.0
UUID = "11111111-2222-4333-8444-555555555555"
KEY = f"t/leases/{UUID}.lease"
NAME = f"20260101T000000_000000-{UUID}.json"
WRITTEN = datetime.fromtimestamp(NOW, UTC)
MADE = {
    "held": leases.held(UUID, NAME, consumer="c", claim="run.0", deliveries=3, until=NOW + 30, ttl=30),
    "released": leases.released(UUID, NAME, consumer="c", claim="run.0", deliveries=3, until=NOW + 30, now=NOW),
    "moving": leases.moving(UUID, NAME, source=UUID, until=NOW + 30, ttl=30),
}


def stored(body: bytes) -> StoredObject:
    """An object with this body, written now."""
    return StoredObject(ObjectInfo(KEY, len(body), '"1"', WRITTEN), body)


@pytest.mark.parametrize("state", MADE)
def test_a_lease_is_read_as_it_was_made(state: str) -> None:
    """What is written is what is read, with its state, its time, its message and its claim."""
    made = MADE[state]
    found = understand(stored(made.stamped("n").encode()), KEY, 99)
    assert found == made.stamped("n")
    assert (found.state, found.until, found.key) == (state, NOW + 30, NAME)


@pytest.mark.parametrize("state", MADE)
def test_a_lease_has_what_pawn_queue_reads(state: str) -> None:
    """Its consumers find whose it is, and an expiry a day ahead, with +00:00 and never Z."""
    body = json.loads(MADE[state].stamped("n").encode())
    assert body["message_id"] == UUID
    assert body["nonce"] == "n"
    assert body["consumer_id"]
    assert body["claimed_at"] == "2026-01-01T00:00:00.000000+00:00"
    assert body["expires_at"] == "2026-01-02T00:00:30.000000+00:00"


@pytest.mark.parametrize("state", MADE)
def test_a_listing_tells_the_state(state: str) -> None:
    """The size of a lease says what it is, and that thirty seconds are more than sixteen and at most thirty-two."""
    hint = hint_of_lease(len(MADE[state].stamped("n" * 64).encode()), WRITTEN)
    assert hint is not None
    assert (hint.state, hint.earliest, hint.latest) == (state, NOW + 16, NOW + 33)


def test_a_lease_released_at_once_is_due_at_once() -> None:
    """Without a delay nothing is waited for, whatever time has passed since."""
    made = leases.released(UUID, NAME, consumer="c", claim="run.0", deliveries=1, until=0.0, now=NOW)
    assert (made.until, made.ttl, made.state) == (0.0, 0.0, "released")
    assert made.expires_at.startswith("2026-01-02")


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("2026-01-01T00:01:00+00:00", NOW + 60),
        ("2026-01-01T00:01:00Z", NOW + 60),
        ("2026-01-01T02:01:00.5+02:00", NOW + 60.5),
        ("soon", NOW + 99),
        ("", NOW + 99),
        ("2026-01-01T00:01:00", NOW + 60),
        ("0001-01-01T00:00:00", 0),
        ("9999-12-31T23:59:59", LATEST_TIME),
    ],
)
def test_pawn_queues_own_lease_is_held_until_it_expires(text: str, until: float) -> None:
    """Its time is its expires_at; where that is none, a usual time since it was written. Nobody has a record of it."""
    body = {"consumer_id": "c", "message_id": "m", "claimed_at": "x", "expires_at": text, "nonce": "n", "claim": "a.0"}
    lease = understand(stored(json.dumps(body).encode()), KEY, 99)
    assert (lease.state, lease.claim, lease.deliveries) == ("held", "", 1)
    assert lease.until == pytest.approx(until, abs=1e-3)


def test_a_newer_lease_is_refused_by_name() -> None:
    """Nobody guesses at a format that does not exist yet."""
    with pytest.raises(CompatibilityError, match="format 99"):
        understand(stored(b'{"v": 99}'), KEY, 99)


@pytest.mark.parametrize(("state", "waits"), [("held", 2.0), ("moving", 2.0), ("released", 0.0)])
def test_a_lease_is_due_when_its_holder_cannot_trust_it(state: str, waits: float) -> None:
    """The margin after its time, as its holder stops the margin before it; what was released has no holder."""
    lease = Lease(state=state, until=NOW + 60)
    assert leases.due_at(lease, 2.0) == NOW + 60 + waits
    assert not leases.is_due(lease, NOW + 60 + waits - 0.001, 2.0)
    assert leases.is_due(lease, NOW + 60 + waits, 2.0)


def test_a_time_is_over_when_its_holder_cannot_trust_it() -> None:
    """The margin after it, and one that never ends never is."""
    assert not leases.is_over(NOW, NOW + 1.999, 2.0)
    assert leases.is_over(NOW, NOW + 2, 2.0)
    assert not leases.is_over(float("inf"), NOW, 2.0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(sorted(Lease.model_fields))


@given(st.binary(max_size=50) | st.dictionaries(names, json_values).map(lambda data: json.dumps(data).encode()))
def test_any_body_is_a_lease_with_a_time(body: bytes) -> None:
    """Whatever is in it, a lease has a state and a time that will be over, or a newer format that is named."""
    try:
        lease = understand(stored(body), KEY, 99)
    except CompatibilityError:
        return
    assert lease.state in ("held", "released", "moving")
    assert float("-inf") < lease.until < float("inf")
