"""What the pages say in code works: every Python block runs, on a store in memory, and every link leads somewhere."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import MemoryStore, PawnQueue, SyncPawnQueue
from tests.sim.mutants import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).parent.parent
PAGES = [*sorted(TOP.glob("*.md")), *sorted((TOP / "docs").rglob("*.md")), TOP / "tools" / "engine" / "README.md"]
FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)

#: What the first word behind a fence may be. Only Python runs here; the policies are tried in tests/servers.
KINDS = {"console", "json", "python", "sh", "text", "toml", "yaml"}

#: What precedes the name of a file that a page's tests need.
FILE = "python file="

CONFIG = 's3:\n  bucket_name: "my-queue-bucket"\n'
PYTEST = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    kind: str
    body: str


def blocks(page: Path) -> list[Block]:
    """Return the page's fenced blocks, in order."""
    text = page.read_text()
    return [Block(page, text.count("\n", 0, m.start()) + 2, m["kind"], m["body"]) for m in FENCE.finditer(text)]


def name(page: Path) -> str:
    """Return the page's name for a test's id."""
    return str(page.relative_to(TOP))


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every queue that is opened without a store is on one store in memory, and ``config.yaml`` exists."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    for variable in [each for each in os.environ if each.startswith("PAWNQUEUE_")]:
        monkeypatch.delenv(variable)
    store, original = MemoryStore(), PawnQueue.open

    def opened(settings: object = None, **options: Any) -> object:
        return original(settings, **{**options, "store": options.get("store") or store})

    monkeypatch.setattr(PawnQueue, "open", staticmethod(opened))


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of signals are put back."""
    import signal  # noqa: PLC0415 - a page's code imports it too

    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(runner: asyncio.Runner, block: Block, names: dict[str, Any]) -> None:
    """Run a block as the prompt of ``python -m asyncio`` would, by the lines of its page."""
    tree = ast.parse(block.body, filename=str(block.page))
    ast.increment_lineno(tree, block.line - 1)
    code = compile(tree, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    function = types.FunctionType(code, names)
    if code.co_flags & inspect.CO_COROUTINE:
        runner.run(function())
    else:
        function()


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.kind == "python" for b in blocks(page))], ids=name)
@pytest.mark.usefixtures("in_memory", "handlers")
def test_the_blocks_of_a_page_run(page: Path) -> None:
    """The Python of a page runs from its first line to its last, one block after the other."""
    names: dict[str, Any] = {"__name__": "__page__"}
    with asyncio.Runner() as runner:
        try:
            for block in blocks(page):
                if block.kind == "python":
                    run(runner, block, names)
        finally:
            for value in list(names.values()):
                if isinstance(value, PawnQueue):
                    runner.run(value.aclose())
                elif isinstance(value, SyncPawnQueue):
                    value.close()


def test_pages_and_examples_import_from_the_top() -> None:
    """Users import from ``pawnqueue`` itself, and jobs from two modules of ``pyspark_pawnqueue``: others may move.

    Tracing is a module of its own, as it imports OpenTelemetry, which is an extra.
    """
    texts = [block.body for page in PAGES for block in blocks(page)]
    texts += [path.read_text() for path in (TOP / "dags_example").rglob("*.py")]
    named = {each for text in texts for each in re.findall(r"^ *from (\w*pawnqueue[.\w]*) import", text, re.MULTILINE)}

    of_users = {"pawnqueue", "pawnqueue.tracing", "pyspark_pawnqueue.jobs", "pyspark_pawnqueue.parquet_once"}
    assert {each for each in named if not each.startswith("airflow_")} == of_users


def test_the_batch_of_the_page_is_the_example() -> None:
    """The page shows both files whole, without their first docstrings: at most 40 lines of code together."""
    page = TOP / "docs" / "how-to" / "spark-batch.md"
    shown = [block.body for block in blocks(page) if block.kind in {"python dag", "python spark"}]
    examples = (TOP / "dags_example" / "orders_batch.py", TOP / "dags_example" / "spark_jobs" / "orders_batch.py")

    assert shown == [without_docstring(example.read_text()) for example in examples]
    assert sum(bool(line.strip()) for text in shown for line in text.splitlines()) <= 40


def without_docstring(source: str) -> str:
    """Return a module without the docstring that it begins with."""
    return "".join(source.splitlines(keepends=True)[ast.parse(source).body[0].end_lineno :]).lstrip()


TESTS = [block for page in PAGES for block in blocks(page) if block.kind == "python test"]


def files_of(page: Path) -> list[Block]:
    """Return the files that a page shows beside its tests."""
    return [file for file in blocks(page) if file.kind.startswith(FILE)]


#: A process of pytest takes seconds to start: the tests of a page share one, and those of all pages without files too.
PROJECTS: dict[str, list[Block]] = {}
for each in TESTS:
    PROJECTS.setdefault(name(each.page) if files_of(each.page) else "pages without files", []).append(each)


@pytest.mark.timeout(600)  # Airflow takes ten seconds here, and minutes on a busy machine
@pytest.mark.parametrize("project", PROJECTS)
def test_the_tests_of_a_page_pass(project: str, tmp_path: Path) -> None:
    """What a page shows as a test is one, and passes as a file of its own, beside the files that the page shows."""
    files = files_of(PROJECTS[project][0].page)
    for file in files:
        path = tmp_path / file.kind.removeprefix(FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.body)
    for block in PROJECTS[project]:
        (tmp_path / f"test_{block.page.stem.replace('-', '_')}_{block.line}.py").write_text(block.body)
    # In a project with DAGs that run, Airflow's libraries warn of each other: that is not ours.
    (tmp_path / "pytest.ini").write_text(PYTEST + ("" if files else "filterwarnings = error\n"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pytest.ini"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(PROJECTS[project])} passed" in done.stdout


QUICKSTART_TEST = """
from dags.orders import dag


