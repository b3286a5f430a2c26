"""Products of a few rows with a B that isn't packed but has contiguous columns: B is streamed once, where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from dhlo.codegen.families.gemm.register_tile import BF16, F16, TileSpec, accumulator
from dhlo.codegen.kernel_ir.builder import BITS, F32, F64, I1, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = [
    "FROM_MEMORY",
    "STREAM_FACTS",
    "STREAM_ROWS",
    "STRIP_ROWS",
    "WHOLE_ROWS",
    "emit_stream_kernel",
    "narrow_columns",
    "stream_scratch_bytes",
]

STREAM_ROWS = {F32: 12, F64: 12, F16: 12, BF16: 4}
"""The most rows for which B is streamed, by element type: others have no such kernel. More rows of bf16 pay for packing B, which
dot products then read."""

STREAM_FACTS: Final = ("l2_bytes", "ahead_one", "ahead_few")
"""Facts of the machine that the kernel takes: the size of the second-level cache, and how many bytes ahead a pass prefetches B, for
one row and for more."""

WHOLE_ROWS, FROM_MEMORY = 1, 2
"""How B is read: 0, in passes over all of k; in whole rows; in whole rows that are prefetched, as they come from memory."""

# Where B is read in whole rows, the sums of so many rows or fewer wait in a strip of so many bytes, half of the smallest first
# cache, and a few rows of B are added to it at a time. B is then read in long pieces, one behind the other, as memory likes it.
STRIP_ROWS, _STRIP_BYTES, _STRIP_DEPTH = 4, 16 << 10, 8
# The rows that come next are prefetched to the second level: a strip of them is larger than any machine's first. Where they are
# in a cache already, prefetches take 0.1 to 0.3 of the time.
_STRIP_LOCALITY = 2
# Vectors of columns that a pass over k covers at least, and rows at most.
_NARROW, _GROUP = 4, 4
# More rows than a pass takes go in groups over the same part of B: one part in so many of the second-level cache, to which the
# first group brings it beside the next one and the sums, and columns whose sums of all rows take so many bytes. A part has at
# least so many rows of B.
_PART_SHARE, _SUMS_BYTES, _LEAST_DEPTH = 8, 64 << 10, 16


def _vectors(rows: int, spec: TileSpec) -> int:
    """Vectors of columns that a pass over k covers for so many rows: a power of two for which sums take no more than three
    quarters of the registers, so that it reads long pieces of B."""
    return 1 << (spec.target.registers * 3 // 4 // rows).bit_length() - 1


def _group(spec: TileSpec) -> int:
    """The most rows of a pass over k: as many as leave it wide enough."""
    return max(rows for rows in range(1, _GROUP + 1) if _vectors(rows, spec) >= _NARROW)


def _strip(elem: str) -> int:
    """Sums of a strip."""
    return _STRIP_BYTES * 8 // BITS[accumulator(elem)]


def narrow_columns(elem: str, spec: TileSpec) -> int:
    """Items should be multiples of this many columns; fewer columns than this aren't worth the kernel."""
    return _NARROW * spec.lanes(elem)


def stream_scratch_bytes(elem: str, spec: TileSpec) -> int:
    """Scratch: a strip, the sums of a pass, or those of groups of rows."""
    nbytes = max(_GROUP * _vectors(1, spec) * spec.lanes(elem), _strip(elem)) * BITS[accumulator(elem)] // 8
    return max(nbytes, _SUMS_BYTES) if STREAM_ROWS[elem] > STRIP_ROWS else nbytes


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


