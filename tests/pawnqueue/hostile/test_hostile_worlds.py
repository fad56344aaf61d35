"""Whatever is forged in a bucket, nothing but errors of ours comes out, all ends, and good messages are delivered."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from pawnqueue.catalog import units
from pawnqueue.domain import envelope, pack, record, write_record
from pawnqueue.domain.bounds import NotJsonError
from tests.pawnqueue.hostile.playing import play

#: How many new worlds a test run plays; ``python -m tests.pawnqueue.hostile`` plays 10,000.
NEW = 200
#: Worlds that once were broken. The engine and the forger have changed since, so they may differ now.
ONCE_BROKEN = (23, 52, 59, 204, 30144, 96113934634727, 1795192634000220)


@pytest.mark.timeout(600)
def test_new_worlds_are_whole() -> None:
    """In worlds never played before, no forged object stops anything else."""
    first = int.from_bytes(os.urandom(6))
    broken = {story.seed: story.broken for story in map(play, range(first, first + NEW)) if story.broken}
    assert not broken, f"play again with: python -m tests.pawnqueue.hostile --seed {next(iter(broken))}"


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_worlds_that_were_broken_are_whole(seed: int) -> None:
    """What the forger has found stays mended."""
    assert play(seed).broken == []


def test_a_seed_is_played_again_to_the_letter() -> None:
    """The same happens again, so that what was found can be looked at."""
    assert play(7).events == play(7).events


def any_json(body: bytes, *, max_depth: int) -> Any:  # noqa: ANN401 - any JSON value
    """Read what Python reads, which is more than JSON."""
    del max_depth
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise NotJsonError("") from None


def any_line(line: bytes, _key: str) -> pack.PackEntry:
    """Read a line of a pack without a look at what it holds."""
    read = json.loads(line)
    return pack.PackEntry(read["id"], "", "", read["payload"], {})


def quoting(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Quote in an error what was read."""

    def quoted(kind: type, body: bytes, key: str) -> Any:  # noqa: ANN401 - a record
        try:
            return decode(kind, body, key)
        except record.UnreadableRecordError as problem:
            raise record.UnreadableRecordError(f"{problem}: {body!r}") from None

    return quoted


QUOTED = quoting(record.Record.decode.__func__)
#: The engine without a rule, and a few seeds that show it.
MUTANTS: dict[str, tuple[object, str, Any, tuple[int, ...]]] = {
    "any JSON is read": (record, "parse_json", any_json, (1, 2)),
    "any name is a message's": (units, "MESSAGE_NAME", re.compile("(?s).*"), (26, 33)),
    "fields may contradict each other": (write_record.WriteRecord, "fits", lambda *_: True, (296,)),
    "errors quote what was read": (envelope.Envelope, "decode", classmethod(QUOTED), (24, 29)),
    "any JSON is a line of a pack": (pack, "read_entry", any_line, (1, 2)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_forger_finds_what_is_missing(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rule of the engine some worlds are broken, which are whole with it."""
    owner, name, instead, seeds = MUTANTS[mutant]
    assert [play(seed).broken for seed in seeds] == [[]] * len(seeds)
    monkeypatch.setattr(owner, name, instead)
    assert any(play(seed).broken for seed in seeds)
