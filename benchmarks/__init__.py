"""Workloads, and one command that measures dhlo beside other compilers: python -m benchmarks."""
