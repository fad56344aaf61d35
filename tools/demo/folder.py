"""A folder for everything that the demo and its processes write, gone with the demo however it ends."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tools.kit.processes import ServerProcess

# It only waits, and ends last: if the demo is killed, its folder is removed when the other processes, which end at the
# same moment, write no more.
_WATCHMAN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
_LAST = 3.0


@contextmanager
def temporary_folder() -> Iterator[None]:
    """Let temporary files be made in a folder of their own, by this process and by all that it starts."""
    before = os.environ.get("TMPDIR")
    with ServerProcess([sys.executable, "-I", "-S", "-c", _WATCHMAN], ready=lambda: True, grace=_LAST) as watchman:
        _make_in(str(watchman.data))
        try:
            yield
        finally:
            _make_in(before)
            if watchman.running:
                watchman.signal(signal.SIGKILL)


def _make_in(folder: str | None) -> None:
    if folder is None:
        os.environ.pop("TMPDIR", None)
    else:
        os.environ["TMPDIR"] = folder
    tempfile.tempdir = None  # forget where it was looked for before
