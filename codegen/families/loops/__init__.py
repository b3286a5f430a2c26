"""Elementwise work alone."""
