"""Writes by index: the source combined into the places of a tensor that indices name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import sympy

from dhlo.codegen.elementwise.emit import memory_type
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.elementwise.rules import wrap
from dhlo.codegen.families.combine import combine
from dhlo.codegen.families.kernel import Launch, finish, rows, vectors
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import I64, V
from dhlo.ir.dialect import Op, attr, defining, number
from dhlo.ir.handles import Value
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.movement import Iota
from dhlo.ir.symbols import ceil_div, is_static, product
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import same

__all__ = ["lower_scatter", "lower_start"]

CHUNK = 1024  # elements of a row that one item covers
_FILLED = 4096  # elements of a constant that one item covers
_HOW = {"add": "sum", "mul": "prod"}
_BITS = {"sum": "max", "prod": "min"}  # of bools


class _Scatter(OpKernel):
    """Dims that aren't indexed are shared out among items, each of which goes through all indices in order. So results
    don't depend on the number of threads, and of several writes to a place the last wins. A dim of the indices along which one of
    them counts up (`own`: each position of it writes to places of its own) is shared out, too.

    Vectors run along rows, trailing dims that aren't indexed, or else along the last dim of the indices, where places that don't
    follow each other are written one after the other. Indices and the source may be computed here."""

    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        x, *self.index, self.src = op.operands
        self.shape, self.dtype, self.places = from_mlir(x).shape, from_mlir(x).dtype, from_mlir(self.index[0]).shape
        self.dims, self.at = attr(op, "dims"), attr(op, "at")
        how = attr(op, "how")
        self.how = _HOW.get(how, how)
        if self.dtype.is_bool:
            self.how = _BITS.get(self.how, self.how)
        rest = [d for d in range(len(self.shape)) if d not in self.dims]
        trailing = 0
        while trailing < len(rest) - self.at and rest[-1 - trailing] == len(self.shape) - 1 - trailing:
            trailing += 1
        self.before, self.after = rest[: self.at], rest[self.at : len(rest) - trailing]
        self.row = rest[len(rest) - trailing :]
        self.own = {k for v in self.index if (k := _counts(self, v)) is not None}
        last = len(self.places) - 1
        wide = last >= 0 and not (is_static(self.places[last]) and self.places[last] < self.fn.lanes)
        self.in_rows = self.sizes(self.row) != 1
        self.lane = last if wide and not self.in_rows else None  # the dim of the indices that vectors run along

    def sizes(self, dims: Sequence[int]) -> sympy.Expr:
        return product([self.shape[d] for d in dims])

    def lower(self) -> Launch:
        fn, em = self.fn, self.em
        line = self.sizes(self.row) if self.in_rows else self.places[self.lane] if self.lane in self.own else sympy.Integer(1)
        own = [k for k in range(len(self.places)) if k in self.own and k != self.lane]
        shared = [k for k in range(len(self.places)) if k not in self.own and k != self.lane]
        outer = [*(self.shape[d] for d in self.before), *(self.places[k] for k in own), *(self.shape[d] for d in self.after)]
        outer.append(ceil_div(line, CHUNK))
        with rows(em, self.begin, self.end, outer) as item:
            *fixed, chunk = item
            lo = fn.mul(em.position(chunk), CHUNK)
            hi = fn.min(fn.add(lo, CHUNK), self.size(line))
            if self.lane is not None and self.lane not in self.own:
                lo, hi = fn.const(0, I64), self.size(self.places[self.lane])
            n = len(self.before)
            at = dict(zip([*self.before, *self.after], [*fixed[:n], *fixed[n + len(own) :]], strict=True))
            places = dict(zip(own, fixed[n : n + len(own)], strict=True))
            sizes = [self.places[k] for k in shared]
            with rows(em, fn.const(0, I64), self.size(product(sizes)), sizes) as here:
                self.write(at, {**places, **dict(zip(shared, here, strict=True))}, lo, hi)
        steps = product(sizes) * (self.places[self.lane] if self.lane is not None and self.lane not in self.own else 1)
        work = steps * sympy.Min(line, CHUNK) * 2
        return Launch(finish(self, "scatter"), self.args.slots, product(outer), work, lookups=self.lookups)

    def write(self, at: dict[int, Index], places: dict[int, Index], lo: V, hi: V) -> None:
        """Combines the elements [lo, hi) of a line with those that they go to. `at`: positions in dims that aren't indexed;
        `places`: in those of the indices, but for the one that vectors run along."""
        em = self.em
        if self.lane is not None:
            lane = self.lane
            vectors(em, lo, hi, lambda i: self.element(at, {**places, lane: i}, []))
        elif not self.in_rows:
            self.element(at, places, [])
        else:
            y = self.place(at, places)
            sizes = [self.shape[d] for d in self.row]
            self.unless_bad(lambda: vectors(em, lo, hi, lambda i: self.combine(at, places, em.split(i, sizes), em.plus(y, i))))

    def element(self, at: dict[int, Index], places: dict[int, Index], row: Sequence[Index]) -> None:
        y = self.place(at, places)
        self.unless_bad(lambda: self.combine(at, places, row, y))

    def place(self, at: dict[int, Index], places: dict[int, Index]) -> Index:
        """Where in the result the row lies that the indices at `places` name."""
        em = self.em
        idx = [places[k] for k in range(len(self.places))]
        found = dict(at)
        for d, v in zip(self.dims, self.index, strict=True):
            k = _counts(self, v)
            if k is None:
                found[d] = em.lookup(em.value(v, idx), self.shape[d], self.op)
                continue
            if not same(self.places[k], self.shape[d]):
                em.lookup(self.fn.sub(self.size(self.places[k]), 1), self.shape[d], self.op)  # says whether all are there
            found[d] = idx[k]
        solid = range(len(self.shape) - len(self.row))
        return em.times(em.flatten([found[d] for d in solid], [self.shape[d] for d in solid]), em.size(self.sizes(self.row)))

    def unless_bad(self, body: Callable[[], None]) -> None:
        """The call fails if an index is out of range: what is written over stays as it is."""
        fn = self.fn
        bad = fn.load(fn.gep(self.args.get(("errors", self.em.check_of(self.op))), 2, I64), I64)
        with fn.when(fn.cmp("eq", bad, 0)), self.em.scope():
            body()

    def combine(self, at: dict[int, Index], places: dict[int, Index], row: Sequence[Index], y: Index) -> None:
        """Combines a vector of the source, or an element, with what is at `y`."""
        em, fn = self.em, self.fn
        rest = [*(at[d] for d in self.before), *(places[k] for k in range(len(self.places)))]
        x = em.value(self.src, [*rest, *(at[d] for d in self.after), *row])
        if self.lane is None and not self.in_rows:
            self.put(fn.extract(x, 0) if x.lanes else x, y)  # the same in all lanes
            return
        if y.vec is None and y.step == 1:
            self.put(x, y)
            return
        to, x = em.lanes(y), x if x.lanes else fn.splat(x)
        mask, em.mask = em.mask, None
        for n in range(fn.lanes):
            with nullcontext() if mask is None else fn.when(fn.extract(mask, n)):
                self.put(fn.extract(x, n), Index(fn.extract(to, n)))
        em.mask = mask

    def put(self, x: V, y: Index) -> None:
        p, em = self.result(0), self.em
        if self.how != "set" and y.uniform and not self.dtype.is_float:
            # With an index from a vector, Zen 4 takes a number for the one stored last: 9.4 ns for each, and 0.6 by its address.
            p, y = self.fn.opaque(self.fn.gep(p, y.base, memory_type(self.dtype))), em.zero
        if self.how != "set":
            old = em.load_memory(p, self.dtype, y)
            if old.lanes and not x.lanes:
                x = self.fn.splat(x)
            x = wrap(self.fn, combine(self.fn, self.how, old, x), self.dtype.name)
        em.store(x, p, self.dtype, y)


def _counts(k: OpKernel, v: Value) -> int | None:
    """The dim of the indices along which an index counts up from 0; None where it's another one."""
    op = defining(v)
    if op is None or not k.em.computed(v) or not isinstance(op, Iota):
        return None
    dim: int = attr(op, "dim")
    return dim if (number(attr(op, "start")), number(attr(op, "step"))) == (0, 1) else None


def lower_scatter(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.index_put, index_add, scatter and the like, onto a result that already holds the operand."""
    return _Scatter(low, group, op).lower()


def lower_start(low: Lowering, group: Group, op: Op) -> Launch:
    """Fills the result with an operand that is the same number everywhere."""
    k = OpKernel(low, group, op)
    x, size = op.operands[0], from_mlir(op.operands[0]).numel
    lo = k.fn.mul(k.begin, _FILLED)
    hi = k.fn.min(k.fn.mul(k.end, _FILLED), k.size(size))
    value = k.em.value(x, [k.em.zero] * from_mlir(x).rank)
    vectors(k.em, lo, hi, lambda i: k.em.store(value, k.result(0), from_mlir(x).dtype, i))
    return Launch(finish(k, "fill"), k.args.slots, ceil_div(size, _FILLED), _FILLED)
