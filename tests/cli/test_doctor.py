"""The doctor, on stores in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pawnqueue import __version__
from airflow_provider_pawnqueue.hooks.clients import CLIENTS
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import MemoryStore
from pawnqueue.domain import layout
from pawnqueue.stores.port import Expect
from tools.kit.stores import HookedStore, Request

if TYPE_CHECKING:
    from pawnqueue import SyncPawnQueue
    from tests.cli.conftest import Done, Run
    from tools.kit.stores import Answer, CarryOut


def states(done: Done) -> dict[str, tuple[str, object]]:
    """Return state and result of each check."""
    return {row["check"]: (row["state"], row["result"]) for row in done.rows}


def without_conditions(store: MemoryStore) -> HookedStore:
    """Return the store as one that overwrites existing objects."""

    async def ignore(request: Request, carry_out: CarryOut) -> Answer:
        if request.call == "put" and request.expect is not Expect.ANYTHING:
            return await store.put(request.key, request.body)
        return await carry_out()

    return HookedStore(store, hook=ignore)


def test_a_good_store_is_found_good(run: Run) -> None:
    """The fields of the probe, the strategy, the clocks and the versions are shown, and the exit code is 0."""
    done = run("doctor", "--output", "json")

    found = states(done)
    assert (done.code, done.err) == (0, "")
    assert found["strategy"] == ("ok", "conditional_write")
    assert found["probe: creates"] == found["probe: updates"] == ("ok", "held in sequence and in a race")
    fields = ("unquoted_if_match", "strategy", "reason", "look_to_answer")
    assert {f"probe: {name}" for name in fields} <= set(found)
    assert {"round trip", "clock", "client", "identity", "airflow-provider-pawnqueue", "apache-airflow"} <= set(found)
    assert "wrong" not in {state for state, _ in found.values()}


def test_a_topic_of_a_newer_format_is_noted(run: Run, queue: SyncPawnQueue, store: MemoryStore) -> None:
    """The other checks still run."""
    queue.create_topic("orders")
    queue.create_topic("newer")
    store._write(layout.topic_marker("newer"), b'{"v":2}')

    found = states(run("doctor", "--output", "json"))

    assert found["topic newer"][0] == "note"
    assert "No janitor has swept orders" in str(found["janitor"][1])


def test_a_topic_that_no_janitor_sweeps_is_noted_at_once(run: Run, queue: SyncPawnQueue) -> None:
    """Even a new topic is noted, with what to do about it, until it is swept."""
    assert states(run("doctor", "--output", "json"))["janitor"][1] == "there is no topic yet"
    queue.create_topic("orders")
    done = run("doctor", "--output", "json")
    state, said = states(done)["janitor"]
    assert (done.code, state) == (0, "note")
    assert "No janitor has swept orders" in str(said)
    assert "janitor_dag" in str(said)
    queue.sweep("orders")
    assert states(run("doctor", "--output", "json"))["janitor"][0] == "ok"


def test_a_store_that_has_lost_its_conditions_is_wrong(run: Run, queue: SyncPawnQueue, store: MemoryStore) -> None:
    """The strategy in use is no longer supported: the exit code is 1, and the sentence says what to do."""
    CLIENTS.put(PawnQueueHook().address, without_conditions(store))

    done = run("doctor", "--output", "json")

    assert done.code == 1
    assert states(done)["strategy"] == ("wrong", "conditional_write")
    assert "Stop every process that uses the bucket" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(("room", "state"), [(0.0, "ok"), (1e9, "wrong")])
def test_pauses_that_are_too_short_are_wrong(
    run: Run, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, room: float, state: str
) -> None:
    """A store without conditional writes is fine, unless it is too slow for the pauses of ``csprng_verify``."""
    monkeypatch.setattr("pawnqueue.registers.csprng_verify.ROOM", room)
    CLIENTS.put(PawnQueueHook().address, without_conditions(store))

    done = run("doctor", "--output", "json")

    found = states(done)
    assert (found["strategy"], found["pauses"][0]) == (("ok", "csprng_verify"), state)
    assert done.code == (state == "wrong")
    assert found["probe: creates"][0] == "note"
    assert ("jitter_min_ms" in done.err) == (state == "wrong")


@pytest.mark.slow
def test_a_store_that_cannot_be_reached_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command shows what it knows without the store, and the store's error in a sentence."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_AWAY",
        '{"conn_type": "pawnqueue", "login": "key", "password": "secret-of-away", "host": "http://127.0.0.1:9",'
        ' "extra": {"bucket_name": "queues"}}',
    )

    done = run("doctor", "--conn-id", "away", "--output", "json")

    assert done.code == 1
    assert states(done)["store"] == ("wrong", "cannot be used")
    assert states(done)["endpoint"] == ("", "http://127.0.0.1:9")
    assert "127.0.0.1:9" in done.err
    assert "secret-of-away" not in done.out + done.err


def test_a_wrong_connection_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions are shown although the connection is wrong."""
    monkeypatch.setenv("AIRFLOW_CONN_BAD", '{"conn_type": "pawnqueue", "extra": {"buckt_name": "queues"}}')

    done = run("doctor", "--conn-id", "bad", "--output", "json")

    assert done.code == 1
    assert states(done)["connection"] == ("wrong", "bad")
    assert "did you mean 'bucket_name'?" in done.err


def test_an_engine_of_another_version_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions are named, and what brings both to one."""
    monkeypatch.setattr("airflow_provider_pawnqueue.cli.doctor.engine_version", "0.0.1")

    done = run("doctor", "--output", "json")

    assert done.code == 1
    assert states(done)["pawnqueue-engine"] == ("wrong", "0.0.1")
    assert f"airflow-provider-pawnqueue is {__version__} and pawnqueue-engine is 0.0.1" in done.err
    assert "pip install --upgrade airflow-provider-pawnqueue pawnqueue-engine" in done.err
