"""What can go wrong with a request, read once from a status and an error code, and told in one sentence.

Both S3 adapters end here, so that an outcome does not depend on the client that saw it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pawnqueue.errors import StoreError
from pawnqueue.stores.port import Outcome, Refusal, Refused, Unknown


class Kind(Enum):
    """What a failed request means."""

    MISSING_KEY = "missing key"
    MISSING_BUCKET = "missing bucket"
    CONDITION = "condition"
    CONFLICT = "conflict"
    UNSUPPORTED = "unsupported"
    NO_CREDENTIALS = "no credentials"
    NOT_RENEWED = "credentials not renewed"
    WRONG_KEY_ID = "wrong access key"
    WRONG_SECRET = "wrong secret"  # noqa: S105 - the name of a fault
    EXPIRED = "expired credentials"
    DENIED = "denied"
    WRONG_REGION = "wrong region"
    CLOCK_SKEW = "clock skew"
    REJECTED = "rejected"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    TIMEOUT = "time-out"
    BUSY = "busy"
    SERVER = "server error"
    DROPPED = "connection lost"


#: After these the same request may succeed; a write that ended so may have happened.
TRANSIENT = frozenset(
    {Kind.NOT_RENEWED, Kind.EXPIRED, Kind.UNREACHABLE, Kind.TIMEOUT, Kind.BUSY, Kind.SERVER, Kind.DROPPED}
)

#: The store refused who asked: other keys may be accepted.
DENIED = frozenset(
    {Kind.NO_CREDENTIALS, Kind.NOT_RENEWED, Kind.WRONG_KEY_ID, Kind.WRONG_SECRET, Kind.EXPIRED, Kind.DENIED}
)

_REFUSALS = {
    Kind.CONDITION: Refusal.CONDITION,
    Kind.CONFLICT: Refusal.CONFLICT,
    Kind.UNSUPPORTED: Refusal.UNSUPPORTED,
}

_CODES = {
    "NoSuchKey": Kind.MISSING_KEY,
    "NoSuchBucket": Kind.MISSING_BUCKET,
    "PreconditionFailed": Kind.CONDITION,
    "ConditionalRequestConflict": Kind.CONFLICT,
    "OperationAborted": Kind.CONFLICT,
    "NotImplemented": Kind.UNSUPPORTED,
    "InvalidAccessKeyId": Kind.WRONG_KEY_ID,
    "SignatureDoesNotMatch": Kind.WRONG_SECRET,
    "ExpiredToken": Kind.EXPIRED,
    "InvalidToken": Kind.EXPIRED,
    "TokenRefreshRequired": Kind.EXPIRED,
    "AuthorizationHeaderMalformed": Kind.WRONG_REGION,
    "PermanentRedirect": Kind.WRONG_REGION,
    "IllegalLocationConstraintException": Kind.WRONG_REGION,
    "RequestTimeTooSkewed": Kind.CLOCK_SKEW,
    "RequestTimeout": Kind.TIMEOUT,
    "SlowDown": Kind.BUSY,
    "ServiceUnavailable": Kind.BUSY,
    "InternalError": Kind.SERVER,
}

_CLIENT_ERRORS = 4
_STATUSES = {
    301: Kind.WRONG_REGION,
    307: Kind.BUSY,
    400: Kind.REJECTED,
    401: Kind.DENIED,
    403: Kind.DENIED,
    404: Kind.MISSING_KEY,
    408: Kind.TIMEOUT,
    409: Kind.CONFLICT,
    412: Kind.CONDITION,
    429: Kind.BUSY,
    501: Kind.UNSUPPORTED,
    503: Kind.BUSY,
}


def kind_of(status: int, code: str | None) -> Kind:
    """Read an HTTP answer that is not a success. The store's error code says more than the status, if there is one."""
    by_code = _CODES.get(code or "")
    if by_code is not None:
        return by_code
    if status in _STATUSES:
        return _STATUSES[status]
    # Whatever else is a 4xx was understood and turned down; everything left is a server that does not know either.
    return Kind.REJECTED if status // 100 == _CLIENT_ERRORS else Kind.SERVER


@dataclass(frozen=True, slots=True)
class Place:
    """Which store and bucket a client talks to, and a sentence speaks of."""

    bucket: str
    region: str
    url: str | None = None  # None is AWS, wherever the region says
    virtual_hosted: bool = False
    access_key: str | None = None  # an identifier, not the secret; None where a chain of providers decides

    @property
    def endpoint(self) -> str:
        """Name the server in a sentence."""
        return self.url or f"AWS S3 ({self.region})"

    def who(self) -> str:
        """Name the credentials without showing them."""
        return f"access key {self.access_key[:4]}…" if self.access_key else "the credentials of the session"


