"""Spark for tests, benchmarks and the demo: a Java, a session in this process, jobs, a cluster, a Connect server."""

from tools.kit.spark.cluster import SparkCluster
from tools.kit.spark.connect import ConnectServer
from tools.kit.spark.environment import (
    SHORT_LIVED,
    SessionRunsError,
    session,
    spark_environment,
    spark_home,
    spark_settings,
)
from tools.kit.spark.java import JavaNotFoundError, java_home
from tools.kit.spark.jobs import JobNotOverError, JobResult, SparkJob, submit

__all__ = [
    "SHORT_LIVED",
    "ConnectServer",
    "JavaNotFoundError",
    "JobNotOverError",
    "JobResult",
    "SessionRunsError",
    "SparkCluster",
    "SparkJob",
    "java_home",
    "session",
    "spark_environment",
    "spark_home",
    "spark_settings",
    "submit",
]
