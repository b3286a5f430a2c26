"""Products of a few rows with a B that isn't packed but has contiguous columns: B is streamed once, where it lies."""

from __future__ import annotations

from dataclasses import dataclass

from dhlo.codegen.families.gemm.microkernel import TileSpec, emit_microkernel_table
from dhlo.codegen.families.gemm.pack import emit_pack_b_panel
from dhlo.codegen.kernel_ir.builder import BITS, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = ["STREAM_ROWS", "emit_stream_kernel", "narrow_columns", "stream_scratch_elements"]

STREAM_ROWS = 12
# The sums of so many rows or fewer wait in a strip of so many bytes, half of the smallest first-level cache, and a few rows of B
# are added to it at a time. B is then read in long pieces, one behind the other, as memory likes it.
_STRIP_ROWS, _STRIP_BYTES, _STRIP_DEPTH = 2, 16 << 10, 8
_STRIP_LOCALITY = 2  # prefetched to the second level: a strip of all of them is larger than the first
# Vectors of columns that a pass over k covers at least, and rows at most.
_NARROW, _GROUP = 4, 4
_ROWS_AHEAD = 4


def _vectors(rows: int, spec: TileSpec) -> int:
    """Vectors of columns that a pass over k covers for so many rows: a power of two for which sums take no more than three
    quarters of the registers, so that it reads long pieces of B."""
    return 1 << (spec.target.registers * 3 // 4 // rows).bit_length() - 1


def _group(spec: TileSpec) -> int:
    """The most rows of a pass over k: as many as leave it wide enough."""
    return max(rows for rows in range(1, _GROUP + 1) if _vectors(rows, spec) >= _NARROW)


def _strip(elem: str) -> int:
    """Elements of a strip."""
    return _STRIP_BYTES * 8 // BITS[elem]


def narrow_columns(elem: str, spec: TileSpec) -> int:
    """Items should be multiples of this many columns; fewer columns than this aren't worth the kernel."""
    return _NARROW * spec.lanes(elem)


def stream_scratch_elements(elem: str, spec: TileSpec) -> int:
    """Scratch, in elements, without the panel of B that the last columns are packed to (k * nr more)."""
    return max(_group(spec) * _vectors(1, spec) * spec.lanes(elem), _strip(elem))


def _emit_pass(module: KernelModule, elem: str, rows: int, vectors: int, spec: TileSpec) -> str:
    """`stream_{elem}_{rows}_{vectors}(a, lda, b, ldb, k, tile)`: tile[rows][vectors * lanes] = A times columns of B."""
    name = f"stream_{elem}_{rows}_{vectors}"
    if name in module.functions:
        return name
    fn = Fn(module, name, [("a", PTR), ("lda", I64), ("b", PTR), ("ldb", I64), ("k", I64), ("tile", PTR)], noinline=True)
    a, lda, b, ldb, k, tile = fn.args
    lanes = spec.lanes(elem)
    ty = vec(elem, lanes)
    starts = [fn.gep(a, fn.mul(lda, i), elem) for i in range(rows)]
    with fn.loop(0, k, 1, [fn.const(0.0, ty)] * (rows * vectors)) as loop:
        row = fn.gep(b, fn.mul(loop.iv, ldb), elem)
        ahead = fn.gep(row, fn.mul(ldb, _ROWS_AHEAD), elem)
        xs = [fn.splat(fn.load(fn.gep(p, loop.iv, elem), elem), lanes) for p in starts]
        acc = list(loop.carried)
        for v in range(vectors):
            fn.prefetch(fn.gep(ahead, v * lanes, elem))
            y = fn.load(fn.gep(row, v * lanes, elem), ty)
            for i, x in enumerate(xs):
                acc[i * vectors + v] = fn.fma(x, y, acc[i * vectors + v])
        loop.yield_(*acc)
    for i, x in enumerate(loop.results):
        fn.store(x, fn.gep(tile, i * lanes, elem))
    fn.done()
    return name


def _emit_strip(module: KernelModule, elem: str, rows: int, spec: TileSpec) -> str:
    """`strip_{elem}_{rows}(a, lda, b, ldb, k, tile, columns)`: tile[rows][columns] = A times columns of B, in whole vectors."""
    name = f"strip_{elem}_{rows}"
    if name in module.functions:
        return name
    args = [("a", PTR), ("lda", I64), ("b", PTR), ("ldb", I64), ("k", I64), ("tile", PTR), ("columns", I64)]
    fn = Fn(module, name, args, noinline=True)
    a, lda, b, ldb, k, tile, columns = fn.args
    lanes = spec.lanes(elem)
    ty = vec(elem, lanes)
    starts = [fn.gep(a, fn.mul(lda, i), elem) for i in range(rows)]
    with fn.loop(0, fn.mul(columns, rows), lanes) as at:
        fn.store(fn.const(0.0, ty), fn.gep(tile, at.iv, elem))

    def add(first: V, count: int) -> None:
        factors = [[fn.splat(fn.load(fn.gep(p, fn.add(first, j), elem), elem), lanes) for p in starts] for j in range(count)]
        below = [fn.gep(b, fn.mul(fn.add(first, j), ldb), elem) for j in range(count)]
        later = [fn.gep(row, fn.mul(ldb, count), elem) for row in below]
        with fn.loop(0, columns, lanes) as at:
            places = [fn.gep(tile, fn.add(fn.mul(columns, i), at.iv), elem) for i in range(rows)]
            sums = [fn.load(p, ty) for p in places]
            for row, after, xs in zip(below, later, factors, strict=True):
                fn.prefetch(fn.gep(after, at.iv, elem), _STRIP_LOCALITY)
                y = fn.load(fn.gep(row, at.iv, elem), ty, BITS[elem] // 8)
                sums = [fn.fma(x, y, z) for x, z in zip(xs, sums, strict=True)]
            for p, x in zip(places, sums, strict=True):
                fn.store(x, p)

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

    def multiply(self, rows: int, row: V | int, column: V, vectors: int) -> None:
        """A pass over k for `rows` rows and `vectors` vectors of columns, to the tile."""
        fn = self.fn
        fn.call(
            _emit_pass(fn.module, self.elem, rows, vectors, self.spec),
            [
                fn.gep(self.a, fn.mul(self.a_stride, row), self.elem),
                self.a_stride,
                fn.gep(self.b, column, self.elem),
                self.b_stride,
                self.k,
                self.tile,
            ],
        )

    def multiply_strip(self, rows: int, column: V, columns: V) -> None:
        """The first rows times so many columns, to the tile."""
        fn = self.fn
        b = fn.gep(self.b, column, self.elem)
        fn.call(
            _emit_strip(fn.module, self.elem, rows, self.spec),
            [self.a, self.a_stride, b, self.b_stride, self.k, self.tile, columns],
        )

    def finish(self, ld: V | int, row: V | int, mr: V, column: V, width: V | int) -> None:
        """Hands the tile to the epilogue, in pieces of a micro-tile's width."""
        fn, nr = self.fn, self.spec.nr(self.elem)
        with fn.loop(0, width, nr) as part:
            fn.call_ptr(
                self.epilogue,
                [
                    self.eargs,
                    fn.gep(self.tile, part.iv, self.elem),
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

    def last_columns(self, start: V, end: V) -> None:
        """The columns that no pass takes: packed to scratch, then multiplied by the micro-kernel."""
        fn, elem, nr = self.fn, self.elem, self.spec.nr(self.elem)
        table = fn.address_of(emit_microkernel_table(fn.module, elem, rows=True, spec=self.spec))
        panel = fn.gep(self.tile, stream_scratch_elements(elem, self.spec), elem)
        with fn.loop(start, end, nr) as p:
            width = fn.min(fn.sub(end, p.iv), nr)
            fn.call(
                emit_pack_b_panel(fn.module, elem, self.spec.alone),
                [fn.gep(self.b, p.iv, elem), self.b_stride, fn.i64(1), width, self.k, panel],
            )
            runs = fn.ceildivu(self.m, self.spec.rows(elem))
            with fn.loop(0, runs) as run:
                first, rows = self.rows_of(run.iv, runs)
                ukr = fn.load(fn.gep(table, fn.sub(rows, 1), PTR), PTR)
                a = fn.gep(self.a, fn.mul(self.a_stride, first), elem)
                fn.call_ptr(ukr, [a, self.a_stride, panel, self.k, self.tile, fn.i64(0)])
                self.finish(nr, first, rows, p.iv, width)


def emit_stream_kernel(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits the kernel `matmul_{elem}_stream` for 1 to STREAM_ROWS rows; returns its symbol.

    Items are (batch, chunk of columns). Arguments: a, its strides (m, batch 0, batch 1), b, its strides (batch 0,
    batch 1, k), m, n, k, size of batch 1, columns in a chunk, epilogue, its argument.
    """
    name = f"matmul_{elem}_stream"
    if name in module.functions:
        return name
    fn = kernel_fn(module, name)
    a, sm, a0, a1, b, b0, b1, b_k, m, n, k, batch1, chunk, epilogue, eargs = load_args(
        fn, [PTR, *[I64] * 3, PTR, *[I64] * 8, PTR, PTR]
    )
    chunks = fn.max(fn.divu(fn.add(n, fn.sub(chunk, 1)), chunk), 1)
    with fn.loop(fn.args[1], fn.args[2]) as loop:
        batch, begin = fn.divu(loop.iv, chunks), fn.mul(fn.remu(loop.iv, chunks), chunk)
        end = fn.min(fn.add(begin, chunk), n)
        i0, i1 = fn.divu(batch, batch1), fn.remu(batch, batch1)
        a_at = fn.gep(a, fn.add(fn.mul(i0, a0), fn.mul(i1, a1)), elem)
        b_at = fn.gep(b, fn.add(fn.mul(i0, b0), fn.mul(i1, b1)), elem)
        item = _Item(fn, elem, spec, a_at, sm, b_at, b_k, m, k, batch, fn.args[4], epilogue, eargs)
        for rows in range(1, _group(spec) + 1):
            with fn.when(fn.cmp("eq", m, rows)):
                _emit_few_rows(item, rows, begin, end)
        with fn.when(fn.cmp("gt", m, _group(spec))):
            _emit_row_groups(item, begin, end)
    fn.done()
    return name


def _emit_few_rows(item: _Item, rows: int, begin: V, end: V) -> None:
    """Rows of a single pass: in strips, or in wide passes over k, then narrow ones."""
    fn, lanes = item.fn, item.spec.lanes(item.elem)
    if rows <= _STRIP_ROWS:
        whole = fn.add(begin, fn.mul(fn.divu(fn.sub(end, begin), lanes), lanes))
        most = _strip(item.elem) // rows
        with fn.loop(begin, whole, most) as strip:
            columns = fn.min(fn.sub(whole, strip.iv), most)
            item.multiply_strip(rows, strip.iv, columns)
            item.finish(columns, 0, item.m, strip.iv, columns)
        item.last_columns(whole, end)
        return
    for vectors in dict.fromkeys((_vectors(rows, item.spec), _NARROW)):
        step = vectors * item.spec.lanes(item.elem)
        count = fn.divu(fn.sub(end, begin), step)
        with fn.loop(0, count) as p:
            column = fn.add(begin, fn.mul(p.iv, step))
            item.multiply(rows, 0, column, vectors)
            item.finish(step, 0, item.m, column, step)
        begin = fn.add(begin, fn.mul(count, step))
    item.last_columns(begin, end)


def _emit_row_groups(item: _Item, begin: V, end: V) -> None:
    """More rows: groups of nearly equal size go over the same columns in turn, and B comes from the cache for all but one."""
    fn, most = item.fn, _group(item.spec)
    step = _NARROW * item.spec.lanes(item.elem)
    groups = fn.ceildivu(item.m, most)
    count = fn.divu(fn.sub(end, begin), step)
    with fn.loop(0, count) as p, fn.loop(0, groups) as g:
        column = fn.add(begin, fn.mul(p.iv, step))
        first, size = item.rows_of(g.iv, groups)
        for rows in range((most + 1) // 2, most + 1):
            with fn.when(fn.cmp("eq", size, rows)):
                item.multiply(rows, first, column, _NARROW)
        item.finish(step, first, size, column, step)
    item.last_columns(fn.add(begin, fn.mul(count, step)), end)
