"""The quick way to a payload's JSON: it is taken for most payloads, and gives what the exact way gives, to the byte."""

from __future__ import annotations

import decimal
import enum
import math
import random
import struct
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from pawnqueue import InvalidPayloadError
from pawnqueue.publish import payload as exact_way
from pawnqueue.publish.payload import checked_payload
from pawnqueue.publish.plain_json import plain_json
from pawnqueue.settings import LimitsSettings

DEPTH = 8
LIMITS = LimitsSettings(max_payload_depth=DEPTH)
#: How many generated payloads are compared, and of how many of them at least each kind has to be.
PAYLOADS, SOME = 20_000, 1000


class Colour(enum.Enum):
    """Of no JSON type."""

    RED = "red"


class Level(enum.IntEnum):
    """A number with a name."""

    HIGH = 3


class Word(enum.StrEnum):
    """A text with a name."""

    YES = "yes"


class Text(str):
    """A text of a type of its own."""

    __slots__ = ()


class Number(float):
    """A float of a type of its own."""

    __slots__ = ()


@dataclass
class Agreeable:
    """An object that says that it is equal to whatever it is compared with."""

    a: int = 1

    def __eq__(self, other: object) -> bool:
        """Lie."""
        return True

    def __ne__(self, other: object) -> bool:
        """Lie too."""
        return False

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Plain:
    """An object that msgspec writes as a JSON object."""

    a: int = 1


class Struct(msgspec.Struct):
    """Another one."""

    a: int = 1


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - the type that users have

_FLOATS: tuple[float, ...] = (
    *(0.0, -0.0, 1.0, 1e15, 1e16, 1e17, 1e21, 1e22, 1e-4, 1e-5, 1e-6, 1e-7, 5e-324, 1e308, 0.1 + 0.2),
    *(9999999999999998.0, 9007199254740993.0, 123456789012345680.0, 0.00009999999999999999, 10.00001, 1.5e300),
)
_TEXTS = ("", "a", "ä", "😀", "\x00", "\x1f", "\x7f", "\u2028", '"', "\\", "/", "\n\r\t\b\f", "1e22", ":1e5,", "\uffff")
_NASTY: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, "\ud800", b"x", bytearray(b"x"), memoryview(b"x"), {1}, frozenset({"a"}), set()),
    *((1, 2), (), Pair(1, 2), OrderedDict(b=1, a=2), UserDict(a=1), Colour.RED, Level.HIGH, Word.YES, Text("a")),
    *(Number(1.5), 2**63, 2**64, -(2**63) - 1, 10**30, 10**4200, 10**4299, 10**5000, 2**14_000, 2**14_001),
    *(datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1), timedelta(1), UUID(int=0), decimal.Decimal("1.5"), 1j),
    *(Agreeable(), Plain(), Struct(), object(), ..., int, len, [Agreeable()], {"x": Agreeable()}, iter([1]), range(2)),
    *({1: 2}, {None: 1}, {True: 1}, {Text("a"): 1}, {Word.YES: 1}, {"\udfff": 1}, {(1,): 1}, {b"x": 1}),
)


def drawn(chance: random.Random, depth: int, nasty: float) -> Any:  # noqa: ANN401 - any value
    """Draw a value; with some chance one that JSON does not have, or has in another form."""
    if chance.random() < nasty:
        return chance.choice(_NASTY)
    kind = chance.randrange(9 if depth else 7)
    if kind == 7:
        return [drawn(chance, depth - 1, nasty) for _ in range(chance.randrange(4))]
    if kind == 8:
        return drawn_object(chance, depth - 1, nasty)
    leaves: list[Callable[[], Any]] = [
        lambda: chance.choice((None, True, False)),
        lambda: chance.randint(-(10 ** chance.randrange(1, 22)), 10 ** chance.randrange(1, 22)),
        lambda: chance.choice(_FLOATS) * chance.choice((1, -1)),
        lambda: round(chance.uniform(-1e6, 1e6), chance.randrange(8)),
        lambda: chance.choice(_TEXTS),
        lambda: "".join(chr(chance.choice((chance.randrange(128), chance.randrange(0xD800)))) for _ in range(5)),
        lambda: struct.unpack("d", chance.randbytes(8))[0],
    ]
    return leaves[kind]()


