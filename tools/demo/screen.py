"""What is seen of it: lines that stay, and below them a few that change."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from enum import Enum
from textwrap import wrap
from typing import TextIO

#: No line is longer, so that a window of the usual size shows it whole.
WIDTH = 96
#: Seconds between two pictures on a terminal.
REDRAW = 0.1
BAR = 40
#: What the time takes of a line.
STAMP = 10


class Ink(Enum):
    """How a text is written, where the terminal can."""

    PLAIN = ""
    BOLD = "1"
    FAINT = "2"
    GOOD = "32"
    BAD = "1;31"


class Screen:
    """A terminal, or a file in its place: then nothing is redrawn, and lines report the progress.

    :param pause: seconds between two such lines.
    """

    def __init__(self, stream: TextIO, *, pause: float) -> None:
        self._stream = stream
        self._pause = pause
        self._alive = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colours = self._alive and not os.environ.get("NO_COLOR")
        self._started = time.monotonic()
        self._shown = 0  # lines of the picture that are on the screen
        self._drawn = 0.0

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self._started

    @property
    def width(self) -> int:
        """How many letters go into a line."""
        return min(WIDTH, shutil.get_terminal_size((WIDTH + 1, 0)).columns - 1)

    def ink(self, text: str, ink: Ink) -> str:
        """Colour a text."""
        return f"\033[{ink.value}m{text}\033[0m" if self._colours and ink.value else text

    def say(self, text: str = "", ink: Ink = Ink.PLAIN) -> None:
        """Write a line that stays, however long: it may be there to be copied."""
        self._wipe()
        self._write(self.ink(text, ink) + "\n")

    def prose(self, text: str, ink: Ink = Ink.PLAIN) -> None:
        """Write what stays, in as many lines as it takes."""
        for line in wrap(text, self.width):
            self.say(line, ink)

    def tell(self, text: str) -> None:
        """Write a line that stays, with the time."""
        first, *others = wrap(text, self.width - STAMP)
        self.say(f"{self.ink(f'{self.seconds:6.1f} s', Ink.FAINT)}  {first}")
        for line in others:
            self.say(" " * STAMP + line)

    def show(self, picture: Sequence[str], line: str) -> None:
        """Draw the picture in place of the last one; or write the line, where nothing can be redrawn."""
        now = time.monotonic()
        if now - self._drawn < (REDRAW if self._alive else self._pause):
            return
        self._drawn = now
        if not self._alive:
            self.tell(line)
            return
        self._wipe()
        self._write("".join(f"{one[: self.width]}\n" for one in picture))
        self._shown = len(picture)

    def _wipe(self) -> None:
        if self._shown:
            self._write(f"\033[{self._shown}A\033[J")
            self._shown = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def bar(done: int, of: int) -> str:
    """Draw how much is done."""
    full = BAR * done // max(of, 1)
    return "█" * full + "░" * (BAR - full)
