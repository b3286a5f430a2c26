"""Kernel and host code generation: planned groups to upstream MLIR to object code."""
