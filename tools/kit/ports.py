"""Free ports on 127.0.0.1, each for one test run on this machine at a time."""

from __future__ import annotations

import atexit
import random
import socket
from pathlib import Path

HOST = "127.0.0.1"

_LOWEST_PORT = 10_000
_MAX_ATTEMPTS = 500
_claims: list[socket.socket] = []
# Seeded by the system: two test runs with the same seed must not look for the same ports.
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port that nothing listens on. No other test run gets it before this process ends."""
    for _ in range(_MAX_ATTEMPTS):
        port = _random.randrange(_LOWEST_PORT, _first_ephemeral_port())
        if _is_free(port) and _claim(port):
            return port
    message = f"no free port on {HOST} in {_MAX_ATTEMPTS} attempts"
    raise OSError(message)


def free_ports(count: int) -> list[int]:
    """Return that many different free ports."""
    return [free_port() for _ in range(count)]


def _first_ephemeral_port() -> int:
    # Ports above are handed to outgoing connections: one could be taken between the choice and the server's bind.
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    return max(int(lowest), _LOWEST_PORT + 1_000)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    # The name in the abstract namespace is freed by the kernel when the process ends, however it ends.
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0pawnqueue-test-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


@atexit.register
def _give_back() -> None:
    for claim in _claims:
        claim.close()
