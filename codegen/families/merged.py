"""Trailing dims of a group's values that are one dim to all that it computes: images beside something for each channel, or whose
channels are summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import GroupKernel
from dhlo.ir.dialect import Kind, Op, attr, defining
from dhlo.ir.handles import Value
from dhlo.ir.ops.complexes import Imag, Real
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Reshape, Reverse, Slice, Take, Transpose
from dhlo.ir.symbols import parse
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import reshape_groups

__all__ = ["as_one", "merged_dims"]


def merged_dims(k: GroupKernel, values: Sequence[Value], most: int) -> int:
    """How many trailing dims of the values, at most `most` of the first one, may be gone through as one: an element's place among
    them is the same, in dims of the same sizes, in all that is read for it, or what is read has none of them."""
    shape = from_mlir(values[0]).shape
    return next((m for m in range(most, 1, -1) if _Tail(k, shape[-m:]).whole(values)), 1)


def as_one(i: Index, sizes: Sequence[sympy.Expr]) -> list[Index]:
    """The index in dims of these sizes that are gone through as one: position `i` of all of them together, which is all that may be
    asked of it."""
    whole = tuple(sizes)
    return [i] if len(whole) == 1 else [Index(i.base, i.step, i.vec, i.multiple, (i, n, whole)) for n in range(len(whole))]


class _Tail:
    """Looks for trailing dims of these sizes, written alike, in values of a group."""

    def __init__(self, k: GroupKernel, sizes: tuple[sympy.Expr, ...]) -> None:
        self.k, self.sizes, self.count = k, sizes, len(sizes)

    def whole(self, values: Sequence[Value]) -> bool:
        """Do all values have them, and all that is read for these?"""
        pending, seen = list(values), set[Any]()
        while pending:
            v = pending.pop()
            if v in seen:
                continue
            seen.add(v)
            if from_mlir(v).shape[-self.count :] != self.sizes:
                return False
            if self.k.em.computed(v):
                read = self.read(defining(v))
                if read is None:
                    return False
                pending += read
        return True

    def read(self, op: Any) -> list[Value] | None:
        """The operands whose trailing dims an element of the result is looked up in by its own ones; None if it isn't so."""
        rank = from_mlir(op.results[0]).rank
        front = rank - self.count  # dims before
        if op.kind is Kind.ELEMENTWISE or isinstance(op, (Real, Imag)):
            return list(op.operands)
        if isinstance(op, Iota):
            return [] if attr(op, "dim") < front else None
        if isinstance(op, Full):
            return []
        if isinstance(op, Reduce):
            return list(op.operands) if max(attr(op, "dims"), default=-1) < from_mlir(op.operands[0]).rank - self.count else None
        if isinstance(op, Broadcast):
            src, out = from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape
            # One element that is repeated is looked up at its only place.
            kept = [d for d, n in zip(attr(op, "dims"), src, strict=True) if d >= front and (n != 1 or out[d] == 1)]
            return None if 0 < len(kept) < self.count else list(op.operands) if kept else []
        if isinstance(op, Reshape) and self.is_one(op, front):
            return []
        return list(op.operands)[:1] if self.stays(op, front) else list(op.operands) if _joins_before(op, front) else None

    def is_one(self, op: Reshape, front: int) -> bool:
        """Are the trailing dims the last one of the operand, which anything may be asked of?"""
        src, out = from_mlir(op.operands[0]), from_mlir(op.results[0])
        pairs = [(list(a), list(b)) for a, b in reshape_groups(out.shape, src.shape)]
        return (list(range(front, out.rank)), [src.rank - 1]) in pairs

    def stays(self, op: Op, front: int) -> bool:
        """Are the trailing dims those of the first operand?"""
        if not op.operands:
            return False
        src = from_mlir(op.operands[0])
        if isinstance(op, Transpose):
            return bool(attr(op, "perm")[front:] == list(range(front, front + self.count)))
        if isinstance(op, Slice):
            starts, steps = attr(op, "starts"), attr(op, "steps")
            return all(parse(str(s)) == 0 for s in starts[front:]) and all(s == 1 for s in steps[front:])
        if isinstance(op, Reverse):
            return all(d < front for d in attr(op, "dims"))
        if isinstance(op, Reshape):
            pairs = [(list(a), list(b)) for a, b in reshape_groups(from_mlir(op.results[0]).shape, src.shape)]
            return all(([front + n], [src.rank - self.count + n]) in pairs for n in range(self.count))
        if isinstance(op, Take):
            looked_up = attr(op, "at") + from_mlir(op.operands[1]).rank
            return bool(looked_up <= front) and all(d < src.rank - self.count for d in attr(op, "dims"))
        return False


def _joins_before(op: Op, front: int) -> bool:
    return isinstance(op, Concat) and bool(attr(op, "dim") < front)
