"""The sections of the settings: each field with its default, its range and a line that says what it does.

Names and defaults that the published pawn-queue library has too are the same as there.
"""

import re
from typing import ClassVar, Literal

from pydantic import Field

from pawnqueue.domain.claim_terms import DEFAULT_TTL_SECONDS
from pawnqueue.settings import kinds as kind
from pawnqueue.settings.base import Section


class S3Settings(Section, title="s3"):
    """Where the bucket is, with which credentials, and how to talk to it."""

    # Before endpoint_url, whose scheme it decides.
    use_ssl: kind.Switch = Field(True, description="Use https where endpoint_url has no scheme; a scheme decides.")
    endpoint_url: kind.Endpoint | None = Field(None, description="Address of the S3 service; without it, AWS.")
    bucket_name: kind.BucketName = Field(
        description="The bucket that is the queue; the only setting without a default."
    )
    key_prefix: kind.KeyPrefix = Field("", description="Keep all keys below it, so that queues share a bucket.")
    region_name: kind.Text = Field("us-east-1", description="The bucket's region; most other services take any.")
    aws_access_key_id: kind.KeyId | None = Field(
        None, repr=False, description="Access key; without it, the identity that boto3 finds (profile, role, instance)."
    )
    aws_secret_access_key: kind.Secret | None = Field(None, description="The secret that belongs to the access key.")
    aws_session_token: kind.Secret | None = Field(None, description="Session token of a temporary key.")
    profile_name: kind.Text | None = Field(None, description="Profile of the AWS configuration to use.")
    role_arn: kind.RoleArn | None = Field(None, description="Role to assume, by the identity above.")
    role_session_name: kind.SessionName | None = Field(None, description="Name of the assumed role in the audit log.")
    role_external_id: kind.Text | None = Field(None, description="External id that the role's owner asks for.")
    addressing_style: Literal["path", "virtual", "auto"] = Field(
        "auto", description="Where the bucket is named: path or host (virtual); auto: path if endpoint_url is set."
    )
    verify_tls: kind.Switch = Field(True, description="Check the service's certificate; switch off in tests only.")
    ca_bundle: kind.File | None = Field(None, description="PEM file of the authorities to trust, for private ones.")
    server_side_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = Field(
        None, description="Encryption to ask for with every write; without it, what the bucket does by default."
    )
    sse_kms_key_id: kind.Text | None = Field(None, description="KMS key for aws:kms; without it, the account's own.")
    sse_bucket_key_enabled: kind.Switch = Field(False, description="Ask for a Bucket Key, which makes aws:kms cheaper.")
    client: Literal["obstore", "boto3"] = Field(
        "obstore", description="HTTP client: obstore is five times lighter, boto3 survives a fork."
    )
    connect_timeout_seconds: kind.SomeSeconds = Field(3.0, description="How long a connection may take to open.")
    request_timeout_seconds: kind.SomeSeconds = Field(20.0, description="How long one request may take as a whole.")
    max_connections: kind.Count = Field(64, description="How many connections are kept open at most.")

    #: The kind of store that this section describes.
    store_kind: ClassVar[str] = "s3"

    @property
    def url(self) -> str | None:
        """The address of the service; None is AWS, in the region."""
        plain_aws = None if self.use_ssl else f"http://s3.{self.region_name}.amazonaws.com"
        return plain_aws if self.endpoint_url is None else self.endpoint_url

    @property
    def endpoint(self) -> str:
        """The store's name in a sentence."""
        return self.url or f"AWS S3 ({self.region_name})"

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


