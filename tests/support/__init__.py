"""What tests, benchmarks and demos stand on: real S3 servers as processes, and an S3 server that fails on demand."""
