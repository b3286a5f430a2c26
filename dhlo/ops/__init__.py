"""The ops of the dialect, a class each; importing this package defines them all."""

from dhlo.ops import compute, control, elementwise, extern, lookup, movement, random, sequence

__all__ = ["compute", "control", "elementwise", "extern", "lookup", "movement", "random", "sequence"]
