"""Runs a command for a task, and ends all that it has started: by itself, when told to, or when the task is gone.

A program of its own, which :mod:`.submitting` starts by its path: a task that is killed by SIGKILL ends nothing any
more. It imports the standard library alone, and little of it: it is to be there in some hundredths of a second.

Arguments: the task's pid, the folder to remove should the task be gone, the seconds between SIGTERM and SIGKILL then,
and the command. On its standard input it is told ``run``, once, and ``end SECONDS``, at any time. It is the first
process of a session, by which the others are found, also where they have left the command's group, and also by the task
where this one was killed: spark-submit's shell and JVM, the Python driver, and Python's workers.

⚑ The end of that input says that the task is gone, and the command ends: nothing runs on because an order was lost.

⚑ A second process, the keeper, does the same where this one is killed, alone or together with its task: the Python
driver would run on until its next call to Spark, on messages that others are given. So it needs nothing of the job, and
takes a name of its own in the process table: ``pkill -9 -f airflow`` matches task and guard, and not the keeper.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import NoReturn

RUN = b"run"
END = b"end"
#: The exit statuses that a shell has for a command that was not found, and for one that cannot be run.
NOT_FOUND, NOT_RUN = 127, 126

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: Where processes are looked up, as on Linux. Elsewhere the command's group is all that is known.
_PROCESSES = "/proc"
_PAUSE = 0.02
#: How often the guard looks whether its task lives, where the system tells of no process's end.
_LOOK_MILLISECONDS = 500
#: What the keeper is called in the process table.
_KEEPER_NAME = b"pawnqueue-job-keeper"
#: What the guard writes to the keeper when it has ended all that it has started.
_IN_ORDER = b"."
#: Where the process table has the place of a program's arguments, counted from the process's state.
_ARGUMENTS_START, _ARGUMENTS_END = 45, 46


class Orders:
    """What the task says, and whether it is there."""

    def __init__(self, task: int, grace: float) -> None:
        #: The command may begin.
        self.run = False
        #: It is to end.
        self.end = False
        #: How long it has for that, in seconds.
        self.grace = grace
        #: The task is gone.
        self.is_alone = False
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._heard = b""
        self._task = task
        self._look: int | None = None
        self._woken, wakes = os.pipe()
        for pipe in (self._woken, wakes):
            os.set_blocking(pipe, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._poll.register(self._woken, select.POLLIN)
        self._watch(task)

    def wait(self) -> None:
        """Wait until the task says something or is gone, a child has ended, or this process is told to end."""
        for descriptor, _ in self._poll.poll(self._look):
            if descriptor == 0:
                self._listen()
            elif descriptor == self._woken:
                self.end |= signal.SIGTERM in os.read(self._woken, 4096)
            else:
                self._is_gone(descriptor)
        self._look_for_the_task()

    def _watch(self, task: int) -> None:
        """Watch the task itself too: a process that it has forked may hold the other end of the input open.

        Where the system tells of no process's end (another one than Linux, an old kernel, a sandbox that refuses it),
        the guard looks now and then: a process that loses its parent is given another one.
        """
        try:
            self._poll.register(os.pidfd_open(task), select.POLLIN)
        except (AttributeError, OSError):
            self._look = _LOOK_MILLISECONDS
        self._look_for_the_task()

    def _look_for_the_task(self) -> None:
        if os.getppid() != self._task:
            self.end = self.is_alone = True

    def _listen(self) -> None:
        told = os.read(0, 4096)
        if not told:
            self._is_gone(0)
        *lines, self._heard = (self._heard + told).split(b"\n")
        for line in lines:
            order, _, seconds = line.partition(b" ")
            if order == RUN:
                self.run = True
            elif order == END:
                self.end, self.grace = True, float(seconds)

    def _is_gone(self, descriptor: int) -> None:
        self.end = self.is_alone = True
        self._poll.unregister(descriptor)


class Command:
    """The command, and whatever it has started."""

    def __init__(self, command: list[str], prctl: _Prctl, keeper: Keeper) -> None:
        guard = os.getpid()
        self._keeper = keeper
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, guard, prctl)
        #: How it ended, as a shell has it; None while it runs.
        self.status: int | None = None

    def reap(self) -> None:
        """Take note of all children that have ended, also of those that lost their parent and became this one's."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code

    def end(self, grace: float) -> int:
        """End it with all that it has started; return its status."""
        deadline = time.monotonic() + grace
        told: set[int] = set()
        while True:
            self.reap()
            left = self._left()
            if not left:
                return self.status or 0
            if time.monotonic() >= deadline:
                send(left, signal.SIGKILL)
            else:
                send(left - told, signal.SIGTERM)
                told |= left
            time.sleep(_PAUSE)

    def _left(self) -> set[int]:
        found = members(os.getpid(), but=self._keeper.pid)
        if found is None:
            # A group's number is its first process's, which is nobody else's while there is a group.
            try:
                os.killpg(self.pid, 0)
            except OSError:
                return set()
            return {-self.pid}
        return found


