"""Judge what becomes of good messages: what somebody with a publisher's rights forges changes nothing for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pawnqueue import Claim


def is_good(payload: dict[str, Any]) -> bool:
    """Say whether a payload is that of a numbered message, which no forger makes."""
    return set(payload) == {"n"} and isinstance(payload["n"], int)


class Judge:
    """Remembers what consumers were given, and names each broken promise."""

    def __init__(self, breaks: Callable[[str], None]) -> None:
        self._breaks = breaks
        self.acked: set[int] = set()
        self._holders: dict[int, Claim] = {}
        self._hand_outs: Counter[int] = Counter()

    def given(self, claim: Claim, most: int | None = None) -> None:
        """Note the messages of a claim that a consumer was given."""
        if most is not None and len(claim) > most:
            self._breaks(f"a claim of at most {most} messages has {len(claim)}")
        for message in claim:
            if not is_good(message.payload):
                continue
            number = message.payload["n"]
            if number in self.acked:
                self._breaks(f"message {number} was delivered after its settlement")
            before = self._holders.get(number)
            if before is None or before.stem != claim.stem:
                self._hand_outs[number] += 1
                if before is not None and before.lost is None and before.seconds_left > 0:
                    self._breaks(f"message {number} is held twice, by {before.stem} and {claim.stem}")
            if message.deliveries > self._hand_outs[number]:
                self._breaks(f"message {number} counts {message.deliveries} deliveries of {self._hand_outs[number]}")
            self._holders[number] = claim

    def ended(self, claim: Claim, messages: Iterable[Any] | None = None) -> None:
        """Note that a claim may not hold its messages any more, or some of them."""
        for message in claim if messages is None else messages:
            number = message.payload.get("n")
            if self._holders.get(number) is claim:
                del self._holders[number]

    def end_all(self) -> None:
        """Note that somebody else may have ended any claim."""
        self._holders.clear()

    def buried(self, payload: dict[str, Any], reason: str) -> None:
        """Note a dead letter."""
        if is_good(payload) and reason == "malformed":
            self._breaks(f"message {payload['n']} was buried as malformed")
