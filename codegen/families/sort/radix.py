"""Keys whose unsigned order is the order of values, and a stable radix sort of keys with their positions."""

from __future__ import annotations

from dhlo.codegen.families.lines import prefix
from dhlo.codegen.kernel_ir.builder import BITS, I32, I64, PTR, Fn, KernelModule, V
from dhlo.ir.types import DType

__all__ = ["BUCKETS", "digits", "emit_radix_sort", "key_of", "key_type"]

BUCKETS = 256


def key_type(dtype: DType) -> str:
    """The integer type of keys for a dtype."""
    return I64 if dtype.name in ("i64", "f64") else I32


def digits(key: str) -> int:
    return BITS[key] // 8


def key_of(fn: Fn, x: V, key: str, *, descending: bool) -> V:
    """Keys of register values: unsigned integers in ascending (or descending) order of the values. Both zeros have one
    key, NaN counts as largest."""
    top = BITS[key] - 1
    if x.is_float:
        bits = fn.bitcast(fn.add(x, 0.0), key)  # -0 + 0 is 0
        k = fn.xor(bits, fn.or_(fn.shr(bits, top), -1 << top))
        k = fn.select(fn.cmp("uno", x, x), fn.const(-1, k.type), k)
    else:
        k = fn.xor(fn.cast(x, key), -1 << top)
    return fn.xor(k, -1) if descending else k


def emit_radix_sort(module: KernelModule, key: str) -> str:
    """Emits (once) `i64 sort(keys, positions, keys2, positions2, counts, n)`: sorts n unsigned keys and i32 positions,
    stable. The result is in the first pair of arrays, or in the second if the function returns 1. `counts` has room for
    BUCKETS i32 a digit. Digits that all keys share cost nothing."""
    name = f"radix_sort_{key}"
    if name in module.functions:
        return name
    fn = Fn(
        module,
        name,
        [("keys", PTR), ("pos", PTR), ("keys2", PTR), ("pos2", PTR), ("counts", PTR), ("n", I64)],
        I64,
        noinline=True,
    )
    keys, pos, keys2, pos2, counts, n = fn.args
    none = fn.const(0, fn.vec(I32))
    with fn.loop(0, digits(key) * BUCKETS, fn.lanes) as lp:
        fn.store(none, fn.gep(counts, lp.iv, I32))
    with fn.loop(0, n) as lp:
        k = fn.load(fn.gep(keys, lp.iv, key), key)
        for d in range(digits(key)):
            cell = fn.gep(counts, fn.add(_digit(fn, k, fn.const(8 * d, key)), d * BUCKETS), I32)
            fn.store(fn.add(fn.load(cell, I32), 1), cell)
    with fn.loop(0, digits(key), 1, [fn.const(0, I64)]) as lp:
        swapped = lp.carried[0]
        second = fn.cmp("ne", swapped, 0)
        src, src_pos = fn.select(second, keys2, keys), fn.select(second, pos2, pos)
        dst, dst_pos = fn.select(second, keys, keys2), fn.select(second, pos, pos2)
        mine = fn.gep(counts, fn.mul(lp.iv, BUCKETS), I32)
        shift = fn.cast(fn.mul(lp.iv, 8), key)
        shared = fn.load(fn.gep(mine, _digit(fn, fn.load(src, key), shift), I32), I32)

        def move() -> list[V]:
            _starts(fn, mine)
            with fn.loop(0, n) as i:
                k = fn.load(fn.gep(src, i.iv, key), key)
                cell = fn.gep(mine, _digit(fn, k, shift), I32)
                to = fn.load(cell, I32)
                at = fn.cast(to, I64)
                fn.store(k, fn.gep(dst, at, key))
                fn.store(fn.load(fn.gep(src_pos, i.iv, I32), I32), fn.gep(dst_pos, at, I32))
                fn.store(fn.add(to, 1), cell)
            return [fn.xor(swapped, 1)]

        same = fn.cmp("eq", fn.cast(shared, I64), n)
        lp.yield_(fn.if_else(same, lambda: [swapped], move, [I64])[0])
    fn.ret(lp.results[0])
    fn.done()
    return name


def _digit(fn: Fn, k: V, shift: V) -> V:
    return fn.cast(fn.and_(fn.shr(k, shift), BUCKETS - 1), I64)


def _starts(fn: Fn, counts: V) -> None:
    """Turns the counts of a digit into the first position of each bucket."""
    none = fn.const(0, fn.vec(I32))
    with fn.loop(0, BUCKETS, fn.lanes, [none]) as lp:
        p = fn.gep(counts, lp.iv, I32)
        x = fn.load(p, fn.vec(I32))
        total = fn.add(prefix(fn, x, none, fn.add), lp.carried[0])
        fn.store(fn.sub(total, x), p)
        lp.yield_(fn.shuffle(total, total, [fn.lanes - 1] * fn.lanes))
