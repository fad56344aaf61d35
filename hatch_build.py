"""The one dependency of the provider whose name depends on where it is built: the queue itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Dependencies(MetadataHookInterface):
    """Adds ``pawnqueue-engine`` to the dependencies that ``pyproject.toml`` lists.

    In a clone it is the folder ``tools/engine``, so that ``pip install .`` needs no release. Elsewhere, and with
    ``PAWNQUEUE_ENGINE=by-version`` in the environment, it is the release of the provider's own version.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies."""
        folder = Path(self.root) / "tools" / "engine"
        if os.environ.get("PAWNQUEUE_ENGINE") != "by-version" and (folder / "pyproject.toml").is_file():
            engine = f"pawnqueue-engine @ {folder.as_uri()}"
        else:
            engine = f"pawnqueue-engine=={metadata['version']}"
        metadata["dependencies"] = [engine, *self.config["dependencies"]]
