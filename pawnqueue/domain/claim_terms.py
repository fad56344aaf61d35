"""The terms of a claim: one value from Airflow's sensor to the queue, with one name for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

#: How long a claim lasts without a renewal where its own process renews it. Why there are two defaults:
#: ``docs/explanation/decisions/default-ttl.md``.
DEFAULT_TTL_SECONDS: Final = 30.0
#: The same where a claim goes from process to process: from task to task in Airflow, through restarts in Spark.
HANDED_OVER_TTL_SECONDS: Final = 300.0
#: How long after its last renewal a process is trusted with a claim that lasts for longer. After a process was killed,
#: the next one waits for this time.
SESSION_TTL_SECONDS: Final = 30.0

#: Terms of a caller that waits for a backlog before it claims: ``PawnQueue.claim`` has no such arguments.
_BACKLOG_TERMS: Final = ("min_messages", "max_wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTerms:
    """What a claim is asked for: from which topic, for whom, how much, and for how long."""

    topic: str
    consumer: str
    #: On whose behalf; None: the consumer's.
    owner: str | None = None
    claim_id: str | None = None
    #: None: ``polling.max_messages_per_poll``.
    max_messages: int | None = None
    max_bytes: int | None = None
    #: Claim only when this many messages can be claimed, or when the oldest has waited for ``max_wait`` seconds.
    min_messages: int = 1
    max_wait: float | None = None
    #: In seconds, as all times here. None: ``polling.visibility_timeout_seconds``.
    ttl: float | None = None
    #: For how much of ``ttl`` the claiming process is trusted without a renewal; None: for all of it.
    session_ttl: float | None = None
    #: How long to keep looking while nothing is claimable.
    wait: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as JSON has them, without those that have their default."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: value for field, value in values if value != field.default}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned. What this release does not know is left out."""
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})

    def claim_arguments(self) -> dict[str, Any]:
        """Return the arguments for ``PawnQueue.claim``."""
        return {name: value for name, value in self.to_dict().items() if name not in _BACKLOG_TERMS}
