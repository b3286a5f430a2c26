"""The inner kernels of products of a few rows with a B as it lies: a pass over k, and a few rows of B added to a strip of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dhlo.codegen.families.gemm.register_tile import BF16, F16, TileSpec, accumulator
from dhlo.codegen.kernel_ir.builder import BITS, F32, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import LINE_BYTES

__all__ = ["emit_pass", "emit_strip"]

# Rows of B that are added to a strip of sums at a time, if registers hold their factors.
_STRIP_DEPTH = 8
# The rows that come next are prefetched to the second level: a strip of them is larger than any machine's first. Where they are
# in a cache already, prefetches take 0.1 to 0.3 of the time.
_STRIP_LOCALITY = 2


def _memory(elem: str) -> str:
    """The type that elements are loaded as: bf16 and f16 as integers, which every target moves."""
    return "i16" if elem in (BF16, F16) else elem


def _widened(fn: Fn, elem: str, x: V) -> V:
    """A loaded element or vector of them as sums are."""
    if elem == F16:
        return fn.cast(fn.bitcast(x, F16), F32)
    return fn.bitcast(fn.shl(fn.cast(x, I32, signed=False), 16), F32) if elem == BF16 else x


def _load(fn: Fn, elem: str, p: V, lanes: int, mask: V | None = None) -> V:
    """A vector of B, of whose lanes those without `mask` aren't read."""
    ty = vec(_memory(elem), lanes)
    x = fn.load(p, ty, BITS[elem] // 8) if mask is None else fn.masked_load(p, mask, fn.const(0, ty))
    return _widened(fn, elem, x)


def _factor(fn: Fn, elem: str, p: V, lanes: int) -> V:
    """An element of A in every lane."""
    return fn.splat(_widened(fn, elem, fn.load(p, _memory(elem))), lanes)


def emit_pass(
    module: KernelModule,
    elem: str,
    rows: int,
    vectors: int,
    spec: TileSpec,
    *,
    part: bool = False,
    far: bool = False,
    shared: bool = False,
) -> str:
    """`stream_{elem}_{rows}_{vectors}(a, lda, b, ldb, k, tile, ld, width, accumulate, ahead, pace)`: tile[rows][ld] = A times
    columns of B, added to what is there if `accumulate`: `vectors` of them, of which the matrix has only `width` in the variant for
    a `part`, which neither reads nor writes others. Beside each row of B as much is prefetched at `ahead`, `pace` elements further
    on for each, to the second level if `far`; of what is `shared` with other passes a line alone."""
    name = f"stream_{elem}_{rows}_{vectors}{'_part' if part else ''}{'_far' if far else ''}{'_shared' if shared else ''}"
    if name in module.functions:
        return name
    numbers = [(x, I64) for x in ("ld", "width", "accumulate")]
    args = [("a", PTR), ("lda", I64), ("b", PTR), ("ldb", I64), ("k", I64), ("tile", PTR), *numbers, ("ahead", PTR), ("pace", I64)]
    fn = Fn(module, name, args, explicit=True)
    a, lda, b, ldb, k, tile, ld, width, accumulate, ahead, pace = fn.args
    lanes = spec.lanes(elem)
    ty = vec(accumulator(elem), lanes)
    masks = [fn.tail_mask(fn.sub(width, v * lanes), lanes) if part else None for v in range(vectors)]
    starts = [fn.gep(a, fn.mul(lda, i), elem) for i in range(rows)]
    count = rows * vectors

    def cells() -> list[tuple[V, V | None]]:
        sums = [fn.gep(tile, fn.mul(ld, i), accumulator(elem)) for i in range(rows)]
        return [(fn.gep(p, v * lanes, accumulator(elem)), mask) for p in sums for v, mask in enumerate(masks)]

    def loaded() -> list[V]:
        return [fn.load(p, ty) if mask is None else fn.masked_load(p, mask, fn.const(0.0, ty)) for p, mask in cells()]

    start = fn.if_else(fn.cmp("ne", accumulate, 0), loaded, lambda: [fn.const(0.0, ty)] * count, [ty] * count)

    def add_step(at: V, factor: Callable[[int], V], sums: Sequence[V]) -> list[V]:
        row = fn.gep(b, fn.mul(at, ldb), elem)
        next_row = fn.gep(ahead, fn.mul(at, pace), elem)

        def column(v: int) -> V:
            if v == 0 or not shared:
                fn.prefetch(fn.gep(next_row, v * lanes, elem), *([_STRIP_LOCALITY] if far else []))
            return _load(fn, elem, fn.gep(row, v * lanes, elem), lanes, masks[v])

        return _add_products(fn, rows, vectors, factor, column, sums)

    if elem == F16:
        results = _add_widened(fn, spec, starts, k, add_step, start)
    else:
        with fn.loop(0, k, 1, start) as loop:
            at = loop.iv
            loop.yield_(*add_step(at, lambda i: _factor(fn, elem, fn.gep(starts[i], at, elem), lanes), loop.carried))
        results = loop.results
    for i, (x, (p, mask)) in enumerate(zip(results, cells(), strict=True)):
        if mask is None:
            fn.store(x, p)
        else:
            fn.store_first(x, p, fn.sub(width, i % vectors * lanes))
    fn.done()
    return name


def _add_widened(
    fn: Fn,
    spec: TileSpec,
    starts: Sequence[V],
    k: V,
    add_step: Callable[[V, Callable[[int], V], Sequence[V]], list[V]],
    sums: Sequence[V],
) -> list[V]:
    """The sums with the products of rows of A of f16, of which a vector is widened at a time: a number that is widened by itself
    takes as long as its products by a vector or two."""
    lanes = spec.lanes(F16)
    wide = fn.alloca(len(starts) * lanes, F32)
    with fn.loop(0, k, lanes, sums) as piece:
        first, left = piece.iv, fn.min(fn.sub(k, piece.iv), lanes)

        def widen(mask: V | None = None) -> list[V]:
            for i, row in enumerate(starts):
                fn.store(_load(fn, F16, fn.gep(row, first, F16), lanes, mask), fn.gep(wide, i * lanes, F32))
            return []

        fn.if_else(fn.cmp("eq", left, lanes), widen, lambda: widen(fn.tail_mask(left, lanes)), [])
        with fn.loop(0, left, 1, piece.carried) as loop:
            step = loop.iv

            def factor(i: int) -> V:
                return fn.splat(fn.load(fn.gep(wide, fn.add(step, i * lanes), F32), F32), lanes)

            loop.yield_(*add_step(fn.add(first, step), factor, loop.carried))
        piece.yield_(*loop.results)
    return piece.results


def _add_products(
    fn: Fn, rows: int, vectors: int, factor: Callable[[int], V], column: Callable[[int], V], sums: Sequence[V]
) -> list[V]:
    """Sums by row and vector, with the products of a step; registers hold its shorter side beside them."""
    out = list(sums)

    def add(i: int, v: int, x: V, y: V) -> None:
        out[i * vectors + v] = fn.fma(x, y, out[i * vectors + v])

    if rows <= vectors:
        xs = [factor(i) for i in range(rows)]
        for v in range(vectors):
            y = column(v)
            for i, x in enumerate(xs):
                add(i, v, x, y)
    else:
        ys = [column(v) for v in range(vectors)]
        for i in range(rows):
            x = factor(i)
            for v, y in enumerate(ys):
                add(i, v, x, y)
    return out


def emit_strip(module: KernelModule, elem: str, rows: int, spec: TileSpec, *, far: bool) -> str:
    """`strip_{elem}_{rows}(a, lda, b, ldb, k, tile, columns)`: tile[rows][columns] = A times columns of B, its rows whole vectors
    apart. The next rows of B are prefetched if it's `far`, a line at a time."""
    name = f"strip_{elem}_{rows}{'_far' if far else ''}"
    if name in module.functions:
        return name
    args = [("a", PTR), ("lda", I64), ("b", PTR), ("ldb", I64), ("k", I64), ("tile", PTR), ("columns", I64)]
    fn = Fn(module, name, args, explicit=True)
    a, lda, b, ldb, k, tile, columns = fn.args
    lanes, acc = spec.lanes(elem), accumulator(elem)
    ty = vec(acc, lanes)
    whole = fn.mul(fn.divu(columns, lanes), lanes)
    line = max(LINE_BYTES * 8 // BITS[elem], lanes)
    in_lines = far and line > lanes
    lines = fn.mul(fn.divu(columns, line), line) if in_lines else fn.i64(0)
    apart, mask = fn.mul(fn.ceildivu(columns, lanes), lanes), fn.tail_mask(fn.sub(columns, whole), lanes)
    starts = [fn.gep(a, fn.mul(lda, i), elem) for i in range(rows)]
    with fn.loop(0, fn.mul(apart, rows), lanes) as at:
        fn.store(fn.const(0.0, ty), fn.gep(tile, at.iv, acc))

    def add(first: V, count: int) -> None:
        factors = [[_factor(fn, elem, fn.gep(p, fn.add(first, j), elem), lanes) for p in starts] for j in range(count)]
        below = [fn.gep(b, fn.mul(fn.add(first, j), ldb), elem) for j in range(count)]
        later = [fn.gep(row, fn.mul(ldb, count), elem) for row in below]

        def add_at(column: V, mask: V | None, *, fetch: bool) -> None:
            places = [fn.gep(tile, fn.add(fn.mul(apart, i), column), acc) for i in range(rows)]
            sums = [fn.load(p, ty) for p in places]
            for row, after, xs in zip(below, later, factors, strict=True):
                if fetch:
                    fn.prefetch(fn.gep(after, column, elem), _STRIP_LOCALITY)
                y = _load(fn, elem, fn.gep(row, column, elem), lanes, mask)
                sums = [fn.fma(x, y, z) for x, z in zip(xs, sums, strict=True)]
            for p, x in zip(places, sums, strict=True):
                fn.store(x, p)

        if in_lines:
            with fn.loop(0, lines, line) as at:
                for v in range(0, line, lanes):
                    add_at(fn.add(at.iv, v), None, fetch=v == 0)
        with fn.loop(lines, whole, lanes) as at:
            add_at(at.iv, None, fetch=far)
        with fn.when(fn.cmp("lt", whole, columns)):
            add_at(whole, mask, fetch=far)

    depth = min(_STRIP_DEPTH, spec.target.registers // (2 * rows))  # the factors of so many rows of B stay in registers
    main = fn.mul(fn.divu(k, depth), depth)
    with fn.loop(0, main, depth) as kk:
        add(kk.iv, depth)
    with fn.loop(main, k) as kk:
        add(kk.iv, 1)
    fn.done()
    return name
