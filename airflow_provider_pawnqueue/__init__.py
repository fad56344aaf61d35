"""Airflow provider that turns any S3-compatible bucket into a message queue."""

__version__ = "0.1.0"
