"""What the operator and the job that it submits know of each other: three variables, and the mark of a sentence.

Imports nothing: Airflow reads it for every DAG file.
"""

from typing import Final

#: The reference of the claim that the job is to work on, as JSON; a list of them, where there are several.
CLAIM_VARIABLE: Final = "PAWNQUEUE_JOB_CLAIM"
#: The path of a file with the settings of the connection, which nobody else may read.
CONNECTION_VARIABLE: Final = "PAWNQUEUE_JOB_CONNECTION"
#: The path of a file in which the job says which messages it could not do: a JSON object a line, ``id`` and ``why``.
REPORT_VARIABLE: Final = "PAWNQUEUE_JOB_REPORT"
#: What a sentence of ours begins with, among the lines that Spark writes around it.
MARKER: Final = "PawnQueue: "
