"""Reductions, with the elementwise work before and after them."""
