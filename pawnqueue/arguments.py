"""Checks of single arguments, made before any request. Each raises an error that says what to pass instead."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from pawnqueue.claims import Claim, ClaimReference, Message
from pawnqueue.claims.claim import AllOfPack, Meant, OneMessage
from pawnqueue.domain import layout
from pawnqueue.errors import InvalidArgumentError, LeaseLostError
from pawnqueue.publish.new_messages import Checked, NewMessage
from pawnqueue.publish.packing import PackChoice

if TYPE_CHECKING:
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.settings import Settings

#: A claim that was handed over: by its reference, or by the dict that its ``to_dict`` made.
Reference: TypeAlias = ClaimReference | Mapping[str, Any]
#: What to publish: JSON objects, alone or with headers of their own. Those of a synchronous caller are checked already.
Payloads: TypeAlias = Iterable[Mapping[str, Any] | NewMessage | Checked]
#: What is called when a claim is lost.
OnLost: TypeAlias = Callable[[LeaseLostError], Awaitable[None] | None]
#: One topic, or several.
TopicNames: TypeAlias = str | Iterable[str]
#: Which messages of a claim: one or many, each as the message itself or by its id.
Chosen: TypeAlias = str | Message | Iterable[str | Message]
#: Why messages of a claim were not done: of each the reason, by the message itself or by its id.
Reasons: TypeAlias = Mapping[str, str] | Mapping[Message, str] | Mapping[str | Message, str]

TEN_YEARS_SECONDS = 10 * 365 * 86_400.0
#: How much of an argument an error shows.
MAX_SHOWN_CHARACTERS = 60


def checked_topics(topics: object, operation: str) -> list[str]:
    """Return the names of topics: one, or several, each once."""
    if isinstance(topics, str | bytes | Mapping) or not isinstance(topics, Iterable):
        return [layout.checked_topic(topics)]
    names = list(dict.fromkeys(layout.checked_topic(topic) for topic in topics))
    if not names:
        raise InvalidArgumentError(f"{operation} was given no topic: name at least one.", operation=operation)
    return names


def check_one_topic(topics: Collection[str], claim_id: str | None) -> None:
    """Refuse a claim id that goes with several topics: the next claim by it could not tell which topic's it means."""
    if claim_id is not None and len(topics) > 1:
        raise InvalidArgumentError(
            f"claim_id={shown(claim_id)} names a claim in one topic, and {len(topics)} topics were given: pass one of "
            "them, or no claim_id.",
            operation="claim",
        )


def checked_count(value: object, name: str, operation: str) -> int:
    """Return a number of messages or bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise InvalidArgumentError(f"{name} is a whole number from 1, not {shown(value)}.", operation=operation)


def checked_seconds(value: object, name: str, topic: str, operation: str) -> float:
    """Return how many seconds to wait, or to hold messages back."""
    if is_number(value) and 0 <= value < TEN_YEARS_SECONDS:
        return float(value)
    raise InvalidArgumentError(
        f"{name} is a number of seconds from 0 to ten years, not {shown(value)}.", topic=topic, operation=operation
    )


def checked_ttl(settings: Settings, ttl: object, name: str = "ttl") -> float:
    """Return for how many seconds a claim lasts, or its session is trusted."""
    time = settings.polling.visibility_timeout_seconds if ttl is None else ttl
    margin = settings.claims.margin_seconds
    if not is_number(time) or not margin < time < TEN_YEARS_SECONDS:
        raise InvalidArgumentError(
            f"{name}={shown(time)}: pass a number of seconds above claims.margin_seconds={margin:g}, which is taken "
            "off at its end, and below ten years.",
            operation="claim",
        )
    return float(time)


def checked_session_ttl(settings: Settings, session_ttl: object, ttl: float) -> float:
    """Return for how many seconds a session is trusted: by default, for as long as the claim lasts."""
    if session_ttl is None:
        return ttl
    session = checked_ttl(settings, session_ttl, "session_ttl")
    if session > ttl:
        raise InvalidArgumentError(
            f"session_ttl={session:g} is more than ttl={ttl:g}: a session is trusted for a part of its claim's time.",
            operation="claim",
        )
    return session


def checked_text(value: object, name: str, topic: str, operation: str) -> str:
    """Return a text."""
    if isinstance(value, str):
        return value
    raise InvalidArgumentError(f"{name} is a text, not {shown(value)}: use str(...).", topic=topic, operation=operation)


def checked_flag(value: object, name: str, operation: str) -> bool:
    """Return a flag."""
    if isinstance(value, bool):
        return value
    raise InvalidArgumentError(f"{name} is True or False, not {shown(value)}.", operation=operation)


def checked_flags(operation: str, **flags: object) -> None:
    """Refuse arguments that are neither True nor False, by their names."""
    for name, value in flags.items():
        checked_flag(value, name, operation)


def checked_pack(value: object) -> PackChoice:
    """Return whether a call of publish makes packs."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value == "auto":
        return "auto"
    raise InvalidArgumentError(f'pack is "auto", True or False, not {shown(value)}.', operation="publish")


