"""The queue over time: as an image for a page, and in letters for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_STEPS = " ▁▂▃▄▅▆▇█"
_WIDTH = 800
_LEFT, _RIGHT, _TOP, _BOTTOM = 108, 24, 52, 32
#: The height of a strip, and how much of it stays free above its largest number.
_STRIP, _GAP = 76, 16
#: Rows of text above the strips, and the width of a letter.
_ROWS, _LETTER = 3, 6.2
_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_TICKS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """How many messages there were, at a time."""

    seconds: float
    pending: int
    in_flight: int
    dead: int


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the picture."""

    name: str
    colour: str
    of: Callable[[Sample], int]


#: From the top down.
SERIES = (
    Series("pending", "#4c8dd6", lambda sample: sample.pending),
    Series("in flight", "#e0962d", lambda sample: sample.in_flight),
    Series("dead", "#c8443c", lambda sample: sample.dead),
)


def letters(samples: Sequence[Sample], width: int) -> list[str]:
    """Draw a line of letters for each series, each to the measure of its own largest number, which is beside it."""
    begin, end = samples[0].seconds, samples[-1].seconds
    lines = []
    for series in SERIES:
        largest = max(series.of(sample) for sample in samples)
        columns = [0] * width
        for sample, until in pairwise([*samples, samples[-1]]):
            first = _column(sample.seconds, begin, end, width)
            last = _column(until.seconds, begin, end, width)
            for column in range(first, max(first, last - 1) + 1):
                columns[column] = max(columns[column], series.of(sample))
        drawn = "".join(_STEPS[-(-8 * number // max(largest, 1))] for number in columns)
        lines.append(f"{series.name:<10}{drawn}  {largest:>6,} at most")
    scale = f"{begin:.0f} s".ljust(width - len(f"{end:.0f} s")) + f"{end:.0f} s"
    return [*lines, " " * 10 + scale]


def svg(samples: Sequence[Sample], marks: Sequence[tuple[float, str]], title: str) -> str:
    """Draw it as an image: a strip a series, each to its own measure, in steps, as numbers of messages jump.

    :param marks: what happened when, in few words.
    """
    end = max(samples[-1].seconds, 1.0)
    height = _TOP + len(SERIES) * _STRIP + _BOTTOM

    def x(seconds: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / end

    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}" '
        'font-family="system-ui, sans-serif">'
    )
    parts = [head, f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#ffffff"/>']
    for seconds, _ in marks:
        parts.append(_line(x(seconds), _TOP - 8, x(seconds), height - _BOTTOM, "#c5cbd3", dashes="3 3"))
    parts += _words([(x(seconds), words) for seconds, words in marks])
    for number, series in enumerate(SERIES):
        bottom = _TOP + (number + 1) * _STRIP
        parts += _strip(samples, series, bottom, x)
    step = next((each for each in _SECONDS if end / each <= _TICKS), _SECONDS[-1])
    parts += [
        _text(x(seconds), height - _BOTTOM + 20, f"{seconds} s", anchor="middle")
        for seconds in range(0, int(end) + 1, step)
    ]
    return "\n".join([*parts, "</svg>\n"])


def _words(marks: Sequence[tuple[float, str]]) -> list[str]:
    """Write each beside its line, in the first row where it meets no other; where there is none, it is left out."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_ROWS)]
    written = []
    for place, words in marks:
        width = _LETTER * len(words)
        late = place + 4 + width > _WIDTH
        left = place - 4 - width if late else place + 4
        for row, spans in enumerate(taken):
            if all(left > end or left + width < begin for begin, end in spans):
                spans.append((left, left + width))
                anchor = "end" if late else "start"
                written.append(_text(place - 4 if late else place + 4, 14 + 13 * row, words, anchor=anchor, size=11))
                break
    return written


def _strip(samples: Sequence[Sample], series: Series, bottom: float, x: Callable[[float], float]) -> list[str]:
    most = max(map(series.of, samples))

    def y(count: int) -> float:
        return bottom - (_STRIP - _GAP) * count / max(most, 1)

    path = [f"M{x(samples[0].seconds):.1f},{bottom:.1f}V{y(series.of(samples[0])):.1f}"]
    path += [f"H{x(sample.seconds):.1f}V{y(series.of(sample)):.1f}" for sample in samples[1:]]
    area = "".join([*path, f"V{bottom:.1f}Z"])
    return [
        f'<path d="{area}" fill="{series.colour}" fill-opacity="0.35" stroke="{series.colour}" stroke-width="1.5"/>',
        _line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, "#9aa3ad"),
        _text(_LEFT - 10, bottom - _STRIP / 2 + 2, series.name, anchor="end", size=14),
        _text(_LEFT - 10, bottom - _STRIP / 2 + 18, f"at most {most:,}", anchor="end", size=11),
    ]


def _column(seconds: float, begin: float, end: float, width: int) -> int:
    return min(width - 1, int((seconds - begin) / max(end - begin, 0.001) * width))


def _line(  # noqa: PLR0913, PLR0917 - two points, and how it looks
    x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "", width: float = 1
) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    places = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {places} stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    safe = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#3c444d">{safe}</text>'
