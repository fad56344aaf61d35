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
#: Every store that speaks S3 can list the topic's folder.
_LISTING = "/{bucket}?list-type=2&prefix={prefix}{topic}/"


class TopicLink(BaseOperatorLink):
    """Opens the topic in its store's console.

    On AWS this is the S3 console. For another store it is the listing of the topic's folder, unless the option
    ``[pawnqueue] topic_link`` has the address of a console, with ``{bucket}``, ``{prefix}``, ``{topic}`` and
    ``{region}`` in it.
    """

    name = "Topic"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of a task's topic, or an empty text. Airflow asks in the task's process, when it ends."""
        del ti_key
        task: Any = operator
        given = getattr(task, "topic", None) or getattr(task, "topics", None) or topics_of(getattr(task, "claim", None))
        topic = given if isinstance(given, str) else next(iter(given), "")
        try:
            return address(PawnQueueHook(task.pawnqueue_conn_id).settings, topic) if topic else ""
        except (PawnQueueError, AirflowException):
            return ""  # the task's own error says what is wrong with its connection


def address(settings: Settings, topic: str) -> str:
    """Return the address at which a topic can be looked at."""
    endpoint = settings.s3.endpoint_url
    template: str = conf.get("pawnqueue", "topic_link", fallback="") or (f"{endpoint}{_LISTING}" if endpoint else _AWS)
    s3 = settings.s3
    named = {"bucket": s3.bucket_name, "prefix": s3.key_prefix, "topic": topic, "region": s3.region_name}
    for name, value in named.items():  # which leaves other braces as they are
        template = template.replace(f"{{{name}}}", quote(value))
    return template
