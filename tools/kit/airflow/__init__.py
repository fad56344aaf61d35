"""A real Airflow for tests and benchmarks: its four processes, what one asks of them, and what is done to them."""

from tools.kit.airflow.api import Api, ApiError
from tools.kit.airflow.installation import Airflow, AirflowError
from tools.kit.airflow.tasks import TaskProcesses

__all__ = ["Airflow", "AirflowError", "Api", "ApiError", "TaskProcesses"]
