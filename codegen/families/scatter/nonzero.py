"""Finds the non-zero elements of a tensor: one kernel counts them, another writes their indices."""

from __future__ import annotations

from dhlo.codegen.elementwise.emit import memory_type
from dhlo.codegen.kernel_ir.builder import I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.ir.types import DType

__all__ = ["emit_nonzero"]


def emit_nonzero(module: KernelModule, dtype: DType, rank: int) -> tuple[str, str]:
    """Emits (once) both kernels and returns their symbols.

    count: (x, elements, cell) stores the number of non-zero elements to the i64 cell.
    fill: (x, elements, out, sizes...) writes out [count, rank] (i64) in row-major order. Both run as a single item.
    """
    mem = memory_type(dtype)
    count, fill = f"nonzero_count_{mem}", f"nonzero_fill_{mem}_{rank}"
    if count not in module.functions:
        fn = kernel_fn(module, count)
        x, n, cell = load_args(fn, [PTR, I64, PTR])
        with fn.loop(0, n, 1, [fn.const(0, I64)]) as lp:
            lp.yield_(fn.add(lp.carried[0], fn.cast(_is_set(fn, x, lp.iv, mem), I64)))
        fn.store(lp.results[0], cell, 8)
        fn.done()
    if fill not in module.functions:
        fn = kernel_fn(module, fill)
        x, n, out, *sizes = load_args(fn, [PTR, I64, PTR, *[I64] * rank])
        zero = fn.const(0, I64)
        with fn.loop(0, n, 1, [zero, *[zero] * rank]) as lp:
            at, *idx = lp.carried
            found = _is_set(fn, x, lp.iv, mem)
            with fn.when(found):
                for d, i in enumerate(idx):
                    fn.store(i, fn.gep(out, fn.add(fn.mul(at, rank), d), I64), 8)
            nxt: list[V] = []
            carry: V | None = fn.const(1, I64)
            for d in range(rank - 1, -1, -1):
                i = fn.add(idx[d], carry if carry is not None else 0)
                wrapped = fn.cmp("ge", i, sizes[d])
                nxt.append(fn.select(wrapped, zero, i))
                carry = fn.cast(wrapped, I64)
            lp.yield_(fn.add(at, fn.cast(found, I64)), *reversed(nxt))
        fn.done()
    return count, fill


def _is_set(fn: Fn, x: V, i: V, mem: str) -> V:
    v = fn.load(fn.gep(x, i, mem), mem)
    return fn.cmp("ne", v, 0.0 if v.is_float else 0)
