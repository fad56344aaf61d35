"""The other end of ``peer.py``: starts it in its own environment, asks it, and ends it, whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PYTHON = Path(__file__).parents[2] / ".venv-peer" / "bin" / "python"
PROGRAM = Path(__file__).with_name("peer.py")
PINS = Path(__file__).with_name("peer-constraints.txt")

#: What takes longer has hung: the process is killed.
LONGEST = 60.0
_TAIL = 4_000


class PeerError(Exception):
    """What the library raised, or why there is no answer."""


class Peer:
    """A process of the published library. Its calls have the names of the program's commands."""

    def __init__(self) -> None:
        if not PYTHON.exists():
            raise PeerError("There is no .venv-peer, in which the published library runs: `make peer` makes it.")
        strange = ("PAWNQUEUE_", "AWS_", "PYTHON")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [PYTHON, PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith(strange)},
            start_new_session=True,
        )
        self._settled = True

    @property
    def usable(self) -> bool:
        """Whether it lives, and is not in the middle of something."""
        return self._settled and self._process.poll() is None

    async def open(
        self,
        config: Mapping[str, Any] | str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Open a queue, instead of the one that was open; return what it is configured with."""
        return await self._ask("open", config=config, environment=environment)

    async def create_topic(self, topic: str) -> None:
        """Create a topic."""
        await self._ask("create_topic", topic=topic)

    async def topics(self) -> list[str]:
        """List all topics."""
        return await self._ask("topics")

    async def register(self, role: str, name: str) -> str:
        """Register a name and return its id."""
        return await self._ask("register", role=role, name=name)

    async def registered(self, role: str) -> list[dict[str, str]]:
        """List everyone who is registered."""
        return await self._ask("registered", role=role)

    async def publish(self, topic: str, payloads: Sequence[Mapping[str, Any]], producer: str = "shop") -> list[str]:
        """Publish, one after the other, and return the ids."""
        return await self._ask("publish", topic=topic, producer=producer, payloads=payloads)

    async def poll(self, topic: str, most: int = 10, consumer: str = "theirs") -> list[dict[str, Any]]:
        """Poll once."""
        return await self._ask("poll", topic=topic, consumer=consumer, most=most)

    async def begin_poll(self, topic: str, *, stop_before: tuple[str, str], consumer: str = "theirs") -> str:
        """Begin to poll, up to a call of its S3 client on a key that has this in it; return that key."""
        return await self._ask(
            "poll", expected="stopped", topic=topic, consumer=consumer, most=10, stop_before=stop_before
        )

    async def go_on(self) -> list[dict[str, Any]]:
        """Let the poll that was begun go on to its end."""
        return await self._ask("go")

    async def listen(self, topic: str, count: int, *, fail: bool = False, consumer: str = "theirs") -> list[str]:
        """Listen for this number of messages, which are acked, or met by an exception; return their ids."""
        return await self._ask("listen", topic=topic, consumer=consumer, count=count, fail=fail)

    async def ack(self, ids: Sequence[str]) -> None:
        """Ack what came before."""
        await self._ask("ack", ids=ids)

    async def nack(self, ids: Sequence[str]) -> None:
        """Nack what came before."""
        await self._ask("nack", ids=ids)

    async def refresh(self, topic: str, consumer: str = "theirs") -> None:
        """Refresh all leases of the consumer, as its background task does."""
        await self._ask("refresh", topic=topic, consumer=consumer)

    async def set_clock(self, ahead: float) -> None:
        """Put its clock forward until the next :meth:`open`."""
        await self._ask("set_clock", ahead=ahead)

    def hang_up(self) -> None:
        """Close its standard input, and wait until it has ended by that."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(LONGEST)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    async def _ask(self, do: str, *, expected: str = "done", **arguments: Any) -> Any:  # noqa: ANN401 - any JSON value
        answer = await asyncio.to_thread(self._talk, json.dumps({"do": do, **arguments}))
        self._settled = "stopped" not in answer
        if expected not in answer:
            raise PeerError(answer.get("failed", f"{do} gave {answer}, not {expected}"))
        return answer[expected]

    def _talk(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._settled = False
        alarm = threading.Timer(LONGEST, self._process.kill)
        alarm.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except (BrokenPipeError, ValueError):  # a closed file is a ValueError
            answer = ""
        finally:
            alarm.cancel()
        if not answer:
            raise PeerError(f"The peer has ended; its log ends with:\n{self._tail()}")
        return json.loads(answer)

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-_TAIL:]
