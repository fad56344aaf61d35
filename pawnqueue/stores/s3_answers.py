"""What S3's answers mean: versions, and what goes wrong with a request, read from its status and its error code.

Both S3 adapters use it, so that an outcome does not depend on the client that saw it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import Outcome, Refusal, Refused, Unknown

#: S3 lists, and deletes, at most this many keys in one request.
MAX_KEYS_PER_PAGE = MAX_KEYS_PER_DELETE = 1000


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a fault means to a user, and to a caller that may try again."""

    sentence: str
    is_transient: bool = False
    """Whether the same request may succeed later. A write may have happened."""
    is_denied: bool = False
    """Whether the store refused the credentials: others may be accepted."""


class FaultKind(Enum):
    """What a failed request means."""

    MISSING_KEY = _Meaning(
        "{what} found nothing in bucket {bucket!r} at {endpoint} ({detail}): it was deleted meanwhile."
    )
    MISSING_BUCKET = _Meaning(
        "Bucket {bucket!r} does not exist at {endpoint} ({detail}): create it, "
        "or correct s3.bucket_name or s3.endpoint_url."
    )
    CONDITION = _Meaning(
        "{what} was refused by bucket {bucket!r} ({detail}): the object is not in the state that was expected."
    )
    CONFLICT = _Meaning("{what} met another write of the same object in bucket {bucket!r} ({detail}): try again.")
    UNSUPPORTED = _Meaning(
        "{endpoint} does not implement {what} ({detail}): use another store, or another concurrency.strategy."
    )
    NO_CREDENTIALS = _Meaning(
        "No credentials for {endpoint} were found ({detail}): set s3.aws_access_key_id and s3.aws_secret_access_key, "
        "a profile, a role, or the AWS_* variables.",
        is_denied=True,
    )
    NOT_RENEWED = _Meaning(
        "The credentials for {endpoint} could not be renewed ({detail}): look after the profile, the role or the token "
        "service that gives them.",
        is_transient=True,
        is_denied=True,
    )
    WRONG_KEY_ID = _Meaning("{endpoint} does not know {who} ({detail}): correct s3.aws_access_key_id.", is_denied=True)
    WRONG_SECRET = _Meaning(
        "{endpoint} refused the signature made with {who} ({detail}): the secret key is wrong; "
        "correct s3.aws_secret_access_key.",
        is_denied=True,
    )
    EXPIRED = _Meaning(
        "{endpoint} says that {who} has expired ({detail}): renew the session, or s3.aws_session_token.",
        is_transient=True,
        is_denied=True,
    )
    DENIED = _Meaning(
        "{endpoint} denied {what} in bucket {bucket!r} to {who} ({detail}): check the secret key, and grant {actions}.",
        is_denied=True,
    )
    WRONG_REGION = _Meaning(
        "Bucket {bucket!r} at {endpoint} is not served for region {region!r} ({detail}): correct s3.region_name."
    )
    CLOCK_SKEW = _Meaning("{endpoint} refused the time of this machine ({detail}): set the machine's clock right.")
    REJECTED = _Meaning("{endpoint} rejected {what} in bucket {bucket!r} ({detail}): check the s3 settings.")
    UNREACHABLE = _Meaning(
        "{endpoint} cannot be reached ({detail}): check s3.endpoint_url, the spelling of its host, whether a server "
        "listens there, and the network.",
        is_transient=True,
    )
    TLS = _Meaning(
        "No secure connection to {endpoint} ({detail}): check s3.use_ssl, or name the issuer in s3.ca_bundle."
    )
    TIMEOUT = _Meaning(
        "{endpoint} did not answer {what} in time ({detail}): check the network, or raise s3.request_timeout_seconds.",
        is_transient=True,
    )
    BUSY = _Meaning("{endpoint} is too busy for {what} ({detail}): try again later.", is_transient=True)
    SERVER = _Meaning(
        "{endpoint} failed on {what} ({detail}): try again; if it lasts, look into the store's own log.",
        is_transient=True,
    )
    DROPPED = _Meaning("The connection to {endpoint} was lost during {what} ({detail}): try again.", is_transient=True)

    def __repr__(self) -> str:
        return str(self)  # obstore quotes it, and it is looked for in that text


#: What a fault means for a conditional write, if it is a refusal.
_REFUSAL_BY_KIND = {
    FaultKind.CONDITION: Refusal.CONDITION,
    FaultKind.MISSING_KEY: Refusal.CONDITION,  # some stores answer 404, not 412, when there is nothing to replace
    FaultKind.CONFLICT: Refusal.CONFLICT,
    FaultKind.UNSUPPORTED: Refusal.UNSUPPORTED,
}

