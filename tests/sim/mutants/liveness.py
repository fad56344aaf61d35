"""§4.1, §5.7: nothing waits for ever, and how long at most."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pawnqueue.claims import candidates, claiming, register_cache
from pawnqueue.claims.candidates import Finder
from pawnqueue.context import Context
from pawnqueue.domain.lease import Lease
from pawnqueue.maintenance import sweep_claims as sweeping_claims
from tests.sim.mutants.entering import Patches, mutant


@mutant("§5.7 No message waits for ever: what is overdue is taken over", 1, 1, 5)
def nothing_is_ever_over() -> Patches:
    def is_due(_: Context, lease: Lease, now: float) -> bool:
        return lease.state == "released" and now >= lease.until

    return [(Context, "is_over", lambda *_: False), (Context, "is_due", is_due)]


@mutant("§5.7 No garbage stays for ever: records that are past their retention are removed", 0, 1, 2)
def records_stay() -> Patches:
    return [(sweeping_claims.ClaimSweep, "_is_past_retention", lambda *_: False)]


@mutant("§4.1 What a live claim has settled is its no more", 147, 179, arena="patience")
def settled_is_covered() -> Patches:
    original = register_cache.CachedRecord.of

    def of(stem: str, found: Any, read_at: float) -> register_cache.CachedRecord:
        return replace(original(stem, found, read_at), unsettled=tuple(found.value.members))

    return [(register_cache.CachedRecord, "of", of)]


@mutant(
    "§5.7 A record that was renewed is read again: meanwhile it may have given messages back", 7, 9, 22, arena="long"
)
def known_records_are_not_read_again() -> Patches:
    return [(register_cache, "RENEWED_RECORD_RECHECK_SECONDS", math.inf)]


@mutant("§4.1 What others give back shows in a full look, and there is one now and then", 2, 3, 5, arena="patience")
def no_full_look() -> Patches:
    return [(candidates, "FULL_LISTING_SECONDS", math.inf), (candidates, "MAX_FULL_LISTING_SECONDS", math.inf)]


@mutant(
    "§5.7 A look begins anew when something is due",
    test="tests/pawnqueue/claims/test_liveness.py::test_what_a_live_claim_gave_back_is_its_no_more",
)
def due_times_are_ignored() -> Patches:
    original = Finder._is_to_begin_anew

    async def is_to_begin_anew(self: Finder, view: Any) -> bool:
        view.due = math.inf
        return await original(self, view)

    return [(Finder, "_is_to_begin_anew", is_to_begin_anew)]


@mutant(
    "§4.2 No consumer leaves empty-handed while there is plenty: a refused one picks others, then polls again",
    test="tests/pawnqueue/claims/test_liveness.py::test_nobody_leaves_empty_handed_while_there_is_plenty",
)
def losers_leave() -> Patches:
    return [(claiming, "MAX_LISTINGS", 1), (claiming, "MAX_REPLACEMENT_ROUNDS", 1)]
