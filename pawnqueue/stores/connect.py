"""From settings to a store."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pawnqueue.errors import ConfigError
from pawnqueue.stores.boto3_s3 import Boto3S3
from pawnqueue.stores.credentials import SessionCredentials, session_from
from pawnqueue.stores.faults import Place
from pawnqueue.stores.forks import ForkAwareStore
from pawnqueue.stores.port import Store

if TYPE_CHECKING:
    import boto3

    from pawnqueue.settings import S3Settings


def connect(settings: S3Settings, session: boto3.Session | None = None) -> Store:
    """Make the store that the settings describe; no request is made yet. May block: it imports boto3 and reads files.

    :param session: a boto3 session of the caller's, used for its credentials instead of those in the settings.
    """
    place = _place(settings, given=session is not None)
    _check(settings, place)

    def identity() -> boto3.Session:
        # A child makes its own: the locks of an inherited one may have been held at the moment of the fork.
        return session if session is not None else session_from(settings)

    def through_boto3() -> Store:
        return Boto3S3(settings, place, SessionCredentials(identity()).as_session(place.region))

    if settings.client == "boto3":
        return ForkAwareStore(safe=through_boto3, fast=None)

    def through_obstore() -> Store:
        from pawnqueue.stores.obstore_s3 import ObstoreS3  # noqa: PLC0415 - only where it is used

        return ObstoreS3(settings, place, SessionCredentials(identity()), through_boto3)

    return ForkAwareStore(safe=through_boto3, fast=through_obstore)


def _check(settings: S3Settings, place: Place) -> None:
    """Refuse what the client libraries answer to by a panic, or by an error of their own."""
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
    url = settings.endpoint_url
    if url is None and not settings.uses_tls:
        url = f"http://s3.{settings.region_name}.amazonaws.com"
    return Place(
        bucket=settings.bucket_name,
        region=settings.region_name,
        url=url,
        virtual_hosted=settings.resolved_addressing_style == "virtual",
        access_key=None if given else settings.aws_access_key_id,
    )
