"""S3 through boto3 in a pool of threads: in forked children, if the settings say so, and for what obstore cannot do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import (
    Done,
    Expect,
    Expectation,
    ObjectInfo,
    Outcome,
    Refusal,
    Refused,
    StoredObject,
    Unknown,
    refuse_if_larger,
)
from pawnqueue.stores.s3_answers import MAX_KEYS_PER_DELETE, Fault, FaultKind, Place, fault_kind, outcome_of, version_of

if TYPE_CHECKING:
    import boto3
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

    from pawnqueue.settings import S3Settings

T = TypeVar("T")


_ANSWER_ABOUT_OTHER_KEYS = Fault(FaultKind.SERVER, "its answer names other keys")
#: Error codes of a bulk DELETE for keys that it will never delete, under a legal hold for example.
_STATUS_OF_UNDELETABLE_KEYS = {"AccessDenied": 403, "InvalidRequest": 400, "MethodNotAllowed": 405}

# A bulk DELETE is XML, which cannot express such a key: it is deleted by itself.
_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]")


class Boto3S3:
    """One bucket, through boto3. The client and its threads are made at the first call."""

    def __init__(self, settings: S3Settings, place: Place, session: boto3.Session) -> None:
        self._settings = settings
        self._place = place
        self._session = session
        self._prefix = settings.key_prefix
        self._lock = Lock()
        self._client: S3Client | None = None
        self._pool: ThreadPoolExecutor | None = None

    async def get(self, key: str, most: int) -> StoredObject | None:
        """See :class:`~.port.Store`."""

        def call(client: S3Client) -> StoredObject:
            answer = client.get_object(Bucket=self._place.bucket, Key=self._prefix + key)
            info = ObjectInfo(key, answer["ContentLength"], version_of(answer["ETag"]), answer["LastModified"])
            with closing(answer["Body"]) as stream:
                refuse_if_larger(info, most)
                return StoredObject(info, stream.read())  # more or less than the announced length is an error

        return await self._read(call, "GetObject", key)

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """See :class:`~.port.Store`."""
        del size
        found = await self.get(key, most)
        return None if found is None else found.body

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~.port.Store`."""

        def call(client: S3Client) -> ObjectInfo:
            answer = client.head_object(Bucket=self._place.bucket, Key=self._prefix + key)
            return ObjectInfo(key, answer["ContentLength"], version_of(answer["ETag"]), answer["LastModified"])

        return await self._read(call, "HeadObject", key)

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See :class:`~.port.Store`."""
        async for answer in self._list(folder, {"StartAfter": self._prefix + start_after} if start_after else {}):
            infos = [
                ObjectInfo(
                    found["Key"][len(self._prefix) :], found["Size"], version_of(found["ETag"]), found["LastModified"]
                )
                for found in answer.get("Contents", [])
            ]
            if infos:
                yield infos

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~.port.Store`."""
        found: list[str] = []
        async for answer in self._list(folder, {"Delimiter": "/"}):
            found += [entry["Prefix"][len(self._prefix) :] for entry in answer.get("CommonPrefixes", [])]
        return sorted(found)

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~.port.Store`."""
        extra: dict[str, Any] = dict(self._encryption())
        if expect is Expect.NOTHING:
            extra["IfNoneMatch"] = "*"
        elif isinstance(expect, str):
            extra["IfMatch"] = expect

        def call(client: S3Client) -> Outcome:
            answer = client.put_object(Bucket=self._place.bucket, Key=self._prefix + key, Body=body, **extra)
            return Done(version_of(answer["ETag"]))

        return await self._write(call, "PutObject", key, conditional=expect is not Expect.ANYTHING)

    async def copy(self, source: str, target: str) -> Outcome:
        """See :class:`~.port.Store`."""

        def call(client: S3Client) -> Outcome:
            client.copy_object(
                Bucket=self._place.bucket,
                Key=self._prefix + target,
                CopySource={"Bucket": self._place.bucket, "Key": self._prefix + source},
                **self._encryption(),
            )
            return Done(Version(""))

        return await self._write(call, "CopyObject", source, conditional=False)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~.port.Store`."""
        answered = await self.delete_versions(dict.fromkeys(keys, Version("")))
        # Without an expectation nothing is refused.
        return {key: outcome.fault for key, outcome in answered.items() if isinstance(outcome, Unknown)}

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See :class:`~.port.Store`."""
        plain = [key for key in versions if not _NOT_IN_XML.search(key)]
        batches = [plain[start : start + MAX_KEYS_PER_DELETE] for start in range(0, len(plain), MAX_KEYS_PER_DELETE)]
        strange = [key for key in versions if _NOT_IN_XML.search(key)]
        answered: dict[str, Refused | Unknown] = {}
        for part in await asyncio.gather(
            *(self._delete_batch({key: versions[key] for key in batch}) for batch in batches),
            *(self._delete_one(key, versions[key]) for key in strange),
        ):
            answered.update(part)
        return answered

    async def aclose(self) -> None:
        """See :class:`~.port.Store`. Requests in flight end by themselves, at their time-out."""
        with self._lock:
            pool, self._pool = self._pool, None
            client, self._client = self._client, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if client is not None:
            client.close()

    async def _delete_batch(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        def named(key: str, version: Version) -> ObjectIdentifierTypeDef:
            return {"Key": self._prefix + key, "ETag": version} if version else {"Key": self._prefix + key}

        def call(client: S3Client) -> Mapping[str, Refused | Unknown]:
            answer = client.delete_objects(
                Bucket=self._place.bucket,
                Delete={"Objects": [named(key, version) for key, version in versions.items()], "Quiet": True},
            )
            failed: dict[str, Refused | Unknown] = {}
            for problem in answer.get("Errors", []):
                key = problem.get("Key", "")[len(self._prefix) :]
                code = problem.get("Code", "")
                if code in {"NoSuchKey", "NoSuchVersion"}:
                    continue
                # The batch was answered, and this key was not deleted. An unknown code is worth a retry.
                fault = Fault(fault_kind(_STATUS_OF_UNDELETABLE_KEYS.get(code, 500), code), code or "no code")
                failed[key] = self._not_deleted(fault, key, versions.get(key, ""))
            if not failed.keys() <= versions.keys():  # it means one of these keys, though we cannot say which
                outcome = next(iter(failed.values()))
                fault_of_all = (
                    outcome if isinstance(outcome, Unknown) else self._not_deleted(_ANSWER_ABOUT_OTHER_KEYS, "", "")
                )
                return dict.fromkeys(versions, fault_of_all)
            return failed

        try:
            return await self._run(call)
        except Fault as fault:
            return dict.fromkeys(versions, Unknown(fault.error(self._place, "DeleteObjects")))

    async def _delete_one(self, key: str, version: Version) -> Mapping[str, Refused | Unknown]:
        extra: dict[str, Any] = {"IfMatch": version} if version else {}
        try:
            await self._run(
                lambda client: client.delete_object(Bucket=self._place.bucket, Key=self._prefix + key, **extra)
            )
        except Fault as fault:
            return {} if fault.kind is FaultKind.MISSING_KEY else {key: self._not_deleted(fault, key, version)}
        return {}

    def _not_deleted(self, fault: Fault, key: str, version: str) -> Refused | Unknown:
        """Return why one object was not deleted. After a conflict the request is retried: either write may have won."""
        if version and fault.kind is FaultKind.CONDITION:
            return Refused(Refusal.CONDITION)
        cause = replace(fault, kind=FaultKind.BUSY) if fault.kind is FaultKind.CONFLICT else fault
        return Unknown(cause.error(self._place, "DeleteObjects", key or None))

    async def _list(self, folder: str, extra: dict[str, Any]) -> AsyncIterator[Any]:
        """Yield botocore's answer to each LIST, until all of the folder is listed."""
        arguments: dict[str, Any] = {"Bucket": self._place.bucket, "Prefix": self._prefix + folder, **extra}
        while True:
            try:
                answer = await self._run(lambda client: client.list_objects_v2(**arguments))
            except Fault as fault:
                raise fault.error(self._place, "ListObjects", folder or None) from None
            yield answer
            arguments.pop("StartAfter", None)  # the token says where to go on
            arguments["ContinuationToken"] = answer.get("NextContinuationToken", "")
            if not arguments["ContinuationToken"]:
                return

    async def _read(self, call: Callable[[S3Client], T], operation: str, key: str) -> T | None:
        try:
            return await self._run(call)
        except Fault as fault:
            if fault.kind is FaultKind.MISSING_KEY:
                return None
            raise fault.error(self._place, operation, key) from None

    async def _write(
        self, call: Callable[[S3Client], Outcome], operation: str, key: str, *, conditional: bool
    ) -> Outcome:
        try:
            return await self._run(call)
        except Fault as fault:
            return outcome_of(fault, self._place, operation, key, conditional=conditional)

    async def _run(self, call: Callable[[S3Client], T]) -> T:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._settings.max_connections, thread_name_prefix="pawnqueue-s3")
            pool = self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, self._attempt, call)

    def _attempt(self, call: Callable[[S3Client], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - boto3 is imported when it is used
        from botocore.parsers import ResponseParserError  # noqa: PLC0415

        try:
            return call(self._connected())
        except ClientError as problem:
            answer = problem.response
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            code = answer.get("Error", {}).get("Code")
            raise Fault(fault_kind(status, code), f"{status} {code}" if code else str(status), problem) from None
        except BotoCoreError as problem:
            raise Fault(_kind_of_error(problem), type(problem).__name__, problem) from None
        except OSError as problem:  # a body that broke off
            raise Fault(FaultKind.DROPPED, type(problem).__name__, problem) from None
        except (ResponseParserError, KeyError) as problem:  # an answer that cannot be parsed, or lacks a required field
            raise Fault(FaultKind.DROPPED, "no usable answer", problem) from None

    def _connected(self) -> S3Client:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> S3Client:
        from botocore.config import Config  # noqa: PLC0415

        settings = self._settings
        # The settings say where the bucket is. Profiles and variables may only say how AWS is reached.
        addressing: dict[str, Any] = {"ignore_configured_endpoint_urls": True}
        if self._place.url:
            addressing |= {"use_fips_endpoint": False, "use_dualstack_endpoint": False}
        config = Config(
            signature_version="s3v4",
            connect_timeout=settings.connect_timeout_seconds,
            read_timeout=settings.request_timeout_seconds,
            max_pool_connections=settings.max_connections,
            # Only the queue knows which write may be sent twice, so only the queue retries.
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": "virtual" if self._place.virtual_hosted else "path"},
            # Many stores do not support the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            **addressing,
        )
        return self._session.client(
            "s3",
            endpoint_url=self._place.url,
            region_name=self._place.region,
            verify=str(settings.ca_bundle) if settings.ca_bundle and settings.verify_tls else settings.verify_tls,
            config=config,
        )

    def _encryption(self) -> Any:  # noqa: ANN401 - keyword arguments of botocore's generated methods
        settings = self._settings
        chosen = {
            "ServerSideEncryption": settings.server_side_encryption,
            "SSEKMSKeyId": settings.sse_kms_key_id,
            "BucketKeyEnabled": settings.sse_bucket_key_enabled or None,
        }
        return {name: value for name, value in chosen.items() if value is not None}


def _kind_of_error(problem: Exception) -> FaultKind:
    from botocore import exceptions  # noqa: PLC0415

    kinds: tuple[tuple[type[Exception], FaultKind], ...] = (
        (exceptions.NoCredentialsError, FaultKind.NO_CREDENTIALS),
        (exceptions.PartialCredentialsError, FaultKind.NO_CREDENTIALS),
        (exceptions.SSLError, FaultKind.TLS),
        (exceptions.ConnectTimeoutError, FaultKind.UNREACHABLE),
        (exceptions.ReadTimeoutError, FaultKind.TIMEOUT),
        (exceptions.EndpointConnectionError, FaultKind.UNREACHABLE),
        (exceptions.ConnectionError, FaultKind.DROPPED),
        (exceptions.HTTPClientError, FaultKind.DROPPED),
        (exceptions.ParamValidationError, FaultKind.REJECTED),
    )
    return next((kind for error, kind in kinds if isinstance(problem, error)), FaultKind.DROPPED)
