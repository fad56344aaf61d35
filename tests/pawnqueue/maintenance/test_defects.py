"""A defect of ours at one object, or in one part of a sweep, keeps nothing else from being swept, and is reported."""

from __future__ import annotations

import logging

import pytest

from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.maintenance import sweep_claims as claims
from pawnqueue.maintenance import sweep_leases as leases
from pawnqueue.maintenance import sweep_writes as writes
from pawnqueue.maintenance.sweep import _Sweep
from pawnqueue.registers.register import Versioned
from tests.pawnqueue.maintenance.swept import abandoned_under, acked_halfway
from tests.pawnqueue.virtual import TOPIC, Process, World


async def test_a_defect_at_one_record_concerns_that_record(
    world: World, ann: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The claims beside it are finished. It is reported by its key, and logged once, with its traceback."""
    await abandoned_under(world, "a", "b", "c")
    await world.later()
    finish = claims.ClaimSweep._finish

    async def finish_but_b(self: claims.ClaimSweep, standing: Versioned[ClaimRecord]) -> None:
        if standing.value.claim_id == "b":
            raise TypeError
        await finish(self, standing)

    monkeypatch.setattr(claims.ClaimSweep, "_finish", finish_but_b)
    with caplog.at_level(logging.WARNING):
        report = await ann.queue.sweep(TOPIC)
    assert [world.bucket.record(f"{one}.0").state for one in "abc"] == ["closed", "expired", "closed"]
    key = layout.claim(TOPIC, "b.0")
    assert report.defects == [key]
    assert report.failures == [f"{key}: a defect of this version (TypeError): please report it"]
    [line] = [each for each in caplog.records if each.exc_info]
    assert line.levelname == "ERROR"
    assert layout.swept(TOPIC) in world.bucket.below()


PARTS: dict[str, tuple[type, str]] = {
    "writes/": (writes.WriteSweep, "sweep"),
    "claims/": (claims.ClaimSweep, "sweep"),
    "leases/": (leases.LeaseSweep, "sweep"),
    "dead-letter/": (_Sweep, "_leftovers"),
}


@pytest.mark.parametrize("folder", PARTS)
async def test_a_defect_in_one_part_ends_no_other(
    world: World, ann: Process, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Whatever part of a sweep fails, the others come to their end."""
    await acked_halfway(world)
    await world.later()
    swept = []

    def played(other: str) -> object:
        original = getattr(*PARTS[other])

        async def play(self: object, *args: object) -> None:
            if other == folder:
                raise OverflowError
            await original(self, *args)
            swept.append(other)

        return play

    for other, (part, method) in PARTS.items():
        monkeypatch.setattr(part, method, played(other))
    report = await ann.queue.sweep(TOPIC)
    assert report.defects == [f"{TOPIC}/{folder}"]
    assert swept == [other for other in PARTS if other != folder]
