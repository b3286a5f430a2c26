"""The ops of the dialect, a class each; importing this package defines them all."""

from dhlo.ir.ops import (
    collective,
    complexes,
    compute,
    control,
    elementwise,
    extern,
    factor,
    host,
    lookup,
    movement,
    paged,
    quantised,
    random,
    recurrence,
    sequence,
    special,
)

__all__ = [
    "collective",
    "complexes",
    "compute",
    "control",
    "elementwise",
    "extern",
    "factor",
    "host",
    "lookup",
    "movement",
    "paged",
    "quantised",
    "random",
    "recurrence",
    "sequence",
    "special",
]
