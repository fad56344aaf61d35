"""The stores and strategies that the tests run on, and patience with a strategy that rests on time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pawnqueue import StoreError
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pawnqueue import Claim, PawnQueue, Settlement

T = TypeVar("T")

#: Shorter than the defaults, and longer than a PUT takes on loopback while the machine is busy.
PAUSES = {"jitter_min_ms": 60, "jitter_max_ms": 80, "verify_retries": 1, "verify_retry_delay_ms": 80}
#: A second covers what Last-Modified, in whole seconds, leaves open.
CLAIMS = {"margin_seconds": 1.0}
#: Enough for a claim of ``TTL`` to be over, and for its messages to be claimed anew.
LONGEST = 45.0
TTL = 15.0


@dataclass(frozen=True)
class Backend:
    """A store, and the strategy that a bucket of it is used with."""

    server: str  # the fixture's name
    strategy: str
    forced: bool = False

    def __str__(self) -> str:
        """Name it in a test's id."""
        return f"{self.server}-{self.strategy}"

    @property
    def sections(self) -> dict[str, Any]:
        """The settings that every process of the bucket has."""
        strategy = self.strategy if self.forced else "auto"
        return {"concurrency": {"strategy": strategy, "csprng_verify": PAUSES}, "claims": CLAIMS}


CONDITIONAL = Backend("seaweedfs", "conditional_write")
CSPRNG = Backend("rclone", "csprng_verify")
CSPRNG_FORCED = Backend("seaweedfs", "csprng_verify", forced=True)


@dataclass
class Deadline:
    """Time for what a test waits for."""

    seconds: float = LONGEST
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin."""
        self._end = time.monotonic() + self.seconds

    def check(self, what: str) -> None:
        """Fail if it is over."""
        assert time.monotonic() < self._end, f"not within {self.seconds:g} s: {what}"


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Await what the call returns, again where it says that it could not be found out.

    With csprng_verify a busy machine is enough for that: a PUT that was late proves nothing.
    """
    deadline = Deadline()
    while True:
        try:
            return await call()
        except StoreError as error:
            if not error.transient:
                raise
            deadline.check(str(error))


async def claim_until(
    queue: PawnQueue, topic: str, count: int, *, consumer: str = "ours", ttl: float = TTL
) -> list[Claim]:
    """Claim until this number of messages is claimed; one claim is nearly always enough.

    On a busy machine csprng_verify may leave a lease that nobody trusts: its message is free after the claim's time.
    """
    deadline = Deadline()
    claims: list[Claim] = []
    while (left := count - sum(map(len, claims))) > 0:
        deadline.check(f"{count} messages of {topic}, of which {left} are missing")
        claims.append(await patiently(lambda: queue.claim(topic, consumer, max_messages=left, ttl=ttl)))
        if not claims[-1]:
            await asyncio.sleep(0.05)
    return [claim for claim in claims if claim]


async def settled(settle: Callable[..., Awaitable[Settlement]], claim: Claim, *which: Any, **how: Any) -> Settlement:
    """Settle until it is known what became of each message."""
    deadline = Deadline()
    while (settlement := await settlement_of(settle(claim, *which, **how))).unknown:
        deadline.check(f"the settlement of {claim}")
    return settlement


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until it is so."""
    deadline = Deadline()
    while not await condition():
        deadline.check(what)
        await asyncio.sleep(0.05)
