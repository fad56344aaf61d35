"""Publishers, consumers and janitors as processes on a real store, each with a diary of what it believes.

The demo shows them (``tools/demo``), and ``tests/servers`` judges them.
"""
