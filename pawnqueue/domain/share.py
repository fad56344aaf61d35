"""Shares of a pack: its messages that are not finished, by their deliveries, delays and reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from pawnqueue.domain.bounds import MOST_COUNT, Count, ReasonText, Time
from pawnqueue.domain.numbers import Numbers
from pawnqueue.domain.record import Part

#: The texts of all shares of one lease together, in characters, so that the lease stays within its size.
MAX_SHARE_TEXT_CHARACTERS = 16_000


class Share(Part):
    """Some messages of a pack that have the same history."""

    # A lease of a pack has up to thousands of them, so nothing is kept in them that this version does not know.
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

    of: Numbers
    deliveries: Count = 0  # how often they were handed out; in a claim's record this time included
    lapsed: Count = 0  # how many of these hand-outs ended without a settlement
    until: Time = 0.0  # not to be delivered before
    reason: ReasonText = ""  # given when they were last given back, and the error beside it
    error: ReasonText = ""

    @model_serializer(mode="wrap")
    def _write_short(self, as_dict: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = as_dict(self)
        return {name: value for name, value in fields.items() if value or name == "of"}


def union(shares: Iterable[Share]) -> int:
    """Return the numbers of all messages in these shares."""
    found = 0
    for share in shares:
        found |= share.of
    return found


def are_disjoint(shares: Sequence[Share], of: int) -> bool:
    """Say whether no message is in two of these shares, none of them is empty, and all messages are among these."""
    found = 0
    for share in shares:
        if not share.of or share.of & found:
            return False
        found |= share.of
    return found & of == found


def due(shares: Iterable[Share], now: float) -> int:
    """Return the numbers of the messages that may be delivered now."""
    return union(share for share in shares if share.until <= now)


def only(shares: Iterable[Share], of: int) -> list[Share]:
    """Return the parts of the shares that have these messages."""
    return [
        share if share.of & of == share.of else share.model_copy(update={"of": share.of & of})
        for share in shares
        if share.of & of
    ]


def handed_out(shares: Iterable[Share], of: int) -> list[Share]:
    """Return the shares of these messages, delivered once more and without their delays."""
    return merged(
        share.model_copy(update={"deliveries": min(share.deliveries + 1, MOST_COUNT), "until": 0.0})
        for share in only(shares, of)
    )


def merged(shares: Iterable[Share]) -> list[Share]:
    """Return the shares with those joined that have the same history, in the order of their first messages.

    ⚑ §1: reasons and errors are cut, so that a lease with any number of shares can be written.
    """
    joined: dict[tuple[int, int, float, str, str], Share] = {}
    for share in shares:
        history = (share.deliveries, share.lapsed, share.until, share.reason, share.error)
        alike = joined.get(history)
        joined[history] = share if alike is None else alike.model_copy(update={"of": alike.of | share.of})
    most = MAX_SHARE_TEXT_CHARACTERS // (2 * max(len(joined), 1))
    if any(len(share.reason) > most or len(share.error) > most for share in joined.values()):
        cut = (
            one.model_copy(update={"reason": one.reason[:most], "error": one.error[:most]}) for one in joined.values()
        )
        return merged(cut)
    return sorted(joined.values(), key=lambda share: share.of & -share.of)


def lapsed(shares: Iterable[Share]) -> list[Share]:
    """Return shares whose last claim has ended without settling them."""
    return [share.model_copy(update={"lapsed": min(share.lapsed + 1, MOST_COUNT)}) for share in shares]


def fresh(of: int) -> list[Share]:
    """Return the shares of messages that no claim ever had."""
    return [Share(of=of)]
