"""State of packed sequences, taken on token by token."""
