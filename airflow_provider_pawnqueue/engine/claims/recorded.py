"""Which claims have a record, by one listing of their folder: the records' bodies are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_provider_pawnqueue.engine.context import Context


async def latest_generations(context: Context, topic: str, claim_ids: Collection[str]) -> dict[str, int]:
    """Return of each of these claims that has a record its newest generation.

    One LIST, and another for each further thousand records whose ids are between the first and the last of these.
    """
    if not claim_ids:
        return {}
    # Keys go on with a dot behind the id: "run.0.json" comes after "run-1.0.json".
    beginnings = sorted(layout.claim_beginning(topic, claim_id) for claim_id in claim_ids)
    last = beginnings[-1]
    found: dict[str, int] = {}
    async for page in context.registers.pages(layout.claims(topic), start_after=beginnings[0]):
        for info in page:
            parsed = layout.parse_claim(info.key)
            if parsed is not None and parsed[0] in claim_ids:
                found[parsed[0]] = max(parsed[1], found.get(parsed[0], 0))
        if page[-1].key > last and not page[-1].key.startswith(last):
            break
    return found
