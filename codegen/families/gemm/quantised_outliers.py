"""Rows of A whose blocks hold a few elements far above the others, infinities or NaN: these are multiplied by themselves, in f32.

A row has a list of such elements: how many (i32), then their places in k (i32) and values.
"""

from __future__ import annotations

from dhlo.codegen.families.gemm.quantised import COLUMNS, Coding
from dhlo.codegen.families.gemm.quantised_decode import emit_number, parameters
from dhlo.codegen.families.gemm.quantised_dots import RANGE, emit_split
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec

__all__ = ["emit_limbs", "emit_outliers", "list_bytes", "most_outliers"]

# One in so many elements of a row, and so many more, may be outliers: they take a tenth of the time of the others.
_SHARE, _FEW = 64, 8
# The exponent of infinities and NaN, and how many bits exponents have.
_SPECIAL, _EXPONENT_BITS = 255, 8
_ENTRY = 8  # bytes of an entry, and of what comes before the first


def most_outliers(padded: int) -> int:
    """Of a row of so many elements."""
    return padded // _SHARE + _FEW


def list_bytes(fn: Fn, most: V) -> V:
    """Of a row's list."""
    return fn.mul(fn.add(most, 1), _ENTRY)


def emit_limbs(module: KernelModule) -> str:
    """Emits `limbs(x, size, dst, info, weight, k0, list, most) -> i32` once: splits a block (see `emit_split`), whose first element
    is the row's number `k0`, and adds its outliers to the row's list.

    Elements but the outliers are no further below the block's largest than `RANGE` bits, or no more than half of them. 0 if that
    can't be had, or there are more than `most` outliers in the list: limbs and list are then of no use.
    """
    name = "limbs"
    if name in module.functions:
        return name
    names = [("x", PTR), ("size", I64), ("dst", PTR), ("info", PTR), ("weight", I32), ("k0", I32), ("list", PTR), ("most", I32)]
    fn = Fn(module, name, names, I32, noinline=True)
    x, size, dst, info, weight, k0, found, most = fn.args
    split = emit_split(module)

    lanes = fn.lanes
    main = fn.mul(fn.divu(size, lanes), lanes)

    def votes(exponent: V) -> V:
        result = fn.call(split, [x, size, dst, info, weight, exponent], I32)
        assert result is not None
        return result

    with fn.loop(0, main, lanes, [fn.const(0, vec(I32, lanes))]) as loop:
        loop.yield_(fn.max(loop.carried[0], _bits(fn, x, loop.iv, lanes)))
    with fn.loop(main, size, 4, [fn.const(0, vec(I32, 4))]) as rest:
        rest.yield_(fn.max(rest.carried[0], _bits(fn, x, rest.iv, 4)))
    largest = fn.shr(fn.max(fn.reduce("maxsi", loop.results[0]), fn.reduce("maxsi", rest.results[0])), 23)
    finite = fn.cmp("lt", largest, _SPECIAL)
    fine = fn.and_(finite, fn.cmp("ge", votes(fn.min(largest, _SPECIAL - 1)), 0))

    def without_outliers() -> list[V]:
        some, median = _count(fn, x, size, fn.const(1, I32)), fn.const(0, I32)  # of all exponents but zeros', bit by bit
        for bit in reversed(range(_EXPONENT_BITS)):
            more = fn.add(median, 1 << bit)
            half = fn.cmp("ge", fn.mul(_count(fn, x, size, fn.shl(more, 23)), 2), some)
            median = fn.select(half, more, median)
        exponent = fn.min(fn.min(fn.add(median, RANGE), largest), _SPECIAL - 1)
        beyond = fn.shl(fn.add(exponent, 1), 23)
        before = fn.load(found, I32)
        after = fn.add(before, _count(fn, x, size, beyond))

        def listed() -> list[V]:
            with fn.loop(0, size, 1, [before]) as k:
                outlier, at = fn.cmp("ge", _bits(fn, x, k.iv, 1), beyond), k.carried[0]
                with fn.when(outlier):
                    entry = fn.gep(found, fn.add(fn.mul(fn.cast(at, I64), _ENTRY), _ENTRY), I8)
                    fn.store(fn.add(k0, fn.cast(k.iv, I32)), entry)
                    fn.store(fn.load(fn.gep(x, k.iv, F32), F32), fn.gep(entry, 4, I8))
                k.yield_(fn.add(at, fn.select(outlier, fn.const(1, I32), 0)))
            fn.store(after, found)
            return [fn.select(fn.cmp("ge", votes(exponent), 0), fn.const(1, I32), 0)]

        return fn.if_else(fn.cmp("le", after, most), listed, lambda: [fn.const(0, I32)], [I32])

    fn.ret(fn.if_else(fine, lambda: [fn.const(1, I32)], without_outliers, [I32])[0])
    fn.done()
    return name


def _bits(fn: Fn, x: V, k: V, lanes: int) -> V:
    """Of elements from k on, without their signs."""
    return fn.and_(fn.load(fn.gep(x, k, F32), vec(I32, lanes) if lanes > 1 else I32), 0x7FFFFFFF)


def _count(fn: Fn, x: V, size: V, least: V) -> V:
    """Elements whose bits without their signs are `least` or more."""
    ty = vec(I32, 4)
    with fn.loop(0, size, 4, [fn.const(0, ty)]) as loop:
        counts = fn.cmp("ge", _bits(fn, x, loop.iv, 4), fn.splat(least, 4))
        loop.yield_(fn.add(loop.carried[0], fn.select(counts, fn.const(1, ty), 0)))
    return fn.reduce("add", loop.results[0])


def emit_outliers(module: KernelModule, coding: Coding) -> str:
    """Emits `coded_outliers_{coding}(list, panel, units, tile)` once and returns its symbol: adds to tile[32] the elements of a
    row's list times their rows of the panel, as the op computes these."""
    name = f"coded_outliers_{coding.name}"
    if name in module.functions:
        return name
    form = coding.form
    fn = Fn(module, name, [("list", PTR), ("panel", PTR), ("units", I64), ("tile", PTR)], noinline=True)
    found, panel, units, tile = fn.args
    lanes = fn.lanes
    group = fn.max(fn.mul(units, form.depth), 1)
    group_bytes = fn.add(fn.mul(units, form.bytes), coding.header_bytes)
    with fn.loop(0, fn.cast(fn.load(found, I32), I64)) as i:
        entry = fn.gep(found, fn.add(fn.mul(i.iv, _ENTRY), _ENTRY), I8)
        k = fn.cast(fn.load(entry, I32), I64)
        x = fn.splat(fn.load(fn.gep(entry, 4, I8), F32), lanes)
        head, rest = fn.gep(panel, fn.mul(fn.divu(k, group), group_bytes), I8), fn.remu(k, group)
        unit = fn.gep(fn.gep(head, coding.header_bytes, I8), fn.mul(fn.divu(rest, form.depth), form.bytes), I8)
        step = fn.cast(fn.remu(rest, form.depth), I32)
        for v in range(COLUMNS // lanes):
            scale, zero = parameters(fn, coding, head, v, lanes)
            y = emit_number(fn, form, unit, step, v * lanes, lanes)
            y = fn.mul(y if zero is None else fn.sub(y, zero), scale)
            p = fn.gep(tile, v * lanes, F32)
            fn.store(fn.fma(x, y, fn.load(p, x.type)), p)
    fn.done()
    return name
