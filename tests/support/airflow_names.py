"""Names of Airflow's that tests use, and that had another home in the oldest Airflow that is supported."""

from __future__ import annotations

from airflow.exceptions import AirflowRescheduleException
from airflow.sdk import DAG, Connection
from airflow.serialization.serialized_objects import LazyDeserializedDAG

try:
    from airflow.sdk._shared.secrets_masker import _secrets_masker, redact
except ImportError:
    from airflow.sdk.execution_time.secrets_masker import _secrets_masker, redact
try:
    from airflow.sdk.serde import deserialize, serialize
except ImportError:
    from airflow.serialization.serde import deserialize, serialize
try:
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization


def lazily(dag: DAG) -> LazyDeserializedDAG:
    """Serialize a DAG as its processor does."""
    if hasattr(LazyDeserializedDAG, "from_dag"):
        return LazyDeserializedDAG.from_dag(dag)
    return LazyDeserializedDAG(data=DagSerialization.to_dict(dag))


def connection_from_uri(uri: str, conn_id: str) -> Connection:
    """Read a connection from a URI, as from an environment variable."""
    if hasattr(Connection, "from_uri"):
        return Connection.from_uri(uri, conn_id=conn_id)
    from airflow.models import Connection as Stored  # noqa: PLC0415 - the Task SDK's could not yet

    return Stored(conn_id=conn_id, uri=uri)  # noqa: AIR311 - likewise


secrets_masker = _secrets_masker

__all__ = [
    "AirflowRescheduleException",
    "DagSerialization",
    "connection_from_uri",
    "deserialize",
    "lazily",
    "redact",
    "secrets_masker",
    "serialize",
]
