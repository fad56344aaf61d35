"""S3 through obstore (Rust's ``object_store``): the adapter that moves the bytes, at a fifth of botocore's CPU.

Nothing else in the queue imports obstore. Five of its properties are worked around here:

* its errors differ in their texts only: status and error code are parsed from them;
* LIST fails for good at a key that it cannot express (``a//b``, control characters), and behind one: such a listing,
  and calls with such a key, go through the boto3 adapter;
* one key that a bulk DELETE cannot delete fails the whole batch: the boto3 adapter then asks about each key. It also
  sends the bulk DELETEs with versions, which obstore does not have;
* ETags are quoted or not, as the server sends them: here they become quoted;
* it reads ``AWS_*`` variables where its configuration says nothing: so the configuration is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, InvalidPathError, UnauthenticatedError
from obstore.store import S3Store

from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import StoreError
from pawnqueue.runtime.concurrency import all_of
from pawnqueue.stores.at_exit import wait_for_threads_at_exit
from pawnqueue.stores.port import (
    Done,
    Expect,
    Expectation,
    ObjectInfo,
    Outcome,
    Refused,
    Store,
    StoredObject,
    Unknown,
    refuse_if_larger,
)
from pawnqueue.stores.s3_answers import (
    MAX_KEYS_PER_DELETE,
    MAX_KEYS_PER_PAGE,
    Fault,
    FaultKind,
    Place,
    fault_kind,
    outcome_of,
    version_of,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import ClientConfig, S3Config

    from pawnqueue.settings import S3Settings
    from pawnqueue.stores.credentials import SessionCredentials


# Empty segments, dot segments and control characters: keys that object_store refuses to name.
_INEXPRESSIBLE = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*([A-Za-z0-9]+)\s*</Code>")
_HTTP_KIND = re.compile(r"HttpError\s*\{\s*kind: (\w+)")
_BAD_TLS = ("InvalidData", "InvalidCertificate", "UnknownIssuer")


class ObstoreS3:
    """One bucket, through obstore.

    :param plain: makes the boto3 adapter for the same bucket; called at most once, and only for a strange key, a bulk
        DELETE that fails for some of its keys, or one with versions.
    """

    def __init__(
        self, settings: S3Settings, place: Place, credentials: SessionCredentials, plain: Callable[[], Store]
    ) -> None:
        self._place = place
        self._make_plain = plain
        self._plain_store: Store | None = None
        self._credentials = credentials
        self._has_ranges = True  # until the store shows otherwise
        wait_for_threads_at_exit()
        config = _config(settings, place)
        with _without_variables(config):
            self._store = S3Store(
                settings.bucket_name,
                prefix=settings.key_prefix.rstrip("/") or None,
                config=config,
                client_options=_client_options(settings, place),
                # Only the queue knows which write may be sent twice, so only the queue retries.
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=settings.request_timeout_seconds)},
                credential_provider=credentials,
            )

    async def get(self, key: str, most: int) -> StoredObject | None:
        """See :class:`~.port.Store`."""
        if _INEXPRESSIBLE.search(key):
            return await self._plain().get(key, most)
        try:
            # The headers come first: a body that is longer than accepted is not downloaded.
            found = await obstore.get_async(self._store, key)
            info = _info(found.meta, key)
            refuse_if_larger(info, most)
            body = bytes(await found.bytes_async())
        except (BaseError, OSError) as problem:
            self._raise_unless_absent(problem, "GetObject", key)
            return None
        return StoredObject(info, body)

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """See :class:`~.port.Store`.

        A range takes one step and a GET two (headers, body): it costs a third of a GET.
        """
        failed = False
        if self._has_ranges and 0 < size <= most and not _INEXPRESSIBLE.search(key):
            try:
                # ⚑ One byte more than expected: a body that has grown since it was listed is not cut off silently.
                found = bytes(await obstore.get_range_async(self._store, key, start=0, length=size + 1))
            except (BaseError, OSError) as problem:
                if self._fault(problem).kind is FaultKind.MISSING_KEY:
                    return None
                failed = True
            else:
                if len(found) == size:
                    return found
        whole = await self.get(key, most)  # it says what is wrong, unless it is the range
        self._has_ranges = self._has_ranges and not failed
        return None if whole is None else whole.body

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~.port.Store`."""
        if _INEXPRESSIBLE.search(key):
            return await self._plain().head(key)
        try:
            return _info(await obstore.head_async(self._store, key), key)
        except (BaseError, OSError) as problem:
            self._raise_unless_absent(problem, "HeadObject", key)
            return None

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See :class:`~.port.Store`. A folder marker (``a/``) is listed without its slash, as by obstore."""
        if _INEXPRESSIBLE.search(folder.removesuffix("/") or "-") or _INEXPRESSIBLE.search(start_after or "-"):
            # The last key of a page, behind which the caller continues, may be a strange one.
            async for strange in self._plain().pages(folder, start_after=start_after):
                yield strange
            return
        try:
            async for page in obstore.list(
                self._store, folder or None, offset=start_after or None, chunk_size=MAX_KEYS_PER_PAGE
            ):
                infos = [_info(meta, meta["path"]) for meta in page]
                if infos:
                    yield infos
                    start_after = infos[-1].key
        except InvalidPathError:
            async for strange in self._plain().pages(folder, start_after=start_after):
                yield strange
        except (BaseError, OSError) as problem:
            raise self._fault(problem).error(self._place, "ListObjects", folder or None) from None

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~.port.Store`."""
        try:
            listing = await obstore.list_with_delimiter_async(self._store, folder or None)
        except InvalidPathError:
            return await self._plain().folders(folder)
        except (BaseError, OSError) as problem:
            raise self._fault(problem).error(self._place, "ListObjects", folder or None) from None
        return sorted(f"{found}/" for found in listing["common_prefixes"])

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~.port.Store`."""
        if _INEXPRESSIBLE.search(key):
            return await self._plain().put(key, body, expect=expect)
        mode: PutMode = "overwrite"
        if expect is Expect.NOTHING:
            mode = "create"
        elif isinstance(expect, str):
            mode = {"e_tag": expect}
        try:
            # Never in parts: a condition holds for a single PUT only.
            result = await obstore.put_async(self._store, key, body, mode=mode, use_multipart=False)
        except (BaseError, OSError) as problem:
            conditional = expect is not Expect.ANYTHING
            return outcome_of(self._fault(problem), self._place, "PutObject", key, conditional=conditional)
        return Done(version_of(result["e_tag"]))

    async def copy(self, source: str, target: str) -> Outcome:
        """See :class:`~.port.Store`."""
        if _INEXPRESSIBLE.search(source) or _INEXPRESSIBLE.search(target):
            return await self._plain().copy(source, target)
        try:
            await obstore.copy_async(self._store, source, target)
        except (BaseError, OSError) as problem:
            return outcome_of(self._fault(problem), self._place, "CopyObject", source, conditional=False)
        return Done(Version(""))

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~.port.Store`."""
        strange = [key for key in keys if _INEXPRESSIBLE.search(key)]
        plain = [key for key in keys if not _INEXPRESSIBLE.search(key)]
        failed = dict(await self._plain().delete(strange)) if strange else {}
        batches = [plain[start : start + MAX_KEYS_PER_DELETE] for start in range(0, len(plain), MAX_KEYS_PER_DELETE)]
        for part in await all_of(*map(self._delete_batch, batches)):
            failed.update(part)
        return failed

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See :class:`~.port.Store`. obstore has no such request."""
        return await self._plain().delete_versions(versions)

    async def _delete_batch(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        try:
            await obstore.delete_async(self._store, list(keys))
        except (BaseError, OSError) as problem:
            if _is_about_keys(problem):
                # obstore names only the first key that failed. boto3 gives the answer for each key.
                return await self._plain().delete(keys)
            return dict.fromkeys(keys, self._fault(problem).error(self._place, "DeleteObjects"))
        return {}

    async def aclose(self) -> None:
        """See :class:`~.port.Store`. obstore's own connections close when the store is collected."""
        if self._plain_store is not None:
            await self._plain_store.aclose()

    def _plain(self) -> Store:
        if self._plain_store is None:
            self._plain_store = self._make_plain()
        return self._plain_store

    def _raise_unless_absent(self, problem: Exception, operation: str, key: str) -> None:
        fault = self._fault(problem)
        if fault.kind is not FaultKind.MISSING_KEY:
            raise fault.error(self._place, operation, key) from None

    def _fault(self, problem: Exception) -> Fault:
        if isinstance(problem, UnauthenticatedError) and self._credentials.failure and not _STATUS.search(str(problem)):
            return self._credentials.failure
        return _fault(problem)


def _is_about_keys(problem: Exception) -> bool:
    """Say whether it is an answer to a bulk DELETE that names keys that were not deleted."""
    summary, _, dump = str(problem).partition("Debug source:")
    # For codes that call for a retry (InternalError, SlowDown), obstore quotes the answer itself.
    return "DeleteFailed {" in dump or "<DeleteResult" in summary


def _info(meta: ObjectMeta, key: str) -> ObjectInfo:
    return ObjectInfo(key, meta["size"], version_of(meta["e_tag"]), meta["last_modified"])


def _fault(problem: Exception) -> Fault:
    """Return what an obstore error means. Only the text before its debug dump may reach a user."""
    text = str(problem)
    summary, _, dump = text.partition("Debug source:")
    status = _STATUS.search(summary)
    if status:
        code = _CODE.search(summary)
        detail = f"{status[1]} {code[1]}" if code else status[1]
        return Fault(fault_kind(int(status[1]), code[1] if code else None), detail, problem)
    # Otherwise no answer came, or none could be read.
    if isinstance(problem, FileNotFoundError):
        return Fault(FaultKind.MISSING_KEY, "404", problem)
    if repr(FaultKind.NO_CREDENTIALS) in summary:  # our own fault, raised when obstore asked for credentials
        return Fault(FaultKind.NO_CREDENTIALS, "the session has none", problem)
    http = _HTTP_KIND.search(dump)
    kind = http[1] if http else ""
    if kind == "Connect" and any(sign in dump for sign in _BAD_TLS):
        return Fault(FaultKind.TLS, "the TLS handshake failed", problem)
    if kind == "Connect":
        detail = "the name does not resolve" if "dns error" in dump else "no connection"
        return Fault(FaultKind.UNREACHABLE, detail, problem)
    lost = (FaultKind.TIMEOUT, "no answer") if kind == "Timeout" else (FaultKind.DROPPED, "no usable answer")
    return Fault(*lost, problem)


def _config(settings: S3Settings, place: Place) -> S3Config:
    # Without an endpoint it is AWS. For a virtual-hosted bucket, obstore wants the bucket's name in the endpoint.
    suffix = "amazonaws.com.cn" if place.region.startswith("cn-") else "amazonaws.com"
    url = place.url or f"https://s3.{place.region}.{suffix}"
    scheme, _, host = url.partition("://")
    endpoint = f"{scheme}://{place.bucket}.{host}" if place.virtual_hosted else url
    config: S3Config = {
        "region": place.region,
        "virtual_hosted_style_request": place.virtual_hosted,
        "conditional_put": "etag",
        # Whatever is missing here would be read from AWS_* variables.
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,  # it takes precedence over the other, also from a variable
        "skip_signature": False,
        "unsigned_payload": False,
        "s3_express": False,
        "request_payer": False,
        "disable_bulk_delete": False,
        "sse_bucket_key_enabled": settings.sse_bucket_key_enabled,
    }
    if settings.server_side_encryption:
        config["server_side_encryption"] = settings.server_side_encryption
    if settings.sse_kms_key_id:
        config["sse_kms_key_id"] = settings.sse_kms_key_id
    return config


_VARIABLES_WITHOUT_NONE = {"AWS_CHECKSUM_ALGORITHM", "AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_KMS_KEY_ID"}
_constructing = Lock()


@contextmanager
def _without_variables(config: S3Config) -> Iterator[None]:
    """Hide the variables of the settings for which obstore has no value that means "none"."""
    names = _VARIABLES_WITHOUT_NONE - {f"AWS_{name.upper()}" for name in config}
    with _constructing:
        hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
        try:
            yield
        finally:
            os.environ.update(hidden)


def _client_options(settings: S3Settings, place: Place) -> ClientConfig:
    options: ClientConfig = {
        "allow_http": (place.url or "").startswith("http://"),
        "allow_invalid_certificates": not settings.verify_tls,
        "connect_timeout": timedelta(seconds=settings.connect_timeout_seconds),
        "timeout": timedelta(seconds=settings.request_timeout_seconds),
    }
    if settings.ca_bundle:
        options["root_certificate"] = settings.ca_bundle.read_bytes()
    return options
