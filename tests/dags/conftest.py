"""DAGs are tested with the queue of the operators' tests."""

from tests.operators.conftest import queue

__all__ = ["queue"]
