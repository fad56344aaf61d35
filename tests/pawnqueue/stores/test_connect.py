"""A store is chosen by its kind, and its client is imported no sooner."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from pawnqueue import MemoryStore, Settings
from pawnqueue.stores.connect import MODULE_BY_KIND, connect
from pawnqueue.stores.forks import ForkAwareStore


@pytest.mark.parametrize("kind", MODULE_BY_KIND)
def test_the_kind_chooses_the_store(kind: str) -> None:
    """Each kind of the registry has a module that connects."""
    s3 = Settings(s3={"bucket_name": "queues", "aws_access_key_id": "AKTEST", "aws_secret_access_key": "s"}).store
    assert s3.store_kind == "s3"
    store = connect(s3 if kind == "s3" else SimpleNamespace(store_kind=kind, bucket_name="queues", endpoint="here"))
    assert type(store) is {"s3": ForkAwareStore, "memory": MemoryStore}[kind]


def test_no_client_is_imported_before_it_is_used() -> None:
    """The package is imported without the clients of any store."""
    program = "import sys, pawnqueue; print(sorted({'boto3', 'obstore', 'pawnqueue.stores.s3'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
