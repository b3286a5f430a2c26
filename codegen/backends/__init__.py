"""What kernels and host programs become on a kind of machine."""
