"""Joins along the last dim of values that lie across, as heads of detectors make them, are made as the values lie and then turned.

`cat([f(y[..., :2]), g(y[..., 2:])], -1)` of `y = x.permute(0, 2, 3, 1)` is `cat([f(x[:, :2]), g(x[:, 2:])], 1)`, permuted alike.
Vectors then run along memory, each of them in one part of what is joined, and are transposed once, on their way to the result.
"""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Slice, Transpose
from dhlo.ir.symbols import is_static
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.late_transposes import in_operand_order
from dhlo.passes.replace import replace_each

__all__ = ["turned_joins"]

_FEW = 8  # elements of a last dim that are interleaved, or held by a part of a vector

Perm = tuple[int, ...]


def turned_joins(module: Module) -> None:
    """concat of transposed values -> transpose of their concat, where all that is joined lies across in the same way."""
    replace_each(module, Concat, _turned)


def _turned(op: Concat) -> Value | None:
    t = from_mlir(op.results[0])
    last = t.rank - 1
    if attr(op, "dim") != last or (is_static(t.shape[last]) and t.shape[last] < _FEW):
        return None
    tree = _Tree(op)
    if len(tree.perms) != 1 or not tree.whole or tree.read_elsewhere():
        return None
    (perm,) = tree.perms
    if perm[last] == last:
        return None
    turned: Value = build(Transpose, [_Straight(perm).value(op.results[0])], {"perm": list(perm)}).results[0]
    return turned


class _Tree:
    """What a join is computed from, up to values that are transposed: how these are (`perms`), the ops before them, and whether
    that is all there is, beside numbers, positions, and what is repeated."""

    def __init__(self, op: Concat) -> None:
        self.root, self.ops, self.perms, self.whole = op, dict[Any, Any](), set[Perm](), True
        pending: list[Any] = [op.results[0]]
        while pending:
            v = pending.pop()
            made_by = defining(v)
            if isinstance(made_by, Transpose):
                self.perms.add(tuple(attr(made_by, "perm")))
            elif made_by is not None and (made_by.kind is Kind.ELEMENTWISE or isinstance(made_by, (Concat, Slice))):
                if v not in self.ops:
                    self.ops[v] = made_by
                    pending += made_by.operands
            elif not isinstance(made_by, (Broadcast, Full, Iota)):
                self.whole = False

    def read_elsewhere(self) -> bool:
        """Does anything else read what is computed on the way, which would have to be computed twice?"""
        inside = {op.operation for op in self.ops.values()}
        work = [v for v, op in self.ops.items() if op != self.root and not isinstance(op, Slice)]
        return any(use.owner not in inside for v in work for use in v.uses)


class _Straight:
    """Builds values of a tree as they were before they are transposed by `perm`."""

    def __init__(self, perm: Perm) -> None:
        self.perm, self.made = perm, dict[Any, Any]()

    def value(self, v: Value) -> Any:
        """`v` as it was; chains may be of any length, so what comes before it is built first, from a list."""
        pending: list[Any] = [v]
        while pending:
            top = pending[-1]
            op = defining(top)
            before = [] if isinstance(op, (Transpose, Broadcast)) else [x for x in op.operands if x not in self.made]
            if before and top not in self.made:
                pending += before
                continue
            if top not in self.made:
                self.made[top] = self._build(top, op)
            pending.pop()
        return self.made[v]

    def _build(self, v: Value, op: Any) -> Any:
        """`v` from operands that have been built."""
        out = from_mlir(v).with_shape(in_operand_order(self.perm, from_mlir(v).shape))
        attrs: dict[str, Any] = {k: op.attributes[k] for k in op.attributes}
        if isinstance(op, Transpose):
            return op.operands[0]
        if isinstance(op, Broadcast):
            return self._repeated(op, out)
        if isinstance(op, (Concat, Iota)):
            attrs["dim"] = self.perm[attr(op, "dim")]
        if isinstance(op, Slice):
            attrs = {k: in_operand_order(self.perm, attr(op, k)) for k in ("starts", "steps")}
        return build(type(op), [self.made[x] for x in op.operands], attrs, results=[out]).results[0]

    def _repeated(self, op: Broadcast, out: TensorType) -> Any:
        """Dims of what is repeated follow each other as those of the result do, whose operand may be transposed for that."""
        place = [self.perm[d] for d in attr(op, "dims")]
        order = sorted(range(len(place)), key=lambda i: place[i])
        x = op.operands[0]
        if order != sorted(order):
            x = build(Transpose, [x], {"perm": order}).results[0]
        return build(Broadcast, [x], {"dims": sorted(place)}, results=[out]).results[0]
