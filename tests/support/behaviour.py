"""What kind of store the in-memory S3 is: which promises it keeps, and how it breaks the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

#: How a condition of a PUT is treated: ``atomic`` checks and writes in one step; ``racy`` checks, waits
#: ``race_window`` seconds, then writes, so that it is right in sequence and lets through every request meanwhile;
#: ``ignored`` writes always; ``not_implemented`` answers 501.
Discipline: TypeAlias = Literal["atomic", "racy", "ignored", "not_implemented"]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A store's character. The default is AWS as one hopes it to be."""

    #: ``If-None-Match: *`` on PUT.
    if_none_match: Discipline = "atomic"
    #: ``If-Match`` on PUT.
    if_match: Discipline = "atomic"
    #: What a PUT with ``If-Match`` gets where there is no object: AWS says 404, SeaweedFS and Ceph say 412.
    if_match_missing: Literal[404, 412] = 404
    #: ``unquoted_if_match``: a quoted ``If-Match`` always gets 412, the unquoted right one passes (Ceph 16).
    etag_form: Literal["quoted", "unquoted_if_match"] = "quoted"
    #: A bulk DELETE minds the ETags in it (AWS, SeaweedFS).
    conditional_deletes: bool = False
    #: Losers of a concurrent race get 500 about half the time, instead of 412 or 409 (Ceph).
    losers_get_500: bool = False
    #: Losers of a concurrent race get 409 ``ConditionalRequestConflict`` instead of 412 (AWS under contention).
    conflict_409: bool = False
    #: Seconds between a conditional PUT's arrival and its effect, where ``racy``, ``losers_get_500`` or
    #: ``conflict_409`` need requests to overlap.
    race_window: float = 0.03
    #: False: GET, HEAD and LIST show the bucket as it was ``stale_writes`` writes and deletes ago.
    read_after_write: bool = True
    stale_writes: int = 3
    #: Requests signed for another region get 400 ``AuthorizationHeaderMalformed`` with the right one in ``<Region>``.
    region: str | None = None
    #: The valid keys: access key id to the time it expires, or to None. Unknown: 403 ``InvalidAccessKeyId``; expired:
    #: 400 ``ExpiredToken``; unsigned: 403 ``AccessDenied``. Signatures are never verified. May be changed meanwhile.
    credentials: Mapping[str, datetime | None] | None = None
    #: For all that is left to chance: ``losers_get_500`` and the probability of faults.
    seed: int = 0

    @property
    def needs_overlap(self) -> bool:
        """Whether even an atomic conditional PUT must leave time for others to arrive."""
        return self.losers_get_500 or self.conflict_409
