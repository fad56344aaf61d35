"""A link from a task to its topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowException, BaseOperatorLink, conf

from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.references import topics_of
from pawnqueue import PawnQueueError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey

    from pawnqueue import Settings

_AWS = "https://{region}.console.aws.amazon.com/s3/buckets/{bucket}?region={region}&prefix={prefix}{topic}/"
#: What the S3 protocol itself has for every store: the listing of the topic's folder.
_LISTING = "/{bucket}?list-type=2&prefix={prefix}{topic}/"


class TopicLink(BaseOperatorLink):
    """Opens the topic at its store.

    On AWS in the console; at another endpoint its listing, which the store shows to those who may read it. The option
    ``[pawnqueue] topic_link`` names a better place, with ``{bucket}``, ``{prefix}``, ``{topic}`` and ``{region}`` in
    it.
    """

    name = "Topic"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return where the topic of a task is shown, or nothing. Airflow asks at the task's end, in its process."""
        del ti_key
        task: Any = operator
        given = getattr(task, "topic", None) or getattr(task, "topics", None) or topics_of(getattr(task, "claim", None))
        topic = given if isinstance(given, str) else next(iter(given), "")
        try:
            return address(PawnQueueHook(task.pawnqueue_conn_id).settings, topic) if topic else ""
        except (PawnQueueError, AirflowException):
            return ""  # the task itself says what is wrong with its connection


def address(settings: Settings, topic: str) -> str:
    """Return where a topic is shown."""
    endpoint = settings.s3.endpoint_url
    template: str = conf.get("pawnqueue", "topic_link", fallback="") or (f"{endpoint}{_LISTING}" if endpoint else _AWS)
    s3 = settings.s3
    named = {"bucket": s3.bucket_name, "prefix": s3.key_prefix, "topic": topic, "region": s3.region_name}
    for name, value in named.items():  # and whatever else is in braces stays as it is
        template = template.replace(f"{{{name}}}", quote(value))
    return template
