"""What the tests, the benchmarks and the demo share: servers as processes, stores with a hook, and histories.

It imports none of the three, and they do not import each other.
"""
