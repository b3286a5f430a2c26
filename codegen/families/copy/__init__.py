"""Copies of memory."""
