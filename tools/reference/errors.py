"""``errors.md``: every error that a user can meet."""

from __future__ import annotations

import inspect

from airflow_provider_pawnqueue.hooks.sessions import ClaimEndedError
from airflow_provider_pawnqueue.hooks.stopping import WorkStoppedError
from pawnqueue import errors
from pyspark_pawnqueue import PawnQueueSparkError
from tools.reference.words import capital, cell, code, plain, told

HEAD = """# Errors

Every error of the queue: when it is raised, whether anything was done, and what to do. `python -m tools.reference`
writes this page from the code.

All but the last three derive from `PawnQueueError`. Unless their section says otherwise, import them from
`pawnqueue`. Their text is a sentence that names the topic, the message and the remedy; `.topic`, `.message`,
`.operation` and `.cause` have the same for programs. They can be pickled, so an executor or a task passes them on
unchanged. In Airflow, an error that only a person can correct fails the task without another try.
"""


def kinds() -> list[type[BaseException]]:
    """Return the errors, in the order of the page."""
    ours = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.PawnQueueError)]
    others = [each for each in ours if each is not errors.PawnQueueError]
    return [*others, ClaimEndedError, WorkStoppedError, PawnQueueSparkError, errors.OriginalError]


def page() -> str:
    """Return the page as the code has it now."""
    parts = [HEAD]
    for kind in kinds():
        doc = told(kind)
        base = kind.__bases__[0]
        article = "an" if base.__name__[0] in "AEIOU" else "a"
        above = "" if base is errors.PawnQueueError else f" It is {article} {code(base.__name__)}."
        where = "" if kind.__module__ == errors.__name__ else f"`from {kind.__module__} import {kind.__name__}`\n\n"
        parts.append(f"\n## {kind.__name__}\n\n{where}{plain(doc.text)}{above}\n\n")
        parts.append("| | |\n|---|---|\n")
        for kind_of, heading in (("when", "when"), ("done", "what was done"), ("remedy", "what to do")):
            parts.append(f"| {heading} | {cell(capital(doc.of(kind_of)))} |\n")
        if doc.params:
            parts.append("\n")
            parts += [f"- `.{name}`: {said}\n" for name, said in doc.params.items()]
    return "".join(parts)
