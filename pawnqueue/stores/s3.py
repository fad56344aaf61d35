"""S3, and whatever speaks its protocol: from the settings to a store."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from pawnqueue.errors import ConfigError
from pawnqueue.stores.boto3_s3 import Boto3S3
from pawnqueue.stores.credentials import SessionCredentials, session_from
from pawnqueue.stores.forks import ForkAwareStore
from pawnqueue.stores.s3_answers import Place

if TYPE_CHECKING:
    import boto3

    from pawnqueue.settings import S3Settings
    from pawnqueue.stores.port import Store


def connect(settings: S3Settings, session: boto3.Session | None) -> Store:
    """See :func:`pawnqueue.stores.connect.connect`: obstore's client, or boto3's where that was asked for."""
    place = _place(settings, given=session is not None)
    _check(settings, place)

    def identity() -> boto3.Session:
        # A forked child makes its own session: the locks of the inherited one may have been held during the fork.
        return session if session is not None else session_from(settings)

    def through_boto3() -> Store:
        return Boto3S3(settings, place, SessionCredentials(identity()).as_session(place.region))

    def through_obstore() -> Store:
        from pawnqueue.stores.obstore_s3 import ObstoreS3  # noqa: PLC0415 - boto3 users need not have it

        return ObstoreS3(settings, place, SessionCredentials(identity()), through_boto3)

    fast = through_obstore if settings.client == "obstore" else None
    return cast("Store", ForkAwareStore(safe=through_boto3, fast=fast))


def _check(settings: S3Settings, place: Place) -> None:
    """Refuse settings to which a client library would answer by a panic, or by an error of its own."""
    host = urlsplit(place.url or "").hostname or ""
    if place.virtual_hosted and _is_address(host):
        raise ConfigError(
            f"s3.addressing_style is virtual, which puts the bucket's name before the host's, and {host} is an address "
            "rather than a name: use path.",
            operation="open",
        )
    if settings.ca_bundle is not None:
        try:
            settings.ca_bundle.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"s3.ca_bundle={str(settings.ca_bundle)!r} cannot be read ({error.strerror}): name a PEM file of the "
                "authorities to trust.",
                operation="open",
                cause=error,
            ) from None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _place(settings: S3Settings, *, given: bool) -> Place:
    return Place(
        bucket=settings.bucket_name,
        region=settings.region_name,
        url=settings.url,
        virtual_hosted=settings.resolved_addressing_style == "virtual",
        access_key=None if given else settings.aws_access_key_id,
    )