def drawn_object(chance: random.Random, depth: int, nasty: float) -> dict[Any, Any]:
    """Draw a JSON object."""
    keys = (chance.choice((*_TEXTS, "b", "c", "Z", "_")) for _ in range(chance.randrange(5)))
    return {key: drawn(chance, depth, nasty) for key in keys}


def of_the_exact_way(payload: dict[Any, Any]) -> bytes | None:
    """The JSON of a payload that is checked one value at a time; None if it is refused."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exact_way, "plain_json", lambda *_: None)
        try:
            return checked_payload(payload, LIMITS, "orders", 0)
        except InvalidPayloadError:
            return None


@pytest.mark.parametrize("nasty", [0.0, 0.05])
def test_both_ways_give_the_same_bytes(nasty: float) -> None:
    """What the quick way takes, the exact way takes too, and writes alike. That is so for many, and not for all."""
    chance = random.Random(19)  # noqa: S311 - repeatable on purpose
    taken = left = 0
    for _ in range(PAYLOADS):
        payload = drawn_object(chance, DEPTH + 1, nasty)
        quick = plain_json(payload, DEPTH)
        if quick is None:
            left += 1
        else:
            taken += 1
            assert quick == of_the_exact_way(payload), payload
    assert min(taken, left) > SOME


@pytest.mark.parametrize("value", _NASTY, ids=lambda value: f"{type(value).__name__}")
@pytest.mark.parametrize(
    "wrapped", [lambda it: {"a": it}, lambda it: {"a": [{"b": it}], "c": "d"}], ids=["flat", "deep"]
)
def test_what_json_does_not_have_is_never_taken_for_something_else(
    value: object, wrapped: Callable[[object], dict[Any, Any]]
) -> None:
    """A value that the exact way refuses is refused, and one that it takes is written alike."""
    payload = wrapped(value)
    assert plain_json(payload, DEPTH) in (None, of_the_exact_way(payload))


def test_floats_are_written_alike_or_not_at_all() -> None:
    """A float is written as Python's repr writes it, or left to the exact way; of usual ones nearly none is left."""
    chance = random.Random(20)  # noqa: S311 - repeatable on purpose
    usual = [round(chance.uniform(-1e6, 1e6), chance.randrange(8)) for _ in range(PAYLOADS)]
    any_bits = [struct.unpack("d", chance.randbytes(8))[0] for _ in range(PAYLOADS)]
    powers = [m * 10.0**k for k in range(-30, 30) for m in range(-99, 100)]
    left = 0
    for number in [*usual, *any_bits, *powers, *_FLOATS]:
        quick = plain_json({"a": number}, DEPTH)
        assert quick in (None, f'{{"a":{number!r}}}'.encode())
        left += quick is None
    assert sum(plain_json({"a": number}, DEPTH) is None for number in usual) < SOME
    assert left > SOME


def test_the_depth_is_the_same_for_both() -> None:
    """The deepest payload that is allowed is taken, and the next is not; so it is for lists and for objects."""
    for wrap in (lambda it: [it], lambda it: {"a": it}):
        value: Any = 1
        for _ in range(DEPTH - 1):
            value = wrap(value)
        assert plain_json({"a": value}, DEPTH) == of_the_exact_way({"a": value}) is not None
        assert plain_json({"a": wrap(value)}, DEPTH) is None
    assert plain_json({"a": [[]] * 100}, DEPTH) is not None
    snake: list[Any] = []
    snake.append(snake)
    assert plain_json({"a": snake}, DEPTH) is None


def test_usual_payloads_take_the_quick_way() -> None:
    """What most users send is not checked one value at a time."""
    usual: list[dict[Any, Any]] = [
        {},
        {
            "order": 1,
            "name": "Ännchen",
            "price": 9.99,
            "paid": True,
            "coupon": None,
            "lines": [{"sku": "a-1e5", "n": 2}],
        },
        {"z": 1, "a": {"y": 2, "b": [1.5, "e", -3]}},
        {"id": "5b2e1e22-0000-4000-8000-000000000000", "at": "2026-01-01T00:00:00+00:00", "big": 2**64},
    ]
    assert [plain_json(payload, 64) for payload in usual] == [of_the_exact_way(payload) for payload in usual]
    assert None not in [plain_json(payload, 64) for payload in usual]
