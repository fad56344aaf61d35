"""S3 as it looks on the wire: which operation a request is, bodies in chunks, XML, errors."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from tests.support.journal import RecordedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
VIRTUAL_HOST_SUFFIX = ".localhost"

_SCOPE = re.compile(r"Credential=(?P<key>[^/,\s]+)/\d{8}/(?P<region>[^/,\s]+)/")
_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0d\x0e-\x1f\ufffe\uffff]")
_OBJECT_OPERATIONS = {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}
_BUCKET_OPERATIONS = {"HEAD": "HeadBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket", "GET": "ListObjects"}
# What the AWS SDKs add to any request, and what is not a subresource.
_LIST_PARAMETERS = (
    "prefix",
    "delimiter",
    "start-after",
    "continuation-token",
    "max-keys",
    "encoding-type",
    "fetch-owner",
)
_PLAIN_PARAMETERS = frozenset(("x-id", "list-type", "marker", *_LIST_PARAMETERS))


@dataclass(frozen=True, slots=True)
class Call:
    """A request with all that is needed to answer it, or to send it on."""

    request: RecordedRequest
    #: Path and query, exactly as they came.
    target: str
    #: As they came, in order.
    raw_headers: tuple[tuple[str, str], ...]
    #: As it came: in chunks, if it was.
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """The client's answer."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def read_call(method: str, target: str, raw_headers: tuple[tuple[str, str], ...], body: bytes) -> Call:
    """Understand a request, addressed by path or by virtual host."""
    headers = {name.lower(): value for name, value in raw_headers}
    path, _, query_string = target.partition("?")
    query = dict(parse_qsl(query_string, keep_blank_values=True))
    bucket, key = _locate(unquote(path), headers.get("host", ""))
    operation = _name_operation(method, bucket, key, query, headers)
    scope = _SCOPE.search(headers.get("authorization", ""))
    request = RecordedRequest(
        method=method,
        operation=operation,
        bucket=bucket,
        key=key,
        headers=headers,
        query=query,
        deleted=tuple(parse_delete(decode_body(headers, body))[0]) if operation == "DeleteObjects" else (),
        access_key_id=scope["key"] if scope else None,
        region=scope["region"] if scope else None,
        at=time.monotonic(),
    )
    return Call(request, target, raw_headers, body)


def _locate(path: str, host: str) -> tuple[str, str]:
    name = host.rpartition(":")[0] or host
    if name.endswith(VIRTUAL_HOST_SUFFIX):
        return name.removesuffix(VIRTUAL_HOST_SUFFIX), path.removeprefix("/")
    bucket, _, key = path.removeprefix("/").partition("/")
    return bucket, key


def _name_operation(method: str, bucket: str, key: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    if method == "POST" and "delete" in query and not key:
        return "DeleteObjects"
    subresource = next((name for name in query if name not in _PLAIN_PARAMETERS), None)
    if subresource is not None:
        return f"{method} ?{subresource}"
    if not bucket:
        return "ListBuckets"
    if not key:
        return "ListObjectsV2" if query.get("list-type") == "2" else _BUCKET_OPERATIONS.get(method, method)
    if method == "PUT" and "x-amz-copy-source" in headers:
        return "CopyObject"
    return _OBJECT_OPERATIONS.get(method, method)


def decode_body(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the body proper, out of its aws-chunked framing if it has one."""
    if "aws-chunked" not in headers.get("content-encoding", "") and not headers.get(
        "x-amz-content-sha256", ""
    ).startswith("STREAMING-"):
        return body
    content = bytearray()
    position = 0
    while True:
        line_end = body.index(b"\r\n", position)
        size = int(body[position:line_end].partition(b";")[0], 16)
        if size == 0:
            return bytes(content)  # what follows are trailing checksums
        start = line_end + 2
        content += body[start : start + size]
        position = start + size + 2


def parse_delete(body: bytes) -> tuple[dict[str, str | None], bool]:
    """Return the keys of a ``DeleteObjects``, each with the ETag that it expects, and whether the answer is quiet.

    An ETag is without its quotes, and None if none is expected.
    """
    try:
        root = ET.fromstring(body)  # noqa: S314
    except ET.ParseError:
        return {}, False
    found: dict[str, str | None] = {}
    for element in root.iterfind("{*}Object"):
        etag = element.findtext("{*}ETag")
        found[element.findtext("{*}Key") or ""] = None if etag is None else etag.strip('"')
    return found, (root.findtext("{*}Quiet") or "").strip().lower() == "true"


def tag(name: str, text: object) -> str:
    """Return an XML element. What XML 1.0 cannot hold is written as a character reference, as AWS does."""
    escaped = _NOT_IN_XML.sub(lambda match: f"&#x{ord(match[0]):X};", escape(str(text), {'"': "&quot;"}))
    return f"<{name}>{escaped}</{name}>"


def document(root: str, content: str, *, status: int = 200) -> Answer:
    """Return an answer with an XML body."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{NAMESPACE}">{content}</{root}>'
    return Answer(status, {"Content-Type": "application/xml"}, text.encode("utf-8", "surrogateescape"))


def error(status: int, code: str, message: str = "", headers: Mapping[str, str] | None = None, **more: str) -> Answer:
    """Return an S3 error."""
    content = tag("Code", code) + tag("Message", message or code)
    content += "".join(tag(name, text) for name, text in more.items()) + tag("RequestId", "0000000000000000")
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{content}</Error>'
    return Answer(status, {"Content-Type": "application/xml", **(headers or {})}, text.encode())
