"""Writes by index: the source combined into the places of a tensor that indices name."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.elementwise.rules import wrap
from dhlo.codegen.families.combine import combine
from dhlo.codegen.families.kernel import Launch, finish, vectors
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import I64, V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div, product
from dhlo.ir.types import from_mlir

__all__ = ["lower_scatter"]

CHUNK = 1024  # elements of a row that one item covers


class _Scatter(OpKernel):
    """Dims that aren't indexed are shared out among items, each of which goes through all indices in order. So results
    don't depend on the number of threads, and of several writes to a place the last wins. Trailing dims that aren't
    indexed are rows, handled a vector at a time."""

    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        x, *index, _ = op.operands
        self.shape, self.dtype = from_mlir(x).shape, from_mlir(x).dtype
        self.how, self.dims, self.at = attr(op, "how"), attr(op, "dims"), attr(op, "at")
        if self.dtype.is_bool:
            self.how = {"add": "max", "mul": "min"}.get(self.how, self.how)
        self.places = product(from_mlir(index[0]).shape)
        self.index_types = [from_mlir(i).dtype for i in index]
        rest = [d for d in range(len(self.shape)) if d not in self.dims]
        trailing = 0
        while trailing < len(rest) - self.at and rest[-1 - trailing] == len(self.shape) - 1 - trailing:
            trailing += 1
        self.before, self.after = rest[: self.at], rest[self.at : len(rest) - trailing]
        self.row = self.sizes(rest[len(rest) - trailing :])

    def sizes(self, dims: Sequence[int]) -> sympy.Expr:
        return product([self.shape[d] for d in dims])

    def lower(self) -> Launch:
        fn, em = self.fn, self.em
        self.y, self.src = self.result(0), self.operand(len(self.index_types) + 1)
        self.indices = [self.operand(1 + i) for i in range(len(self.index_types))]
        chunks = ceil_div(self.row, CHUNK)
        outer = [self.sizes(self.before), self.sizes(self.after), chunks]
        with fn.loop(self.begin, self.end) as item, em.scope():
            a, b, chunk = em.split(Index(item.iv), outer)
            with fn.loop(0, self.size(self.places)) as place, em.scope():
                y, src = self.rows_of(a, b, place.iv)
                bad = fn.load(fn.gep(self.args.get(("errors", em.check_of(self.op))), 2, I64), I64)
                with fn.when(fn.cmp("eq", bad, 0)):  # the call fails: what is written over stays as it is
                    self.update(src, y, chunk)
        work = self.places * sympy.Min(self.row, CHUNK) * 2
        return Launch(finish(self, "scatter"), self.args.slots, product(outer), work, lookups=self.lookups)

    def rows_of(self, a: Index, b: Index, place: V) -> tuple[Index, Index]:
        """Positions in the result and the source of the row that a place and the other dims name."""
        em = self.em
        at: dict[int, Index] = {}
        for dims, i in ((self.before, a), (self.after, b)):
            at.update(zip(dims, em.split(i, [self.shape[d] for d in dims]), strict=True))
        for d, p, dtype in zip(self.dims, self.indices, self.index_types, strict=True):
            at[d] = em.lookup(em.load_memory(p, dtype, Index(place)), self.shape[d], self.op)
        solid = self.shape[: len(self.dims) + len(self.before) + len(self.after)]
        y = em.times(em.flatten([at[d] for d in range(len(solid))], solid), em.size(self.row))
        flat = em.plus(em.times(a, em.size(self.places)), Index(place))
        flat = em.plus(em.times(flat, em.size(self.sizes(self.after))), b)
        return y, em.times(flat, em.size(self.row))

    def update(self, src: Index, y: Index, chunk: Index) -> None:
        em, fn = self.em, self.fn
        if self.row == 1:
            self.element(src, y)
            return
        lo = fn.mul(em.position(chunk), CHUNK)
        hi = fn.min(fn.add(lo, CHUNK), self.size(self.row))
        vectors(em, lo, hi, lambda i: self.element(em.plus(src, i), em.plus(y, i)))

    def element(self, src: Index, y: Index) -> None:
        x = self.load(self.src, self.dtype, src)
        if self.how != "set":
            how = {"add": "sum", "mul": "prod"}.get(self.how, self.how)
            x = wrap(self.fn, combine(self.fn, how, self.load(self.y, self.dtype, y), x), self.dtype.name)
        self.store(x, self.y, self.dtype, y)


def lower_scatter(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.index_put, index_add, scatter and the like, onto a result that already holds the operand."""
    return _Scatter(low, group, op).lower()
