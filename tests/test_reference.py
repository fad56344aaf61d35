"""The reference says what the code says, and leaves nothing out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

import pawnqueue
from pawnqueue import PawnQueue, SyncPawnQueue
from pawnqueue.settings import environment_variables
from pyspark_pawnqueue.spark_options import OPTIONS
from tools import reference
from tools.reference import errors, events
from tools.reference import queue as of_queue

GUIDE = reference.FOLDER.parent / "spark.md"


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    """A change of one needs the page written anew: python -m tools.reference."""
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == reference.PAGES[name]()


@pytest.mark.parametrize("page", reference.PAGES.values(), ids=list(reference.PAGES))
def test_every_row_is_explained(page: Callable[[], str]) -> None:
    """No argument, field, setting or option is without a word of what it means."""
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) > 10 or page is errors.page
    assert not [row for row in rows if row.endswith("| |")]
    assert not re.search(r":(?:attr|class|func|meth|mod|param|raises)\b", page())


def calls(kind: type) -> set[str]:
    """Return the public names of a queue."""
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_call_of_a_queue_is_told_of() -> None:
    """Every public call is on the page, and calls of the synchronous queue alone are marked."""
    told = {name for names in of_queue.CALLS.values() for name in names}
    assert told == calls(PawnQueue)
    assert set(of_queue.SYNC_ONLY) == calls(SyncPawnQueue) - calls(PawnQueue)


def test_every_public_name_is_told_of() -> None:
    """What ``pawnqueue`` exports is on its page; errors and settings are on theirs."""
    told = {name for names in of_queue.RETURNED.values() for name in names}
    wrong = {each.__name__ for each in errors.kinds()} | {"PawnQueueError"}
    assert set(pawnqueue.__all__) - wrong == told | of_queue.ELSEWHERE


def test_every_event_and_every_setting_is_told_of() -> None:
    """Those of the code, all of them."""
    settings = reference.PAGES["settings.md"]()
    for variable, path in environment_variables().items():
        assert f"| `{path}` | `{variable}` |" in settings
    assert len(events.kinds()) == sum(
        inspect.isclass(each) and issubclass(each, pawnqueue.events.Event)
        for name, each in vars(pawnqueue.events).items()
        if not name.startswith("_") and name != "Event"
    )


def test_the_guide_to_spark_has_the_same_options() -> None:
    """Its shorter table names each option for the same uses."""
    section = GUIDE.read_text(encoding="utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \|", section, re.MULTILINE)
    assert dict(rows) == {name: used_for for name, (used_for, _) in OPTIONS.items()}
