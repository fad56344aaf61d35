"""obstore clients for tests: one attempt at everything, so that what a test sees is what the server did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from obstore.store import S3Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig

    from tools.kit.servers import S3Server


def obstore_at(server: S3Server, bucket: str, *, timeout: str = "30s") -> S3Store:
    """Return an obstore client of the bucket; ``timeout`` as obstore writes it (``200ms``)."""
    options: ClientConfig = {"allow_http": True, "timeout": timeout}
    return S3Store(
        bucket,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region=server.region,
        virtual_hosted_style_request=False,
        client_options=options,
        retry_config={"max_retries": 0},
    )
