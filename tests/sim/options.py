"""Options that the engine's front door may not know yet. To be removed, with its callers, as soon as it does."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def known(call: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return those of the options that the call takes."""
    parameters = inspect.signature(call).parameters
    return {name: value for name, value in options.items() if name in parameters}
