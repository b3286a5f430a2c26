"""Maxima of dequantised bytes are those of the bytes, dequantised."""

from __future__ import annotations

from typing import Any

import torch

from dhlo.ir.dialect import attr, build
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Pool
from dhlo.ir.ops.movement import Full
from dhlo.ir.types import from_mlir
from dhlo.passes.cse import erase_dead
from dhlo.passes.integer_convolutions import dequantised_bytes

__all__ = ["pool_codes"]

Weights = dict[str, torch.Tensor]


def pool_codes(module: Module, weights: Weights) -> None:
    """Pools bytes where a max pooling reads `(bytes - zero) * scale`, with numbers for both: in that order the larger byte is the
    larger number. Only of windows that have a point inside, since what lies outside is -inf, which no byte is."""
    for block in bodies(module):
        if any([_rewrite(op, weights) for op in list(walk(block)) if isinstance(op, Pool)]):  # all of them
            erase_dead(block)


def _rewrite(op: Any, weights: Weights) -> bool:
    """Whether the pooling became one of bytes."""
    inside = all(2 * pad <= size for pad, size in zip(attr(op, "padding"), attr(op, "window"), strict=True))
    if attr(op, "how") != "max" or any(d != 1 for d in attr(op, "dilation")) or not inside:
        return False
    image = dequantised_bytes(op.operands[0], weights)
    if image is None or image[2] <= 0:
        return False
    (codes, zero, scale), y = image, from_mlir(op.results[0])

    def number(value: float) -> Value:
        made: Value = build(Full, [], {"value": repr(value)}, results=[y]).results[0]
        return made

    attrs = {n: attr(op, n) for n in ("how", "window", "stride", "padding", "dilation", "count_pad", "divisor")}
    with ir.InsertionPoint(op.operation), op.location:
        made = build(Pool, [codes], attrs, results=[y.with_dtype(from_mlir(codes).dtype.name)]).results[0]
        made = build(ew.Convert, [made], results=[y]).results[0]
        if zero:
            made = build(ew.Sub, [made, number(float(zero))]).results[0]
        made = build(ew.Mul, [made, number(scale)]).results[0]
    op.results[0].replace_all_uses_with(made)
    op.operation.erase()
    return True
