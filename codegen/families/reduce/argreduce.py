"""Where the largest or smallest element along a dim stands."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.combine import identity_of
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import Lines, OpKernel, block_count, blocks_across, lanes_at, register_of
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import I32, I64, V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.types import DTYPES, from_mlir

__all__ = ["lower_argreduce"]

WAYS = 4  # independent vectors along a line


class _ArgReduce(OpKernel):
    """Keeps the best value and its place lane by lane: from the worst value at place 0 on, better ones replace it."""

    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        x = from_mlir(op.operands[0])
        self.dtype, self.lines, self.how = x.dtype, Lines.of(x, attr(op, "dim")), attr(op, "how")
        self.worst = identity_of(self.how, DTYPES["i8"] if self.dtype.is_bool else self.dtype)
        self.type = self.fn.vec(register_of(self.dtype))

    def better(self, x: V, best: V) -> V:
        """Strictly better; NaN is better than every number."""
        fn = self.fn
        if not x.is_float:
            return fn.cmp("gt" if self.how == "max" else "lt", x, best)
        beats = fn.not_(fn.cmp("le" if self.how == "max" else "ge", x, best))
        return fn.and_(beats, fn.cmp("eq", best, best))

    def along(self) -> None:
        fn, lines = self.fn, self.lines
        x, y, n = self.operand(0), self.result(0), self.size(lines.n)
        init = [fn.const(self.worst, self.type), fn.const(0, fn.vec(I32))]  # a place is the number of a vector
        wide = fn.and_(n, -fn.lanes * WAYS)
        with fn.loop(self.begin, self.end) as item:
            start = self.line_start(item.iv, lines)

            def body(i: V, carried: Sequence[V]) -> list[V]:
                v = self.load(x, self.dtype, self.elements(start, i, lines))
                if self.em.mask is not None:
                    v = fn.select(self.em.mask, v, init[0])
                return self._keep(v, fn.splat(fn.cast(fn.divu(i, fn.lanes), I32)), carried)

            with fn.loop(0, wide, fn.lanes * WAYS, init * WAYS) as lp, self.em.scope():
                out: list[V] = []
                for w in range(WAYS):
                    out += body(fn.add(lp.iv, w * fn.lanes), lp.carried[2 * w : 2 * w + 2])
                lp.yield_(*out)
            best = self._first(lp.results)
            best = lanes_at(self, wide, n, best, body)
            fn.store(self._across_lanes(*best), fn.gep(y, item.iv, I64))

    def _keep(self, v: V, place: V, carried: Sequence[V]) -> list[V]:
        take = self.better(v, carried[0])
        return [self.fn.select(take, v, carried[0]), self.fn.select(take, place, carried[1])]

    def _first(self, pairs: Sequence[V]) -> list[V]:
        """Joins the independent vectors: the better value, of equal ones the earlier."""
        fn = self.fn
        best = list(pairs[:2])
        for w in range(1, WAYS):
            v, place = pairs[2 * w : 2 * w + 2]
            same = fn.not_(fn.or_(self.better(v, best[0]), self.better(best[0], v)))
            take = fn.or_(self.better(v, best[0]), fn.and_(same, fn.cmp("lt", place, best[1])))
            best = [fn.select(take, v, best[0]), fn.select(take, place, best[1])]
        return best

    def _across_lanes(self, best: V, place: V) -> V:
        """The first position among the lanes that hold the best value."""
        fn = self.fn
        position = fn.add(fn.mul(fn.cast(place, I64), fn.lanes), fn.iota())
        far = fn.const((1 << 63) - 1, fn.vec(I64))
        if not best.is_float:
            top = fn.reduce("maxsi" if self.how == "max" else "minsi", best)
            return fn.reduce("minsi", fn.select(fn.cmp("eq", best, top), position, far))
        top = fn.reduce("maximumf" if self.how == "max" else "minimumf", best)  # NaN if any lane is
        return fn.reduce("minsi", fn.select(fn.not_(self.better(fn.splat(top), best)), position, far))

    def across(self) -> None:
        fn, lines = self.fn, self.lines
        x, y, n, inner = self.operand(0), self.result(0), self.size(lines.n), self.size(lines.inner)

        def body(start: V, first: V) -> None:
            init = [fn.const(self.worst, self.type), fn.const(0, fn.vec(I64))]
            with fn.loop(0, n, 1, init) as lp:
                v = self.load(x, self.dtype, Index(fn.add(start, fn.mul(lp.iv, inner)), 1))
                lp.yield_(*self._keep(v, fn.splat(lp.iv), lp.carried))
            self.em.store(lp.results[1], y, DTYPES["i64"], Index(first, 1))

        blocks_across(self, lines, body)


def lower_argreduce(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.argmax and argmin along a dim: the first of equal elements; NaN wins."""
    k = _ArgReduce(low, group, op)
    lines = k.lines
    if lines.contiguous:
        k.along()
        return Launch(finish(k, "argreduce"), k.args.slots, lines.outer, lines.n)
    k.across()
    return Launch(finish(k, "argreduce"), k.args.slots, block_count(lines, k.fn.lanes), lines.n * k.fn.lanes)
