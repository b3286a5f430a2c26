"""The distinct values of a tensor: one kernel sorts and numbers them, another writes them out with their counts."""

from __future__ import annotations

import sympy

from dhlo.codegen.elementwise.emit import Emitter, KernelArgs, memory_type
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import vectors
from dhlo.codegen.families.sort.radix import BUCKETS, digits, emit_radix_sort, key_of, key_type
from dhlo.codegen.kernel_ir.builder import BITS, I32, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.ir.types import DTYPES, DType

__all__ = ["emit_unique", "unique_scratch"]


def unique_scratch(dtype: DType, n: sympy.Expr, lanes: int) -> sympy.Expr:
    """Scratch bytes of the first kernel for n elements."""
    key = key_type(dtype)
    return digits(key) * BUCKETS * 4 + (n + lanes) * 2 * (BITS[key] // 8 + 4)


def emit_unique(module: KernelModule, dtype: DType) -> tuple[str, str]:
    """Emits (once) both kernels and returns their symbols; each runs as a single item, of fewer than 2**31 elements.

    find: (x, elements, inverse, cell) stores to inverse (i64) the number of each element's value, in ascending order of
    values, and to the i64 cell how many there are. Every NaN is a value of its own, after all others.
    fill: (x, elements, inverse, distinct, values, counts) stores the values and how often they occur (i64).
    """
    find, fill = f"unique_find_{dtype}", f"unique_fill_{dtype}"
    if find not in module.functions:
        fn = kernel_fn(module, find)
        x, n, inverse, cell = load_args(fn, [PTR, I64, PTR, PTR])
        _find(fn, x, n, inverse, cell, dtype)
        fn.done()
    if fill not in module.functions:
        fn = kernel_fn(module, fill)
        x, n, inverse, distinct, values, counts = load_args(fn, [PTR, I64, PTR, I64, PTR, PTR])
        _fill(fn, (x, n, inverse), distinct, values, counts, memory_type(dtype))
        fn.done()
    return find, fill


def _find(fn: Fn, x: V, n: V, inverse: V, cell: V, dtype: DType) -> None:
    key = key_type(dtype)
    room = fn.add(n, fn.lanes)
    counts = fn.args[4]
    keys = fn.gep(counts, digits(key) * BUCKETS, I32)
    keys2 = fn.gep(keys, room, key)
    pos = fn.gep(keys2, room, key)
    pos2 = fn.gep(pos, room, I32)
    em = Emitter(fn, KernelArgs(fn, fn.args[0]), set(), lambda _: 0)
    stored = DTYPES["i8"] if dtype.is_bool else dtype

    def fill(i: Index) -> None:
        k = key_of(fn, em.load_memory(x, stored, i), key, descending=False)
        fn.store(k, fn.gep(keys, i.base, key))
        fn.store(fn.add(fn.splat(fn.cast(fn.i64(i.base), I32)), fn.iota(I32)), fn.gep(pos, i.base, I32))

    vectors(em, 0, n, fill)
    swapped = fn.call(emit_radix_sort(fn.module, key), [keys, pos, keys2, pos2, counts, n], I64)
    assert swapped is not None
    second = fn.cmp("ne", swapped, 0)
    keys, pos = fn.select(second, keys2, keys), fn.select(second, pos2, pos)
    with fn.loop(0, n, 1, [fn.const(-1, I64), fn.const(0, key)]) as lp:
        number, before = lp.carried
        k = fn.load(fn.gep(keys, lp.iv, key), key)
        new = fn.or_(fn.cmp("ne", k, before), fn.cmp("eq", lp.iv, 0))
        if dtype.is_float:
            new = fn.or_(new, fn.cmp("eq", k, -1))  # NaN
        number = fn.add(number, fn.cast(new, I64))
        at = fn.cast(fn.load(fn.gep(pos, lp.iv, I32), I32), I64)
        fn.store(number, fn.gep(inverse, at, I64))
        lp.yield_(number, k)
    fn.store(fn.add(lp.results[0], 1), cell)


def _fill(fn: Fn, source: tuple[V, V, V], distinct: V, values: V, counts: V, mem: str) -> None:
    x, n, inverse = source
    with fn.loop(0, distinct) as lp:
        fn.store(fn.const(0, I64), fn.gep(counts, lp.iv, I64))
    with fn.loop(0, n) as lp:
        i = fn.sub(fn.sub(n, 1), lp.iv)  # the first of equal elements (of both zeros) stands for them
        number = fn.load(fn.gep(inverse, i, I64), I64)
        fn.store(fn.load(fn.gep(x, i, mem), mem), fn.gep(values, number, mem))
        cell = fn.gep(counts, number, I64)
        fn.store(fn.add(fn.load(cell, I64), 1), cell)
