"""Running combinations along a dim."""
