"""CPUs: the ABI, machine code, model files."""
