"""A pipe on the driver's machine, by which the driver tells the planning process that a batch is done.

The driver's Python learns from Spark's progress events that the sink has a batch. The claim of the batch is held by
the process in which Spark plans the stream, and Spark says nothing to it until the next trigger. Each such process
reads a named pipe, ``<temporary files>/pawnqueue-spark-<user>/<stream>.<pid>``. A line in it is the number of a batch
that is done. Nobody but the user can write there.

⚑ The number is a hint to ack now rather than later. If it is lost, the next trigger acks the batch.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

logger = logging.getLogger("pawnqueue.spark")

_STREAM: Final = re.compile(r"[0-9a-f]{32}")
_BATCH: Final = re.compile(rb"[0-9]{1,15}\n")
_CLOSE_SECONDS: Final = 1.0


class DonePipe:
    """The planning process's end. ``on_done`` is called with the number of each batch that is done, in a thread."""

    def __init__(self, stream: str, on_done: Callable[[int], None]) -> None:
        self._on_done = on_done
        self._closed = threading.Event()
        folder = _own_folder()
        self._path = folder / f"{stream}.{os.getpid()}"
        coming = folder / f".{self._path.name}"
        for path in folder.glob("[0-9a-f]*"):
            pipe = _open_or_remove(path)  # of processes that were killed
            if pipe is not None:
                os.close(pipe)
        coming.unlink(missing_ok=True)  # of a former process with the same pid
        os.mkfifo(coming, 0o600)
        # Opened for both directions, the pipe has no end while no driver writes. It gets its name when it is open:
        # a pipe that nobody has open is removed by those who find it.
        self._pipe = os.open(coming, os.O_RDWR | os.O_CLOEXEC)
        coming.rename(self._path)
        self._reader = threading.Thread(target=self._read, name="pawnqueue-done", daemon=True)
        self._reader.start()

    @classmethod
    def open(cls, stream: str, on_done: Callable[[int], None]) -> DonePipe | None:
        """Open the pipe of a stream. Where it cannot be made, return None: then each trigger acks the batch before."""
        if not _STREAM.fullmatch(stream):
            return None  # the checkpoint names the stream, and the name becomes a path
        try:
            return cls(stream, on_done)
        except OSError as error:
            logger.warning("ack_promptly has no effect on this stream, as its pipe cannot be made: %s", error)
            return None

    def close(self) -> None:
        """Remove the pipe, and end its thread. An ack that the thread has begun may go on for longer."""
        self._closed.set()
        self._path.unlink(missing_ok=True)
        os.write(self._pipe, b"\n")  # wakes the thread
        self._reader.join(_CLOSE_SECONDS)
        if not self._reader.is_alive():
            os.close(self._pipe)

    def _read(self) -> None:
        with os.fdopen(self._pipe, "rb", closefd=False) as lines:
            while not self._closed.is_set():
                line = lines.readline()
                if not self._closed.is_set() and _BATCH.fullmatch(line):
                    self._on_done(int(line))


def announce_done(stream: str, batch: int) -> None:
    """Tell the processes of this machine that plan a stream that one of its batches is done."""
    if not _STREAM.fullmatch(stream):
        return
    for path in _own_folder().glob(f"{stream}.*"):
        pipe = _open_or_remove(path)
        if pipe is not None:
            with suppress(BlockingIOError):  # full: the process reads nothing for long, and the next trigger acks
                os.write(pipe, b"%d\n" % batch)
            os.close(pipe)


def _open_or_remove(path: Path) -> int | None:
    """Open a pipe to write into it. Remove one that nobody reads, as its process was killed, and return None."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            path.unlink(missing_ok=True)
            return None
        if error.errno == errno.ENOENT:
            return None  # its process has just ended
        raise


def _own_folder() -> Path:
    """Return the folder of this user's pipes.

    :raises PermissionError: it is another user's, or others may write to it.
    """
    folder = Path(tempfile.gettempdir(), f"pawnqueue-spark-{os.geteuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user's alone: remove it.")
    return folder
