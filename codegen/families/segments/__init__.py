"""Reductions of runs of rows, whose ends are data."""
