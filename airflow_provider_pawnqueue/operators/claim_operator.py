"""The operator that is given a claim, from which those that read or settle claims are derived."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import checked_ids
from airflow_provider_pawnqueue.hooks.references import Given
from airflow_provider_pawnqueue.lineage import lineage_of
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failure_of
from airflow_provider_pawnqueue.operators.outputs import without_messages
from pawnqueue import Claim, PawnQueueError
from pawnqueue.domain.settlement import Settlement


class ClaimOperator(PawnQueueOperator):
    """An operator that is given a claim, or several."""

    def __init__(self, *, claim: Any, **kwargs: Any) -> None:  # noqa: ANN401 - a reference, several, or an XComArg
        super().__init__(**kwargs)
        self.claim = without_messages(claim)

    def claims(self) -> list[Given]:
        """Return the claims that were given, or skip this task where the sensor was skipped."""
        claims = references.each_of(self.claim)
        if not claims:
            raise AirflowSkipException("There is no claim: the sensor was skipped, or has returned nothing.")
        return claims

    def settle_each(
        self,
        settle: Callable[[Claim, Collection[str]], Settlement | None],
        *,
        mentioned_ids: Collection[str] = (),
        check: Callable[[Sequence[Claim]], None] | None = None,
        after_each: Callable[[Claim], None] | None = None,
    ) -> SettledCounts:
        """Settle all claims, even if one of them fails; raise the error of a claim that failed at the end.

        :param settle: settles messages of a claim; is passed the ids of all messages of all claims too.
        :param mentioned_ids: the ids by which it decides. A claim knows the ids under which its messages are stored
            without reading one. The messages are read only if one of these ids is another, as of a redriven message.
        :param check: is passed all claims before anything is settled, and may raise.
        :param after_each: is passed each claim once it was settled, or could not be.
        """
        counts = SettledCounts()
        with ExitStack() as stack:
            held, errors = self._open(stack, payloads=False)
            if _ids_in_none(held, mentioned_ids):
                stack.close()
                held, errors = self._open(stack, payloads=True)
            if check is not None and not errors:
                check(held)
            known_ids = {message_id for claim in held for message_id in (*claim.ids, *claim.decided)}
            # A claim that was settled in part may not know the ids of the messages of packs any more.
            known_ids.update(each.id for claim in self.claims() for each in references.inline_messages(claim) or ())
            for claim in held:
                try:
                    done = settle(claim, known_ids)
                except PawnQueueError as error:
                    errors.append(error)
                    done = getattr(error, "settlement", None)
                if done is not None:
                    counts.add(done)
                if after_each is not None:
                    after_each(claim)
        self.log.info("Settled %s: %s.", names_of(held) or "nothing", counts)
        for each in errors:
            self.log.error("%s", each)
        if errors:
            failures = map(failure_of, errors)
            final = next((each for each in failures if isinstance(each, AirflowFailException)), None)
            raise final or failure_of(errors[0]) from errors[0]
        if counts.unknown:
            raise AirflowException(
                f"What became of {counts.unknown} messages is not known: {counts.fault} Another try settles them, or "
                "finds them settled."
            )
        return counts

    def settle_ids(self, ids: object, settle: Callable[[Claim, Collection[str] | None], Settlement]) -> dict[str, int]:
        """Settle messages by their ids, each in its own claim, and return the counts.

        :param ids: the ids, as users pass them, each of which has to be in one of the claims; None: all messages.
        :param settle: settles messages of a claim.
        """
        checked = checked_ids(ids)

        def settle_own(held: Claim, _: Collection[str]) -> Settlement | None:
            own = None if checked is None else [each for each in checked if held.has(each)]
            return settle(held, own) if own is None or own else None

        def check(held: Sequence[Claim]) -> None:
            if unknown := _ids_in_none(held, checked or ()):
                raise AirflowFailException(
                    f"No message with these ids is in {names_of(held)}, so nothing was settled: {unknown}."
                )

        return self.settle_each(settle_own, mentioned_ids=checked or (), check=check).as_dict()

    def _open(self, stack: ExitStack, *, payloads: bool) -> tuple[list[Claim], list[PawnQueueError]]:
        """Attach to each of the claims; return those that this task can work on, and the errors of the others."""
        hook = self.hook
        held: list[Claim] = []
        errors: list[PawnQueueError] = []
        for claim in self.claims():
            try:
                held.append(stack.enter_context(hook.working_on(claim, payloads=payloads)))
            except PawnQueueError as error:
                errors.append(error)
        return held, errors

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ANN401 - of a package that may not be installed
        """Name the topics that were read for OpenLineage."""
        del task_instance
        topics = references.topics_of(self.claim)
        return lineage_of(self.hook.settings, inputs=topics) if topics else None


class SettledCounts:
    """How many messages this try has settled, and how."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(("acked", "buried", "released", "unfinished", "unknown"), 0)
        #: Why it is not known whether anything was decided about the unknown messages.
        self.fault = ""

    def add(self, done: Settlement) -> None:
        """Count the messages of one settlement."""
        for name in self._counts:
            self._counts[name] += len(getattr(done, name))
        self.fault = self.fault or done.fault

    @property
    def unknown(self) -> int:
        """Of how many messages it is not known whether anything was decided."""
        return self._counts["unknown"]

    def as_dict(self) -> dict[str, int]:
        """Return the counts of decided messages, for XCom."""
        return {name: self._counts[name] for name in ("acked", "buried", "released")}

    def __str__(self) -> str:
        text = "{acked} acked, {buried} buried, {released} given back".format(**self._counts)
        unfinished = self._counts["unfinished"]
        return f"{text}; the janitor finishes {unfinished} of them" if unfinished else text


def _ids_in_none(held: Sequence[Claim], ids: Iterable[str]) -> list[str]:
    """Return the ids that none of the claims has."""
    return sorted({each for each in ids if not any(claim.has(each) for claim in held)})


def names_of(held: Iterable[Claim]) -> str:
    """Return claims as log lines and errors name them."""
    return ", ".join(f"claim {claim.stem} of topic {claim.topic}" for claim in held)
