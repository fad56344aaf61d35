"""Write ``pawnqueue/sync_calls.py``: each call of ``PawnQueue``, with its types and its docstring, without ``await``.

Run it by ``python -m tools.twins``.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parent.parent / "pawnqueue"
SOURCE: Final = PACKAGE / "queue.py"
TARGET: Final = PACKAGE / "sync_calls.py"
#: What ``SyncPawnQueue`` has in a way of its own.
BY_HAND: Final = {"open", "closed", "strategy", "settings", "aclose", "is_draining"}
#: An argument of one of these types may be a slow iterable, or one that belongs to its caller's thread.
ITERABLES: Final = {"Iterable", "Chosen", "Payloads", "TopicNames"}
HEAD: Final = '''\
"""The calls of ``SyncPawnQueue``. Change ``queue.py`` instead: ``python -m tools.twins`` writes this file."""
# ruff: noqa: PLR0913 - as PawnQueue has them

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from pawnqueue.listening.handlers import SyncHandler
from pawnqueue.queue import PawnQueue
from pawnqueue.sync_callbacks import SyncKeepAlive
{imports}

G = TypeVar("G")
T = TypeVar("T")


class SyncCalls(ABC):
    """Each call of :class:`~.queue.PawnQueue`, without ``await``."""

    @abstractmethod
    def run(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        """Run ``work`` in the queue's own event loop, and wait for it."""

    @abstractmethod
    def _as_list(self, given: G) -> G | list[Any]:
        """Iterate an argument in the thread of the caller."""

    @abstractmethod
    def _copied(
        self,
        topic: str,
        payloads: Payloads,
        headers: Mapping[str, str] | None,
        *,
        create: bool,
        dedup_key: DedupKey,
        pack: PackChoice,
        **schedule: Any,
    ) -> Payloads:
        """Check and copy payloads in the thread of the caller."""

    @abstractmethod
    def _kept_alive(
        self, claim: Claim, *, on_lost: OnLost | None, ttl: float | None, interval: float | None
    ) -> AbstractContextManager[SyncKeepAlive]:
        """Renew a claim in the background."""

    @abstractmethod
    def _listened(  # as listen
        self,
        topics: TopicNames,
        handler: SyncHandler,
        *,
        concurrency: int,
        handle_signals: bool,
        drain_timeout: float,
        **more: Any,
    ) -> Listened:
        """Have threads call a handler."""
'''


def module() -> str:
    """Return the module that belongs to ``queue.py``, formatted."""
    source = SOURCE.read_text(encoding="utf-8")
    tree = ast.parse(source)
    [queue] = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "PawnQueue"]
    calls = [each for each in queue.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    twins = [_twin(each, source) for each in calls if not each.name.startswith("_") and each.name not in BY_HAND]
    imports = [ast.unparse(each) for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    text = HEAD.replace("{imports}", "\n".join(imports)) + "".join(twins)
    # Of the imports, those that the calls do not need go, and the others are sorted.
    return _ruff("format", _ruff("check --fix --select F401,I", text))


def _twin(call: ast.FunctionDef | ast.AsyncFunctionDef, source: str) -> str:
    """Return a method with the same arguments and docstring, which makes the call in the queue's own loop."""
    arguments = call.args
    given = [each.arg for each in arguments.args[1:]] + [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    given += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    returned = ast.unparse(call.returns) if call.returns else "None"
    lines = [f"{each.arg} = self._as_list({each.arg})" for each in arguments.args if _types(each) & ITERABLES]
    start = "" if returned == "None" else "return "
    last = f"{start}self.run(lambda queue: queue.{call.name}({', '.join(given)}))"
    if call.name == "publish":
        own = (each.arg for each in arguments.kwonlyargs if each.arg not in {"headers", "producer", "wait"})
        lines = [f"payloads = self._copied(topic, payloads, headers, {', '.join(f'{each}={each}' for each in own)})"]
    elif call.name == "keep_alive":
        returned, last = "AbstractContextManager[SyncKeepAlive]", f"return self._kept_alive({', '.join(given)})"
    elif call.name == "listen":
        last = f"return self._listened({', '.join(given)})"
    doc = ast.get_source_segment(source, call.body[0])
    body = "".join(f"        {line}\n" for line in [*lines, last])
    typed = ast.unparse(arguments).replace("handler: Handler", "handler: SyncHandler")
    return f"\n    def {call.name}({typed}) -> {returned}:\n        {doc}\n{body}"


def _types(argument: ast.arg) -> set[str]:
    return {each.id for each in ast.walk(argument) if isinstance(each, ast.Name)}


def _ruff(command: str, text: str) -> str:
    words = [sys.executable, "-m", "ruff", *command.split(), "--quiet", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603 - ours


if __name__ == "__main__":
    TARGET.write_text(module(), encoding="utf-8")
