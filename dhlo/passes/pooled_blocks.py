"""Averages over windows that lie side by side are sums of blocks: pool -> slice, reshape, reduce; over all of an image, reduce.

Kernels of reductions read blocks along memory, where those of pooling have a window in each lane, of which small results fill few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from dhlo.ir.dialect import attr, build
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import AdaptivePool, Pool, Reduce
from dhlo.ir.ops.movement import Full, Reshape, Slice, Transpose
from dhlo.ir.symbols import FloorDiv, product, show
from dhlo.ir.types import DTYPES, from_mlir
from dhlo.passes.late_transposes import across, in_operand_order
from dhlo.passes.replace import replace_each

__all__ = ["pooled_blocks"]

_LEAST = 3  # columns of a window; of fewer, kernels of pooling load several windows at once


def pooled_blocks(module: Module) -> None:
    """pool of windows side by side -> sums of blocks, and adaptive_pool to one element -> sum of all, over how many they are."""
    replace_each(module, Pool, _blocks)
    replace_each(module, AdaptivePool, _whole)


def _blocks(op: Pool) -> Value | None:
    window, out, t = attr(op, "window"), from_mlir(op.results[0]), from_mlir(op.operands[0])
    n = len(window)
    places, cut = t.shape[-n:], [o * k for o, k in zip(out.shape[-n:], window, strict=True)]
    apart = attr(op, "stride") != window or any(attr(op, "padding")) or any(d != 1 for d in attr(op, "dilation"))
    if attr(op, "how") != "avg" or apart or window[-1] < _LEAST:
        return None
    if any((o - FloorDiv(s - k, k) - 1) != 0 for o, s, k in zip(out.shape[-n:], places, window, strict=True)):
        return None  # windows that reach beyond the image
    found = across(op.operands[0])  # sums of what lies across would gather each element from another line
    x, perm = (op.operands[0], list(range(t.rank))) if found is None else (found[0](), found[1])
    order = in_operand_order(perm, range(t.rank))  # of each dim of x, which of the image's it is
    if any(c != s for c, s in zip(cut, places, strict=True)):
        whole = {"starts": ["0"] * t.rank, "steps": [1] * t.rank}
        shape = in_operand_order(perm, [*t.shape[:-n], *cut])
        x = build(Slice, [x], whole, results=[t.with_shape(shape)]).results[0]
    blocks = dict(zip(range(t.rank - n, t.rank), window, strict=True))
    split = [[out.shape[d], sympy.Integer(blocks[d])] if d in blocks else [t.shape[d]] for d in order]
    x = build(Reshape, [x], results=[t.with_shape([s for part in split for s in part])]).results[0]
    inner = [sum(len(part) for part in split[: k + 1]) - 1 for k, d in enumerate(order) if d in blocks]
    by = attr(op, "divisor") or int(sympy.prod(window))
    y = _average(x, inner, sympy.Integer(by), in_operand_order(perm, out.shape))
    return y if found is None else build(Transpose, [y], {"perm": perm}).results[0]


def _whole(op: AdaptivePool) -> Value | None:
    n, out, t = attr(op, "spatial"), from_mlir(op.results[0]), from_mlir(op.operands[0])
    if attr(op, "how") != "avg" or any(s != 1 for s in out.shape[-n:]):
        return None
    return _average(op.operands[0], list(range(t.rank - n, t.rank)), product(t.shape[-n:]), out.shape)


def _average(x: Value, dims: list[int], count: sympy.Expr, shape: Sequence[sympy.Expr]) -> Value:
    """The sum along dims over `count`, of this shape: rounded once, from f32 or wider."""
    dtype = from_mlir(x).dtype
    wide = DTYPES["f32"] if dtype.name in ("bf16", "f16") else dtype

    def of(y: Any, target: Any) -> Any:
        return y if from_mlir(y).dtype == target else build(ew.Convert, [y], results=[from_mlir(y).with_dtype(target)]).results[0]

    total = build(Reduce, [of(x, wide)], {"dims": dims, "how": "sum"}).results[0]
    by = build(Full, [], {"value": show(count)}, results=[from_mlir(total)]).results[0]
    y = of(build(ew.Div, [total, by]).results[0], dtype)
    out = from_mlir(y).with_shape(list(shape))
    back: Value = y if from_mlir(y) == out else build(Reshape, [y], results=[out]).results[0]
    return back
