"""The host program: contract, sizes, memory, control, launches."""
