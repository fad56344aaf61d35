"""Topics as OpenLineage's datasets, and as Airflow's assets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

if TYPE_CHECKING:
    from pawnqueue import Settings

#: ``pawnqueue://bucket/topic``, or ``pawnqueue://bucket/prefix/topic``.
SCHEME = "pawnqueue"


def uri(settings: Settings, topic: str) -> str:
    """Return the URI of a topic, as assets and lineage name it."""
    return f"{SCHEME}://{settings.s3.bucket_name}/{settings.s3.key_prefix}{topic}"


def sanitized(parts: SplitResult) -> SplitResult:
    """Check the URI of an asset; Airflow calls this for each asset with our scheme."""
    if not parts.netloc or not parts.path.strip("/"):
        raise ValueError("An asset of a topic is pawnqueue://bucket/topic, with the key prefix before the topic.")
    return parts._replace(path=parts.path.rstrip("/"))


def lineage_of(settings: Settings, *, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Any:  # noqa: ANN401 - of a package that may not be installed
    """Return the lineage of a task that has read and written topics, or None if OpenLineage is not installed."""
    try:
        from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415 - may not be installed
        from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415
    except ImportError:
        return None

    def dataset(topic: str) -> Any:  # noqa: ANN401 - likewise
        namespace, _, name = uri(settings, topic).rpartition("/")
        return Dataset(namespace=namespace, name=name)

    return OperatorLineage(inputs=[*map(dataset, inputs)], outputs=[*map(dataset, outputs)])
