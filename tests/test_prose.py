"""The prose lint finds the phrases that stop a reader, and lets their number only fall."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tools import prose

#: Each of them was in this project, or could have been.
BAD = [
    "The retry waits. Who comes next waits too.",
    "It is read again by whoever wants it.",
    "Candidates are replaced so many rounds long.",
    "Such a name stands for itself.",
    "The caller is told at once.",
    "A message can be had again.",
    "The given one is no topic name.",
    "It deletes what is there now.",
    "The next process asks who has it.",
]
GOOD = """The next consumer, which waits as long as the timeout says, tells the caller; there is no topic name in it.

So that nothing is lost, the `claim who stands there` is code, and so is this:

```python
claim = so_long  # who has it stands there
```
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a repository with a page and a module: the page has a phrase of the list, the module two."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "docs" / "page.md").write_text(f"# A page\n\n{BAD[0]}\n\n{'A long line. ' * 60}\n")
    (tmp_path / "package" / "module.py").write_text(f'"""A module."""\n\nERROR = "{BAD[4]}"  # {BAD[3]}\n')
    allow(tmp_path, phrases={"docs": 1, "package": 2}, paragraphs={"docs/page.md": 1})
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    return tmp_path


def allow(project: Path, *, phrases: dict[str, int], paragraphs: dict[str, int]) -> None:
    """Write the counts that are allowed."""
    (project / prose.ALLOWED).write_text(json.dumps({"phrases": phrases, "long paragraphs": paragraphs}))


@pytest.mark.parametrize("sentence", BAD)
def test_each_phrase_of_the_list_is_found(sentence: str) -> None:
    """A sentence with one of the phrases counts once."""
    assert len(prose.phrases(sentence)) == 1


def test_plain_sentences_and_code_have_none() -> None:
    """Neither plain English counts nor what is marked as code, also if it has the same words."""
    assert [found for part in prose.paragraphs(GOOD) for found in prose.phrases(part)] == []


def test_a_count_that_is_allowed_passes(project: Path) -> None:
    """A project with as many phrases as it may have passes the lint."""
    assert prose.main([], project) == 0


def test_a_count_that_rises_fails(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One phrase more in a folder fails the lint, with --write too, and the folder is named."""
    (project / "docs" / "page.md").write_text(f"# A page\n\n{BAD[0]}\n\n{BAD[1]}\n")

    assert prose.main(["--write"], project) == 1
    assert "docs: 2 phrases, and at most 1" in capsys.readouterr().out


def test_a_long_paragraph_more_fails(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One paragraph of more than six lines more on a page fails the lint, and the page is named."""
    allow(project, phrases={"docs": 1, "package": 2}, paragraphs={})

    assert prose.main([], project) == 1
    assert "docs/page.md: 1 long paragraphs" in capsys.readouterr().out


def test_a_count_that_falls_is_recorded_by_write(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A lower count passes and the command to record it is printed; once recorded, it may not rise again."""
    page = (project / "docs" / "page.md").read_text()
    (project / "docs" / "page.md").write_text("# A page\n")
    assert prose.main([], project) == 0
    assert "--write" in capsys.readouterr().out

    assert prose.main(["--write"], project) == 0

    (project / "docs" / "page.md").write_text(page)
    assert prose.main([], project) == 1