@dataclass(eq=False)
class Fault(Exception):  # noqa: N818 - it is caught in this folder, and turned into an error for users
    """One failed attempt, as an adapter saw it. It never leaves ``engine/store``."""

    kind: Kind
    detail: str
    cause: BaseException | None = None

    def refused(self) -> Refused | None:
        """Return the refusal this is, for a conditional write."""
        why = _REFUSALS.get(self.kind)
        return Refused(why) if why else None

    def error(self, place: Place, operation: str, key: str | None = None) -> StoreError:
        """Turn the fault into the error that users see: what, where, and what to do."""
        what = f"{operation} {key}" if key else operation
        return StoreError(
            _SENTENCES[self.kind].format(
                what=what,
                endpoint=place.endpoint,
                bucket=place.bucket,
                region=place.region,
                who=place.who(),
                detail=self.detail,
                actions=_ACTIONS.get(operation, _ALL_ACTIONS),
            ),
            transient=self.kind in TRANSIENT,
            denied=self.kind in DENIED,
            operation=operation,
            cause=self.cause,
        )


def outcome_of(fault: Fault, place: Place, operation: str, key: str, *, conditional: bool) -> Outcome:
    """Decide what a failed write was: refused, unknown, or an error that no repetition will mend."""
    if conditional:
        refused = fault.refused()
        if refused:
            return refused
        if fault.kind is Kind.MISSING_KEY:  # some stores answer 404, not 412, when there is nothing to replace
            return Refused(Refusal.CONDITION)
    elif fault.kind is Kind.MISSING_KEY and operation == "PutObject":
        # There is nothing that a plain PUT could miss but the bucket, or an S3 server.
        fault = replace(fault, kind=Kind.MISSING_BUCKET)
    error = fault.error(place, operation, key)
    # A 409 on a plain PUT means that another write was under way: it may have been ours, from an earlier attempt.
    if error.transient or fault.kind is Kind.CONFLICT:
        return Unknown(error, answered=fault.kind is Kind.SERVER)
    raise error from None


#: What a request needs to be allowed. To whom listing is not, AWS denies the reading of what is not there, too.
_ACTIONS = {
    "GetObject": "s3:GetObject, and s3:ListBucket, without which AWS denies what is only not there",
    "HeadObject": "s3:GetObject, and s3:ListBucket, without which AWS denies what is only not there",
    "PutObject": "s3:PutObject",
    "CopyObject": "s3:GetObject and s3:PutObject",
    "DeleteObjects": "s3:DeleteObject",
    "ListObjects": "s3:ListBucket",
}
_ALL_ACTIONS = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"

_SENTENCES = {
    Kind.MISSING_KEY: "{what} found nothing in bucket {bucket!r} at {endpoint} ({detail}): it was deleted meanwhile.",
    Kind.MISSING_BUCKET: (
        "Bucket {bucket!r} does not exist at {endpoint} ({detail}): create it, "
        "or correct s3.bucket_name or s3.endpoint_url."
    ),
    Kind.CONDITION: (
        "{what} was refused by bucket {bucket!r} ({detail}): the object is not in the state that was expected."
    ),
    Kind.CONFLICT: "{what} met another write of the same object in bucket {bucket!r} ({detail}): try again.",
    Kind.UNSUPPORTED: (
        "{endpoint} does not implement {what} ({detail}): use another store, or another concurrency.strategy."
    ),
    Kind.NO_CREDENTIALS: (
        "No credentials for {endpoint} were found ({detail}): set s3.aws_access_key_id and s3.aws_secret_access_key, "
        "a profile, a role, or the AWS_* variables."
    ),
    Kind.NOT_RENEWED: (
        "The credentials for {endpoint} could not be renewed ({detail}): look after the profile, the role or the token "
        "service that gives them."
    ),
    Kind.WRONG_KEY_ID: "{endpoint} does not know {who} ({detail}): correct s3.aws_access_key_id.",
    Kind.WRONG_SECRET: (
        "{endpoint} refused the signature made with {who} ({detail}): the secret key is wrong; "
        "correct s3.aws_secret_access_key."
    ),
    Kind.EXPIRED: "{endpoint} says that {who} has expired ({detail}): renew the session, or s3.aws_session_token.",
    Kind.DENIED: (
        "{endpoint} denied {what} in bucket {bucket!r} to {who} ({detail}): check the secret key, and grant {actions}."
    ),
    Kind.WRONG_REGION: (
        "Bucket {bucket!r} at {endpoint} is not served for region {region!r} ({detail}): correct s3.region_name."
    ),
    Kind.CLOCK_SKEW: "{endpoint} refused the time of this machine ({detail}): set the machine's clock right.",
    Kind.REJECTED: "{endpoint} rejected {what} in bucket {bucket!r} ({detail}): check the s3 settings.",
    Kind.UNREACHABLE: (
        "{endpoint} cannot be reached ({detail}): check s3.endpoint_url, the spelling of its host, whether a server "
        "listens there, and the network."
    ),
    Kind.TLS: ("No secure connection to {endpoint} ({detail}): check s3.use_ssl, or name the issuer in s3.ca_bundle."),
    Kind.TIMEOUT: (
        "{endpoint} did not answer {what} in time ({detail}): check the network, or raise s3.request_timeout_seconds."
    ),
    Kind.BUSY: "{endpoint} is too busy for {what} ({detail}): try again later.",
    Kind.SERVER: "{endpoint} failed on {what} ({detail}): try again; if it lasts, look into the store's own log.",
    Kind.DROPPED: "The connection to {endpoint} was lost during {what} ({detail}): try again.",
}
