"""Orders rows lexicographically: a merge sort of their positions, bottom up."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from dhlo.codegen.elementwise.emit import Emitter, KernelArgs, memory_type
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import OpKernel, while_loop
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.families.sort.radix import key_of, key_type
from dhlo.codegen.kernel_ir.builder import I1, I64, PTR, Fn, KernelModule, V
from dhlo.ir.dialect import Op
from dhlo.ir.ops.control import Group
from dhlo.ir.types import DTYPES, DType, from_mlir

__all__ = ["lower_lexsort"]


def lower_lexsort(low: Lowering, group: Group, op: Op) -> Launch:
    """Positions of the rows in order, stable; runs as a single item."""
    k = OpKernel(low, group, op)
    fn, t = k.fn, from_mlir(op.operands[0])
    after = _emit_after(k.module, t.dtype)
    n, width = k.size(t.shape[0]), k.size(t.shape[1])
    x, y = k.operand(0), k.result(0)
    with fn.loop(0, n) as lp:
        fn.store(lp.iv, fn.gep(y, lp.iv, I64))
    halves = fn.sub(64, fn.op(I64, f'"llvm.intr.ctlz"({fn.max(fn.sub(n, 1), 0).name}) <{{is_zero_poison = false}}> : (i64) -> i64'))
    with fn.loop(0, halves) as turn:
        run = fn.shl(fn.const(1, I64), turn.iv)
        with fn.loop(0, n, fn.mul(run, 2)) as pair:
            _merge(fn, (y, k.scratch), [x, width], after, pair.iv, run, n)
        with fn.loop(0, n) as lp:
            fn.store(fn.load(fn.gep(k.scratch, lp.iv, I64), I64), fn.gep(y, lp.iv, I64))
    one = sympy.Integer(1)
    return Launch(finish(k, "lexsort"), k.args.slots, one, one, (t.shape[0] + 1) * 8)


def _merge(fn: Fn, arrays: tuple[V, V], rows: Sequence[V], after: str, lo: V, run: V, n: V) -> None:
    """Merges the sorted runs [lo, lo + run) and [lo + run, lo + 2 run) of the first array into the second."""
    src, dst = arrays
    mid, hi = fn.min(fn.add(lo, run), n), fn.min(fn.add(lo, fn.mul(run, 2)), n)
    with fn.loop(lo, hi, 1, [lo, mid]) as lp:
        i, j = lp.carried
        left, right = (fn.load(fn.gep(src, fn.min(p, fn.sub(n, 1)), I64), I64) for p in (i, j))

        def compared() -> list[V]:
            later = fn.call(after, [*rows, left, right], I64)
            assert later is not None
            return [fn.cmp("ne", later, 0)]

        both = fn.and_(fn.cmp("lt", i, mid), fn.cmp("lt", j, hi))
        take_right = fn.if_else(both, compared, lambda: [fn.cmp("lt", j, hi)], [I1])[0]
        step = fn.cast(take_right, I64)
        fn.store(fn.select(take_right, right, left), fn.gep(dst, lp.iv, I64))
        lp.yield_(fn.add(i, fn.sub(1, step)), fn.add(j, step))


def _emit_after(module: KernelModule, dtype: DType) -> str:
    """Emits (once) `i64 after(x, width, a, b)`: is row a after row b?"""
    name = f"row_after_{dtype}"
    if name in module.functions:
        return name
    fn = Fn(module, name, [("x", PTR), ("width", I64), ("a", I64), ("b", I64)], I64)
    x, width, a, b = fn.args
    key, stored = key_type(dtype), DTYPES["i8"] if dtype.is_bool else dtype
    em = Emitter(fn, KernelArgs(fn, x), set(), lambda _: 0)
    starts = [fn.gep(x, fn.mul(row, width), memory_type(dtype)) for row in (a, b)]

    def going(s: Sequence[V]) -> V:
        return fn.and_(fn.cmp("lt", s[0], width), fn.cmp("eq", s[1], 0))

    def body(s: Sequence[V]) -> list[V]:
        p, q = (key_of(fn, em.load_memory(start, stored, Index(s[0])), key, descending=False) for start in starts)
        order = fn.select(fn.cmp("ugt", p, q), fn.const(1, I64), fn.select(fn.cmp("eq", p, q), fn.const(0, I64), fn.const(-1, I64)))
        return [fn.add(s[0], 1), order]

    order = while_loop(fn, [fn.const(0, I64), fn.const(0, I64)], going, body)[1]
    fn.ret(fn.cast(fn.cmp("gt", order, 0), I64))
    fn.done()
    return name
