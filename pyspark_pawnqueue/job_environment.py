"""The environment variables by which the submit operator hands a claim to its job.

This module imports nothing: Airflow reads it for every DAG file.
"""

from typing import Final

#: The reference of the job's claim as JSON, or a JSON list of references.
CLAIM_VARIABLE: Final = "PAWNQUEUE_JOB_CLAIM"
#: The path of a file with the settings of the connection. Only its owner may read it.
CONNECTION_VARIABLE: Final = "PAWNQUEUE_JOB_CONNECTION"
#: The path of the file to which the job reports failed messages, one JSON object per line: ``id`` and ``why``.
REPORT_VARIABLE: Final = "PAWNQUEUE_JOB_REPORT"
