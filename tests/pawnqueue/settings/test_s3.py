"""The s3 section: what is normalised, resolved and refused."""

from typing import Any

import pytest

from pawnqueue.settings import S3Settings, Settings
from tests.pawnqueue.settings.given import BUCKET, SECRET, complaint_of


@pytest.mark.parametrize(
    ("given", "tls", "endpoint"),
    [
        ("store.test", True, "https://store.test"),
        ("store.test", False, "http://store.test"),
        ("localhost:9000", False, "http://localhost:9000"),
        ("http://store.test:9000", True, "http://store.test:9000"),
        ("HTTPS://Store.TEST/", False, "https://store.test"),
        ("http://[::1]:9000", True, "http://[::1]:9000"),
        ("127.0.0.1:9000/", True, "https://127.0.0.1:9000"),
        ("http://minio_1:9000", True, "http://minio_1:9000"),
        ("http://store.test:", True, "http://store.test"),
    ],
)
def test_an_endpoint_is_normalised(given: str, tls: bool, endpoint: str) -> None:  # noqa: FBT001
    """A scheme decides; without one, use_ssl does. What was normalised stays the same when it is given again."""
    s3 = S3Settings(bucket_name="test-bucket", endpoint_url=given, use_ssl=tls)
    assert s3.endpoint_url == endpoint
    assert s3.uses_tls is endpoint.startswith("https")
    assert S3Settings(bucket_name="test-bucket", endpoint_url=s3.endpoint_url, use_ssl=not tls).endpoint_url == endpoint


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ftp://store.test",
        "https://",
        "http://:9000",
        "http://store.test:nine",
        "http://store.test:0",
        "http://store.test:70000",
        "http://store.test/bucket",
        "http://store.test?x=1",
        "http://store.test#x",
        "http://store test",
        " http://store.test",
        "http://store.test\n",
        "http://store\\test",
        "http://[::1",
        f"http://user:{SECRET}@store.test",
        f"user:{SECRET}@store.test",
        f"http://user:{SECRET}/x@store.test:9000",
        f"http://{SECRET}@store.test",
        f"ftp://user:{SECRET}@store.test",
    ],
)
def test_an_endpoint_that_is_no_address_is_refused(given: str) -> None:
    """Credentials, a path, a query, another scheme: refused, without showing any of it."""
    sentence = complaint_of(lambda: Settings(s3=BUCKET | {"endpoint_url": given}))
    assert "s3.endpoint_url must " in sentence
    assert SECRET not in sentence


@pytest.mark.parametrize(
    ("given", "prefix"), [("", ""), ("/", ""), ("a", "a/"), ("/a/b", "a/b/"), ("a/", "a/"), ("v1..2", "v1..2/")]
)
def test_a_key_prefix_is_normalised(given: str, prefix: str) -> None:
    """No slash at the beginning, one at the end, nothing where there is nothing."""
    assert S3Settings(bucket_name="test-bucket", key_prefix=given).key_prefix == prefix


@pytest.mark.parametrize(
    "given", ["..", "a/../b", "a/..", "./a", "a//b", "//a", "a//", "a\nb", "a\x00", "a\x7f", "x" * 513]
)
def test_a_key_prefix_that_leads_astray_is_refused(given: str) -> None:
    """Segments that clients resolve, empty segments, control characters."""
    assert "s3.key_prefix must be" in complaint_of(lambda: Settings(s3=BUCKET | {"key_prefix": given}))


@pytest.mark.parametrize("name", ["abc", "a.b-c", "a" * 63, "Old_Bucket", "123"])
def test_a_bucket_name_may_be_old(name: str) -> None:
    """Capitals and underscores are in names of old buckets."""
    assert S3Settings(bucket_name=name).bucket_name == name


@pytest.mark.parametrize("name", ["ab", "a" * 64, "a/b", "a b", "-ab", "ab.", "a..b", "ab\n", "", "bücket", None, 123])
def test_a_bucket_name_that_cannot_be_is_refused(name: Any) -> None:  # noqa: ANN401 - of the wrong type on purpose
    """Too short, too long, or with characters that no bucket has."""
    assert "s3.bucket_name must be" in complaint_of(lambda: Settings(s3={"bucket_name": name}))


@pytest.mark.parametrize(
    ("settings", "style"),
    [
        ({}, "virtual"),
        ({"endpoint_url": "store.test"}, "path"),
        ({"endpoint_url": "store.test", "addressing_style": "virtual"}, "virtual"),
        ({"addressing_style": "path"}, "path"),
        ({"bucket_name": "with.dots"}, "path"),
        ({"bucket_name": "Old_Bucket"}, "path"),
    ],
)
def test_the_addressing_style_is_resolved(settings: dict[str, Any], style: str) -> None:
    """Auto is path for an endpoint of one's own, and for a name that no certificate covers as a host; else virtual."""
    assert S3Settings(**(BUCKET | settings)).resolved_addressing_style == style


def test_tls_without_an_endpoint_is_as_set() -> None:
    """For AWS, use_ssl decides."""
    assert S3Settings(bucket_name="test-bucket").uses_tls
    assert not S3Settings(bucket_name="test-bucket", use_ssl=False).uses_tls
