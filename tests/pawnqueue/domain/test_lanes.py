"""What the name of a unit says of its priority, and of the time from which it may be claimed."""

from __future__ import annotations

import pytest

from pawnqueue.catalog import units
from pawnqueue.domain import lanes
from pawnqueue.domain.layout import timestamp
from pawnqueue.domain.records import TopicSettings

UUID = "0b9e6f0c-3c1d-4d0e-9a57-0b9e6f0c3c1d"
NOON = 1_800_000_000.0


def name(priority: int = 0, due: float | None = None, at: float = NOON) -> str:
    """Return the name of a single message."""
    return units.name_at(at, UUID, lanes.prefix(priority, due))


@pytest.mark.parametrize("due", [None, NOON + 60.5])
@pytest.mark.parametrize("priority", range(-9, 10))
def test_a_name_tells_what_it_was_made_of(priority: int, due: float | None) -> None:
    """Priority, delay and time of publishing come out as they went in, of single messages and of packs."""
    lane = lanes.prefix(priority, due)
    for made in (units.name_at(NOON, UUID, lane), units.pack_name_at(NOON, UUID, 7, lane)):
        assert (lanes.priority_of(made), lanes.due_at(made), units.published_at(made)) == (priority, due, NOON)
        assert units.claimable_since(made) == (NOON if due is None else due)
        unit = units.parse(made)
        assert unit is not None
        assert unit.name == made


def test_names_sort_by_priority_and_then_by_time() -> None:
    """LIST shows higher priorities first, in each those that were published first, and then delayed ones like that."""
    given = [name(priority, at=NOON + second) for priority in range(9, -10, -1) for second in range(3)]
    delayed = [name(due=NOON + seconds) for seconds in (1, 2, 3)]
    assert sorted([*given, *delayed]) == [*given, *delayed]
    due = [name(priority, NOON + 9) for priority in (9, 1)] + delayed + [name(-1, NOON)]
    assert sorted(due) == due


def test_a_delayed_message_waits_its_turn_since_it_was_due() -> None:
    """A message that was due before another one of its priority was published comes before it."""
    early, late = name(due=NOON - 1, at=NOON - 60), name(due=NOON + 1, at=NOON - 60)
    urgent = name(5, due=NOON + 2, at=NOON - 60)
    some = [name(), early, late, urgent, name(-3, at=NOON - 90), name(1)]
    assert sorted(some, key=lanes.by_priority) == [urgent, name(1), early, name(), late, name(-3, at=NOON - 90)]
    assert sorted(some, key=lanes.by_age)[:2] == [name(-3, at=NOON - 90), early]


@pytest.mark.parametrize(("now", "is_early"), [(NOON - 1e-6, True), (NOON, False), (NOON + 1e-6, False)])
def test_a_message_is_early_until_it_is_due(now: float, *, is_early: bool) -> None:
    """To the microsecond."""
    assert lanes.is_early(name(due=NOON), timestamp(now)) is is_early


@pytest.mark.parametrize(
    "forged",
    [
        "~x",
        "~99999999T999999_999999-",
        "~20261332T000000_000000-",
        "~1_0-",
        "!9-",
        "_0-",
        "!-",
    ],
)
def test_what_is_not_spelled_as_we_do_is_in_no_lane(forged: str) -> None:
    """A stranger's name that only looks like one of a lane has the default priority and no delay."""
    made = f"{forged}{timestamp(NOON)}-{UUID}.json"
    assert (lanes.priority_of(made), lanes.is_early(made, timestamp(NOON)), lanes.due_at(made)) == (0, False, None)
    assert lanes.by_priority(made)[0] == 0


def test_lanes_follow_each_other() -> None:
    """Each lane has the names of one priority, with or without a delay, and all names between two of them."""
    names = [name(priority, due) for due in (None, NOON) for priority in range(9, -10, -1)]
    assert sorted(names) == names
    assert len({lanes.lane_of(each) for each in names}) == len(names)
    odd = ["A-x", "Z", "#", "a-x", "|", "~x", "~~", "!9-x", "!", "_0-", "_a", "~!9-", "~_"]
    for each in sorted([*names, *odd]):
        end = lanes.end_of(lanes.lane_of(each))
        assert not end or each < end
        if end:
            assert lanes.lane_of(end) == lanes.lane_of(each) + 1
    later = [name(3, at=NOON + 1), name(3, NOON + 1)]
    assert [lanes.lane_of(each) for each in later] == [lanes.lane_of(name(3)), lanes.lane_of(name(3, NOON))]


@pytest.mark.parametrize("priorities", [None, True, False])
@pytest.mark.parametrize("delays", [None, True, False])
def test_lanes_are_listed_apart_once_a_topic_had_any(*, priorities: bool | None, delays: bool | None) -> None:
    """As long as messages of other lanes may be left."""
    settings = TopicSettings(priorities=priorities, delays=delays)
    assert lanes.are_listed_apart(settings) is (priorities is not None or delays is not None)
