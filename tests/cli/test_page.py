"""The page of the commands names each of them, and all their options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pawnqueue.cli.definition import COMMANDS

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
#: They are named once, at the beginning of the page.
COMMON = {"--conn-id", "--output", "--verbose"}


def section(name: str) -> str:
    """Return what the page says of a command."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    return "".join(text for title, text in zip(parts[1::2], parts[2::2], strict=True) if name in title.split(", "))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_the_page_names_all_options(command: ActionCommand) -> None:
    """Of each command, as its ``--help`` does."""
    told = section(command.name)
    flags = {flag for arg in command.args for flag in arg.flags if flag.startswith("--")}
    assert told
    assert not {flag for flag in flags - COMMON if f"`{flag}" not in told}
