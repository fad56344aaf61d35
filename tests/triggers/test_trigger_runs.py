"""When an event trigger rings again: once a claim has answered, else ever more seldom."""

from __future__ import annotations

from itertools import pairwise

from airflow_provider_pawnqueue.triggers.trigger_runs import (
    FIRST_REPEAT_SECONDS,
    FIRST_REPEAT_WHILE_BUSY_SECONDS,
    MAX_REPEAT_SECONDS,
    Reminders,
)

NONE: dict[str, bool] = {}


def rings(reminders: Reminders, until: float, claims: dict[str, bool]) -> list[float]:
    """Poll every ten seconds, and return the times of events."""
    return [now for now in map(float, range(0, int(until), 10)) if reminders.is_due(now, claims)]


def test_it_fires_at_the_first_poll() -> None:
    """It fires at the first poll, whatever was claimed before."""
    assert Reminders().is_due(5.0, {"a.0": True})


def test_a_claim_answers() -> None:
    """A claim that is new since the last event answers it, also if it is closed by now. One that ended does not."""
    reminders = Reminders()
    assert reminders.is_due(0.0, {"a.0": True})
    assert not reminders.is_due(10.0, {"a.0": False})
    assert not reminders.is_due(20.0, NONE)
    assert reminders.is_due(30.0, {"b.0": False})
    assert not reminders.is_due(40.0, {"b.0": False})


def test_an_event_without_an_answer_is_repeated_at_growing_intervals() -> None:
    """It is repeated after a minute, two, four and so on, and never stops, as the event may be lost."""
    found = rings(Reminders(), 5 * 3600, NONE)
    pauses = [after - before for before, after in pairwise(found)]
    assert pauses[:4] == [FIRST_REPEAT_SECONDS * 2**n for n in range(4)]
    assert pauses[-1] == MAX_REPEAT_SECONDS


def test_while_a_claim_holds_messages_it_is_patient() -> None:
    """The pauses are long while a claim holds messages, and short again when it has ended."""
    reminders = Reminders()
    assert rings(reminders, FIRST_REPEAT_WHILE_BUSY_SECONDS, {"a.0": True}) == [0.0]
    assert reminders.is_due(FIRST_REPEAT_WHILE_BUSY_SECONDS, {"a.0": False})


def test_a_backlog_of_ten_minutes_makes_one_event_for_each_run() -> None:
    """Runs of a minute, one at a time, that claim a tenth each: no event starts a run that finds nothing."""
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
