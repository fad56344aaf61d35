"""What a stranger runs first: the whole pipeline (``make demo``), and the queue alone (``make demo-queue``).

It is in ``tools``, as it is run from a checkout and is not installed.
"""
