"""Whether this machine can carry a demo: told before anything is started, not by a process killed in the middle."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

GIB = 1 << 30
_MEMORY = Path("/proc/meminfo")
#: The files that show a container's memory limit and use, and the part of it that is file cache: in both versions of
#: control groups.
_GROUP = Path("/sys/fs/cgroup")
_LIMITS = (
    (_GROUP / "memory.max", _GROUP / "memory.current", _GROUP / "memory.stat", "inactive_file"),
    (
        _GROUP / "memory" / "memory.limit_in_bytes",
        _GROUP / "memory" / "memory.usage_in_bytes",
        _GROUP / "memory" / "memory.stat",
        "total_inactive_file",
    ),
)


class TooLittleError(RuntimeError):
    """The machine has too little of something. The message says of what, and what to do."""


def need_memory(wanted: int) -> None:
    """Raise unless the wanted bytes of memory are free."""
    free = free_memory()
    if free < wanted:
        raise TooLittleError(
            f"it needs {wanted / GIB:.1f} GiB of free memory, and there are {free / GIB:.1f} GiB: end something else, "
            "or see the queue alone, in a tenth of it: make demo-queue"
        )


def free_memory() -> int:
    """Return how many bytes of memory new processes can have, on this machine and in this container."""
    free = [_available()]
    for limit, used, kinds, files in _LIMITS:
        with suppress(OSError, ValueError, KeyError):  # of the other version, or without a limit ("max")
            free.append(_number(limit) - _number(used) + _numbers(kinds)[files])
    return max(0, min(free))


def _available() -> int:
    with suppress(OSError, KeyError):
        return _numbers(_MEMORY)["MemAvailable:"] * 1024
    raise TooLittleError("nothing tells how much memory is free: it needs Linux, and /proc")


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def _numbers(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {name: int(number) for name, number, *_ in lines}