def test_one_bad_order_keeps_no_other_from_its_price(queue):
    tea, milk = {"order_id": 1, "item": "tea", "quantity": 2}, {"order_id": 3, "item": "milk", "quantity": 4}
    _, no_item, _ = queue.publish("orders", [tea, {"order_id": 2, "quantity": 1}, milk])
    assert dag.test().state == "success"
    [letter] = queue.dead_letters("orders")
    assert (letter.id, letter.reason) == (no_item, "orders.price: KeyError: 'item'")
    assert queue.stats("orders").pending == 0
    with open(os.environ["AIRFLOW_HOME"] + "/priced.txt") as priced:
        assert priced.read().split("\\n") == ["1 7.0", "3 5.0", ""]
"""


@pytest.mark.timeout(600)  # it runs Airflow too
def test_a_bad_order_of_the_quickstart_buries_no_other(tmp_path: Path) -> None:
    """Its DAG catches what one message raises: of an order without an item only that one becomes a dead letter."""
    quickstart, recipe = TOP / "docs" / "quickstart.md", TOP / "docs" / "how-to" / "alert-on-dead-letters.md"
    dag = next(block.body for block in blocks(quickstart) if block.kind == "python dag")
    assert 'DAG("orders"' in dag
    (tmp_path / "dags").mkdir()
    # Named, so that the test can run it, and started by the test alone.
    named = dag.replace("max_active_runs=1),", "max_active_runs=1) as dag,")
    (tmp_path / "dags" / "orders.py").write_text(named)
    conftest = next(block.body for block in blocks(recipe) if block.kind == f"{FILE}conftest.py")
    (tmp_path / "conftest.py").write_text(conftest.replace("parcels", "orders"))
    (tmp_path / "pytest.ini").write_text(PYTEST)
    (tmp_path / "test_page.py").write_text("import os\n" + QUICKSTART_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pytest.ini", "test_page.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


DAGS = [block for page in PAGES for block in blocks(page) if block.kind == "python dag"]


def test_the_dags_of_the_pages_are_dags(tmp_path: Path) -> None:
    """What a page shows as part of a DAG file can be imported as one."""
    for number, block in enumerate(DAGS):
        (tmp_path / f"dag_{number}.py").write_text(block.body)
    done = subprocess.run(
        [sys.executable, "-c", "; ".join(f"import dag_{number}" for number in range(len(DAGS)))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TOP), "AIRFLOW_HOME": str(tmp_path / "airflow")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert DAGS
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """No block escapes these tests because its language was forgotten."""
    assert {block.kind.partition(" ")[0] for block in blocks(page)} <= KINDS


def anchor(title: str) -> str:
    """Make the anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Files and headings that a page links to exist."""
    for target in (found["target"] for found in LINK.finditer(FENCE.sub("", page.read_text()))):
        if "://" in target:
            continue
        path, _, fragment = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), target
        if fragment:
            titles = HEADING.finditer(FENCE.sub("", other.read_text()))
            assert fragment in {anchor(title["title"]) for title in titles}, target


NAMED = re.compile(r"\[`(?P<test>test_\w+)`\]\((?P<path>[^)\s]+)\)")


@pytest.mark.parametrize("page", [page for page in PAGES if NAMED.search(page.read_text())], ids=name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    """What is said to show something is a test, in the file that the link leads to."""
    for found in NAMED.finditer(page.read_text()):
        assert f"def {found['test']}(" in (page.parent / found["path"]).read_text(), found["test"]


KEPT = re.compile(r"`(?P<path>[\w/]+(?:\.py|/))`(?: \((?P<names>`[^)]*)\))?")
PACKAGES = [TOP / "pawnqueue", TOP / "airflow_provider_pawnqueue", TOP]


def test_what_keeps_the_rules_of_the_protocol_exists() -> None:
    """Section 9 names files, functions in them, and mutants: each exists, and each mutant has a rule on the page."""
    rules = (TOP / "docs" / "protocol.md").read_text().partition("\n## 9. ")[2].splitlines()
    rows = [line.split(" | ") for line in rules if line.startswith("| §")]
    mutants: set[str] = set()
    for rule, kept, *rest in rows:
        for found in KEPT.finditer(" ".join((kept, *rest))):
            path = next((top / found["path"] for top in PACKAGES if (top / found["path"]).exists()), None)
            assert path, f"{rule}: {found['path']}"
            for attribute in re.findall(r"\w+", found["names"] or ""):
                assert re.search(rf"\b{attribute}\b", path.read_text()), f"{rule}: {attribute} in {found['path']}"
        mutants.update(re.findall(r"`(\w+)`", " ".join(rest)))
    assert mutants == set(MUTANTS)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_nothing_is_left_to_be_filled_in(page: Path) -> None:
    """No page has an author's placeholder."""
    assert not re.findall(r"@[A-Z]+@|\bTODO\b|\bTBD\b", page.read_text())
