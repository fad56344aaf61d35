"""How the programs end: SIGTERM asks them to, and they finish what they have begun."""

from __future__ import annotations

import asyncio
import signal


def told_to_stop() -> asyncio.Event:
    """Return an event that is set when the process has to stop."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set)
    return event
