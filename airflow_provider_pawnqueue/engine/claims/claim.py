"""What a consumer is given: messages, the claim that holds them, and what became of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.errors import InvalidArgumentError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.records import ClaimRecord


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``id`` never changes, whatever happens to the message: deduplicate by it."""

    id: str
    topic: str
    producer_id: str
    created_at: str
    payload: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim in a few hundred bytes: what XCom, a Spark argument or an event carries. Holds no payload."""

    topic: str
    claim_id: str
    generation: int
    session: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "topic": self.topic,
            "claim_id": self.claim_id,
            "generation": self.generation,
            "session": self.session,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        try:
            return cls(str(data["topic"]), str(data["claim_id"]), int(data["generation"]), str(data["session"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise InvalidArgumentError(
                f"This is no claim reference ({problem!r} is wrong or missing): pass what hand_over() returned.",
                operation="attach",
            ) from None


class Claim:
    """A batch of messages that this process alone works on until :attr:`deadline`; renewing moves it.

    Iterates over its messages; one without any is falsy. Made by ``PawnQueue.claim`` and ``PawnQueue.attach``.
    """

    def __init__(  # noqa: PLR0913 - the parts of one thing, made in one place
        self,
        record: ClaimRecord,
        version: str,
        topic: str,
        messages: Sequence[Message],
        *,
        uuids: Mapping[str, str],
        leases: Mapping[str, str],
        deadline: float,
        session_ttl: float,
        trusted: Callable[[float, bool], float] = lambda *_: math.inf,
    ) -> None:
        self.topic = topic
        self.claim_id = record.claim_id
        self.generation = record.generation
        self.owner = record.owner
        self.consumer = record.consumer
        self.session = record.session
        self.messages = tuple(messages)
        self._record = record
        self._version = version
        self._uuids = dict(uuids)  # of each member's key, its message's id
        self._leases = dict(leases)  # of each member's key, the version of its lease, where it is known
        self._deadline = deadline
        self._session_ttl = session_ttl
        self._trusted = trusted  # by what is known, or in doubt, of the store's time: in elapsed time
        self._lost: str | None = None
        self._given_away = False
        self._is_fleeting = False  # nobody else can know its id
        self._done: set[str] = set()  # members whose decision is known to be carried out
        self._under_way: set[str] = set()  # and those where it is being carried out
        self._lock = asyncio.Lock()  # one change of the record at a time: our own refusals would only cost requests

    @property
    def stem(self) -> str:
        """Its id and generation, as logs and leases name it."""
        return self._record.stem

    @property
    def ids(self) -> list[str]:
        """The ids of its messages, in order."""
        return [message.id for message in self.messages]

    @property
    def deadline(self) -> float:
        """When this process stops trusting the claim, in the elapsed seconds of its clock.

        ⚑ §2: it is counted from when the claim was asked for. If our clock is found to have stood still since, what is
        known of the store's time by now is what counts.
        """
        return self._until(in_doubt=True)

    def _until(self, *, in_doubt: bool) -> float:
        """Return the deadline; while it is in doubt, renewing still finds out whether the claim is lost."""
        if not self._version:
            return self._deadline
        return min(self._deadline, self._trusted(self._record.session_end, in_doubt))

    @property
    def ttl(self) -> float:
        """For how many seconds a renewal keeps the claim."""
        return self._record.lasts or self._record.ttl

    @property
    def session_ttl(self) -> float:
        """For how many seconds after a renewal this process is trusted with it: at most :attr:`ttl`."""
        return min(self._session_ttl, self.ttl)

    @property
    def lost(self) -> str | None:
        """Why the claim was lost, or None as far as is known."""
        return self._lost

    @property
    def state(self) -> Literal["open", "expired", "closed"]:
        """The state of its record, when it was last seen."""
        return self._record.state

    @property
    def recorded(self) -> bool:
        """Whether it is in the bucket: a claim that found no message is not."""
        return bool(self._version)

    @property
    def was_handed_out(self) -> bool:
        """Whether its owner was ever given a message of it, in this session or an earlier one."""
        return self._record.was_handed_out

    @property
    def decided(self) -> Mapping[str, str]:
        """What was decided of its messages, by id: acked, dead, released."""
        return {
            decision.id or self._uuids.get(uuid, uuid): decision.how
            for uuid, decision in self._record.settled.items()
            if decision.how != "gone" and not decision.lost
        }

    def hand_over(self) -> ClaimReference:
        """Give the claim to another process, which attaches to it: this one works on it no more.

        The other process need not wait, as it knows by the reference that nobody works on the messages.
        """
        self._given_away = True
        self._is_fleeting = False
        return ClaimReference(self.topic, self.claim_id, self.generation, self.session)

    def _uuids_by_id(self) -> dict[str, list[str]]:
        """Return under which uuids each message is kept: two redriven copies of one message have one id."""
        found: dict[str, list[str]] = {}
        for uuid in self._record.members:
            decision = self._record.settled.get(uuid)
            message_id = (decision.id if decision else "") or self._uuids.get(uuid, uuid)
            found.setdefault(message_id, []).append(uuid)
        return found

    def _is_ours(self) -> bool:
        return self._record.session == self.session and not self._given_away

    def _now_at(self, record: ClaimRecord, version: str) -> None:
        self._record = record
        self._version = version

    async def _refresh(self, context: Context) -> None:
        """Look at the record again: somebody has changed it, perhaps an earlier request of ours that landed late."""
        found = await records.read(context, self.topic, self._record.stem)
        if found is None:
            # Only closed records are deleted, so what it had decided was carried out, and nothing is ours any more.
            self._record = self._record.model_copy(update={"state": "expired"})
        else:
            self._now_at(found.record, found.version)

    def __iter__(self) -> Iterator[Message]:
        """Give the messages, in order."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Count the messages."""
        return len(self.messages)

    def __bool__(self) -> bool:
        """Say whether there is a message to work on."""
        return bool(self.messages)

    def __repr__(self) -> str:
        """Show which claim it is; payloads are nobody's business in a log."""
        return f"<Claim {self.claim_id}.{self.generation} of {self.topic!r}: {len(self)} messages, {self.state}>"
