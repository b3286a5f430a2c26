"""Lowerings of ATen ops, by subject; importing this package registers them all."""

from dhlo.frontend.aten import (
    activation,
    contraction,
    control,
    convolution,
    create,
    elementwise,
    indexing,
    movement,
    norm,
    reduction,
    resize,
)

__all__ = ["activation", "contraction", "control", "convolution", "create", "elementwise", "indexing", "movement", "norm",
           "reduction", "resize"]
