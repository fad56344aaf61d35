"""The commands on the page about bad deploys work in the order in which it shows them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pawnqueue import SyncPawnQueue
    from tests.cli.conftest import Run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "recover-from-a-bad-deploy.md"


def commands() -> list[list[str]]:
    """Return the words behind ``airflow pawnqueue`` of each command that the page marks for this."""
    blocks = re.findall(r"^```console recover\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[3:] for block in blocks for line in block.splitlines()]


def test_the_pages_commands_recover(queue: SyncPawnQueue, run: Run) -> None:
    """One message is redriven, then two, then all; what fails once more is purged."""
    queue.create_topic("orders")
    queue.publish("orders", [{"order_id": n} for n in range(6)])
    queue.nack(queue.claim("orders", "billing", max_messages=6), reason="orders.work: KeyError: 'total'")
    letter = queue.dead_letters("orders")[0].id

    dead = []
    for words in commands():
        if words[0] == "purge" and "--dry-run" in words:  # one is an invalid order
            queue.nack(queue.claim("orders", "billing", max_messages=1, wait=20), reason="no order")
        done = run(*(letter if word == "LETTER" else word for word in words))
        assert done.code == 0, (words, done.err)
        dead.append((words[0], queue.stats("orders").dead))

    assert dead == [
        ("stats", 6),
        ("peek", 6),
        ("redrive", 5),
        ("peek", 5),
        ("stats", 5),
        ("peek", 5),
        ("redrive", 5),
        ("redrive", 3),
        ("redrive", 0),
        ("redrive", 0),
        ("purge", 1),
        ("purge", 0),
    ]
    assert queue.stats("orders").pending == 5
