"""Fixtures of more than one room: the servers, each started once a run and stopped by it, and settings for them."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadScopeScheduling

from pawnqueue import Settings
from tests.support.wheels import Wheels, wheels_in
from tools import release
from tools.kit import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.kit.servers import S3Server

# Airflow makes a folder when it is imported, by any test: one that nobody has use for, which goes with the run.
_AIRFLOW_HOME = tempfile.mkdtemp(prefix="airflow-home-")
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME
atexit.register(lambda owner: os.getpid() == owner and shutil.rmtree(_AIRFLOW_HOME, ignore_errors=True), os.getpid())

# A busy machine takes its time over one example or over making them: that is nothing about what is tested.
hypothesis_settings.register_profile(
    "here", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("here")


#: They share an Airflow, which each process starts for itself.
_AIRFLOW = "tests/e2e/airflow/"
_AIRFLOW_WITH_SPARK = "tests/e2e/airflow/spark/"
#: They need the wheels, which each process builds for itself.
_WHEELS = ("tests/test_executor_install.py", "tests/test_provider_install.py", "tests/test_wheels.py")


class ByServer(LoadScopeScheduling):
    """Which tests go to one process, where several run at once: those of a file, and those that share what is slow."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next(
            (shared[0] for shared in ((_AIRFLOW_WITH_SPARK,), (_AIRFLOW,), _WHEELS) if file.startswith(shared)), file
        )


@pytest.hookimpl(optionalhook=True)  # some run without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServer:  # noqa: ANN401 - xdist's own
    """Give them out so, in the order of :func:`pytest_collection_modifyitems`."""
    config.option.loadscopereorder = False
    return ByServer(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several run at once, what takes long comes first: nobody is to wait for it at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if item.nodeid.startswith(_AIRFLOW):
        return 0
    if item.get_closest_marker("spark"):
        return 1
    return 2 if item.get_closest_marker("slow") else 3


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged, of ours, whatever Airflow has done to the log for good: other tests of this process run it."""
    logging.disable(logging.NOTSET)
    for name in ("pawnqueue", "airflow_provider_pawnqueue", *logging.root.manager.loggerDict):
        if name.partition(".")[0] in {"pawnqueue", "airflow_provider_pawnqueue"}:
            logger = logging.getLogger(name)
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)
    return caplog


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    """A SeaweedFS on free ports of loopback."""
    with servers.seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def rclone() -> Iterator[S3Server]:
    """An ``rclone serve s3``: a real store without conditional writes."""
    with servers.rclone() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """A moto server: for requests in sequence only, as it lets two writers through once in hundreds of races."""
    with servers.moto() as server:
        yield server


@pytest.fixture(scope="session")
def ceph() -> Iterator[S3Server]:
    """A Ceph RGW from Debian's packages."""
    with servers.ceph() as server:
        yield server


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `make dist` builds from this tree: sdist and wheel of both distributions."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    release.build(folder)
    return folder


@pytest.fixture(scope="session")
def wheels(dist: Path) -> Wheels:
    """The wheels of both distributions, built from this tree."""
    return wheels_in(dist)


@pytest.fixture(scope="session")
def settings_for() -> Callable[..., Settings]:
    """Settings for a bucket of a server, below a key prefix that no other test has."""
    buckets: dict[str, str] = {}

    def make(server: S3Server, *, s3: dict[str, Any] | None = None, **sections: Any) -> Settings:
        if server.endpoint not in buckets:
            buckets[server.endpoint] = server.make_bucket()
        chosen = {"key_prefix": f"t-{uuid.uuid4().hex[:12]}/", **(s3 or {})}
        return Settings(s3=server.address(buckets[server.endpoint], **chosen), **sections)

    return make
