"""Kernel families: each turns one kind of fused group into functions of a KernelModule."""
