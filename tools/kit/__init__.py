"""What the tests, the benchmarks and the demo share: servers as processes, stores with a hook, and histories.

It stands below all three and knows none of them, as they know nothing of each other.
"""
