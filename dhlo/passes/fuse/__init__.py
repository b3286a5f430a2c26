"""Gathers ops into groups, each of which becomes one step of kernels."""
