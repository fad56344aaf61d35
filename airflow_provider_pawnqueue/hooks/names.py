"""What a connection is called. It imports nothing: whoever wants no more than the names pays for no more."""

from __future__ import annotations

from typing import Final

CONN_TYPE: Final = "pawnqueue"
DEFAULT_CONN_ID: Final = "pawnqueue_default"
