"""Whether an index tensor's elements rise along its last dim, as those of an enlarged image do, so that they look up neighbours."""

from __future__ import annotations

from dhlo.ir.dialect import Op, attr, defining
from dhlo.ir.handles import Value
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.control import Group, yielded
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Reshape
from dhlo.ir.types import from_mlir

__all__ = ["rises"]

_KEEPS = (ew.Floor, ew.Ceil, ew.Round, ew.Convert, ew.Add, ew.Sub, ew.Mul, ew.Div, ew.FloorDiv, ew.Maximum, ew.Minimum)


def rises(v: Value, depth: int = 16) -> bool:
    """Positions along the last dim went through nothing but what keeps an order. A hint: that factors aren't negative, and that a
    sum's terms rise alike, isn't proved."""
    op = defining(v)
    if isinstance(op, Group):
        op = defining(yielded(op.regions[0])[list(op.results).index(v)])
    if op is None or depth == 0:
        return False
    t = from_mlir(op.results[0])
    if isinstance(op, Iota):
        return bool(attr(op, "dim") == t.rank - 1)
    if isinstance(op, (Broadcast, Reshape)):
        src = from_mlir(op.operands[0])
        last = attr(op, "dims")[-1:] == [t.rank - 1] if isinstance(op, Broadcast) else True
        return bool(src.rank and last and src.shape[-1] == t.shape[-1]) and rises(op.operands[0], depth - 1)
    if isinstance(op, Concat):
        return bool(attr(op, "dim") != t.rank - 1) and all(rises(x, depth - 1) for x in op.operands)
    if isinstance(op, _KEEPS):
        moving = [x for x in op.operands if not _is_even(x, depth)]
        return bool(moving) and all(rises(x, depth - 1) for x in moving)
    return False


def _is_even(v: Value, depth: int) -> bool:
    """The same number, or the same along the last dim."""
    op: Op | None = defining(v)
    if isinstance(op, Full):
        return True
    if isinstance(op, Broadcast):
        src = from_mlir(op.operands[0])
        return from_mlir(v).rank - 1 not in attr(op, "dims") or src.shape[-1] == 1
    return isinstance(op, Iota) and attr(op, "dim") != from_mlir(v).rank - 1
