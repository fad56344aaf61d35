"""A topic as its listings show it."""

from __future__ import annotations

from datetime import UTC, datetime

from pawnqueue.catalog import units
from pawnqueue.catalog.view import TopicView
from pawnqueue.domain import layout
from pawnqueue.stores.port import NO_VERSION, ObjectInfo

SHARED, ALONE, FREE = (f"{number}f1c5f34-0f4e-4c8e-9d7b-0123456789ab" for number in range(3))


def listed(key: str) -> ObjectInfo:
    """An object, as a LIST shows it."""
    return ObjectInfo(key, 0, NO_VERSION, datetime.fromtimestamp(0, UTC))


def test_a_lease_of_several_units_is_one_lease() -> None:
    """However many units share an id, a lease under that id is not alone, and one without a unit is."""
    view = TopicView([listed(layout.lease("t", each)) for each in (SHARED, ALONE)], now=0.0)
    names = [units.name_at(1.0, SHARED), units.name_at(2.0, SHARED), units.name_at(3.0, FREE)]
    view.add(units.sorted_out([listed(units.key_of("t", name)) for name in names]))
    assert (view.leases_alone, view.counts["pending"]) == (1, 1)
