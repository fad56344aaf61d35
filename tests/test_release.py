"""What `make release-check` says of a tree that is about to be published."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tools import release

if TYPE_CHECKING:
    from pathlib import Path

NOTES = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-30\n\n### Added\n\n- All.\n\n## [1.2.2] - 2026-11-01\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone that is ready: version 1.2.3, its notes, its tag, its four files."""
    top = tmp_path / "clone"
    for package in release.PACKAGES:
        (top / package).mkdir(parents=True)
    set_version(top, "1.2.3")
    (top / "CHANGELOG.md").write_text(NOTES)
    (top / ".gitignore").write_text("dist/\n")
    (top / "dist").mkdir()
    for name in release.file_names("1.2.3"):
        (top / "dist" / name).touch()
    git(top, "init", "--quiet")
    commit(top)
    git(top, "tag", "v1.2.3")
    return top


def git(top: Path, *arguments: str) -> None:
    """Run git, with an author of its own and no settings of the machine's."""
    author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *author, *arguments], cwd=top, check=True, capture_output=True)


def set_version(top: Path, number: str, *packages: str) -> None:
    """Have these packages say a version; without any, all."""
    for package in packages or release.PACKAGES:
        (top / package / "__init__.py").write_text(f'"""The version."""\n\n__version__ = "{number}"\n')


def commit(top: Path) -> None:
    """Commit all that there is."""
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message", "One more")


def told(top: Path) -> list[str]:
    """Return what is wrong with the tree."""
    return release.problems(top / "dist", top)


def test_nothing_is_said_of_a_tree_that_agrees(tree: Path) -> None:
    """Version, tag, notes and files are of one number; a tag that is no version's does not matter."""
    git(tree, "tag", "nightly")
    assert told(tree) == []


def test_another_version_than_the_tags_is_told(tree: Path) -> None:
    """A version that was not raised, or a tag on the commit before, is reported for each part."""
    set_version(tree, "1.2.4")
    commit(tree)
    git(tree, "tag", "v1.2.5")

    sentences = told(tree)

    assert sentences[0] == "CHANGELOG.md has no notes below a heading like: ## [1.2.4] - 2026-11-30"
    assert sentences[1] == "The version is 1.2.4, so the commit's tag has to be v1.2.4, and it is v1.2.5."
    assert len([each for each in sentences if each.endswith("is missing: make dist")]) == 4
    assert len([each for each in sentences if each.endswith("is none of this version's files: make dist")]) == 4
    assert len(sentences) == 10


def test_a_commit_without_a_tag_is_told(tree: Path) -> None:
    """So is a commit behind the tag."""
    (tree / "new.txt").touch()
    commit(tree)
    assert told(tree) == ["The version is 1.2.3, so the commit's tag has to be v1.2.3, and it is none."]


def test_two_versions_at_one_commit_are_told(tree: Path) -> None:
    """One commit is one version."""
    git(tree, "tag", "v1.2.4")
    assert told(tree) == ["The version is 1.2.3, so the commit's tag has to be v1.2.3, and it is v1.2.3 and v1.2.4."]


def test_what_is_not_committed_is_told(tree: Path) -> None:
    """What was built may have it in it, and the tag has not."""
    (tree / "new.txt").touch()
    assert told(tree) == ["There are files that are not committed: git status lists them."]


def test_a_version_without_notes_is_told(tree: Path) -> None:
    """A heading with nothing below it is no notes."""
    (tree / "CHANGELOG.md").write_text(NOTES.replace("### Added\n\n- All.\n\n", ""))
    commit(tree)
    git(tree, "tag", "--force", "v1.2.3")
    assert told(tree) == ["CHANGELOG.md has no notes below a heading like: ## [1.2.3] - 2026-11-30"]


def test_a_version_of_another_form_is_told(tree: Path) -> None:
    """An index would take it, and sort it where nobody looks for it."""
    set_version(tree, "1.2.3.dev4")
    assert told(tree)[0] == "The version 1.2.3.dev4 is neither like 1.2.3 nor like 1.2.3rc1."


def test_two_versions_in_one_tree_are_refused(tree: Path) -> None:
    """The provider would ask for an engine that nobody has built: neither is the tree checked, nor is it built."""
    set_version(tree, "1.2.2", "pawnqueue")
    told = "airflow_provider_pawnqueue/__init__.py says 1.2.3 and pawnqueue/__init__.py says 1.2.2"
    with pytest.raises(SystemExit, match=told):
        release.problems(tree / "dist", tree)
    with pytest.raises(SystemExit, match=told):
        release.build(tree / "dist", tree)
    assert len(list((tree / "dist").iterdir())) == 4


def test_the_exit_status_says_whether_it_agrees(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is not there is no release, and the program ends with 1; of a wrong word with 2."""
    assert release.main(["check", str(tree / "nowhere")]) == 1
    assert "nowhere/airflow_provider_pawnqueue" in capsys.readouterr().out
    assert release.main(["publish"]) == 2
