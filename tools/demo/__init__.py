"""What a stranger runs first: the whole pipeline (``make demo``), and the queue alone (``make demo-queue``).

It stands in ``tools``, as it is run from a checkout and is no part of what is installed.
"""
