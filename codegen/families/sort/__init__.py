"""Ordering and searching."""
