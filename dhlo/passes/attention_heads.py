"""Lets attention read grouped key and value heads directly instead of repeated copies of them."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Attention
from dhlo.ir.ops.movement import Broadcast, Reshape
from dhlo.ir.types import from_mlir

__all__ = ["attention_heads"]


def attention_heads(module: Module) -> None:
    """Where k and v are both `reshape(broadcast(x))` repeating each head of x [B, H, S, D] g times in a row, or broadcasts of the
    only one, attention takes x."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            for op in list(block.operations):
                if isinstance(op, Attention):
                    k, v = (_unrepeated(op.operands[i]) for i in (1, 2))
                    if k is not None and v is not None and from_mlir(k).shape[1] == from_mlir(v).shape[1]:
                        op.operation.operands[1] = k
                        op.operation.operands[2] = v


def _of_one_head(op: Broadcast) -> bool:
    """Whether an op repeats the one head that there is."""
    narrow, wide = from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape
    return attr(op, "dims") == [0, 1, 2, 3] and narrow == (wide[0], 1, *wide[2:])


def _unrepeated(v: Value) -> Any:
    """The [B, H, S, D] tensor whose heads v repeats, or None."""
    out = from_mlir(v)
    r = defining(v)
    if isinstance(r, Broadcast) and _of_one_head(r):
        return r.operands[0]
    b = defining(r.operands[0]) if isinstance(r, Reshape) else None
    if not isinstance(b, Broadcast):
        return None
    wide = from_mlir(b.results[0])
    if wide.rank != 5 or (wide.shape[0], *wide.shape[3:]) != (out.shape[0], *out.shape[2:]):
        return None
    x = b.operands[0]
    narrow, dims = from_mlir(x), attr(b, "dims")
    if 2 in dims and narrow.shape[dims.index(2)] != 1:
        return None  # all heads in turn, repeated as a whole
    want = (wide.shape[0], wide.shape[1], wide.shape[3], wide.shape[4])
    if tuple(s for s in narrow.shape if s != 1) != tuple(s for s in want if s != 1):
        return None
    if narrow.rank == 4 and narrow.shape == want:
        return x
    with ir.InsertionPoint(r.operation), r.location:
        return build(Reshape, [x], results=[narrow.with_shape(want)]).results[0]
