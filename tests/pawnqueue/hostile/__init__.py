"""A fuzzer: somebody forges objects of every kind in a bucket, and the queue works around them."""
