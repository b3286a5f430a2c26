"""Products of a few rows with a panel of codes, decoded in registers: f32 multiply-adds, scaled group by group."""

from __future__ import annotations

from collections.abc import Callable

from dhlo.codegen.families.gemm.quantised import COLUMNS, Coding, Form
from dhlo.codegen.families.gemm.quantised_decode import emit_unit, parameters, scaled_by
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import Target

__all__ = ["emit_row_kernel", "emit_tame_row", "emit_widen_row", "few_passes", "most_part_rows", "most_rows"]

# Rows of a pass, at most, and where factors come from memory as they are multiplied: each number of rows has a kernel of its own.
_ROWS, _PART_ROWS = 8, 16
# In so many passes over a panel rows decode it themselves; more are better off with a panel in f32. The second where decoding
# whole bytes is hidden behind multiply-adds.
_FEW_PASSES, _WHOLE_BYTES_PASSES = 2, 4
_SPARE, _LEAST_SPARE = 4, 2
# Sums that cover the latency of multiply-adds.
_MIN_SUMS = 8
# Where factors come from memory, nibbles of more rows are taken apart by shifts: shuffles would cost 3 % of the time, and save up
# to a quarter with fewer.
_SHUFFLED_ROWS = 3
# Elements of 2 to this power and more are divided by as much; the bias of f32's exponent.
_TAMED, _BIAS = 64, 127


