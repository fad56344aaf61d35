"""Runs one server in a process group of its own, and ends the whole group when its owner asks or is no more.

Started by :mod:`tools.kit.processes` as a process between the test run and the server. It watches the owner by
pidfd: PR_SET_PDEATHSIG on the server itself would fire when the *thread* that started it ends, and the threads of a
test run come and go.

Arguments: the owner's pid, the directory to remove should the owner vanish, the seconds between SIGTERM and SIGKILL,
the descriptor to report the server's pid on, and the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_COMMAND_NOT_STARTED = 127


def main() -> int:
    """Return the server's exit status once nothing of its group is left."""
    owner_pid, directory, grace, report_fd, *command = sys.argv[1:]
    os.set_inheritable(int(report_fd), False)  # noqa: FBT003 - it takes no keywords
    asked_to_stop = _wake_on_sigterm()
    owner = _open_owner(int(owner_pid))
    server_pid = _start(command)
    with contextlib.suppress(BrokenPipeError):  # the owner has gone meanwhile, which is noticed below
        os.write(int(report_fd), b"%d\n" % server_pid)
    os.close(int(report_fd))
    server = os.pidfd_open(server_pid)

    _wait_for(server, asked_to_stop, *owner)
    if not _wait_for(server, timeout=0):
        os.killpg(server_pid, signal.SIGTERM)
        _wait_for(server, timeout=float(grace))
    # Before the server is reaped: until then nobody else can be given its pid, which is the group's id.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server_pid, signal.SIGKILL)
    _, status = os.waitpid(server_pid, 0)
    if not owner or _wait_for(*owner, timeout=0):
        shutil.rmtree(directory, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _wake_on_sigterm() -> int:
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    # A handler, not SIG_IGN: exec resets handlers, whereas an ignored SIGTERM would be ignored by the server too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    return wakes


def _open_owner(pid: int) -> list[int]:
    """Return the owner's pidfd, or nothing where the owner has ended already."""
    with contextlib.suppress(ProcessLookupError):
        owner = os.pidfd_open(pid)
        if os.getppid() == pid:
            return [owner]
    os.kill(os.getpid(), signal.SIGTERM)
    return []


def _start(command: list[str]) -> int:
    # Loaded before the fork, to do as little as possible between fork and exec.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    executed, held_until_exec = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(command, prctl)
    os.close(held_until_exec)
    # A SIGTERM between fork and exec would be handled by the handler above, in the child, and be lost.
    os.read(executed, 1)
    return pid


def _become(command: list[str], prctl: ctypes._NamedFuncPointer) -> NoReturn:
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would hand that on
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should this keeper be killed: it has only the one thread
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    os._exit(_COMMAND_NOT_STARTED)


def _wait_for(*descriptors: int, timeout: float | None = None) -> bool:
    """Tell whether one of the descriptors became readable in time."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


if __name__ == "__main__":
    sys.exit(main())
