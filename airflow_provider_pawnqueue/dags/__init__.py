"""Ready-made DAGs: ``from airflow_provider_pawnqueue.dags import janitor_dag``."""

from airflow_provider_pawnqueue.dags.janitor import janitor_dag

__all__ = ["janitor_dag"]
