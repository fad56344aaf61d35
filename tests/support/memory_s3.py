"""The in-memory S3 behind a fault server: a store that behaves as its :class:`~.behaviour.Behaviour` says."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from tests.support.bucket import Bucket, StoredBody, page_of, resume
from tests.support.s3_protocol import Answer, Call, decode_body, document, error, parse_delete, tag

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.support.behaviour import Behaviour, Discipline
    from tests.support.journal import RecordedRequest

_PAGE = 1_000
_RANGE = re.compile(r"bytes=(?P<first>\d+)-(?P<last>\d+)")
_ROUNDS_OF_THE_LOOP = 10


class MemoryS3:
    """Buckets in memory. All of it runs in the fault server's loop."""

    def __init__(self, behaviour: Behaviour, buckets: Iterable[str], chance: random.Random) -> None:
        """Start with empty buckets of these names."""
        self._behaviour = behaviour
        self._chance = chance
        self.buckets = {name: self._new_bucket() for name in buckets}

    async def answer(self, call: Call, spared: Callable[[str], str | None]) -> Answer:
        """Do what the request asks. ``spared`` gives the error code for keys that a bulk delete must not delete."""
        request = call.request
        refusal = self._refuse_entry(request)
        if refusal is not None:
            return refusal
        if request.operation == "CreateBucket":
            return self._create_bucket(request.bucket)
        bucket = self.buckets.get(request.bucket)
        if bucket is None:
            return error(404, "NoSuchBucket", "The specified bucket does not exist", BucketName=request.bucket)
        return await self._answer_in(bucket, call, spared)

    async def _answer_in(self, bucket: Bucket, call: Call, spared: Callable[[str], str | None]) -> Answer:
        request = call.request
        match request.operation:
            case "PutObject":
                answer = await self._put(bucket, request, decode_body(request.headers, call.body))
            case "GetObject" | "HeadObject":
                answer = self._get(bucket, request)
            case "ListObjectsV2":
                answer = self._list(bucket, request)
            case "DeleteObject":
                bucket.remove(request.key)
                answer = Answer(204)
            case "DeleteObjects":
                answer = self._delete(bucket, decode_body(request.headers, call.body), spared)
            case "CopyObject":
                answer = self._copy(bucket, request)
            case "HeadBucket":
                answer = Answer(headers={"x-amz-bucket-region": self._behaviour.region or "us-east-1"})
            case _:
                answer = error(501, "NotImplemented", f"This test server has no {request.operation}")
        return answer

    # --- which keys are valid ---

    def _refuse_entry(self, request: RecordedRequest) -> Answer | None:
        region, credentials = self._behaviour.region, self._behaviour.credentials
        if region is not None and request.region not in (None, region):
            message = f"The authorization header is malformed; the region '{request.region}' is wrong; "
            return error(
                400,
                "AuthorizationHeaderMalformed",
                f"{message}expecting '{region}'",
                {"x-amz-bucket-region": region},
                Region=region,
            )
        if credentials is None:
            return None
        if request.access_key_id is None:
            return error(403, "AccessDenied", "Access Denied")
        if request.access_key_id not in credentials:
            message = "The AWS Access Key Id you provided does not exist in our records."
            return error(403, "InvalidAccessKeyId", message, AWSAccessKeyId=request.access_key_id)
        expiry = credentials[request.access_key_id]
        if expiry is not None and expiry <= datetime.now(UTC):
            return error(400, "ExpiredToken", "The provided token has expired.")
        return None

    # --- buckets ---

    def _new_bucket(self) -> Bucket:
        return Bucket(self._behaviour.stale_writes)

    def _create_bucket(self, name: str) -> Answer:
        if name in self.buckets:
            return error(409, "BucketAlreadyOwnedByYou", "You already own it.", BucketName=name)
        self.buckets[name] = self._new_bucket()
        return Answer(headers={"Location": f"/{name}"})

    # --- reading ---

    def _view(self, bucket: Bucket) -> tuple[Mapping[str, StoredBody], Sequence[str]]:
        if self._behaviour.read_after_write:
            return bucket.objects, bucket.ordered
        return bucket.as_it_was()

    def _get(self, bucket: Bucket, request: RecordedRequest) -> Answer:
        objects, _ = self._view(bucket)
        stored = objects.get(request.key)
        if stored is None:
            return _no_such_key(request.key)
        headers = {
            "content-type": "binary/octet-stream",
            **stored.headers,
            "etag": stored.etag,
            "last-modified": format_datetime(stored.last_modified, usegmt=True),
        }
        wanted = _RANGE.fullmatch(request.headers.get("range", ""))
        if wanted is None:
            return Answer(200, headers, stored.body)
        first, last = int(wanted["first"]), min(int(wanted["last"]), len(stored.body) - 1)
        if first > last:
            return error(416, "InvalidRange", "The requested range is not satisfiable.", Key=request.key)
        headers["content-range"] = f"bytes {first}-{last}/{len(stored.body)}"
        return Answer(206, headers, stored.body[first : last + 1])

    def _list(self, bucket: Bucket, request: RecordedRequest) -> Answer:
        query = request.query
        objects, ordered = self._view(bucket)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token, start_after = query.get("continuation-token"), query.get("start-after", "")
        try:
            limit = min(int(query.get("max-keys", _PAGE)), _PAGE)
            after = start_after if token is None else resume(token)
        except ValueError as problem:
            return error(400, "InvalidArgument", str(problem))
        page = page_of(ordered, prefix=prefix, delimiter=delimiter, after=after, limit=limit)
        encode = quote if query.get("encoding-type") == "url" else str
        content = [
            tag("Name", request.bucket),
            tag("Prefix", encode(prefix)),
            tag("KeyCount", page.count),
            tag("MaxKeys", limit),
            tag("IsTruncated", str(page.next_token is not None).lower()),
        ]
        content += [tag("Delimiter", encode(delimiter))] if delimiter else []
        content += [tag("StartAfter", encode(start_after))] if start_after else []
        content += [tag("EncodingType", "url")] if encode is quote else []
        content += [tag("ContinuationToken", token)] if token is not None else []
        content += [tag("NextContinuationToken", page.next_token)] if page.next_token is not None else []
        content += [_entry(encode(key), objects[key]) for key in page.keys]
        content += [f"<CommonPrefixes>{tag('Prefix', encode(folder))}</CommonPrefixes>" for folder in page.folders]
        return document("ListBucketResult", "".join(content))

    # --- writing ---

    async def _put(self, bucket: Bucket, request: RecordedRequest, body: bytes) -> Answer:
        began = bucket.clock
        match self._discipline(request):
            case "not_implemented":
                return error(501, "NotImplemented", "A header you provided implies functionality not implemented")
            case "racy":
                refusal = self._refuse_write(bucket, request, began)
                if refusal is not None:
                    return refusal
                await self._let_others_in()
            case "atomic":
                if self._behaviour.needs_overlap:
                    await self._let_others_in()
                refusal = self._refuse_write(bucket, request, began)
                if refusal is not None:
                    return refusal
            case "ignored" | None:
                pass
        return Answer(headers={"ETag": bucket.write(request.key, body, _kept_headers(request)).etag})

    def _discipline(self, request: RecordedRequest) -> Discipline | None:
        if "if-none-match" in request.headers:
            # S3 knows the star alone here.
            return self._behaviour.if_none_match if request.headers["if-none-match"] == "*" else "not_implemented"
        return self._behaviour.if_match if "if-match" in request.headers else None

    async def _let_others_in(self) -> None:
        await asyncio.sleep(self._behaviour.race_window)
        # Under load the loop may be late: a request that is in its queue by now has overlapped, and comes first.
        for _ in range(_ROUNDS_OF_THE_LOOP):
            await asyncio.sleep(0)

    def _refuse_write(self, bucket: Bucket, request: RecordedRequest, began: int) -> Answer | None:
        stored = bucket.objects.get(request.key)
        if "if-none-match" in request.headers:
            holds = stored is None
        elif stored is None:
            if self._behaviour.if_match_missing == 404:
                return _no_such_key(request.key)
            holds = False
        else:
            holds = self._matches(request.headers["if-match"], stored)
        if holds:
            return None
        if bucket.changed_since(request.key, began):
            if self._behaviour.losers_get_500 and self._chance.random() < 0.5:
                return error(500, "InternalError", "We encountered an internal error. Please try again.")
            if self._behaviour.conflict_409:
                return error(409, "ConditionalRequestConflict", "A conflicting operation is under way. Try again.")
        return error(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")

    def _matches(self, if_match: str, stored: StoredBody) -> bool:
        if self._behaviour.etag_form == "unquoted_if_match":
            return if_match == stored.md5
        return if_match == "*" or if_match.strip('"') == stored.md5

    def _copy(self, bucket: Bucket, request: RecordedRequest) -> Answer:
        source = unquote(request.headers["x-amz-copy-source"]).removeprefix("/")
        source_bucket, _, source_key = source.partition("/")
        if source_bucket not in self.buckets:
            return error(404, "NoSuchBucket", "The specified bucket does not exist", BucketName=source_bucket)
        stored = self.buckets[source_bucket].objects.get(source_key)
        if stored is None:
            return _no_such_key(source_key)
        copied = bucket.write(request.key, stored.body, stored.headers)
        content = tag("LastModified", _iso(copied.last_modified)) + tag("ETag", copied.etag)
        return document("CopyObjectResult", content)

    def _delete(self, bucket: Bucket, body: bytes, spared: Callable[[str], str | None]) -> Answer:
        keys, quiet = parse_delete(body)
        if not 0 < len(keys) <= _PAGE:
            return error(400, "MalformedXML", "The XML you provided was not well-formed")
        content = []
        for key, expected in keys.items():
            code = spared(key)
            stored = bucket.objects.get(key)
            conditional = self._behaviour.conditional_deletes and stored is not None and expected is not None
            if conditional and expected != stored.md5:
                code = "PreconditionFailed"
            if code is not None:
                content.append(f"<Error>{tag('Key', key)}{tag('Code', code)}{tag('Message', code)}</Error>")
                continue
            bucket.remove(key)
            if not quiet:
                content.append(f"<Deleted>{tag('Key', key)}</Deleted>")
        return document("DeleteResult", "".join(content))


def _no_such_key(key: str) -> Answer:
    return error(404, "NoSuchKey", "The specified key does not exist.", Key=key)


def _entry(key: str, stored: StoredBody) -> str:
    fields = (
        tag("Key", key),
        tag("LastModified", _iso(stored.last_modified)),
        tag("ETag", stored.etag),
        tag("Size", len(stored.body)),
        tag("StorageClass", "STANDARD"),
    )
    return f"<Contents>{''.join(fields)}</Contents>"


def _kept_headers(request: RecordedRequest) -> dict[str, str]:
    return {
        name: value
        for name, value in request.headers.items()
        if name == "content-type" or name.startswith("x-amz-meta-")
    }


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
