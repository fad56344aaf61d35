"""The errors of a call of publish (§7)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pawnqueue.errors import PublishError, StoreError, TopicNotFoundError


def withdrawn_error(topic: str, ids: Sequence[str], left: Collection[str]) -> TopicNotFoundError:
    """Return the error for messages that were put into a topic that had been deleted.

    :param left: the ids of those that may not have been removed again.
    """
    sentence = f"Topic {topic!r} was deleted. "
    if left:
        sentence += (
            f"Of {len(left)} of the {len(ids)} messages ({min(left)}, for example) it is not known whether they "
            "were removed again: if the topic is created again, those that were not are delivered. The others were "
            "not published."
        )
    else:
        sentence += f"Nothing was published: create it with create_topic({topic!r})."
    return TopicNotFoundError(sentence, topic=topic, operation="publish")


def publish_error(
    topic: str, ids: list[str], failed: dict[str, StoreError], unknown: dict[str, StoreError]
) -> PublishError:
    """Return the error for a call of which not all messages are known to be published."""
    first = next(iter([*failed.values(), *unknown.values()]))
    parts = []
    if failed:
        parts.append(f"{len(failed)} were not published")
    if unknown:
        parts.append(f"of {len(unknown)} it is not known whether they were")
    return PublishError(
        f"Of {len(ids)} messages for topic {topic!r}, {' and '.join(parts)}: {first} "
        "The error's .failed, .unknown and .published name them. Publish the failed ones again. The unknown ones may "
        "be stored: publishing them again may store them twice.",
        topic=topic,
        operation="publish",
        cause=first,
        ids=ids,
        failed=failed,
        unknown=unknown,
    )
