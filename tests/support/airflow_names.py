"""Names of Airflow's that tests use, and that had another home in the oldest Airflow that is supported."""

from airflow.exceptions import AirflowRescheduleException

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

secrets_masker = _secrets_masker

__all__ = ["AirflowRescheduleException", "DagSerialization", "deserialize", "redact", "secrets_masker", "serialize"]
