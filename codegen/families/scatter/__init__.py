"""Writes and reads by index."""
