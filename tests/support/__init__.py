"""What tests rely on: an S3 server that fails on demand, and a clock whose time is virtual."""
