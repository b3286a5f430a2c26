"""Lowerings of ATen ops, by subject; importing this package registers them all."""

from dhlo.frontend.aten import (
    activation,
    complex,
    composite,
    contraction,
    control,
    convolution,
    create,
    elementwise,
    indexing,
    movement,
    norm,
    parts,
    recurrent,
    reduction,
    resize,
    writes,
)

__all__ = [
    "activation",
    "complex",
    "composite",
    "contraction",
    "control",
    "convolution",
    "create",
    "elementwise",
    "indexing",
    "movement",
    "norm",
    "parts",
    "recurrent",
    "reduction",
    "resize",
    "writes",
]
