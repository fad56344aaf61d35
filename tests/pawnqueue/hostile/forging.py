"""Forge bodies and keys of every kind: good ones with something in them that does not fit, and garbage."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import zstandard

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout, pack
from pawnqueue.domain.numbers import MAX_PACK_MESSAGES
from pawnqueue.domain.size_hint import padded
from tests.pawnqueue.hostile.forged_packs import BOMBS, CHECKED, SKIPPABLE, STREAMED, mutated

#: Where somebody may write: a publisher below ``messages/`` and ``packs/``, a consumer everywhere.
Rights: TypeAlias = Literal["publisher", "consumer"]

TOPIC: Final = "orders"
#: Another topic, which no forged object of the first one may touch.
VICTIM: Final = "victim"
#: In every forged payload: it is to be in no log, error or reason.
SECRET: Final = "s3cr3t"
#: The consumer that the forger knows, and ids that it may guess.
OWNER: Final = "known"
CLAIM_IDS: Final = ("known-1", "known-2", "forged")
WRITE_IDS: Final = ("load-1", "forged")

#: How many of the packs that may be a bomb are one: to find that out takes a second each.
SHARE_OF_BOMBS: Final = 0.1

#: Reasons and errors: two of the longest make a lease as large as one may be.
TEXTS: Final = ("r", "r", "", "x" * 65_000, "\x01" * 10_000)

_RAW: Final = {"@nan@": "NaN", "@inf@": "Infinity", "@-inf@": "-Infinity", "@1e999@": "1e999"}
_LONG: Final = "9" * 4000
_HALF: Final = "\ud800"

SCALARS: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    5,
    500,
    501,
    20_000,
    2**31 - 1,
    2**31,
    -(2**31),
    2**63,
    10**18,
    10**30,
    int(_LONG),
    0.5,
    -0.5,
    1e15,
    1e17,
    1e300,
    -1e300,
    253_370_764_800.0,
    253_402_300_800,
    *_RAW,
    "",
    "x",
    ".",
    "..",
    "../x",
    "../../victim/messages/x.json",
    "x/y",
    "a" * 255,
    "a" * 256,
    "a" * 5000,
    "\x00",
    "x\ny",
    "\x1b[2J",
    _HALF,
    f"x{_HALF}y",
    "ü",
    "日本",
    "held",
    "released",
    "moving",
    "split",
    "mixed",
    "0-1",
    "0-4095",
    "1,0",
    "4096",
    "open",
    "expired",
    "closed",
    "begun",
    "done",
    "dropped",
    "acked",
    "dead",
    "gone",
    "2026-01-01T00:00:00+00:00",
    "9999-12-31T23:59:59",
    "0001-01-01T00:00:00+23:59",
    [],
    {},
    [[]],
    {"": {}},
)


class Forger:
    """Somebody who may write to the bucket, by the chance of a seed."""

    def __init__(self, chance: random.Random, now: float, rights: Rights) -> None:
        self.chance = chance
        self.now = now
        self._rights = rights
        #: Of objects that the forger has invented: good messages are not among them.
        self.uuids = [self._uuid() for _ in range(4)]
        self.names = [self.name_of(uuid) for uuid in self.uuids]
        #: In some worlds there are few others, so that what is forged is more often about one and the same pack.
        self._is_about_packs = self.chance.random() < 0.5
        #: Some packs share a uuid, with each other and with single messages.
        count = 2 if self._is_about_packs else 4
        self.packs = [self._pack_name(self._of((self._uuid(), *self.uuids))) for _ in range(count)]

    def objects(self) -> list[tuple[str, bytes]]:
        """Forge some objects, and return their keys and bodies."""
        kinds = [self._message, self._pack, self._pack, self._stranger]
        if self._rights == "consumer":
            kinds += [self._lease_of_pack] * 3 + [self._claim_of_packs] * 2 + [self._letter, self._reason]
            kinds += [] if self._is_about_packs else self._kinds_of_consumers()
        made = [self.chance.choice(kinds)() for _ in range(self.chance.randint(4, 14))]
        # A body under the key of another one is as good as it looks, and does not fit.
        keys = [key for key, _ in made]
        return [(self.chance.choice(keys) if self.chance.random() < 0.1 else key, body) for key, body in made]

    def _kinds_of_consumers(self) -> list[Callable[[], tuple[str, bytes]]]:
        return [
            self._lease,
            self._claim,
            self._write,
            self._staged,
            self._registration,
            self._marker,
        ]

    def steal(self, names: Sequence[str]) -> None:
        """Learn the names of packs of others. The next packs have uuids of theirs, and other times."""
        for name in names:
            parsed = units.parse(name)
            if parsed is not None and parsed.is_pack:
                uuid, count = layout.uuid_of(parsed.id), self._of((parsed.count, parsed.count, 1, 12))
                place = self.now + self.chance.uniform(-1e5, 1e5)
                self.packs.append(units.pack_name_at(place, uuid, count))
                self.names.append(units.name_at(place, self._of((uuid, pack.letter_id(uuid, 0)))))

    def name_of(self, uuid: str) -> str:
        """Make the name of a message, from any time."""
        return units.name_at(self.now + self.chance.uniform(-1e5, 1e5), uuid)

    def _pack_name(self, uuid: str) -> str:
        count = self._of((1, 2, 3, 5, 12, 12, 120))
        return units.pack_name_at(self.now + self.chance.uniform(-1e5, 1e5), uuid, count)

    # --- kinds ---

    def _message(self) -> tuple[str, bytes]:
        return units.key_of(TOPIC, self.chance.choice(self.names)), self._body(self._envelope())

    def _envelope(self) -> dict[str, Any]:
        return {
            "id": self.chance.choice(self.uuids),
            "topic": TOPIC,
            "producer_id": "p",
            "created_at": "x",
            "payload": {SECRET: SECRET, "x": self._value()},
            "headers": {"h": "v"},
            "write_id": self._of(WRITE_IDS),
            "v": 1,
        }

    def _pack(self) -> tuple[str, bytes]:
        name = self._of(self.packs)
        return units.key_of(TOPIC, name), self._pack_body(layout.count_in(name))

    def _pack_body(self, count: int) -> bytes:
        lines = [self._line() for _ in range(max(self._near(count), 0))] or [b""]
        good, text = pack.pack_body(lines), b"".join(line + b"\n" for line in lines)
        at = self.chance.randrange(len(text))
        window = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
        made: list[Callable[[], bytes]] = [
            *[lambda: good] * 6,
            *[lambda: mutated(good, self.chance)] * 3,
            # As a tool rewrites it: without its table, or in frames that end anywhere.
            lambda: CHECKED.compress(text),
            lambda: STREAMED.compress(text),
            lambda: CHECKED.compress(text[:at] or b"\n") + SKIPPABLE + STREAMED.compress(text[at:]),
            # Not a pack.
            lambda: CHECKED.compress(text[:-1]),
            lambda: zstandard.ZstdCompressor(compression_params=window).compress(text),
            lambda: self._of((b"", text, SKIPPABLE, CHECKED.compress(b""), CHECKED.compress(text) + b"\n")),
            lambda: self._of(list(BOMBS.values()))() if self.chance.random() < SHARE_OF_BOMBS else b"\x00",
        ]
        return self._of(made)()  # type: ignore[no-any-return]

    def _line(self) -> bytes:
        envelope = self._envelope()
        if self.chance.random() < 0.7:
            envelope["payload"] = {SECRET: self.chance.randrange(9)}
            return self._encoded(envelope)
        return self._body(envelope).replace(b"\n", b"")

    def _lease(self) -> tuple[str, bytes]:
        at = self.chance.randrange(len(self.uuids))
        state = self._of(("held", "released", "moving"))
        body = {
            "v": 1,
            "nonce": "n",
            "consumer_id": "c",
            "message_id": self.uuids[at],
            "claimed_at": "",
            "expires_at": "",
            "state": state,
            "until": self._time(),
            "ttl": 30.0,
            "key": self.names[at],
            "claim": f"{self._of(CLAIM_IDS)}.0",
            "deliveries": self._of((0, 1, 9, 11)),
            "source": self._of(self.uuids),
            "reason": self._of(TEXTS),
            "error": self._of(TEXTS),
        }
        return layout.lease(TOPIC, self.uuids[at]), self._padded(self._body(body))

    def _claim(self) -> tuple[str, bytes]:
        key, claim = self._good_claim()
        some = self.chance.sample(range(len(self.uuids)), self.chance.randint(0, len(self.uuids)))
        members = {self.uuids[at]: {"name": self.names[at], "size": 100, "deliveries": 1} for at in some}
        settled = {
            self.uuids[at]: {
                "how": self._of(("acked", "dead", "released", "gone")),
                "until": self._time(),
                "reason": self._of(TEXTS),
            }
            for at in some
            if self.chance.random() < 0.5
        }
        if self.chance.random() < 0.1:
            settled[self._uuid()] = {"how": "acked"}
        return key, self._padded(self._body({**claim, "members": members, "settled": settled}))

    def _good_claim(self) -> tuple[str, dict[str, Any]]:
        """Return the key of a claim, and its record without members."""
        claim_id, generation = self._of(CLAIM_IDS), self._of((0, 0, 1, 7))
        return layout.claim(TOPIC, f"{claim_id}.{generation}"), {
            "v": 1,
            "nonce": "n",
            "claim_id": claim_id,
            "generation": generation,
            "owner": self._of((OWNER, OWNER, OWNER, "o" * 2_000)),
            "consumer": self._of((OWNER, OWNER, OWNER, "c" * 1_000)),
            "session": "s",
            "state": self._of(("open", "expired", "closed")),
            "created_at": self._time(),
            "until": self._time(),
            "session_until": self._time(),
            "ttl": 30.0,
            "lasts": 30.0,
        }

    def _unit(self) -> tuple[str, str]:
        """Return the id of a pack, or of a slice of one, and the pack's name."""
        name = self._of(self.packs)
        unit = units.parse(name)
        assert unit is not None
        if self.chance.random() < 0.5:
            return unit.id, name
        begin = self.chance.randrange(unit.count)
        end = begin + self._of((1, 1, 2, 3, 10, unit.count))
        return layout.slice_id(layout.uuid_of(unit.id), begin, end), name

    def _shares(self, unit_id: str) -> list[dict[str, Any]]:
        """Return shares that fit a unit, mostly."""
        begin, end = layout.range_of(unit_id) or (0, 1)
        cut = self.chance.randint(begin, end)
        made = []
        for first, behind in self._of((((begin, end),), ((begin, cut), (cut, end)), ((begin, cut), (cut - 1, end)))):
            if first < behind:
                of = f"{first}" if first + 1 == behind else f"{first}-{behind - 1}"
                made.append({"of": of, "deliveries": self._of((0, 1, 9, 11)), "lapsed": self._of((0, 1, 9))})
                made[-1] |= {"until": self._time(), "reason": self._of(TEXTS), "error": self._of(TEXTS)}
        return made

    def _lease_of_pack(self) -> tuple[str, bytes]:
        unit_id, name = self._unit()
        state = self._of(("held", "held", "released", "split", "split", "done", "moving"))
        shares = [] if state == "done" else self._shares(unit_id)
        body = {
            "v": 1,
            "nonce": "n",
            "message_id": unit_id,
            "state": state,
            "until": self._time(),
            "ttl": 30.0,
            "key": self._of((name, name, name, *self.packs, *self.names)),
            "claim": f"{self._of(CLAIM_IDS)}.0",
            "shares": shares,
            "taken": self._of(shares)["of"] if shares and state == "held" else "",
            "length": self._of((1, 1, 2, 3, 4095)) if state == "split" else 0,
        }
        encoded = self._body(body)
        if self.chance.random() < 0.3:
            # Its size says that the slice is finished, or the pack split.
            return layout.lease(TOPIC, unit_id), padded(encoded, 3, self._of((0.0, 1.0, 2.0)))
        return layout.lease(TOPIC, unit_id), self._padded(encoded)

    def _claim_of_packs(self) -> tuple[str, bytes]:
        key, claim = self._good_claim()
        members, settled = {}, {}
        for _ in range(self.chance.randint(1, 3)):
            unit_id, name = self._unit()
            shares = self._shares(unit_id)
            parts = [
                {"of": each["of"], "how": self._of(("acked", "dead", "released", "gone")), "until": self._time()}
                for each in shares
                if self.chance.random() < 0.7
            ]
            members[unit_id] = {"name": name, "size": 100, "shares": shares, "decided": parts}
            if self.chance.random() < 0.2:
                members[unit_id]["rest"] = self._of(("0", "1-2", "0-11"))
            if self.chance.random() < 0.5:
                settled[unit_id] = {"how": self._of(("acked", "dead", "released", "gone", "mixed", "mixed"))}
        if self.chance.random() < 0.1:
            members[self.uuids[0]] = {"name": self.names[0], "size": 100}
        claim |= {"v": self._of((1, 2, 2, 2, 2, 3)), "members": members, "settled": settled}
        return key, self._padded(self._body(claim))

    def _write(self) -> tuple[str, bytes]:
        write_id = self._of(WRITE_IDS)
        counts = [self.chance.randint(0, 3) for _ in range(self.chance.randint(0, 2))]
        are_packs = self.chance.random() < 0.5
        objects = [
            {
                "name": layout.staged_name(part, "0" * 32, 0, is_pack=are_packs),
                "size": self._of((0, 50 * count, 100 * count)),
                "count": count,
            }
            for part, count in enumerate(counts)
        ]
        body = {
            "v": self._of((1, 2, 2)) if are_packs else 1,
            "nonce": "n",
            "write_id": write_id,
            "state": self._of(("begun", "begun", "done", "dropped")),
            "created_at": self._time(),
            "until": self._time(),
            "ttl": 30.0,
            "place": int(self.now * 1e6),
            "count": self._near(sum(counts)),
            "size": 0,
            "published": self._near(0),
            "begun": self._near(sum(counts)),
            "objects": objects,
            "dropped": [],
            "lost": [],
            "holder": "h",
        }
        return layout.write(TOPIC, write_id), self._padded(self._body(body))

    def _staged(self) -> tuple[str, bytes]:
        count, is_pack = self.chance.randint(0, 3), self.chance.random() < 0.5
        name = layout.staged_name(self._of((0, 1)), "0" * 32, 0, is_pack=is_pack)
        key = layout.staged_object(TOPIC, self._of(WRITE_IDS), name)
        if is_pack:
            return key, self._pack_body(count)
        rows = [{"id": self._of(self.uuids), "payload": {SECRET: 1}, "v": 1} for _ in range(count)]
        return key, b"".join(self._body(row) + b"\n" for row in rows)

    def _letter(self) -> tuple[str, bytes]:
        return letters.key_of(TOPIC, self._letter_id()), self._message()[1]

    def _letter_id(self) -> str:
        """Return the id of a message's letter, or of that of a message of a pack."""
        uuid = layout.uuid_of(self._unit()[0])
        return self._of((*self.uuids, uuid, pack.letter_id(uuid, 0), pack.letter_id(uuid, 1)))  # type: ignore[no-any-return]

    def _reason(self) -> tuple[str, bytes]:
        body = {
            "v": 1,
            "reason": "r",
            "error": "e",
            "deliveries": 3,
            "consumer": "c",
            "claim": "c.0",
            "at": "x",
            "name": self._of((*self.names, *self.packs)),
            "unit": self._of(("", "", self._unit()[0], *self.uuids)),
            "given_reason": "",
            "given_error": "",
        }
        return letters.reason_key_of(TOPIC, self._letter_id()), self._body(body)

    def _registration(self) -> tuple[str, bytes]:
        role: layout.Role = self._of(("producers", "consumers"))
        body = {"role": role, "name": "n", "entity_id": self._uuid(), "registered_at": "x", "last_seen": "x"}
        named = layout.id_of_name(role, OWNER)
        return layout.registration(role, self._of((*self.uuids, named))), self._body(body)

    def _marker(self) -> tuple[str, bytes]:
        body = {
            "topic": self._of(("extra", VICTIM, "..")),
            "created_at": "x",
            "settings": {"max_deliveries": 3},
            "v": 1,
        }
        return self._of((layout.topic_marker("extra"), layout.swept(TOPIC))), self._body(body)

    def _stranger(self) -> tuple[str, bytes]:
        folders = ["messages/", "packs/", "packs/"]
        if self._rights == "consumer":
            folders += ["leases/", "claims/", "writes/", "staged/", "staged/forged/", "dead-letter/"]
            folders += ["messages!/", "messages0/", "other/", "packs~/"]  # before, between and behind the units
        folder = self._of(folders)
        uuid = self._of(self.uuids)
        name = self._of(
            (
                "",
                "x",
                "old/x.json",
                f"x\n-{uuid}.json",
                f"{'a' * 300}-{uuid}.json",
                f"ü-{uuid}.json",
                f"!9-{self._of(self.names)}",
                *(f"x-{uuid}.{count}.jsonl.zst" for count in (0, "05", -1, MAX_PACK_MESSAGES + 1, 9999, "1.1")),
                f"{uuid}.2.jsonl.zst",
                f"{uuid}.jsonl.zst",
                f"..-{uuid}.2.jsonl.zst",
                f"!9-{self._of(self.packs)}",
                *(f"{uuid}.{some}.lease" for some in ("0-0", "1-1", "3-2", "00-2", "0-4097", "4095-4096", "0", "0-")),
                f"{uuid}.lease",
                f"..{uuid}.lease",
                "...0.json",
                "a.99999999999999999999.json",
                "a..json",
                f"{uuid}.reason.json",
                f"~/{uuid}",
                "~//x",
                f"!9-99991231T235959_999999-{uuid}.json",
                f"00010101T000000_000000-{uuid}.json",
            )
        )
        return f"{TOPIC}/{folder}{name}", self._of((b"", b"{}", b"x", self._message()[1]))

    # --- bodies ---

    def _body(self, good: dict[str, Any]) -> bytes:
        """Spoil a good body, in one of many ways, or leave it as it is."""
        match self.chance.randrange(12):
            case 0:
                return self._garbage(good)
            case 1 | 2 | 3 | 4:
                pass
            case _:
                for _ in range(self.chance.choice((1, 1, 1, 2, 5))):
                    self._spoil(good)
        return self._encoded(good)

    def _spoil(self, inside: Any) -> None:  # noqa: ANN401 - any JSON value
        """Change, add or remove something, at any depth."""
        while True:
            places = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            if not places:
                return
            place = self.chance.choice(places)
            deeper = inside[place]
            if not isinstance(deeper, dict | list) or not deeper or self.chance.random() < 0.4:
                break
            inside = deeper
        what = self.chance.random()
        if what < 0.7:
            inside[place] = self._value()
        elif what < 0.8:
            del inside[place]
        elif isinstance(inside, dict):
            key = self.chance.choice(("extra", "", "__class__", "v", _HALF, "..", "x" * 300, *self.uuids))
            inside[key] = self._value()

    def _value(self) -> Any:  # noqa: ANN401 - any JSON value
        match self.chance.randrange(10):
            case 0:
                return self._nested(self.chance.choice((2, 60, 99, 101, 260, 498, 502)))
            case 1:
                return {self._of(("a", _HALF, "b\x00")): self._scalar()}
            case 2:
                return [self._scalar() for _ in range(3)]
            case 3:
                return self._of((*self.uuids, *self.names, *self.packs, *CLAIM_IDS, *WRITE_IDS))
            case _:
                return self._scalar()

    def _scalar(self) -> Any:  # noqa: ANN401 - any JSON value
        # A copy, as what is forged may be spoilt further.
        return copy.deepcopy(self._of(SCALARS))

    def _nested(self, depth: int) -> Any:  # noqa: ANN401 - any JSON value
        value: Any = 1
        for _ in range(depth):
            value = [value] if self.chance.random() < 0.5 else {"a": value}
        return value

    def _garbage(self, good: dict[str, Any]) -> bytes:
        body = self._encoded(good)
        return self._of(
            (
                b"",
                b"{",
                b"null",
                b"[]",
                b'"x"',
                b"1",
                b"\xff\xfe",
                bytes(600),
                body[: len(body) // 2],
                body + b"x",
                b"[" * 100_000,
                b"[" * 700 + b"]" * 700,
                b'{"a":' * 700 + b"1" + b"}" * 700,
                b"9" * 5000,
                b"\xef\xbb\xbf" + body,
                body.decode("utf-8", "replace").encode("utf-16"),
                self.chance.randbytes(600),
                b'{"v":99}',
                b'{"v":' + b"9" * 4000 + b"}",
                b'{"v":true}',
                body.replace(b'"x"', b'"\xed\xa0\x80"'),
            )
        )

    def _encoded(self, data: Any) -> bytes:  # noqa: ANN401 - any JSON value
        text = json.dumps(data)
        for stand_in, raw in _RAW.items():
            text = text.replace(f'"{stand_in}"', raw)
        return text.encode()

    def _padded(self, body: bytes) -> bytes:
        """Have the size tell a state and a time, mostly: whether they are true or not."""
        if self.chance.random() < 0.2:
            return body
        return padded(body, self.chance.randrange(4), self._of((0.0, 0.0, 30.0, 1000.0)))

    # --- chances ---

    def _of(self, some: Any) -> Any:  # noqa: ANN401 - one of them
        return self.chance.choice(some)

    def _near(self, count: int) -> int:
        return count if self.chance.random() < 0.7 else self.chance.randint(-2, 6)

    def _time(self) -> float:
        return float(self._of((0.0, 1.0, self.now - 100, self.now - 3, self.now + 20, self.now + 600)))

    def _uuid(self) -> str:
        digits = f"{self.chance.getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
