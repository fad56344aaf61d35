"""Credentials for the store from a boto3 session: renewed before they expire, and never on the event loop."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from pawnqueue.errors import ConfigError
from pawnqueue.stores.s3_answers import Fault, FaultKind

if TYPE_CHECKING:
    import boto3
    from botocore.credentials import Credentials
    from botocore.session import Session as CoreSession
    from obstore.store import S3Credential

    from pawnqueue.settings import S3Settings

    Session: TypeAlias = boto3.Session

#: How long credentials are used before the session is asked again. Asking is cheap unless they have to be renewed.
MAX_CREDENTIAL_REUSE = timedelta(seconds=60)

_NO_EXPIRY = datetime.max.replace(tzinfo=UTC)
# Where a session looks up its profile: nowhere, whatever AWS_PROFILE says.
_NO_PROFILE = {"profile": (None, None, None, None)}


class SessionCredentials:
    """Gives both clients the credentials of a boto3 session, from wherever it has them: keys, a profile, a role.

    Credentials are used for at most half of their remaining life: those that live for a minute are replaced half a
    minute before their end.
    """

    #: Read by obstore. It asks again when credentials have expired: the expiry that it is given is early enough.
    refresh_threshold = timedelta(0)

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = Lock()
        self._held: S3Credential | None = None
        #: Why the session gave no credentials when it was last asked. obstore says only that it failed.
        self.failure: Fault | None = None

    async def __call__(self) -> S3Credential:
        """Return the current credentials, in the form that obstore wants."""
        return await asyncio.to_thread(self.resolve)

    def resolve(self) -> S3Credential:
        """Return the current credentials. May block: it reads files and calls token services."""
        with self._lock:
            if self._held is None or (self._held["expires_at"] or _NO_EXPIRY) <= datetime.now(UTC):
                try:
                    self._held = self._ask()
                except Fault as fault:
                    self.failure = fault
                    raise
            return self._held

    def as_session(self, region: str) -> Session:
        """Return a boto3 session that signs with these credentials, and reads nothing else from the environment."""
        import boto3  # noqa: PLC0415 - a quarter of a second, which importing the queue must not cost
        from botocore.credentials import Credentials, ReadOnlyCredentials  # noqa: PLC0415

        resolve = self.resolve

        class Held(Credentials):
            def get_frozen_credentials(self) -> ReadOnlyCredentials:
                held = resolve()
                return ReadOnlyCredentials(held["access_key_id"], held["secret_access_key"], held.get("token"))

        return boto3.Session(botocore_session=_core_with(Held("", "")), region_name=region)

    def _ask(self) -> S3Credential:
        from botocore import exceptions  # noqa: PLC0415

        try:
            credentials = self._session.get_credentials()
            frozen = credentials.get_frozen_credentials() if credentials is not None else None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as problem:
            raise Fault(FaultKind.NO_CREDENTIALS, type(problem).__name__, problem) from None
        except exceptions.ClientError as problem:
            code = problem.response.get("Error", {}).get("Code", "no code")
            raise Fault(FaultKind.NOT_RENEWED, f"{problem.operation_name}: {code}", problem) from None
        except Exception as problem:  # noqa: BLE001 - the caller's session may get its credentials in any way
            raise Fault(FaultKind.NOT_RENEWED, type(problem).__name__, problem) from None
        if frozen is None:
            raise Fault(FaultKind.NO_CREDENTIALS, "the session has none")
        now = datetime.now(UTC)
        # botocore has no public way to tell the expiry.
        expiry: datetime | None = getattr(credentials, "_expiry_time", None)
        reuse = MAX_CREDENTIAL_REUSE if expiry is None else min(MAX_CREDENTIAL_REUSE, (expiry - now) / 2)
        return {
            "access_key_id": frozen.access_key or "",
            "secret_access_key": frozen.secret_key or "",
            "token": frozen.token,
            "expires_at": now + reuse,
        }


def session_from(settings: S3Settings) -> Session:
    """Make the session of the settings: explicit keys, else a profile, else boto3's own chain; then the role."""
    import boto3  # noqa: PLC0415 - a quarter of a second, which importing the queue must not cost
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    from botocore.session import Session as CoreSession  # noqa: PLC0415

    secret = settings.aws_secret_access_key
    token = settings.aws_session_token
    # Explicit keys need no profile: an undefined one that the environment names does no harm.
    core = CoreSession(session_vars=_NO_PROFILE) if settings.aws_access_key_id and not settings.profile_name else None
    try:
        session = boto3.Session(
            aws_access_key_id=settings.aws_access_key_id,
            aws_secret_access_key=secret.get_secret_value() if secret else None,
            aws_session_token=token.get_secret_value() if token else None,
            region_name=settings.region_name,
            profile_name=settings.profile_name,
            botocore_session=core,
        )
        return _assume_role(session, settings, settings.role_arn) if settings.role_arn else session
    except BotoCoreError as problem:
        sentence = f"The AWS session could not be made ({problem}): correct s3.profile_name or the AWS configuration."
        raise ConfigError(sentence, operation="open", cause=problem) from None


def _assume_role(base: Session, settings: S3Settings, role_arn: str) -> Session:
    import boto3  # noqa: PLC0415
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials  # noqa: PLC0415

    extra: dict[str, Any] = {"RoleSessionName": settings.role_session_name or "pawnqueue"}
    if settings.role_external_id:
        extra["ExternalId"] = settings.role_external_id

    def client(service: str, **arguments: Any) -> Any:  # noqa: ANN401 - botocore's own signature
        return base._session.create_client(service, region_name=settings.region_name, **arguments)  # noqa: SLF001

    source = base.get_credentials()
    if source is None:
        return base  # without credentials no role can be assumed: the first request says so
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=client,
        source_credentials=source,
        role_arn=role_arn,
        extra_args=extra,
    )
    # The role is assumed when credentials are first needed, and again each time before they expire.
    deferred = DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")
    return boto3.Session(botocore_session=_core_with(deferred), region_name=settings.region_name)


def _core_with(credentials: Credentials) -> CoreSession:
    from botocore.session import Session as CoreSession  # noqa: PLC0415

    core = CoreSession(session_vars=_NO_PROFILE)
    # botocore has no public way to give a session credentials that renew themselves.
    vars(core)["_credentials"] = credentials
    return core