_KIND_BY_CODE = {
    "NoSuchKey": FaultKind.MISSING_KEY,
    "NoSuchBucket": FaultKind.MISSING_BUCKET,
    "PreconditionFailed": FaultKind.CONDITION,
    "ConditionalRequestConflict": FaultKind.CONFLICT,
    "OperationAborted": FaultKind.CONFLICT,
    "NotImplemented": FaultKind.UNSUPPORTED,
    "InvalidAccessKeyId": FaultKind.WRONG_KEY_ID,
    "SignatureDoesNotMatch": FaultKind.WRONG_SECRET,
    "ExpiredToken": FaultKind.EXPIRED,
    "InvalidToken": FaultKind.EXPIRED,
    "TokenRefreshRequired": FaultKind.EXPIRED,
    "AuthorizationHeaderMalformed": FaultKind.WRONG_REGION,
    "PermanentRedirect": FaultKind.WRONG_REGION,
    "IllegalLocationConstraintException": FaultKind.WRONG_REGION,
    "RequestTimeTooSkewed": FaultKind.CLOCK_SKEW,
    "RequestTimeout": FaultKind.TIMEOUT,
    "SlowDown": FaultKind.BUSY,
    "ServiceUnavailable": FaultKind.BUSY,
    "InternalError": FaultKind.SERVER,
}

_CLIENT_ERROR_CLASS = 4
_KIND_BY_STATUS = {
    301: FaultKind.WRONG_REGION,
    307: FaultKind.BUSY,
    400: FaultKind.REJECTED,
    401: FaultKind.DENIED,
    403: FaultKind.DENIED,
    404: FaultKind.MISSING_KEY,
    408: FaultKind.TIMEOUT,
    409: FaultKind.CONFLICT,
    412: FaultKind.CONDITION,
    429: FaultKind.BUSY,
    501: FaultKind.UNSUPPORTED,
    503: FaultKind.BUSY,
}


def version_of(etag: str | None) -> Version:
    """Return the version that an ETag is, always quoted: PUT and LIST of one server may differ (rclone's do)."""
    return Version(f'"{(etag or "").strip(chr(34))}"')


def fault_kind(status: int, code: str | None) -> FaultKind:
    """Return what an HTTP answer means that is not a success: by its error code, or else by its status."""
    by_code = _KIND_BY_CODE.get(code or "")
    if by_code is not None:
        return by_code
    if status in _KIND_BY_STATUS:
        return _KIND_BY_STATUS[status]
    # The store understood any other 4xx and rejected it. Anything else is a server that failed.
    return FaultKind.REJECTED if status // 100 == _CLIENT_ERROR_CLASS else FaultKind.SERVER


@dataclass(frozen=True, slots=True)
class Place:
    """The store and the bucket that a client talks to, as error sentences name them."""

    bucket: str
    region: str
    url: str | None = None  # None is AWS, in the region
    virtual_hosted: bool = False
    access_key: str | None = None  # not the secret; None where boto3 finds the credentials

    @property
    def endpoint(self) -> str:
        """Name the server in a sentence."""
        return self.url or f"AWS S3 ({self.region})"

    @property
    def credentials(self) -> str:
        """Name the credentials in a sentence, without showing them."""
        return f"access key {self.access_key[:4]}…" if self.access_key else "the credentials of the session"


@dataclass(eq=False)
class Fault(Exception):  # noqa: N818 - it is caught in this folder, and turned into an error for users
    """One failed attempt, as an adapter saw it. It never leaves ``pawnqueue/stores``."""

    kind: FaultKind
    detail: str
    cause: BaseException | None = None

    def error(self, place: Place, operation: str, key: str | None = None) -> StoreError:
        """Return the error that users see: what failed, where, and what to do."""
        what = f"{operation} {key}" if key else operation
        return StoreError(
            self.kind.value.sentence.format(
                what=what,
                endpoint=place.endpoint,
                bucket=place.bucket,
                region=place.region,
                who=place.credentials,
                detail=self.detail,
                actions=_ACTIONS.get(operation, _ALL_ACTIONS),
            ),
            transient=self.kind.value.is_transient,
            denied=self.kind.value.is_denied,
            operation=operation,
            cause=self.cause,
        )


def outcome_of(fault: Fault, place: Place, operation: str, key: str, *, conditional: bool) -> Outcome:
    """Return what a failed PUT or COPY was: refused or unknown. An error that no repetition mends is raised."""
    if conditional and fault.kind in _REFUSAL_BY_KIND:
        return Refused(_REFUSAL_BY_KIND[fault.kind])
    if fault.kind is FaultKind.MISSING_KEY:
        if operation == "CopyObject":
            return Refused(Refusal.MISSING)
        # A plain PUT finds nothing missing but the bucket, or an S3 server.
        fault = replace(fault, kind=FaultKind.MISSING_BUCKET)
    error = fault.error(place, operation, key)
    # A 409 on a plain PUT means that another write was under way: perhaps ours, from an earlier attempt.
    if error.transient or fault.kind is FaultKind.CONFLICT:
        return Unknown(error, answered=fault.kind is FaultKind.SERVER)
    raise error from None


#: The permissions that a request needs. Without s3:ListBucket, AWS answers 403 to reads of absent objects.
_ACTIONS = {
    "GetObject": "s3:GetObject, and s3:ListBucket, without which AWS denies reads of absent objects",
    "HeadObject": "s3:GetObject, and s3:ListBucket, without which AWS denies reads of absent objects",
    "PutObject": "s3:PutObject",
    "CopyObject": "s3:GetObject and s3:PutObject",
    "DeleteObjects": "s3:DeleteObject",
    "ListObjects": "s3:ListBucket",
}
_ALL_ACTIONS = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
