"""Binary search in sorted edges, and counting by bins of equal width."""

from __future__ import annotations

import sympy

from dhlo.codegen.elementwise.emit import memory_type
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish, vectors
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import I64, V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div, product
from dhlo.ir.types import DTYPES, from_mlir

__all__ = ["lower_histogram", "lower_search_sorted"]

CHUNK = 512


def lower_search_sorted(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.searchsorted, of values of the edges' dtype: a vector of searches side by side, whose remaining lengths are the same."""
    k = OpKernel(low, group, op)
    fn, em = k.fn, k.em
    edges_t, x_t = (from_mlir(v) for v in op.operands)
    edges, x, y = k.operand(0), k.operand(1), k.result(0)
    n = k.size(edges_t.shape[-1])
    lines, width = (sympy.Integer(1), x_t.numel) if edges_t.rank == 1 else (product(x_t.shape[:-1]), x_t.shape[-1])
    chunks = ceil_div(width, CHUNK)
    bits = fn.sub(64, fn.op(I64, f'"llvm.intr.ctlz"({n.name}) <{{is_zero_poison = false}}> : (i64) -> i64'))
    before = "gt" if attr(op, "right") else "ge"  # an edge that isn't after (or at) the value stands before it; so NaN comes last

    def search(start: V, value: V) -> V:
        def step(at: V, half: V, active: V) -> V:
            """Moves on by `half` where the edge just before that stands before the value."""
            mask = fn.splat(active) if em.mask is None else fn.and_(em.mask, fn.splat(active))
            there = fn.add(fn.add(at, fn.splat(fn.sub(half, 1))), fn.splat(start))
            with em.scope(mask):
                edge = k.load(edges, edges_t.dtype, Index(0, vec=there))
            return fn.select(fn.and_(mask, fn.not_(fn.cmp(before, edge, value))), fn.add(at, fn.splat(half)), at)

        with fn.loop(0, bits, 1, [fn.const(0, fn.vec(I64)), n]) as lp:
            at, left = lp.carried
            half = fn.divu(left, 2)
            lp.yield_(step(at, half, fn.cmp("gt", half, 0)), fn.sub(left, half))
        return step(lp.results[0], fn.const(1, I64), fn.cmp("gt", n, 0))

    with fn.loop(k.begin, k.end) as item:
        line, chunk = (em.position(i) for i in em.split(Index(item.iv), [lines, chunks]))
        lo = fn.mul(chunk, CHUNK)
        hi = fn.min(fn.add(lo, CHUNK), k.size(width))
        first, start = fn.mul(line, k.size(width)), fn.mul(line, n)

        def find(i: Index) -> None:
            at = em.plus(Index(first), i)
            em.store(search(start, k.load(x, x_t.dtype, at)), y, DTYPES["i64"], at)

        vectors(em, lo, hi, find)
    return Launch(finish(k, "searchsorted"), k.args.slots, lines * chunks, CHUNK * 64)


def lower_histogram(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.histc of floats; runs as a single item."""
    k = OpKernel(low, group, op)
    fn, t, bins = k.fn, from_mlir(op.operands[0]), attr(op, "bins")
    x, y, n, real = k.operand(0), k.result(0), k.size(t.numel), t.dtype.register
    counts = k.scratch
    with fn.loop(0, bins) as lp:
        fn.store(fn.const(0, I64), fn.gep(counts, lp.iv, I64))
    lo, hi = (fn.const(float(attr(op, name)), real) for name in ("low", "high"))
    if attr(op, "low") == attr(op, "high"):
        lo, hi = _extremes(k, x, n)
    with fn.loop(0, n) as lp:
        v = k.load(x, t.dtype, Index(lp.iv))
        at = fn.div(fn.mul(fn.sub(v, lo), float(bins)), fn.sub(hi, lo))
        inside = fn.and_(fn.and_(fn.cmp("ge", v, lo), fn.cmp("le", v, hi)), fn.cmp("eq", at, at))
        with fn.when(inside):
            cell = fn.gep(counts, fn.min(fn.cast(fn.minnum(at, float(bins)), I64), bins - 1), I64)
            fn.store(fn.add(fn.load(cell, I64), 1), cell)
    with fn.loop(0, bins) as lp:
        c = fn.cast(fn.load(fn.gep(counts, lp.iv, I64), I64), memory_type(t.dtype))
        fn.store(c, fn.gep(y, lp.iv, memory_type(t.dtype)))
    return Launch(finish(k, "histogram"), k.args.slots, sympy.Integer(1), sympy.Integer(1), sympy.Integer(8 * bins))


def _extremes(k: OpKernel, x: V, n: V) -> tuple[V, V]:
    """The range of all elements, widened by one on each side if it is a point."""
    fn, dtype = k.fn, from_mlir(k.op.operands[0]).dtype
    real = dtype.register
    init = [fn.const(float("inf"), fn.vec(real)), fn.const(-float("inf"), fn.vec(real))]
    full = fn.and_(n, -fn.lanes)
    with fn.loop(0, full, fn.lanes, init) as lp:
        v = k.load(x, dtype, Index(lp.iv, 1))
        lp.yield_(fn.minnum(v, lp.carried[0]), fn.maxnum(v, lp.carried[1]))
    lo, hi = fn.reduce("minnumf", lp.results[0]), fn.reduce("maxnumf", lp.results[1])
    with fn.loop(full, n, 1, [lo, hi]) as lp:
        v = k.load(x, dtype, Index(lp.iv))
        lp.yield_(fn.minnum(v, lp.carried[0]), fn.maxnum(v, lp.carried[1]))
    lo, hi = lp.results
    point = fn.or_(fn.cmp("eq", lo, hi), fn.cmp("eq", n, 0))
    return fn.select(point, fn.sub(lo, 1.0), lo), fn.select(point, fn.add(hi, 1.0), hi)
