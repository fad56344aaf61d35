"""The packages of this distribution. In a clone they lie at the top, in an sdist beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("pawnqueue", "pyspark_pawnqueue")


class Packages(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the packages into the wheel and the sdist, under their names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folders to the builder, which fails if one is missing. An editable wheel holds no files."""
        if version == "editable":
            return
        here = Path(self.root)
        # An sdist may be unpacked two folders below a clone, so what lies beside this file comes first.
        top = here if (here / PACKAGES[0]).is_dir() else here.parents[1]
        build_data["force_include"].update({str(top / name): name for name in PACKAGES})