def most_rows(target: Target) -> int:
    """Rows whose sums over a whole panel leave registers for a unit of codes and what becomes of it."""
    return min(_ROWS, _fit(target, COLUMNS // target.lanes(F32)))


def most_part_rows(target: Target, form: Form) -> int:
    """Rows of a pass over parts of a panel: all of them share what decoding a code takes. Where factors take loads of their own,
    two vectors of columns at least share each, unless decoding takes more than that saves."""
    if target.repeats_memory:
        most = min(_PART_ROWS, _fit(target, 1))
    else:
        most = min(_ROWS, _fit(target, 1 if form.kind == "rows" else 2, form))
    return max(most_rows(target), most)


def few_passes(target: Target, form: Form) -> int:
    """Passes over a panel, of rows that decode it themselves, that are faster than a panel in f32."""
    if target.repeats_memory:
        return _FEW_PASSES
    if form.kind == "rows":
        return 1
    return _WHOLE_BYTES_PASSES if _whole_bytes(form) else _FEW_PASSES


def _whole_bytes(form: Form) -> bool:
    return form.kind == "lanes" and not form.nibbles


def _spare(target: Target, form: Form | None) -> int:
    """Registers that a factor, and what becomes of codes, take: whole bytes are numbers after two instructions."""
    return _LEAST_SPARE if not target.repeats_memory and form is not None and _whole_bytes(form) else _SPARE


def _fit(target: Target, vectors: int, form: Form | None = None) -> int:
    """Rows of as many vectors of columns that registers have room for."""
    return max(1, (target.registers - vectors - _spare(target, form)) // vectors)


def _vectors(target: Target, form: Form, rows: int) -> int:
    """Vectors of columns of a pass: one where factors come from memory as they are multiplied, else as many as there is room for,
    which share loads of factors."""
    vectors = COLUMNS // target.lanes(F32)
    if target.repeats_memory and rows > 1:
        return 1
    while vectors > 1 and rows > _fit(target, vectors, form):
        vectors //= 2
    return vectors


def emit_widen_row(module: KernelModule, elem: str) -> str:
    """Emits `widen_row_{elem}(src, stride, k, to, dst)` once: dst[to] = src[k * stride] as f32, filled up with zeros."""
    name = f"widen_row_{elem}"
    if name in module.functions:
        return name
    fn = Fn(module, name, [("src", PTR), ("stride", I64), ("k", I64), ("to", I64), ("dst", PTR)], noinline=True)
    src, stride, k, to, dst = fn.args
    lanes = fn.lanes

    def wide(x: V) -> V:
        if elem == "f16":
            return fn.cast(fn.bitcast(x, elem), F32)
        return fn.bitcast(fn.shl(fn.cast(x, I32, signed=False), 16), F32) if elem == "bf16" else x

    memory = "i16" if elem in ("bf16", "f16") else elem

    def vectors() -> list[V]:
        main = fn.mul(fn.divu(k, lanes), lanes)
        with fn.loop(0, main, lanes) as loop:
            fn.store(wide(fn.load(fn.gep(src, loop.iv, memory), vec(memory, lanes))), fn.gep(dst, loop.iv, F32))
        return [main]

    done = fn.if_else(fn.cmp("eq", stride, 1), vectors, lambda: [fn.const(0, I64)], [I64])[0]
    with fn.loop(done, k) as loop:
        fn.store(wide(fn.load(fn.gep(src, fn.mul(loop.iv, stride), memory), memory)), fn.gep(dst, loop.iv, F32))
    with fn.loop(k, to) as loop:
        fn.store(fn.const(0.0, F32), fn.gep(dst, loop.iv, F32))
    fn.done()
    return name


def emit_tame_row(module: KernelModule) -> str:
    """Emits `tame_row(x, k, up)` once: where one of the k elements at x is that large, divides all by 2^64, so that sums of
    products with codes stay finite, and stores at `up` by what results must be multiplied twice: sums and scales once each."""
    name = "tame_row"
    if name in module.functions:
        return name
    fn = Fn(module, name, [("x", PTR), ("k", I64), ("up", PTR)], noinline=True)
    x, k, up = fn.args
    main = fn.mul(fn.divu(k, fn.lanes), fn.lanes)

    def size_of(at: V, lanes: int) -> V:
        return fn.and_(fn.load(fn.gep(x, at, F32), vec(I32, lanes) if lanes > 1 else I32), 0x7FFFFFFF)

    with fn.loop(0, main, fn.lanes, [fn.const(0, fn.vec(I32))]) as loop:
        loop.yield_(fn.max(loop.carried[0], size_of(loop.iv, fn.lanes)))
    with fn.loop(main, k, 1, [fn.reduce("maxsi", loop.results[0])]) as rest:
        rest.yield_(fn.max(rest.carried[0], size_of(rest.iv, 1)))
    wild = fn.cmp("ge", rest.results[0], (_BIAS + _TAMED) << 23)
    fn.store(fn.select(wild, fn.const(2.0 ** (_TAMED // 2), F32), fn.const(1.0, F32)), up)
    with fn.when(wild), fn.loop(0, k) as loop:
        p = fn.gep(x, loop.iv, F32)
        fn.store(fn.mul(fn.load(p, F32), fn.const(2.0**-_TAMED, F32)), p)
    fn.done()
    return name


def emit_row_kernel(module: KernelModule, coding: Coding, rows: int) -> str:
    """Emits `coded_{coding}_{rows}(a, lda, ups, panel, groups, units, tile, ahead)` once and returns its symbol.

    tile[rows][32] = A times the panel's columns times ups[rows]^2. `a` is f32 [rows] of `groups` times
    `units` of k, rows `lda` apart; the panel is prefetched `ahead` bytes ahead. Scales come after the sums of a group, zero points
    before the products, so that infinite elements give what they must.
    """
    name = f"coded_{coding.name}_{rows}"
    if name in module.functions:
        return name
    form = coding.form
    names = (("a", PTR), ("lda", I64), ("ups", PTR), ("panel", PTR), ("groups", I64), ("units", I64), ("tile", PTR), ("ahead", I64))
    fn = Fn(module, name, names, noinline=True)
    a, lda, ups, panel, groups, units, tile, ahead = fn.args
    lanes, every = fn.lanes, COLUMNS // fn.lanes
    nv = _vectors(fn.target, form, rows)
    n = rows * nv
    sets = 1
    while sets < 4 and n * sets < _MIN_SUMS and 2 * sets * n <= fn.target.registers - nv - _spare(fn.target, form):
        sets *= 2
    # What decoding takes one instruction after the other is done a step early, or multiply-adds would wait for it.
    early = form.kind == "rows" and rows > nv > 1 and (n * sets + 2 * nv + 2 <= fn.target.registers)
    shifts = form.nibbles and fn.target.repeats_memory and rows > _SHUFFLED_ROWS
    zero, down = fn.const(0.0, vec(F32, lanes)), 1 / scaled_by(form, shifts=shifts)

    def zero_point(head: V, v: int) -> V | None:
        z = parameters(fn, coding, head, v, lanes)[1]
        return z if z is None or down == 1 else fn.mul(z, fn.const(1 / down, z.type))

    def part(vectors: range, *, fetch: bool) -> None:
        """Some vectors of columns, over all k; the first one fetches for all."""
        cells = [fn.gep(tile, r * COLUMNS + v * lanes, F32) for r in range(rows) for v in vectors]
        for p in cells:
            fn.store(zero, p)
        group_bytes = fn.add(fn.mul(units, form.bytes), coding.header_bytes)
        starts = [fn.gep(a, fn.mul(lda, r), F32) for r in range(rows)]
        with fn.loop(0, groups) as g:
            head = fn.gep(panel, fn.mul(g.iv, group_bytes), I8)
            codes, k0 = fn.gep(head, coding.header_bytes, I8), fn.mul(fn.mul(g.iv, units), form.depth)
            from_ = [fn.gep(p, k0, F32) for p in starts]
            zeros = {v: zero_point(head, v) for v in vectors}
            for line in range(0, coding.header_bytes, 64) if fetch else ():
                fn.prefetch(fn.gep(fn.gep(head, ahead, I8), line, I8))

            def columns(unit: V) -> Callable[[int, int], V]:
                number = emit_unit(fn, form, unit, lanes, vectors, shifts=shifts)

                def column(step: int, v: int) -> V:
                    y, of = number(step, v), zeros[v]
                    return y if of is None else fn.sub(y, of)

                return column

            first = [columns(codes)(0, v) for v in vectors] if early else []
            with fn.loop(0, units, 1, [*[zero] * (n * sets), *first]) as u:
                unit = fn.gep(codes, fn.mul(u.iv, form.bytes), I8)
                for line in range(0, form.bytes, 64) if fetch else ():
                    fn.prefetch(fn.gep(fn.gep(unit, ahead, I8), line, I8))
                column, acc, at = columns(unit), list(u.carried[: n * sets]), fn.mul(u.iv, form.depth)
                ys = list(u.carried[n * sets :])
                for step in range(form.depth):
                    s = step % sets * n

                    def factor(r: int, step: int = step, at: V = at) -> V:
                        return fn.splat(fn.load(fn.gep(fn.gep(from_[r], at, F32), step, F32), F32), lanes)

                    # Whichever are fewer stay in registers, the others come one after the other.
                    if rows <= nv or nv == 1:
                        xs = [factor(r) for r in range(rows)]
                        for c, v in enumerate(vectors, s):
                            y = column(step, v)
                            for r, x in enumerate(xs):
                                acc[c + r * nv] = fn.fma(x, y, acc[c + r * nv])
                        continue
                    now = ys or [column(step, v) for v in vectors]
                    if early:
                        if step + 1 == form.depth:
                            after = fn.min(fn.add(u.iv, 1), fn.sub(units, 1))
                            column = columns(fn.gep(codes, fn.mul(after, form.bytes), I8))
                        ys = [column((step + 1) % form.depth, v) for v in vectors]
                    for r in range(rows):
                        x = factor(r)
                        for a_at, y in enumerate(now, s + r * nv):
                            acc[a_at] = fn.fma(x, y, acc[a_at])
                u.yield_(*acc, *ys)
            total = list(u.results[:n])
            for s in range(1, sets):
                total = [fn.add(x, y) for x, y in zip(total, u.results[s * n : (s + 1) * n], strict=True)]
            scales = [
                parameters(fn, coding, head, v, lanes)[0] for v in vectors
            ]  # not before the loop, whose registers they'd take
            for i, (x, p) in enumerate(zip(total, cells, strict=True)):
                up = fn.load(fn.gep(ups, i // nv, F32), F32)
                level = up if down == 1 else fn.mul(up, fn.const(down, F32))
                # Neither the sum of large elements overflows by it, nor that of small ones times a small scale underflows.
                x, scale = fn.mul(x, fn.splat(level, lanes)), fn.mul(scales[i % nv], fn.splat(up, lanes))
                fn.store(fn.fma(x, scale, fn.load(p, x.type)), p)

    for first in range(0, every, nv):
        part(range(first, first + nv), fetch=first == 0)
    fn.done()
    return name
