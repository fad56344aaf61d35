"""Which claims have a record, by one listing of their folder: the records' bodies are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.domain import layout, size_hint

if TYPE_CHECKING:
    from collections.abc import Collection

    from pawnqueue.context import Context


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


async def listed_claims(context: Context, topic: str) -> dict[str, bool]:
    """Return the name of each claim record of a topic, and whether the claim holds messages, as far as a LIST tells.

    One LIST for each thousand records. Whether a claim is open, and for about how long, is in the size of its record,
    which each renewal writes anew. A record whose size tells nothing counts as one that holds messages.
    """
    now = await context.now()
    found: dict[str, bool] = {}
    async for page in context.registers.pages(layout.claims(topic)):
        for info in page:
            parsed = layout.parse_claim(info.key)
            if parsed is None:
                continue
            hint = size_hint.hint_of_record(info.size, info.last_modified)
            is_open = hint is None or (hint.state == "open" and not context.is_over(hint.latest, now))
            found[layout.claim_stem(*parsed)] = is_open
    return found
