"""When an event trigger rings again: once a claim has answered, else ever more seldom."""

from __future__ import annotations

from itertools import pairwise

from airflow_provider_pawnqueue.triggers.reminders import (
    FIRST_REPEAT_SECONDS,
    FIRST_REPEAT_WHILE_BUSY_SECONDS,
    MAX_REPEAT_SECONDS,
    Reminders,
)

NONE: dict[str, bool] = {}


def rings(reminders: Reminders, until: float, claims: dict[str, bool]) -> list[float]:
    """Look every ten seconds, and return when it rang."""
    return [now for now in map(float, range(0, int(until), 10)) if reminders.is_due(now, claims)]


def test_it_rings_at_the_first_look() -> None:
    """Whatever was claimed before: no ring was for the messages of now."""
    assert Reminders().is_due(5.0, {"a.0": True})


def test_a_claim_answers() -> None:
    """A claim that was not known at the last ring, be it closed by now; one that has ended since is no answer."""
    reminders = Reminders()
    assert reminders.is_due(0.0, {"a.0": True})
    assert not reminders.is_due(10.0, {"a.0": False})
    assert not reminders.is_due(20.0, NONE)
    assert reminders.is_due(30.0, {"b.0": False})
    assert not reminders.is_due(40.0, {"b.0": False})


def test_an_unanswered_ring_is_repeated_ever_more_seldom() -> None:
    """Its event may be lost, so it never ends; an idle topic hears of it after a minute, two, four and so on."""
    found = rings(Reminders(), 5 * 3600, NONE)
    pauses = [after - before for before, after in pairwise(found)]
    assert pauses[:4] == [FIRST_REPEAT_SECONDS * 2**n for n in range(4)]
    assert pauses[-1] == MAX_REPEAT_SECONDS


def test_while_a_claim_holds_messages_it_is_patient() -> None:
    """The run of the last ring waits for its turn; when the claim has ended, the short pause counts again."""
    reminders = Reminders()
    assert rings(reminders, FIRST_REPEAT_WHILE_BUSY_SECONDS, {"a.0": True}) == [0.0]
    assert reminders.is_due(FIRST_REPEAT_WHILE_BUSY_SECONDS, {"a.0": False})


def test_a_backlog_of_ten_minutes_makes_one_ring_for_each_run() -> None:
    """One run at a time, a minute each, that claims a tenth: no ring is for a run that finds nothing."""
    reminders = Reminders()
    claims: dict[str, bool] = {}
    rung = runs = 0
    for now in range(0, 900, 10):
        left = 10 - runs
        if now % 60 == 20:
            claims = dict.fromkeys(claims, False)
            if left and rung > runs:  # the next run in the row begins
                runs += 1
                claims[f"run-{runs}.0"] = True
        if 10 - runs and reminders.is_due(float(now), claims):
            rung += 1
    assert (runs, rung) == (10, 10)
