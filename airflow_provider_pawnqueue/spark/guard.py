"""Runs a command for a task, and ends everything that the command has started, at the latest when the task is gone.

:mod:`.guarded_process` starts it by its path, as a program of its own: a task that is killed by SIGKILL cannot end
anything any more. The program must be ready within some hundredths of a second. So it runs without site-packages, and
this file imports nothing but a few modules of the standard library.

Its arguments are the task's pid, the folder to remove if the task is gone, the seconds between SIGTERM and SIGKILL in
that case, and the command. On standard input it reads two orders: ``run``, once, and ``end SECONDS``, at any time.

The guard leads a session. All processes of a job are in that session, or below one that is: spark-submit's shell and
JVM, the Python driver, and Python's workers. So the guard finds them even if they have left the command's group. The
task finds them too, if the guard was killed.

⚑ The end of standard input means that the task is gone, and ends the command. So nothing runs on because an order was
lost.

⚑ A second process, the keeper, ends the job if the guard is killed, alone or together with its task. Otherwise the
Python driver would run until its next call to Spark, on messages that others receive meanwhile. The keeper has its own
name in the process table: ``pkill -9 -f airflow`` matches the task and the guard only.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

RUN = b"run"
END = b"end"
#: The exit statuses of a shell for a command that was not found, and for one that cannot be run.
_NOT_FOUND_STATUS, _NOT_RUNNABLE_STATUS = 127, 126

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: Where Linux lists processes. On other systems the guard knows the command's group only.
_PROC = "/proc"
_POLL_SECONDS = 0.02
#: How often the guard checks that its task lives, if the system does not report the end of a process.
_TASK_CHECK_MILLISECONDS = 500
#: The keeper's name in the process table.
_KEEPER_NAME = b"pawnqueue-job-keeper"
#: What the guard writes to its keeper once everything has ended.
_ALL_ENDED = b"."
#: The fields of /proc/PID/stat that say where a program's arguments are, counted from the process's state.
_ARGUMENTS_START_FIELD, _ARGUMENTS_END_FIELD = 45, 46


class TaskOrders:
    """What the task has ordered, and whether it still lives."""

    def __init__(self, task: int, grace: float) -> None:
        self.may_start = False
        self.must_end = False
        #: How many seconds the command has to end by itself after SIGTERM.
        self.grace = grace
        self.task_is_gone = False
        self._task = task
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._partial_line = b""
        self._check_milliseconds: int | None = None
        self._wakeup, wakeup_writer = os.pipe()
        for pipe in (self._wakeup, wakeup_writer):
            os.set_blocking(pipe, False)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        self._poll.register(self._wakeup, select.POLLIN)
        # The task's end is watched too: a process that it has forked may hold the other end of standard input open.
        # Another system than Linux, an old kernel or a sandbox may not report it. Then the guard checks its parent's
        # pid now and then: a process that loses its parent gets another one.
        try:
            self._poll.register(os.pidfd_open(task), select.POLLIN)
        except (AttributeError, OSError):
            self._check_milliseconds = _TASK_CHECK_MILLISECONDS
        self._check_task()

    def wait(self) -> None:
        """Wait for an order, the task's end, the end of a child, or a SIGTERM to this process."""
        for descriptor, _ in self._poll.poll(self._check_milliseconds):
            if descriptor == 0:
                self._read_orders()
            elif descriptor == self._wakeup:
                self.must_end |= signal.SIGTERM in os.read(self._wakeup, 4096)
            else:
                self._note_task_end(descriptor)
        self._check_task()

    def _check_task(self) -> None:
        if os.getppid() != self._task:
            self.must_end = self.task_is_gone = True

    def _read_orders(self) -> None:
        received = os.read(0, 4096)
        if not received:
            self._note_task_end(0)
        *lines, self._partial_line = (self._partial_line + received).split(b"\n")
        for line in lines:
            order, _, seconds = line.partition(b" ")
            if order == RUN:
                self.may_start = True
            elif order == END:
                self.must_end, self.grace = True, float(seconds)

    def _note_task_end(self, descriptor: int) -> None:
        self.must_end = self.task_is_gone = True
        self._poll.unregister(descriptor)


class Command:
    """The command, and everything that it has started."""

    def __init__(self, command: list[str], prctl: Callable[..., object], keeper: Keeper) -> None:
        guard = os.getpid()
        self._keeper = keeper
        executed, open_until_exec = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _execute(command, guard, prctl)
        os.close(open_until_exec)
        os.read(executed, 1)  # Until its exec, the child has this process's handlers, and would ignore a SIGTERM.
        os.close(executed)
        #: Its exit status as a shell reports it; None while it runs.
        self.status: int | None = None

    def reap(self) -> None:
        """Collect the status of all children that have ended. Processes that lost their parent are children too."""
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
        """End the command and everything that it has started. Return its exit status."""
        end_processes(self._find_running, grace)
        return self.status or 0

    def _find_running(self) -> set[int]:
        self.reap()
        found = session_members(os.getpid(), but=self._keeper.pid, reaper=os.getpid())
        if found is None:
            # The group's number is the pid of its first process. No other process gets it while the group exists.
            try:
                os.killpg(self.pid, 0)
            except OSError:
                return set()
            return {-self.pid}
        return found


class Keeper:
    """A process that ends the guard's session and removes the job's folder, if the guard is killed."""

    def __init__(self, folder: str) -> None:
        guards_end, self._pipe = os.pipe()  # No started program inherits it, so it closes when the guard ends.
        guard = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _keep(guard, folder, guards_end, self._pipe)
        os.close(guards_end)

    def dismiss(self) -> None:
        """Let the keeper exit, and wait for that: nothing of the job is left."""
        try:
            os.write(self._pipe, _ALL_ENDED)
            os.waitpid(self.pid, 0)
        except OSError:  # it was killed
            pass


