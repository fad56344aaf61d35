"""The outputs of operators, as later tasks receive them.

⚑ Airflow must not see the keys of a publisher's payload: its serialization makes objects of dicts with certain keys, at
any depth. So messages cross XCom as JSON texts, and become dicts in the task that receives them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow.sdk.definitions.xcom_arg import PlainXComArg

from airflow_provider_pawnqueue.hooks import references


class DecodedOutput(PlainXComArg):
    """The output of an operator whose XCom has messages as JSON texts, of which tasks receive dicts."""

    #: Returns what a task receives for an XCom.
    decoded: Callable[[Any], Any]

    def resolve(self, context: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what a task is given
        """Pull the XCom, and return what the task receives."""
        return self.decoded(super().resolve(context))


class ClaimsOutput(DecodedOutput):
    """The claim of a sensor, or its claims where it waits for several topics, with the messages decoded."""

    decoded = staticmethod(references.as_received)


class ReferencesOutput(DecodedOutput):
    """The same claims for operators, which need only the references, not the messages."""

    decoded = staticmethod(references.without_messages)


class MessagesOutput(DecodedOutput):
    """The messages of a claim, or lists of them."""

    decoded = staticmethod(references.decoded_messages)


def without_messages(claim: Any) -> Any:  # noqa: ANN401 - claims, their outputs, and lists of both
    """Return the claim for an operator, such that its rendered fields have no messages.

    ⚑ A payload that Airflow cannot carry must not keep a claim from being settled.
    """
    if isinstance(claim, ClaimsOutput):
        return ReferencesOutput(claim.operator, claim.key)
    if isinstance(claim, (list, tuple)):
        return [without_messages(each) for each in claim]
    return references.without_messages(claim) if isinstance(claim, Mapping) else claim
