"""A queue under the worst of circumstances, on a real store: ``make demo``.

It stands in ``tools``, as it is run from a checkout and is no part of what is installed; the processes that it shows
are those of ``tools/crew``.
"""