def _keep(guard: int, folder: str, guards_end: int, pipe: int) -> NoReturn:
    try:
        os.setsid()  # A signal to the guard's session, group or terminal must not reach the keeper.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # The task reads the job's output until nobody has it open.
            os.dup2(null, descriptor)
        os.close(pipe)
        _rename_process(_KEEPER_NAME)
        if os.read(guards_end, 1) != _ALL_ENDED:
            # The session's number is the guard's pid. No other process gets it while the session has a process. The
            # pipe closes before the guard is gone, so the keeper may still be its child, and must not kill itself.
            end_processes(lambda: session_members(guard, but=os.getpid()))
            _remove(folder)
    finally:
        os._exit(0)


def _rename_process(name: bytes) -> None:
    """Overwrite this process's arguments, which ``ps`` shows. If that fails, it keeps the guard's name."""
    try:
        import ctypes  # noqa: PLC0415 - the task, which imports this module too, does not need it

        with open(f"{_PROC}/self/stat", "rb") as file:  # noqa: PTH123 - pathlib would double what is imported here
            fields = file.read().rpartition(b")")[2].split()
        start = int(fields[_ARGUMENTS_START_FIELD])
        size = int(fields[_ARGUMENTS_END_FIELD]) - start
        if start > 0 and size > len(name):
            ctypes.memmove(start, name.ljust(size, b"\0"), size)
    except (OSError, ValueError, IndexError, ImportError):
        pass


def end_processes(find: Callable[[], set[int] | None], grace: float = 0.0, give_up: float = float("inf")) -> set[int]:
    """End processes in good order, and then by force. Return those that did not end in time.

    The guard, its keeper, the task, and the tools of the tests (``tools/kit``) all end processes by this function.

    :param find: returns the pids of those that still run; a negative number is a group. It is called until it returns
        none, so processes that are started meanwhile end too.
    :param grace: how many seconds each has after its SIGTERM. Then those that are left are killed.
    :param give_up: after how many seconds the rest is returned.
    """
    begin = time.monotonic()
    asked: set[int] = set()
    while left := find():
        elapsed = time.monotonic() - begin
        if elapsed >= give_up:
            return left
        if elapsed >= grace:
            send_signal(left, signal.SIGKILL)
        else:
            send_signal(left - asked, signal.SIGTERM)
            asked |= left
        time.sleep(_POLL_SECONDS)
    return set()


def send_signal(pids: set[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that exist."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def read_processes(reaper: int = 0) -> dict[int, tuple[int, int, int]] | None:
    """Return the parent, group and session of each running process, by pid. None if the system hides processes.

    :param reaper: a process whose zombies are included: it can reap one once its other threads have ended, too.
    """
    try:
        pids = [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - pathlib would double what is imported here
    except OSError:
        return None
    found: dict[int, tuple[int, int, int]] = {}
    for pid in pids:
        try:
            with open(f"{_PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
                state, parent, group, session = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        if state not in (b"Z", b"X") or (state == b"Z" and int(parent) == reaper):
            found[pid] = int(parent), int(group), int(session)
    return found


def session_members(session: int, but: int = 0, reaper: int = 0) -> set[int] | None:
    """Return the processes of a session without its first one, and those that they have started in other sessions.

    :param but: a process that is left out, with those that it has started.
    :param reaper: see :func:`read_processes`.

    None if the system hides processes.
    """
    processes = read_processes(reaper)
    if processes is None:
        return None
    parents = {pid: parent for pid, (parent, _, _) in processes.items() if pid not in (session, but)}
    found = {pid for pid in parents if processes[pid][2] == session}
    for pid in parents:
        above = pid
        while above in parents and above not in found:
            above = parents[above]
        if above in found or above == session:
            found.add(pid)
    return found


def _load_prctl() -> Callable[..., object]:
    """Return Linux's call that decides what happens to processes whose parent ends. Elsewhere it does nothing."""
    import ctypes  # noqa: PLC0415 - the task, which imports this module too, does not need it

    return getattr(ctypes.CDLL(None, use_errno=True), "prctl", lambda *_: None)


def _execute(command: list[str], guard: int, prctl: Callable[..., object]) -> NoReturn:
    status = _NOT_RUNNABLE_STATUS
    try:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # if the guard is killed
        if os.getppid() != guard:
            os._exit(_NOT_RUNNABLE_STATUS)
        for number in (signal.SIGPIPE, signal.SIGINT):  # The guard ignores them, which exec would pass on.
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(command[0], command)  # noqa: S606 - a program with its arguments, and no shell
    except OSError as error:
        status = _NOT_FOUND_STATUS if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE_STATUS
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(status)


def _remove(folder: str) -> None:
    import shutil  # noqa: PLC0415 - takes as long to import as all the rest, and is seldom needed

    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Return the command's exit status as a shell reports it."""
    task, folder, grace, *command = sys.argv[1:]
    # Handlers that do nothing, so that a signal wakes this process. The command would inherit an ignored signal.
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl = _load_prctl()
    # A process below the guard that loses its parent becomes the guard's child.
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = Keeper(folder)
    orders = TaskOrders(int(task), float(grace))
    while not (orders.may_start or orders.must_end):
        orders.wait()
    status = 0
    if not orders.must_end:
        running = Command(command, prctl, keeper)
        while running.status is None and not orders.must_end:
            orders.wait()
            running.reap()
        status = running.end(orders.grace)
    if orders.task_is_gone:
        _remove(folder)
    keeper.dismiss()
    return status


if __name__ == "__main__":
    sys.exit(main())
