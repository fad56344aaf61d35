"""The terms of a claim keep their names on the way from a sensor to the queue."""

from __future__ import annotations

import inspect
import json

from pawnqueue import PawnQueue
from pawnqueue.domain.claim_terms import ClaimTerms

TERMS = ClaimTerms(topic="orders", consumer="c", owner="o", max_messages=7, min_messages=2, max_wait=60.0, ttl=90.0)


def test_what_json_stored_is_read_back() -> None:
    """A later release's terms are left out."""
    stored = json.dumps(TERMS.to_dict() | {"invented_later": 1})
    assert ClaimTerms.from_dict(json.loads(stored)) == TERMS


def test_they_have_the_names_of_the_arguments_of_claim() -> None:
    """Every argument of ``PawnQueue.claim`` is a term of the same name, with the same default."""
    arguments = inspect.signature(PawnQueue.claim).parameters.values()
    given = {each.name: each.default for each in arguments if each.name not in ("self", "topic", "consumer")}
    defaults = ClaimTerms(topic="orders", consumer="c")
    assert given == {name: getattr(defaults, name) for name in given}
    assert TERMS.claim_arguments().keys() == {"topic", "consumer", "owner", "max_messages", "ttl"}
