"""Reductions of a few elements along the last dim, of points or colours, are written out: vectors then run along the dim before."""

from __future__ import annotations

from functools import reduce

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.movement import Reshape, Slice, Transpose
from dhlo.ir.symbols import is_static, product
from dhlo.ir.types import from_mlir
from dhlo.passes.replace import replace_each

__all__ = ["short_reductions"]

_MOST = 4  # elements that lie apart are loaded in whole vectors up to here
_FEW = 64  # results that aren't worth it
_BY = {"sum": ew.Add, "prod": ew.Mul, "max": ew.Maximum, "min": ew.Minimum, "any": ew.Or, "all": ew.And, "xor": ew.Xor}


def short_reductions(module: Module) -> None:
    """reduce -> slices, and the op that combines two of them, in order, where two to four elements of a last dim are combined."""
    replace_each(module, Reduce, _written_out)


def _written_out(op: Reduce) -> Value | None:
    if not _is_short(op):
        return None
    x = op.operands[0]
    parts = [_part(x, i) for i in range(int(from_mlir(x).shape[-1]))]
    y = reduce(lambda a, b: build(_BY[attr(op, "how")], [a, b]).results[0], parts)
    whole: Value = build(Reshape, [y], results=[from_mlir(op.results[0])]).results[0]
    return whole


def _is_short(op: Reduce) -> bool:
    t = from_mlir(op.operands[0])
    if attr(op, "dims") != [t.rank - 1] or attr(op, "how") not in _BY or t.dtype.name in ("bf16", "f16"):
        return False  # reduced floats are added up in f32
    n, results = t.shape[-1], product(t.shape[:-1])
    worth = is_static(n) and 2 <= n <= _MOST and not (is_static(results) and results < _FEW)
    return bool(worth) and not _lies_across(op.operands[0])


def _lies_across(v: Value, depth: int = 8) -> bool:
    """The last dim is another one in memory, as channels of images are, so that vectors run along memory's last dim anyway."""
    op = defining(v)
    if isinstance(op, Transpose):
        return bool(attr(op, "perm")[-1] != from_mlir(v).rank - 1)
    through = op is not None and op.kind is Kind.ELEMENTWISE and depth > 0
    return through and any(_lies_across(x, depth - 1) for x in op.operands)


def _part(x: Value, i: int) -> Value:
    """Element i along the last dim, which is one of one element."""
    t = from_mlir(x)
    starts, steps = [*["0"] * (t.rank - 1), str(i)], [1] * t.rank
    y: Value = build(Slice, [x], {"starts": starts, "steps": steps}, results=[t.with_shape([*t.shape[:-1], 1])]).results[0]
    return y
