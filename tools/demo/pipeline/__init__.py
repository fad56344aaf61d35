"""The whole of it: orders are published, ring, are claimed by a DAG, worked on by Spark, and settled: ``make demo``."""
