"""Every subject there is. A new one is a module with a ``run()``, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import (
    abilities,
    airflow_latency,
    airflow_sensors,
    claim_ack,
    client_cpu,
    csprng,
    idle_look,
    packs,
    spark_growth,
    spark_read,
    spark_submit,
    spark_write,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What can be measured."""

    title: str
    run: Callable[..., None]
    takes_arguments: bool = False
    """Whether it is given a list of arguments, of its own command line."""


SUBJECTS: Mapping[str, Subject] = {
    "client-cpu": Subject("Client CPU per request, obstore against boto3", client_cpu.run),
    "claim-ack": Subject("Claim and ack, against the same requests without a queue, and together", claim_ack.run),
    "packs": Subject("Packs from publish to ack, against the store alone; crowds; a claim of a million", packs.run),
    "abilities": Subject("What priorities, delays and the like cost, beside a topic without them", abilities.run),
    "idle-look": Subject("A look that finds nothing, by what is in flight", idle_look.run),
    "csprng": Subject("A claim without conditional writes, by the size of its batch", csprng.run),
    "airflow-latency": Subject("From publish to the task after the claim, on an idle Airflow", airflow_latency.run),
    "airflow-sensors": Subject("200 deferred sensors on one triggerer", airflow_sensors.run),
    "spark-read": Subject(
        "A claim read on Spark, against a bare process and local files", spark_read.run, takes_arguments=True
    ),
    "spark-write": Subject(
        "A million rows written by Spark: packs, local files, single messages", spark_write.run, takes_arguments=True
    ),
    "spark-growth": Subject("From 10,000 to a million messages on Spark", spark_growth.run, takes_arguments=True),
    "spark-submit-overhead": Subject(
        "What the submit operator adds to spark-submit", spark_submit.run, takes_arguments=True
    ),
}