def _emit_pass(
    module: KernelModule, elem: str, rows: int, vectors: int, spec: TileSpec, *, part: bool = False, far: bool = False
) -> str:
    """`stream_{elem}_{rows}_{vectors}(a, lda, b, ldb, k, tile, ld, width, later, accumulate)`: tile[rows][ld] = A times columns of
    B, added to what is there if `accumulate`: `vectors` of them, of which the matrix has only `width` in the variant for a `part`.
    Beside each row of B what is `later` elements on is prefetched, to the second level if `far`."""
    name = f"stream_{elem}_{rows}_{vectors}{'_part' if part else ''}{'_far' if far else ''}"
    if name in module.functions:
        return name
    numbers = [(x, I64) for x in ("ld", "width", "later", "accumulate")]
    args = [("a", PTR), ("lda", I64), ("b", PTR), ("ldb", I64), ("k", I64), ("tile", PTR), *numbers]
    fn = Fn(module, name, args, noinline=True)
    a, lda, b, ldb, k, tile, ld, width, later, accumulate = fn.args
    lanes = spec.lanes(elem)
    ty = vec(accumulator(elem), lanes)
    masks = [fn.tail_mask(fn.sub(width, v * lanes), lanes) if part else None for v in range(vectors)]
    starts = [fn.gep(a, fn.mul(lda, i), elem) for i in range(rows)]
    count = rows * vectors

    def cells() -> list[V]:
        sums = [fn.gep(tile, fn.mul(ld, i), accumulator(elem)) for i in range(rows)]
        return [fn.gep(p, v * lanes, accumulator(elem)) for p in sums for v in range(vectors)]

    def loaded() -> list[V]:
        return [fn.load(p, ty) for p in cells()]

    start = fn.if_else(fn.cmp("ne", accumulate, 0), loaded, lambda: [fn.const(0.0, ty)] * count, [ty] * count)
    with fn.loop(0, k, 1, start) as loop:
        row = fn.gep(b, fn.mul(loop.iv, ldb), elem)
        next_row = fn.gep(row, later, elem)
        xs = [_factor(fn, elem, fn.gep(p, loop.iv, elem), lanes) for p in starts]
        acc = list(loop.carried)
        for v, mask in enumerate(masks):
            fn.prefetch(fn.gep(next_row, v * lanes, elem), *([_STRIP_LOCALITY] if far else []))
            y = _load(fn, elem, fn.gep(row, v * lanes, elem), lanes, mask)
            for i, x in enumerate(xs):
                acc[i * vectors + v] = fn.fma(x, y, acc[i * vectors + v])
        loop.yield_(*acc)
    for x, p in zip(loop.results, cells(), strict=True):
        fn.store(x, p)
    fn.done()
    return name


