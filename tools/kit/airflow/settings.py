"""The settings of a light Airflow, which notices within seconds what others notice within minutes."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.kit.ports import HOST
from tools.kit.process_lookup import MARK

ROOT = Path(__file__).parents[3]

_SETTINGS: Mapping[str, Mapping[str, object]] = {
    "core": {
        "executor": "LocalExecutor",
        "load_examples": False,
        "dags_are_paused_at_creation": False,
        "simple_auth_manager_all_admins": True,  # nobody logs in
        "test_connection": "Enabled",
        "min_serialized_dag_update_interval": 0,  # 30: how long a DAG waits that changes again
    },
    "database": {"load_default_connections": False},
    "api": {"workers": 1, "maximum_page_limit": 10_000, "expose_config": True},
    "scheduler": {
        "scheduler_idle_sleep_time": 0.5,
        "scheduler_heartbeat_sec": 2,
        "scheduler_health_check_threshold": 15,  # 30, and 300: the tasks of a scheduler that was killed, and is back at
        "orphaned_tasks_check_interval": 5,  # once, are tried again after 5 minutes
        "task_instance_heartbeat_timeout": 30,  # 300: a task whose supervisor was killed is tried again after 5 minutes
        "task_instance_heartbeat_timeout_detection_interval": 5,
        "trigger_timeout_check_interval": 5,
    },
    "triggerer": {
        "job_heartbeat_sec": 2,
        "triggerer_health_check_threshold": 10,  # 30: after this time another triggerer takes over
    },
    "dag_processor": {
        "refresh_interval": 1,
        "bundle_refresh_check_interval": 1,
        "min_file_process_interval": 300,  # a file that has changed is parsed at once all the same
        "parsing_processes": 1,
    },
    "usage_data_collection": {"enabled": False},
}


def environment(  # noqa: PLR0913 - what differs between two
    home: Path,
    *,
    port: int,
    log_ports: tuple[int, int],
    mark: str,
    parallelism: int,
    connections: Mapping[str, Mapping[str, Any]],
) -> dict[str, str]:
    """Return the environment of every process of one Airflow. It has no variable of the user's own Airflow."""
    foreign = ("AIRFLOW", "PAWNQUEUE", "PYTHON", "PYTEST", "AWS_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    url = f"http://{HOST}:{port}"
    worker_log_port, trigger_log_port = log_ports
    settings = {
        **{variable(section, key): value for section, keys in _SETTINGS.items() for key, value in keys.items()},
        variable("core", "dags_folder"): home / "dags",
        variable("core", "parallelism"): parallelism,
        variable("core", "fernet_key"): base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        variable("core", "execution_api_server_url"): f"{url}/execution/",
        variable("api", "host"): HOST,
        variable("api", "port"): port,
        variable("api", "base_url"): url,
        variable("api", "secret_key"): secrets.token_hex(32),
        variable("api_auth", "jwt_secret"): secrets.token_hex(64),
        variable("logging", "base_log_folder"): home / "logs",
        variable("logging", "worker_log_server_port"): worker_log_port,
        variable("logging", "trigger_log_server_port"): trigger_log_port,
    }
    return {
        **environ,
        **{name: str(value) for name, value in settings.items()},
        **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(fields) for name, fields in connections.items()},
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": str(ROOT),  # before what is installed: an editable install may be of another clone
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": f"{HOST},localhost",
        "no_proxy": f"{HOST},localhost",
        # Workers rename themselves, and would write the new name over the environment in which the mark is.
        "SPT_NOENV": "1",
        MARK: mark,
    }


def variable(section: str, key: str) -> str:
    """Return the name of the environment variable of one of Airflow's settings."""
    return f"AIRFLOW__{section.upper()}__{key.upper()}"