class Keeper:
    """A process of its own that ends the guard's session, and removes the job's folder, if the guard is killed."""

    def __init__(self, folder: str) -> None:
        ends, self._guards = os.pipe()  # which no program that is started has: its end is the guard's
        guard = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _keep(guard, folder, ends, self._guards)
        os.close(ends)

    def dismiss(self) -> None:
        """Let it go: nothing of the job is left."""
        try:  # noqa: SIM105 - contextlib would double what is imported here
            os.write(self._guards, _IN_ORDER)
        except OSError:  # it was killed
            pass


def _keep(guard: int, folder: str, ends: int, guards: int) -> NoReturn:
    try:
        os.setsid()  # what ends the guard's session, its group or its terminal is not to end this
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # the task reads the job's output to its end
            os.dup2(nothing, descriptor)
        os.close(guards)
        _take_name(_KEEPER_NAME)
        if os.read(ends, 1) != _IN_ORDER:
            # The session's number is the guard's pid, which is nobody else's while there is one process in it. The pipe
            # ends before the guard does: the keeper may be its child still, and is not to kill itself.
            while left := members(guard, but=os.getpid()):
                send(left, signal.SIGKILL)
                time.sleep(_PAUSE)
            _remove(folder)
    finally:
        os._exit(0)


def _take_name(name: bytes) -> None:
    """Overwrite this process's arguments, as ``ps`` shows them."""
    try:
        import ctypes  # noqa: PLC0415 - as below

        with open(f"{_PROCESSES}/self/stat", "rb") as file:  # noqa: PTH123 - pathlib would double what is imported here
            fields = file.read().rpartition(b")")[2].split()
        start, size = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END]) - int(fields[_ARGUMENTS_START])
        if start > 0 and size > len(name):
            ctypes.memmove(start, name.ljust(size, b"\0"), size)
    except (OSError, ValueError, IndexError, ImportError):
        pass  # then it keeps the guard's name


def members(session: int, but: int = 0) -> set[int] | None:
    """Return the processes of a session but its first, and what that has started elsewhere.

    :param but: a process that is left out, with what it has started.

    None where processes cannot be looked up.
    """
    try:
        pids = [int(name) for name in os.listdir(_PROCESSES) if name.isdigit()]  # noqa: PTH208 - pathlib would double what is imported here
    except OSError:
        return None
    parents: dict[int, int] = {}
    found: set[int] = set()
    for pid in pids:
        try:
            with open(f"{_PROCESSES}/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
                state, parent, _, its_session = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        if state in (b"Z", b"X") or pid in (session, but):
            continue
        parents[pid] = int(parent)
        if int(its_session) == session:
            found.add(pid)
    for pid in parents:
        above = pid
        while above in parents and above not in found:
            above = parents[above]
        if above in found or above == session:
            found.add(pid)
    return found


def send(pids: set[int], number: signal.Signals) -> None:
    """Send a signal to processes, as far as they are there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


class _Prctl:
    """Linux's own way to say what becomes of processes whose parent ends; elsewhere it does nothing."""

    def __init__(self) -> None:
        import ctypes  # noqa: PLC0415 - the task, which imports this module as well, has no use for it

        self._call = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)

    def __call__(self, option: int, value: int) -> None:
        if self._call is not None:
            self._call(option, value, 0, 0, 0)


def _become(command: list[str], guard: int, prctl: _Prctl) -> NoReturn:
    status = NOT_RUN
    try:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should the guard be killed; the task ends the rest then
        if os.getppid() != guard:
            os._exit(NOT_RUN)
        for number in (signal.SIGPIPE, signal.SIGINT):  # which are ignored here, and exec would hand that on
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(command[0], command)  # noqa: S606 - a program with its arguments, and no shell
    except FileNotFoundError:
        status = NOT_FOUND
        os.write(2, f"{command[0]}: there is no such program\n".encode())
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(status)


def _remove(folder: str) -> None:
    import shutil  # noqa: PLC0415 - takes as long to import as all the rest, and is of no use to most

    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Return the command's exit status, as a shell has it."""
    task, folder, grace, *command = sys.argv[1:]
    # Handlers, so that this is woken: what is ignored here would be ignored by the command too.
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl = _Prctl()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whatever loses its parent is still below this one
    keeper = Keeper(folder)
    orders = Orders(int(task), float(grace))
    while not (orders.run or orders.end):
        orders.wait()
    status = 0
    if not orders.end:
        running = Command(command, prctl, keeper)
        while running.status is None and not orders.end:
            orders.wait()
            running.reap()
        status = running.end(orders.grace)
    if orders.is_alone:
        _remove(folder)
    keeper.dismiss()
    return status


if __name__ == "__main__":
    sys.exit(main())
