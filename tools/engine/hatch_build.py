"""The engine's files, which the provider has too: in the tree they lie above this folder, in an sdist in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SharedFiles(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the paths of ``shared`` into the wheel and the sdist, under the names that they have in the tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the builder's own call
        """Name them to the builder; one that is not there fails the build."""
        here = Path(self.root)
        # Its own first: an sdist may be unpacked two folders below a tree.
        top = here if (here / "airflow_provider_pawnqueue").is_dir() else here.parents[1]
        build_data["force_include"].update({str(top / name): name for name in self.config["shared"]})
