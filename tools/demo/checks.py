"""Numbers that have to be the same, each found in another way than it is expected; and how they are shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import wrap

from tools.demo.screen import Ink, Screen

#: Up to this number of broken promises are listed one by one.
MOST_TOLD = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One number."""

    what: str
    expected: str
    found: str
    holds: bool


@dataclass(slots=True)
class Verdict:
    """All of them."""

    checks: list[Check] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Each promise that was broken, in a sentence."""

    figures: dict[str, str] = field(default_factory=dict)
    """What is neither right nor wrong: it depends on how busy the machine was."""

    @property
    def adds_up(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def equal(self, what: str, expected: object, found: object, *, holds: bool = True, shown: str = "{:,}") -> None:
        """Check that both are the same. ``shown`` is how a number is formatted."""
        self.checks.append(Check(what, shown.format(expected), shown.format(found), holds and expected == found))

    def show(self, screen: Screen) -> None:
        """Draw the table, and tell what is broken."""
        screen.say(f"{'':<42}{'expected':>16}{'found':>12}")
        for check in self.checks:
            mark, ink = ("ok", Ink.GOOD) if check.holds else ("WRONG", Ink.BAD)
            screen.say(f"{check.what:<42}{check.expected:>16}{check.found:>12}   {screen.ink(mark, ink)}")
        for what, figure in self.figures.items():
            screen.say(f"{what:<58}{figure:>12}")
        screen.say()
        for one in self.broken[:MOST_TOLD]:
            for line in wrap(one, screen.width, subsequent_indent="    "):
                screen.say(line, Ink.BAD)
        if len(self.broken) > MOST_TOLD:
            screen.say(f"and {len(self.broken) - MOST_TOLD} more", Ink.BAD)
