"""What every demo does around its story: it stays on this machine, and ends in order, with a sentence and a status."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tools.crew.worker import WorkerError
from tools.demo.needs import TooLittleError
from tools.demo.screen import Ink, Screen
from tools.kit.airflow import AirflowError, ApiError
from tools.kit.processes import ServerNotReadyError, ServerProcess, environment_variables
from tools.kit.servers import ServerNotInstalledError
from tools.kit.spark.java import JavaNotFoundError

INTERRUPTED = 130
#: What can go wrong without anybody's having made a mistake in the demo: each says in its message what, and what to do.
FAILURES = (
    WorkerError,
    ServerNotReadyError,
    ServerNotInstalledError,
    JavaNotFoundError,
    AirflowError,
    ApiError,
    TooLittleError,
    OSError,
)

# It only waits, and ends last: if the demo is killed, its folder is removed when the other processes, which end at the
# same moment, write no more.
_WATCHMAN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
_LAST = 3.0


def run(tell: Callable[[Screen], bool], *, pause: float) -> int:
    """Tell a story, and return the exit status: 0 if it adds up, 1 if not or if it could not be finished.

    :param pause: seconds between two lines that say how far it is, where nothing can be redrawn.
    """
    screen = Screen(sys.stdout, pause=pause)
    _stay_on_this_machine()
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _temporary_folder():
            return 0 if tell(screen) else 1
    except KeyboardInterrupt:
        screen.say("Interrupted. Everything that was started has been ended.")
        return INTERRUPTED
    except FAILURES as error:
        screen.say(f"THE DEMO COULD NOT BE FINISHED: {error}", Ink.BAD)
        return 1


@contextmanager
def _temporary_folder() -> Iterator[None]:
    """Let temporary files be made in a folder of their own, by this process and by all that it starts."""
    with ServerProcess([sys.executable, "-I", "-S", "-c", _WATCHMAN], ready=lambda: True, grace=_LAST) as watchman:
        try:
            with environment_variables({"TMPDIR": str(watchman.data)}):
                tempfile.tempdir = None  # forget where it was looked for before
                yield
        finally:
            tempfile.tempdir = None
            if watchman.running:
                watchman.signal(signal.SIGKILL)


def _stay_on_this_machine() -> None:
    """Keep what goes to the servers that are started here from going through a proxy."""
    for variable in ("NO_PROXY", "no_proxy"):
        os.environ[variable] = ",".join(filter(None, (os.environ.get(variable), "127.0.0.1")))


def _interrupt(number: int, frame: object) -> None:
    """Leave the blocks in order, once; a second Ctrl-C must not keep that from being finished."""
    del number, frame
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
