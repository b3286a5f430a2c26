"""Factorisations of matrices."""