def _emit_strip(module: KernelModule, elem: str, rows: int, spec: TileSpec, *, far: bool) -> str:
    """`strip_{elem}_{rows}(a, lda, b, ldb, k, tile, columns)`: tile[rows][columns] = A times columns of B, its rows whole vectors
    apart. The next rows of B are prefetched if it's `far`."""
    name = f"strip_{elem}_{rows}{'_far' if far else ''}"
    if name in module.functions:
        return name
    args = [("a", PTR), ("lda", I64), ("b", PTR), ("ldb", I64), ("k", I64), ("tile", PTR), ("columns", I64)]
    fn = Fn(module, name, args, noinline=True)
    a, lda, b, ldb, k, tile, columns = fn.args
    lanes, acc = spec.lanes(elem), accumulator(elem)
    ty = vec(acc, lanes)
    whole = fn.mul(fn.divu(columns, lanes), lanes)
    apart, mask = fn.mul(fn.ceildivu(columns, lanes), lanes), fn.tail_mask(fn.sub(columns, whole), lanes)
    starts = [fn.gep(a, fn.mul(lda, i), elem) for i in range(rows)]
    with fn.loop(0, fn.mul(apart, rows), lanes) as at:
        fn.store(fn.const(0.0, ty), fn.gep(tile, at.iv, acc))

    def add(first: V, count: int) -> None:
        factors = [[_factor(fn, elem, fn.gep(p, fn.add(first, j), elem), lanes) for p in starts] for j in range(count)]
        below = [fn.gep(b, fn.mul(fn.add(first, j), ldb), elem) for j in range(count)]
        later = [fn.gep(row, fn.mul(ldb, count), elem) for row in below]

        def add_at(column: V, mask: V | None) -> None:
            places = [fn.gep(tile, fn.add(fn.mul(apart, i), column), acc) for i in range(rows)]
            sums = [fn.load(p, ty) for p in places]
            for row, after, xs in zip(below, later, factors, strict=True):
                if far:
                    fn.prefetch(fn.gep(after, column, elem), _STRIP_LOCALITY)
                y = _load(fn, elem, fn.gep(row, column, elem), lanes, mask)
                sums = [fn.fma(x, y, z) for x, z in zip(xs, sums, strict=True)]
            for p, x in zip(places, sums, strict=True):
                fn.store(x, p)

        with fn.loop(0, whole, lanes) as at:
            add_at(at.iv, None)
        with fn.when(fn.cmp("lt", whole, columns)):
            add_at(whole, mask)

    depth = min(_STRIP_DEPTH, spec.target.registers // (2 * rows))  # the factors of so many rows of B stay in registers
    main = fn.mul(fn.divu(k, depth), depth)
    with fn.loop(0, main, depth) as kk:
        add(kk.iv, depth)
    with fn.loop(main, k) as kk:
        add(kk.iv, 1)
    fn.done()
    return name


@dataclass(frozen=True)
class _Item:
    """One item of the kernel under construction: a range of columns of one batch."""

    fn: Fn
    elem: str
    spec: TileSpec
    a: V
    a_stride: V
    b: V
    b_stride: V
    m: V
    k: V
    batch: V
    tile: V
    epilogue: V
    eargs: V
    l2_bytes: V
    ahead_one: V
    ahead_few: V

    def multiply(self, rows: int, column: V, vectors: int, width: V | None = None) -> None:
        """A pass over k for all `rows` rows and `vectors` vectors of columns, of which there may be only `width`, to the tile."""
        fn, elem = self.fn, self.elem
        kernel = _emit_pass(fn.module, elem, rows, vectors, self.spec, part=width is not None)
        columns, b = vectors * self.spec.lanes(elem), fn.gep(self.b, column, elem)
        ahead = self.ahead_one if rows == 1 else self.ahead_few
        later = fn.mul(fn.max(fn.divu(ahead, columns * BITS[elem] // 8), 1), self.b_stride)
        numbers = [fn.i64(columns), width or fn.i64(0), later, fn.i64(0)]
        fn.call(kernel, [self.a, self.a_stride, b, self.b_stride, self.k, self.tile, *numbers])

    def multiply_strip(self, rows: int, column: V, columns: V, *, far: bool) -> None:
        """The first rows times so many columns, to the tile."""
        fn = self.fn
        b = fn.gep(self.b, column, self.elem)
        fn.call(
            _emit_strip(fn.module, self.elem, rows, self.spec, far=far),
            [self.a, self.a_stride, b, self.b_stride, self.k, self.tile, columns],
        )

    def finish(self, ld: V | int, row: V | int, mr: V, column: V, width: V | int, tile: V | None = None) -> None:
        """Hands the tile, or another one, to the epilogue, in pieces of a micro-tile's width."""
        fn, nr = self.fn, self.spec.nr(self.elem)
        with fn.loop(0, width, nr) as part:
            fn.call_ptr(
                self.epilogue,
                [
                    self.eargs,
                    fn.gep(tile or self.tile, part.iv, accumulator(self.elem)),
                    fn.i64(ld),
                    self.batch,
                    fn.i64(row),
                    fn.add(column, part.iv),
                    mr,
                    fn.min(fn.sub(fn.i64(width), part.iv), nr),
                ],
            )

    def rows_of(self, run: V, runs: V) -> tuple[V, V]:
        """First row and number of rows of one of several runs of nearly equal length."""
        first, after = (self.fn.divu(self.fn.mul(x, self.m), runs) for x in (run, self.fn.add(run, 1)))
        return first, self.fn.sub(after, first)


def emit_stream_kernel(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits the kernel `matmul_{elem}_stream` for 1 to STREAM_ROWS[elem] rows; returns its symbol.

    Items are (batch, chunk of columns). Arguments: a, its strides (m, batch 0, batch 1), b, its strides (batch 0,
    batch 1, k), m, n, k, size of batch 1, columns in a chunk, whether B comes from memory, the facts STREAM_FACTS, epilogue,
    its argument.
    """
    name = f"matmul_{elem}_stream"
    if name in module.functions:
        return name
    fn = kernel_fn(module, name)
    a, sm, a0, a1, b, b0, b1, b_k, m, n, k, batch1, chunk, order, *facts, epilogue, eargs = load_args(
        fn, [PTR, *[I64] * 3, PTR, *[I64] * (9 + len(STREAM_FACTS)), PTR, PTR]
    )
    always = STREAM_ROWS[elem] == STRIP_ROWS  # there are no passes for such elements
    in_strips = fn.const(True, I1) if always else fn.cmp("ne", order, 0)
    chunks = fn.max(fn.divu(fn.add(n, fn.sub(chunk, 1)), chunk), 1)
    with fn.loop(fn.args[1], fn.args[2]) as loop:
        batch, begin = fn.divu(loop.iv, chunks), fn.mul(fn.remu(loop.iv, chunks), chunk)
        end = fn.min(fn.add(begin, chunk), n)
        i0, i1 = fn.divu(batch, batch1), fn.remu(batch, batch1)
        a_at = fn.gep(a, fn.add(fn.mul(i0, a0), fn.mul(i1, a1)), elem)
        b_at = fn.gep(b, fn.add(fn.mul(i0, b0), fn.mul(i1, b1)), elem)
        item = _Item(fn, elem, spec, a_at, sm, b_at, b_k, m, k, batch, fn.args[4], epilogue, eargs, *facts)
        for rows in range(1, STRIP_ROWS + 1):
            with fn.when(fn.and_(in_strips, fn.cmp("eq", m, rows))):
                if not always:
                    with fn.when(fn.cmp("eq", order, WHOLE_ROWS)):
                        _emit_strips(item, rows, begin, end, far=False)
                with fn.when(fn.const(True, I1) if always else fn.cmp("eq", order, FROM_MEMORY)):
                    _emit_strips(item, rows, begin, end, far=True)
        if STREAM_ROWS[elem] > STRIP_ROWS:
            with fn.when(fn.or_(fn.not_(in_strips), fn.cmp("gt", m, STRIP_ROWS))):
                for rows in range(1, _group(spec) + 1):
                    with fn.when(fn.cmp("eq", m, rows)):
                        _emit_wide_passes(item, rows, begin, end)
                with fn.when(fn.cmp("gt", m, _group(spec))):
                    fn.if_else(
                        in_strips,
                        partial(_emit_row_groups, item, begin, end, far=True),
                        partial(_emit_row_groups, item, begin, end, far=False),
                        [],
                    )
    fn.done()
    return name


def _emit_strips(item: _Item, rows: int, begin: V, end: V, *, far: bool) -> None:
    """Rows whose sums wait in strips."""
    fn, lanes, most = (
        item.fn,
        item.spec.lanes(item.elem),
        _strip(item.elem) // rows // item.spec.nr(item.elem) * item.spec.nr(item.elem),
    )
    with fn.loop(begin, end, most) as strip:
        columns = fn.min(fn.sub(end, strip.iv), most)
        item.multiply_strip(rows, strip.iv, columns, far=far)
        item.finish(fn.mul(fn.ceildivu(columns, lanes), lanes), 0, item.m, strip.iv, columns)


def _emit_wide_passes(item: _Item, rows: int, begin: V, end: V) -> None:
    """Rows of a single pass, in wide passes over k, then narrow ones."""
    fn = item.fn
    for vectors in dict.fromkeys((_vectors(rows, item.spec), _NARROW)):
        step = vectors * item.spec.lanes(item.elem)
        count = fn.divu(fn.sub(end, begin), step)
        with fn.loop(0, count) as p:
            column = fn.add(begin, fn.mul(p.iv, step))
            item.multiply(rows, column, vectors)
            item.finish(step, 0, item.m, column, step)
        begin = fn.add(begin, fn.mul(count, step))
    with fn.when(fn.cmp("lt", begin, end)):
        width = fn.sub(end, begin)
        item.multiply(rows, begin, _NARROW, width)
        item.finish(_NARROW * item.spec.lanes(item.elem), 0, item.m, begin, width)


def _emit_row_groups(item: _Item, begin: V, end: V, *, far: bool) -> list[V]:
    """More rows: groups of nearly equal size go over the same part of B in turn, which comes from the cache for all but one, their
    sums waiting for the next part. Unless B is `far` a part is all of k."""
    fn, elem, most = item.fn, item.elem, _group(item.spec)
    lanes, nbytes = item.spec.lanes(elem), BITS[accumulator(elem)] // 8
    step = _NARROW * lanes
    groups = fn.ceildivu(item.m, most)
    widest = fn.mul(fn.divu(fn.i64(_SUMS_BYTES // nbytes // step), item.m), step)
    with fn.loop(begin, end, widest) as strip:
        columns = fn.min(fn.sub(end, strip.iv), widest)
        ld = fn.mul(fn.ceildivu(columns, lanes), lanes)
        row_share = fn.mul(columns, _PART_SHARE * nbytes)
        depth = fn.max(fn.divu(item.l2_bytes, row_share), _LEAST_DEPTH) if far else fn.max(item.k, 1)
        whole = fn.divu(columns, step)
        rest = fn.sub(columns, fn.mul(whole, step))
        with fn.loop(0, fn.max(item.k, 1), depth) as part:
            first = part.iv
            size, adds = fn.min(fn.sub(item.k, first), depth), fn.cast(fn.cmp("gt", first, 0), I64, signed=False)
            down = fn.mul(item.b_stride, first)
            if far:  # the next part of these columns, or after the last the first one of the next columns
                last = fn.cmp("ge", fn.add(first, depth), item.k)
                later = fn.select(last, fn.sub(widest, down), fn.mul(item.b_stride, depth))
            else:
                later = fn.mul(item.b_stride, fn.max(fn.divu(item.ahead_few, step * BITS[elem] // 8), 1))

            def groups_of(column: V, vectors: int, width: V | None, size: V = size, adds: V = adds, later: V = later) -> None:
                b = fn.gep(item.b, fn.add(fn.add(strip.iv, column), down), elem)
                with fn.loop(0, groups) as g:
                    row, high = item.rows_of(g.iv, groups)
                    a = fn.gep(item.a, fn.add(fn.mul(item.a_stride, row), first), elem)
                    tile = fn.gep(item.tile, fn.add(fn.mul(row, ld), column), accumulator(elem))
                    numbers = [ld, width or fn.i64(0), fn.select(fn.cmp("eq", g.iv, 0), later, 0), adds]
                    for rows in range((most + 1) // 2, most + 1):
                        with fn.when(fn.cmp("eq", high, rows)):
                            kernel = _emit_pass(fn.module, elem, rows, vectors, item.spec, part=width is not None, far=far)
                            fn.call(kernel, [a, item.a_stride, b, item.b_stride, size, tile, *numbers])

            with fn.loop(0, whole) as p:
                groups_of(fn.mul(p.iv, step), _NARROW, None)
            for vectors in range(1, _NARROW + 1):
                with fn.when(fn.cmp("eq", fn.ceildivu(rest, lanes), vectors)):
                    groups_of(fn.mul(whole, step), vectors, rest)
        with fn.loop(0, groups) as g:
            row, high = item.rows_of(g.iv, groups)
            item.finish(ld, row, high, strip.iv, columns, fn.gep(item.tile, fn.mul(row, ld), accumulator(elem)))
    return []
