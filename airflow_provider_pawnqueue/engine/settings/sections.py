"""The sections of the settings: each field with its default, its range and a line that says what it does.

Names and defaults that the published pawn-queue library has too are the same as there.
"""

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_serializer, field_validator

from airflow_provider_pawnqueue.engine.settings.base import At, Clash, Section
from airflow_provider_pawnqueue.engine.settings.kinds import (
    MASK,
    BucketName,
    Bytes,
    Count,
    Depth,
    Endpoint,
    File,
    KeyId,
    KeyPrefix,
    Milliseconds,
    Repeats,
    RoleArn,
    Seconds,
    Secret,
    SessionName,
    SomeSeconds,
    Switch,
    Text,
    endpoint,
)


class S3Settings(Section):
    """Where the bucket is, who we are to it, and how to talk to it."""

    dotted: ClassVar[str] = "s3"

    # Before endpoint_url, whose scheme it decides.
    use_ssl: Switch = Field(default=True, description="Use https where endpoint_url has no scheme; a scheme decides.")
    endpoint_url: Endpoint | None = Field(
        default=None, description="Address of the S3 service, as [scheme://]host[:port]; without it, AWS."
    )
    bucket_name: BucketName = Field(description="The bucket that is the queue. The only setting without a default.")
    key_prefix: KeyPrefix = Field(
        default="", description="Keep all keys below this prefix, so that queues or other tenants share a bucket."
    )
    region_name: Text = Field(default="us-east-1", description="The bucket's region; most other services take any.")
    aws_access_key_id: KeyId | None = Field(
        default=None, description="Access key; without it, whatever identity boto3 finds (profile, role, instance)."
    )
    aws_secret_access_key: Secret | None = Field(default=None, description="The secret that belongs to the access key.")
    aws_session_token: Secret | None = Field(default=None, description="Session token of a temporary key.")
    profile_name: Text | None = Field(default=None, description="Profile of the AWS configuration to use.")
    role_arn: RoleArn | None = Field(default=None, description="Role to assume, by the identity above.")
    role_session_name: SessionName | None = Field(
        default=None, description="Name under which the assumed role appears in the audit log."
    )
    role_external_id: Text | None = Field(default=None, description="External id that the role's owner asks for.")
    addressing_style: Literal["path", "virtual", "auto"] = Field(
        default="auto",
        description="Where the bucket is named: path or host (virtual); auto: path if endpoint_url is set.",
    )
    verify_tls: Switch = Field(default=True, description="Check the service's certificate; switch off in tests only.")
    ca_bundle: File | None = Field(default=None, description="PEM file of the authorities to trust, for private ones.")
    server_side_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = Field(
        default=None, description="Encryption to ask for with every write; without it, what the bucket does by default."
    )
    sse_kms_key_id: Text | None = Field(default=None, description="KMS key for aws:kms; without it, the account's own.")
    sse_bucket_key_enabled: Switch = Field(
        default=False, description="Ask for an S3 Bucket Key, which makes aws:kms cheaper."
    )
    client: Literal["obstore", "boto3"] = Field(
        default="obstore", description="HTTP client: obstore is five times lighter, boto3 survives a fork."
    )
    connect_timeout_seconds: SomeSeconds = Field(default=3.0, description="How long a connection may take to open.")
    request_timeout_seconds: SomeSeconds = Field(default=20.0, description="How long one request may take as a whole.")
    max_connections: Count = Field(default=64, description="How many connections are kept open at most.")

    @field_validator("endpoint_url")
    @classmethod
    def _normalise_endpoint(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else endpoint(value, tls=info.data.get("use_ssl", True))

    @field_serializer("aws_access_key_id", when_used="json-unless-none")
    def _mask_key_id(self, _: str) -> str:
        return MASK

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        """Print the access key's id no more than its secret."""
        for name, value in super().__repr_args__():
            yield name, MASK if name == "aws_access_key_id" and value is not None else value

    @property
    def resolved_addressing_style(self) -> Literal["path", "virtual"]:
        """What ``addressing_style`` comes to: ``auto`` also means path for a bucket that no TLS host name can carry."""
        if self.addressing_style != "auto":
            return self.addressing_style
        fits_a_host_name = re.fullmatch(r"[a-z0-9-]+", self.bucket_name)
        return "virtual" if self.endpoint_url is None and fits_a_host_name else "path"

    @property
    def uses_tls(self) -> bool:
        """Whether requests are encrypted on the wire: by the endpoint's scheme, or for AWS by ``use_ssl``."""
        return self.use_ssl if self.endpoint_url is None else self.endpoint_url.startswith("https:")

    def clashes(self) -> Iterator[Clash]:
        """Find an identity in halves, and an encryption that nobody would get."""
        key, secret = At("s3.aws_access_key_id"), At("s3.aws_secret_access_key")
        if (self.aws_access_key_id is None) != (self.aws_secret_access_key is None):
            given, absent = (key, secret) if self.aws_access_key_id else (secret, key)
            yield given, " is set and ", absent, " is not: give both or neither"
        elif self.aws_session_token and not self.aws_access_key_id:
            yield At("s3.aws_session_token"), " is set and ", key, " is not: a token needs the key it came with"
        if self.role_external_id and not self.role_arn:
            yield At("s3.role_external_id"), " is set and ", At("s3.role_arn"), " is not: there is no role to assume"
        encryption = At("s3.server_side_encryption")
        if self.sse_kms_key_id and self.server_side_encryption not in {"aws:kms", "aws:kms:dsse"}:
            yield At("s3.sse_kms_key_id"), " needs ", encryption, " to be aws:kms or aws:kms:dsse"
        if self.sse_bucket_key_enabled and self.server_side_encryption != "aws:kms":
            yield At("s3.sse_bucket_key_enabled"), " needs ", encryption, " to be aws:kms"


class PollingSettings(Section):
    """How a consumer looks for messages, and how long it has them."""

    dotted: ClassVar[str] = "polling"

    interval_seconds: Seconds = Field(default=5.0, description="Pause between two looks at a topic that was empty.")
    max_messages_per_poll: Count = Field(default=10, description="How many messages one claim takes, unless it says.")
    visibility_timeout_seconds: SomeSeconds = Field(
        default=30.0, description="How long a claim lasts without renewal (its ttl); then others may take the messages."
    )
    lease_refresh_interval_seconds: SomeSeconds = Field(
        default=10.0, description="How often a claim is renewed while it is worked on; under half of its time."
    )
    jitter_max_ms: Milliseconds = Field(
        default=200, description="Random pause of up to this, so that consumers do not look in step."
    )


class CsprngVerifySettings(Section):
    """The pauses by which csprng_verify finds out who won, on stores without conditional writes."""

    dotted: ClassVar[str] = "concurrency.csprng_verify"

    jitter_min_ms: Milliseconds = Field(default=100, description="Shortest pause between writing and looking.")
    jitter_max_ms: Milliseconds = Field(default=400, description="Longest pause between writing and looking.")
    verify_retries: Repeats = Field(default=2, description="How many more times to look after the first.")
    verify_retry_delay_ms: Milliseconds = Field(default=150, description="Pause between two looks.")

    def clashes(self) -> Iterator[Clash]:
        """Find a range whose lower end is above its upper end."""
        if self.jitter_min_ms > self.jitter_max_ms:
            yield At(f"{self.dotted}.jitter_min_ms"), " must not be above ", At(f"{self.dotted}.jitter_max_ms")


class ConcurrencySettings(Section):
    """How processes keep out of each other's way, and how much one does at once."""

    dotted: ClassVar[str] = "concurrency"

    # Which there are, only the engine's leases know: it is checked when a bucket is opened.
    strategy: Text = Field(
        default="auto", description="How leases are won; auto: one process tries what the bucket can, and all follow."
    )
    csprng_verify: CsprngVerifySettings = Field(
        default_factory=CsprngVerifySettings, description="The pauses of csprng_verify; other strategies ignore them."
    )
    max_in_flight: Count = Field(default=128, description="How many requests one operation has under way at once.")


class RegistrySettings(Section):
    """The list of who is here."""

    dotted: ClassVar[str] = "registry"

    heartbeat_interval_seconds: SomeSeconds = Field(
        default=60.0, description="How often a producer or a consumer notes that it is still here."
    )


class ClaimsSettings(Section):
    """The times of claims that the published library has no settings for."""

    dotted: ClassVar[str] = "claims"

    margin_seconds: Seconds = Field(
        default=2.0, description="How long before its end a holder stops trusting a claim, and a taker waits after it."
    )
    max_claim_age_seconds: SomeSeconds = Field(
        default=86_400.0, description="Age past which no claim is renewed, so that a hung run holds nothing for ever."
    )
    record_retention_seconds: Seconds = Field(
        default=86_400.0, description="How long the record of a closed claim is kept, to answer who settles it again."
    )
    keep_when_closed: Switch = Field(
        default=False,
        description="Closing a queue leaves its open claims to whoever comes by their ids, and gives nothing back.",
    )


class RetrySettings(Section):
    """How long and how often a request that failed is tried again."""

    dotted: ClassVar[str] = "retry"

    budget_seconds: Seconds = Field(default=30.0, description="Time for all attempts of one request; 0: one attempt.")
    initial_delay_seconds: Seconds = Field(default=0.05, description="Pause before the second attempt; it doubles.")
    max_delay_seconds: Seconds = Field(default=5.0, description="The pause does not grow beyond this.")

    def clashes(self) -> Iterator[Clash]:
        """Find a first pause that is longer than the longest."""
        if self.initial_delay_seconds > self.max_delay_seconds:
            yield At("retry.initial_delay_seconds"), " must not be above ", At("retry.max_delay_seconds")


class LimitsSettings(Section):
    """What a payload may be at most; a bigger one is refused when it is published."""

    dotted: ClassVar[str] = "limits"

    max_payload_bytes: Bytes = Field(default=5 * 1024**2, description="Size of a payload as canonical JSON.")
    max_payload_depth: Depth = Field(default=64, description="How deeply objects and lists may be nested.")
