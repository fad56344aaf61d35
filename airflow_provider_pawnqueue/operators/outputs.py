"""What operators return, as later tasks receive it.

⚑ A publisher's payload is never an object to Airflow: its serialization reads the keys of dicts, at any depth, and
makes objects of some of them. So messages cross XCom as JSON texts, and become dicts in the task that receives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.definitions.xcom_arg import PlainXComArg

from airflow_provider_pawnqueue.hooks import references


class DecodedOutput(PlainXComArg):
    """The output of an operator whose XCom has messages as JSON texts: tasks are given dicts."""

    def decoded(self, value: Any) -> Any:  # noqa: ANN401 - what XCom has, and what a task is given
        """Read what XCom has."""
        raise NotImplementedError

    def resolve(self, context: Mapping[str, Any]) -> Any:  # noqa: ANN401 - likewise
        """Pull it for a task."""
        return self.decoded(super().resolve(context))


class ClaimsOutput(DecodedOutput):
    """The claim of a sensor, or the claims of one that waits for several topics."""

    def decoded(self, value: Any) -> Any:  # noqa: ANN401 - one claim, a sequence of them, or nothing
        """Read the messages that came along."""
        return references.received(value)


class ReferencesOutput(DecodedOutput):
    """The same for operators, which need the references alone."""

    def decoded(self, value: Any) -> Any:  # noqa: ANN401 - likewise
        """Leave the messages out."""
        return references.bare(value)


def without_messages(claim: Any) -> Any:  # noqa: ANN401 - claims, their outputs, and lists of both
    """Return what an operator is given as its claim such that no message is among its rendered fields.

    ⚑ A payload that Airflow cannot carry keeps no claim from its settlement.
    """
    if isinstance(claim, ClaimsOutput):
        return ReferencesOutput(claim.operator, claim.key)
    if isinstance(claim, (list, tuple)):
        return [without_messages(each) for each in claim]
    return references.bare(claim) if isinstance(claim, Mapping) else claim


class MessagesOutput(DecodedOutput):
    """The messages of a claim, or lists of them."""

    def decoded(self, value: Any) -> Any:  # noqa: ANN401 - a list of texts, several of them in a mapped group, or nothing
        """Read each of them."""
        return references.decoded_messages(value)
