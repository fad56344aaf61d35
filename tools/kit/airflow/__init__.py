"""A real Airflow for tests and benchmarks: its four processes, their API, and ways to kill them."""

from tools.kit.airflow.api import Api, ApiError
from tools.kit.airflow.components import TaskProcesses
from tools.kit.airflow.installation import Airflow, AirflowError

__all__ = ["Airflow", "AirflowError", "Api", "ApiError", "TaskProcesses"]
