"""Kernel families, a folder each."""