def checked_callback(value: object, name: str, what: str, operation: str) -> None:
    """Refuse a callback that is neither None nor callable."""
    if value is not None and not callable(value):
        raise InvalidArgumentError(
            f"{name} is a function of one argument, {what}, not {shown(value)}.", operation=operation
        )


def chosen(claim: HeldClaim, messages: object, operation: str) -> list[Meant]:
    """Return which messages of a claim are meant: all of them, one, or some.

    A message means itself, and an id means all messages that have it.
    """
    if messages is None:
        return list(claim.each)
    some = [messages] if isinstance(messages, str | Message) else messages
    if not isinstance(some, Iterable) or isinstance(some, bytes | dict | Claim):
        raise _no_messages_error(messages, claim, operation)
    found: list[Meant] = []
    for given in some:
        if not _is_message(given):
            raise _no_messages_error(given, claim, operation)
        found.append(_meant_by(given))
    ids = {given for given in found if isinstance(given, str)}
    return [given for given in found if not isinstance(given, OneMessage) or given.id not in ids]


def checked_reasons(claim: HeldClaim, given: object, name: str) -> dict[str | OneMessage, str]:
    """Return which messages of a claim were not done, each as itself or by its id, with the reason."""
    if given is None:
        return {}
    wrong = [given] if not isinstance(given, Mapping) else [each for each in given if not _is_message(each)]
    if isinstance(given, Mapping):
        wrong += [why for why in given.values() if not isinstance(why, str)]
        if not wrong:
            meant = {_meant_by(each): why for each, why in given.items()}
            return {
                each: meant[each] for each in chosen(claim, list(given), "settle") if not isinstance(each, AllOfPack)
            }
    raise InvalidArgumentError(
        f"settle takes {name} as a dict, messages of its claim, or their ids, and why, not {shown(wrong[0])}: "
        f"settle(claim, {name}={{message: reason}}).",
        topic=claim.topic,
        operation="settle",
    )


def check_one_fate(claim: HeldClaim, again: Collection[str | OneMessage], dead: Collection[str | OneMessage]) -> None:
    """Refuse a message that is to be both given back and buried, by its id or as itself."""
    both = {each if isinstance(each, str) else each.id for each in again if each in dead}
    for some, others in ((again, dead), (dead, again)):
        both.update(each.id for each in some if isinstance(each, OneMessage) and each.id in others)
    if both:
        raise InvalidArgumentError(
            f"{shown(min(both))} is in both requeue and bury: a message is settled once.",
            topic=claim.topic,
            operation="settle",
        )


def checked_ids(ids: object, topic: str, operation: str) -> set[str] | None:
    """Return the ids of dead letters: one, or many; None if all are meant."""
    if ids is None:
        return None
    some = [ids] if isinstance(ids, str) else ids
    if isinstance(some, Iterable) and not isinstance(some, bytes | dict):
        found = [getattr(given, "id", given) for given in some]
        texts = {given for given in found if isinstance(given, str)}
        if all(isinstance(given, str) for given in found):
            return texts
    raise InvalidArgumentError(
        f"{operation} takes ids of messages, one or many, not {shown(ids)}.", topic=topic, operation=operation
    )


def checked_claim_ids(claim_ids: object) -> set[str]:
    """Return the ids of claims: one, or many."""
    some = [claim_ids] if isinstance(claim_ids, str) else claim_ids
    if not isinstance(some, Iterable) or isinstance(some, bytes | dict):
        raise InvalidArgumentError(
            f"known_claims takes ids of claims, one or many, not {shown(claim_ids)}.", operation="known_claims"
        )
    return {layout.checked_claim_id(claim_id) for claim_id in some}


def checked_owners(owner: object) -> set[str]:
    """Return the possible owners of a claim: one, or several."""
    some = [owner] if isinstance(owner, str) or not isinstance(owner, Iterable) else owner
    return {layout.checked_holder(one, "owner") for one in some}


def is_number(value: object) -> TypeGuard[float]:
    """Say whether it is a number that a float can hold, and not NaN."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer too large for a float
        return False


def shown(value: object) -> str:
    """Show an argument in an error: shortened, and without payloads."""
    if value is not None and not isinstance(value, str | int | float | BaseException):
        return f"a {'Claim' if isinstance(value, Claim) else type(value).__name__}"  # its content may be a payload
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"


def _is_message(given: object) -> TypeGuard[str | Message]:
    return isinstance(given, str | Message) and not isinstance(given, Enum)


def _meant_by(given: str | Message) -> str | OneMessage:
    if isinstance(given, str):
        return given
    return OneMessage(given.id, given.unit) if given.unit else given.id


def _no_messages_error(value: object, claim: Claim, operation: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{operation} takes messages of its claim, or their ids, one or many, not {shown(value)}: "
        f"{operation}(claim, [message]), or {operation}(claim) for all of them.",
        topic=claim.topic,
        operation=operation,
    )
