"""Runs PyTorch's operator database (OpInfo) through the compiler: `python -m tests.opinfo`; see docs/coverage.md."""
