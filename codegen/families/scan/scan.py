"""Running sums, products, maxima, minima and logarithms of sums along a dim."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dhlo.codegen.elementwise import vmath
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.combine import combine, identity_of
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import (
    Lines,
    OpKernel,
    block_count,
    blocks_across,
    lanes_at,
    prefix,
    register_of,
)
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.types import DTYPES, DType, from_mlir

__all__ = ["lower_scan"]


def _accumulator(how: str, dtype: DType) -> str:
    """Sums and products of f32 run in f64, as eager does: rounding errors don't grow along the line."""
    return "f64" if dtype.name == "f32" and how in ("sum", "prod") else register_of(dtype)


_PREFIX_COST = 8  # of an element of a line, in simple operations: prefixes within a vector take four steps


class _Scan(OpKernel):
    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        x = from_mlir(op.operands[0])
        self.dtype, self.lines = x.dtype, Lines.of(x, attr(op, "dim"))
        how = attr(op, "how")
        if self.dtype.is_bool:  # bytes 0 and 1
            how = {"sum": "max", "prod": "min"}.get(how, how)
        self.how, self.acc = how, _accumulator(how, self.dtype)
        self.identity = identity_of("max" if how == "logsumexp" else how, DTYPES["i8"] if self.dtype.is_bool else self.dtype)

    def join(self, a: V, b: V) -> V:
        """Combines what came before with what comes after. Of equal floats the later stays (see zeros); NaN stays."""
        fn = self.fn
        if self.how == "logsumexp":
            return self._log_of_sum(a, b)
        if self.how not in ("max", "min") or not a.is_float:
            return combine(fn, self.how, a, b)
        later = fn.not_(fn.cmp("lt" if self.how == "max" else "gt", b, a))
        return fn.select(fn.and_(later, fn.cmp("eq", a, a)), b, a)

    def _log_of_sum(self, a: V, b: V) -> V:
        """log(exp(a) + exp(b)); of equal infinities the same."""
        fn = self.fn
        small = vmath.call(fn, "log1p", vmath.call(fn, "exp_below", fn.neg(fn.unary("fabs", fn.sub(a, b)))))
        return fn.add(fn.max(a, b), fn.select(fn.cmp("eq", a, b), math.log(2), small))

    def get(self, p: V, at: Index) -> V:
        return self.fn.cast(self.load(p, self.dtype, at), self.acc)

    def put(self, x: V, p: V, at: Index) -> None:
        self.store(self.fn.cast(x, register_of(self.dtype)), p, self.dtype, at)

    def along(self) -> None:
        """Lines of neighbouring elements: prefixes within vectors, the last lane carried on."""
        fn, lines = self.fn, self.lines
        x, y, n = self.operand(0), self.result(0), self.size(lines.n)
        none = fn.const(self.identity, fn.vec(self.acc))
        with fn.loop(self.begin, self.end) as item:
            start = self.line_start(item.iv, lines)

            def body(i: V, carried: Sequence[V]) -> list[V]:
                at = self.elements(start, i, lines)
                v = self.get(x, at)
                if self.em.mask is not None:
                    v = fn.select(self.em.mask, v, none)
                v = self.join(carried[0], prefix(fn, v, none, self.join))
                self.put(v, y, at)
                return [fn.shuffle(v, v, [v.lanes - 1] * v.lanes)]

            lanes_at(self, 0, n, [none], body)

    def across(self) -> None:
        """A vector of lines at a time."""
        fn, lines = self.fn, self.lines
        x, y, n = self.operand(0), self.result(0), self.size(lines.n)

        def body(start: V, _: V) -> None:
            with fn.loop(0, n, 1, [fn.const(self.identity, fn.vec(self.acc))]) as lp:
                at = Index(fn.add(start, fn.mul(lp.iv, self.size(lines.inner))), 1)
                acc = self.join(lp.carried[0], self.get(x, at))
                self.put(acc, y, at)
                lp.yield_(acc)

        blocks_across(self, lines, body)


def lower_scan(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.cumsum, cumprod, logcumsumexp and the values of cummax, cummin."""
    k = _Scan(low, group, op)
    lines = k.lines
    if lines.contiguous:
        k.along()
        return Launch(finish(k, "scan"), k.args.slots, lines.outer, lines.n * _PREFIX_COST)
    k.across()
    return Launch(finish(k, "scan"), k.args.slots, block_count(lines, k.fn.lanes), lines.n * k.fn.lanes)