class PollingSettings(Section, title="polling"):
    """How a consumer polls for messages, and how long it has them."""

    interval_seconds: kind.Seconds = Field(5.0, description="Pause between two polls of a topic that was empty.")
    max_messages_per_poll: kind.Count = Field(10, description="How many messages one claim takes, unless it says.")
    visibility_timeout_seconds: kind.SomeSeconds = Field(
        DEFAULT_TTL_SECONDS,
        description="How long a claim lasts without renewal (its ttl); then others may take the messages.",
    )
    lease_refresh_interval_seconds: kind.SomeSeconds = Field(
        10.0, description="How often a claim is renewed while it is worked on; under half of its time."
    )
    jitter_max_ms: kind.Milliseconds = Field(200, description="Random pause up to this: consumers do not poll in step.")


class CsprngVerifySettings(Section, title="concurrency.csprng_verify"):
    """The pauses by which csprng_verify finds the winner on stores without conditional writes; others ignore them."""

    jitter_min_ms: kind.Milliseconds = Field(100, description="Shortest pause between writing and reading.")
    jitter_max_ms: kind.Milliseconds = Field(400, description="Longest pause between writing and reading.")
    verify_retries: kind.Repeats = Field(2, description="How many more times to read after the first.")
    verify_retry_delay_ms: kind.Milliseconds = Field(150, description="Pause between two reads.")


class ConcurrencySettings(Section, title="concurrency"):
    """How processes keep out of each other's way, and how much one does at once."""

    # The registers know the strategies: the name is checked when a bucket is opened.
    strategy: kind.Text = Field(
        default="auto",
        description="How leases are won; auto: the first process probes the bucket, all others follow.",
    )
    csprng_verify: CsprngVerifySettings = CsprngVerifySettings()
    max_in_flight: kind.Count = Field(128, description="How many requests one operation has under way at once.")


class RegistrySettings(Section, title="registry"):
    """The registry of producers and consumers."""

    heartbeat_interval_seconds: kind.SomeSeconds = Field(
        60.0, description="How often each process notes that it is still here."
    )
    register_consumers: kind.Switch = Field(
        True, description="Register consumers, as producers are; switch off where each consumer has a new name."
    )


class ClaimsSettings(Section, title="claims"):
    """The times of claims that the published library has no settings for."""

    margin_seconds: kind.Seconds = Field(
        2.0, description="How long before its end a holder stops trusting a claim, and a taker waits after it."
    )
    max_claim_age_seconds: kind.SomeSeconds = Field(
        86_400.0, description="Age past which no claim is renewed, so that a hung run holds nothing for ever."
    )
    record_retention_seconds: kind.Seconds = Field(
        86_400.0, description="How long the record of a closed claim is kept, to answer a second settlement."
    )
    keep_when_closed: kind.Switch = Field(
        False,
        description="Closing a queue keeps its open claims for a process that resumes them by their ids.",
    )


class RetrySettings(Section, title="retry"):
    """How long and how often a request that failed is tried again."""

    budget_seconds: kind.Seconds = Field(30.0, description="Time for all attempts of one request; 0: one attempt.")
    initial_delay_seconds: kind.Seconds = Field(0.05, description="Pause before the second attempt; it doubles.")
    max_delay_seconds: kind.Seconds = Field(5.0, description="The pause does not grow beyond this.")


class LimitsSettings(Section, title="limits"):
    """The largest payload; a larger one is refused when it is published."""

    max_payload_bytes: kind.Bytes = Field(5 * 1024**2, description="Size of a payload as canonical JSON.")
    max_payload_depth: kind.Depth = Field(64, description="How deeply objects and lists may be nested.")


class PacksSettings(Section, title="packs"):
    """When many messages become packs, objects with many messages, and how large these are."""

    messages: kind.PackMessages = Field(1000, description="How many messages one pack has at most.")
    bytes: kind.PackBytes = Field(
        4 * 1024**2, description="A pack ends with the message that takes its lines past this, before compression."
    )
    min_messages: kind.Count = Field(
        100, description="From how many messages on one call of publish makes packs, where the topic allows them."
    )
    linger_seconds: kind.Seconds = Field(
        0.0, description="How long a call with fewer messages waits for others to share a pack with."
    )
