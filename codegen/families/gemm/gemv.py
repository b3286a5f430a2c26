"""Products of a few rows with a B that isn't packed but has contiguous columns: B is streamed once, where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final

from dhlo.codegen.families.gemm.gemv_passes import emit_pass, emit_strip
from dhlo.codegen.families.gemm.register_tile import BF16, F16, TileSpec, accumulator, result_type
from dhlo.codegen.kernel_ir.builder import BITS, F32, F64, I1, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.target import LINE_BYTES

__all__ = [
    "BESIDE",
    "FROM_MEMORY",
    "PART_DEPTH",
    "STREAM_FACTS",
    "STREAM_ROWS",
    "STRIP_ROWS",
    "WHOLE_ROWS",
    "emit_stream_kernel",
    "narrow_columns",
    "stream_scratch_bytes",
    "waiting_sums",
]

STREAM_ROWS: Final = {F32: 36, F64: 36, F16: 36, BF16: 6}
"""The most rows for which B is streamed, by element type: others have no such kernel. More rows of bf16 pay for packing B, which
dot products then read."""

STREAM_FACTS: Final = ("l2_bytes", "ahead_one", "ahead_few")
"""Facts of the machine that the kernel takes: the size of the second-level cache, and how many bytes ahead a pass prefetches B, for
one row and for more."""

PART_DEPTH: Final = 64
"""Rows of B of a part of it that groups of rows take in turn, at least, where there are few parts."""

WHOLE_ROWS, FROM_MEMORY, BESIDE = 1, 2, 3
"""How B is read: 0, in passes over all of k; in whole rows; in whole rows that are prefetched, as they come from memory; in passes
that prefetch the columns of the next one."""

# Where B is read in whole rows, the sums of so many rows or fewer wait in a strip of so many bytes, half of the smallest first
# cache, and a few rows of B are added to it at a time. B is then read in long pieces, one behind the other, as memory likes it.
STRIP_ROWS, _STRIP_BYTES = 4, 16 << 10
# Vectors of columns that a pass over k covers at least, if registers allow, and of the items' multiples.
_NARROWEST, _NARROW = 2, 4
# More rows than a pass takes go in groups over the same part of B: one part in so many of the second-level cache, to which the
# first group brings it beside the next one and the sums, and columns whose sums of all rows take so many bytes. A part has at
# least so many rows of B.
_PART_SHARE, _SUMS_BYTES, _LEAST_DEPTH = 8, 64 << 10, 16
# Nothing has fetched the first part: there are so many at least, if they have PART_DEPTH rows of B then.
_LEAST_PARTS = 8


def _vectors(rows: int, spec: TileSpec) -> int:
    """Vectors of columns that a pass over k covers for so many rows: as many as leave a quarter of the registers to B and A, and a
    power of two if they are more than a few, so that it reads long pieces of B."""
    most = spec.target.registers * 3 // 4 // rows
    return most if most < _NARROW else 1 << most.bit_length() - 1


def _group(elem: str, spec: TileSpec) -> int:
    """The most rows of a pass over k: as many as leave it wide enough."""
    return max(rows for rows in range(1, STREAM_ROWS[elem] + 1) if _vectors(rows, spec) >= _NARROWEST)


def _strip(elem: str) -> int:
    """Sums of a strip."""
    return _STRIP_BYTES * 8 // BITS[accumulator(elem)]


def narrow_columns(elem: str, spec: TileSpec) -> int:
    """Items should be multiples of this many columns, but for the last ones."""
    return _NARROW * spec.lanes(elem)


def stream_scratch_bytes(elem: str, spec: TileSpec) -> int:
    """Scratch: a strip, the sums of a pass, or those of groups of rows."""
    nbytes = max(spec.target.registers * spec.lanes(elem), _strip(elem)) * BITS[accumulator(elem)] // 8
    return max(nbytes, _SUMS_BYTES) if STREAM_ROWS[elem] > STRIP_ROWS else nbytes


def waiting_sums(elem: str) -> int:
    """Sums of all rows that wait for the next part."""
    return _SUMS_BYTES * 8 // BITS[accumulator(elem)]


def _may_place(elem: str) -> bool:
    """Whether sums may be stored where they belong, as they are."""
    return result_type(elem) == accumulator(elem)


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
    n: V
    result: V
    epilogue: V
    eargs: V
    beside: V  # whether passes prefetch the next one's columns
    l2_bytes: V
    ahead_one: V
    ahead_few: V

    def place(self, column: V, ld: V | int) -> tuple[V, V]:
        """Where sums of all rows from a column on wait, and how many elements their rows are apart: where they belong, or in the
        tile, where they are `ld` apart."""
        fn = self.fn
        if not _may_place(self.elem):
            return self.tile, fn.i64(ld)
        there = fn.gep(self.result, fn.add(fn.mul(fn.mul(self.batch, self.m), self.n), column), self.elem)
        return fn.select(self.places, there, self.tile), fn.select(self.places, self.n, fn.i64(ld))

    @property
    def places(self) -> V:
        """Whether sums are stored where they belong."""
        return self.fn.cmp("ne", self.fn.ptr_to_int(self.result), 0)

    def multiply(self, rows: int, column: V, vectors: int, width: V | None = None) -> None:
        """A pass over k for all `rows` rows and `vectors` vectors of columns, of which there may be only `width`, and its end."""
        fn, elem = self.fn, self.elem
        kernel = emit_pass(fn.module, elem, rows, vectors, self.spec, part=width is not None)
        columns, b = vectors * self.spec.lanes(elem), fn.gep(self.b, column, elem)
        ahead = self.ahead_one if rows == 1 else self.ahead_few
        later = fn.mul(fn.max(fn.divu(ahead, columns * BITS[elem] // 8), 1), self.b_stride)
        later = fn.select(self.beside, self.beside_columns(columns), later)
        sums, ld = self.place(column, columns)
        numbers, fetched = [self.k, sums, ld, width or fn.i64(0), fn.i64(0)], [fn.gep(b, later, elem), self.b_stride]
        fn.call(kernel, [self.a, self.a_stride, b, self.b_stride, *numbers, *fetched])
        with self.unplaced():
            self.finish(columns, 0, self.m, column, columns if width is None else width)

    def beside_columns(self, columns: int) -> int:
        """How far on in a row a pass over so many columns prefetches what the next one reads: rows needn't begin with a line, and
        the first one of the next columns is the last one of these."""
        return columns + LINE_BYTES * 8 // BITS[self.elem] - 1

    def multiply_strip(self, rows: int, column: V, columns: V, *, far: bool) -> None:
        """The first rows times so many columns, to the tile."""
        fn = self.fn
        b = fn.gep(self.b, column, self.elem)
        fn.call(
            emit_strip(fn.module, self.elem, rows, self.spec, far=far),
            [self.a, self.a_stride, b, self.b_stride, self.k, self.tile, columns],
        )

    def unplaced(self) -> AbstractContextManager[None]:
        """Where sums are in the tile."""
        return self.fn.when(self.fn.not_(self.places)) if _may_place(self.elem) else nullcontext()

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

    Items are (batch, chunk of columns). Arguments: a, its strides (m, batch 0, batch 1), b, its strides (batch 0, batch 1, k), m,
    n, k, how deep all batches of dim 0 are where they are parts of k (else 0), size of batch 1, columns in a chunk, how B is read,
    the facts STREAM_FACTS, the address of the result where sums may be stored there (else null), epilogue, its argument.
    """
    name = f"matmul_{elem}_stream"
    if name in module.functions:
        return name
    fn = kernel_fn(module, name)
    a, sm, a0, a1, b, b0, b1, b_k, m, n, each, whole, batch1, chunk, order, *facts, result, epilogue, eargs = load_args(
        fn, [PTR, *[I64] * 3, PTR, *[I64] * (10 + len(STREAM_FACTS)), PTR, PTR, PTR]
    )
    always = STREAM_ROWS[elem] == STRIP_ROWS  # there are no passes for such elements
    beside = fn.cmp("eq", order, BESIDE)
    in_strips = fn.const(True, I1) if always else fn.and_(fn.cmp("ne", order, 0), fn.not_(beside))
    chunks = fn.max(fn.divu(fn.add(n, fn.sub(chunk, 1)), chunk), 1)
    with fn.loop(fn.args[1], fn.args[2]) as loop:
        batch, begin = fn.divu(loop.iv, chunks), fn.mul(fn.remu(loop.iv, chunks), chunk)
        end = fn.min(fn.add(begin, chunk), n)
        i0, i1 = fn.divu(batch, batch1), fn.remu(batch, batch1)
        left = fn.max(fn.sub(whole, fn.mul(i0, each)), 0)
        k = fn.select(fn.cmp("eq", whole, 0), each, fn.min(each, left))
        a_at = fn.gep(a, fn.add(fn.mul(i0, a0), fn.mul(i1, a1)), elem)
        b_at = fn.gep(b, fn.add(fn.mul(i0, b0), fn.mul(i1, b1)), elem)
        item = _Item(fn, elem, spec, a_at, sm, b_at, b_k, m, k, batch, fn.args[4], n, result, epilogue, eargs, beside, *facts)
        for rows in range(1, STRIP_ROWS + 1):
            with fn.when(fn.and_(in_strips, fn.cmp("eq", m, rows))):
                if not always:
                    with fn.when(fn.cmp("eq", order, WHOLE_ROWS)):
                        _emit_strips(item, rows, begin, end, far=False)
                with fn.when(fn.const(True, I1) if always else fn.cmp("eq", order, FROM_MEMORY)):
                    _emit_strips(item, rows, begin, end, far=True)
        if STREAM_ROWS[elem] > STRIP_ROWS:
            near, most = fn.not_(in_strips), _group(elem, spec)
            for rows in range(1, most + 1):
                with fn.when(fn.and_(near, fn.cmp("eq", m, rows))):
                    _emit_wide_passes(item, rows, begin, end)
            if most < STREAM_ROWS[elem]:
                with fn.when(fn.and_(near, fn.cmp("gt", m, most))):
                    _emit_row_groups(item, range((most + 1) // 2, most + 1), begin, end, far=False, shared=True)
            for those, heights in _far_rows(elem, spec):
                with fn.when(fn.and_(in_strips, fn.and_(fn.cmp("ge", m, those[0]), fn.cmp("le", m, those[-1])))):
                    _emit_row_groups(item, heights, begin, end, far=True, shared=those[0] > most)
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
    widest = _vectors(rows, item.spec)
    for vectors in dict.fromkeys((widest, min(widest, _NARROW))):
        step = vectors * item.spec.lanes(item.elem)
        count = fn.divu(fn.sub(end, begin), step)
        with fn.loop(0, count) as p:
            column = fn.add(begin, fn.mul(p.iv, step))
            item.multiply(rows, column, vectors)
        begin = fn.add(begin, fn.mul(count, step))
    width, lanes = fn.sub(end, begin), item.spec.lanes(item.elem)
    for vectors in range(1, min(widest, _NARROW) + 1):
        with fn.when(fn.cmp("eq", fn.ceildivu(width, lanes), vectors)):
            item.multiply(rows, begin, vectors, width)


def _far_rows(elem: str, spec: TileSpec) -> Iterator[tuple[range, range]]:
    """Numbers of rows that take parts of B from memory, each with the heights of the groups in which they do: all at once, or in
    equal groups."""
    most = _group(elem, spec)
    for _, alike in groupby(range(STRIP_ROWS + 1, most + 1), partial(_vectors, spec=spec)):
        rows = list(alike)
        yield range(rows[0], rows[-1] + 1), range(rows[0], rows[-1] + 1)
    if most < STREAM_ROWS[elem]:
        yield range(most + 1, STREAM_ROWS[elem] + 1), range((most + 1) // 2, most + 1)


def _emit_row_groups(item: _Item, heights: range, begin: V, end: V, *, far: bool, shared: bool = False) -> None:
    """Groups of rows of nearly equal size, of the given `heights`, go over the same part of B in turn, which comes from the cache
    for all but one, their sums waiting for the next part. Unless B is `far` a part is all of k. The first group fetches the next
    part, or the next columns that lie `beside`; or each a line of a row, where that is `shared`: memory delivers no faster than
    all of them multiply."""
    fn, elem, widest_pass = item.fn, item.elem, _vectors(heights[-1], item.spec)
    lanes, nbytes = item.spec.lanes(elem), BITS[accumulator(elem)] // 8
    step = widest_pass * lanes
    groups = fn.ceildivu(item.m, heights[-1])
    widest = fn.mul(fn.divu(fn.i64(waiting_sums(elem) // step), item.m), step)
    with fn.loop(begin, end, widest) as strip:
        columns = fn.min(fn.sub(end, strip.iv), widest)
        sums, ld = item.place(strip.iv, fn.mul(fn.ceildivu(columns, lanes), lanes))
        row_share = fn.mul(columns, _PART_SHARE * nbytes)
        depth = fn.max(item.k, 1)
        if far:
            several = fn.max(fn.ceildivu(item.k, _LEAST_PARTS), PART_DEPTH)
            depth = fn.max(fn.min(fn.divu(item.l2_bytes, row_share), several), _LEAST_DEPTH)
        whole = fn.divu(columns, step)
        rest = fn.sub(columns, fn.mul(whole, step))
        with fn.loop(0, fn.max(item.k, 1), depth) as part:
            first = part.iv
            size, adds = fn.min(fn.sub(item.k, first), depth), fn.cast(fn.cmp("gt", first, 0), I64, signed=False)
            down = fn.mul(item.b_stride, first)
            fetched = partial(_fetched_part, item, strip.iv, columns, first, depth, size) if far else None

            def groups_of(column: V, vectors: int, width: V | None, size: V = size, adds: V = adds, down: V = down) -> None:
                b = fn.gep(item.b, fn.add(fn.add(strip.iv, column), down), elem)
                if fetched is None:
                    later = fn.mul(item.b_stride, fn.max(fn.divu(item.ahead_few, step * BITS[elem] // 8), 1))
                    later = fn.select(item.beside, item.beside_columns(vectors * lanes), later)
                    ahead, pace = fn.gep(b, later, elem), item.b_stride
                else:
                    ahead, pace = fetched(column, vectors * lanes)
                with fn.loop(0, groups) as g:
                    row, high = item.rows_of(g.iv, groups)
                    a = fn.gep(item.a, fn.add(fn.mul(item.a_stride, row), first), elem)
                    tile = fn.gep(sums, fn.add(fn.mul(row, ld), column), accumulator(elem))
                    line = LINE_BYTES * 8 // BITS[elem]
                    mine = fn.cmp("lt", g.iv, -(-vectors * lanes // line) if shared else 1)
                    there = fn.select(mine, fn.gep(ahead, fn.mul(g.iv, line), elem), b)
                    numbers = [size, tile, ld, width or fn.i64(0), adds, there, fn.select(mine, pace, item.b_stride)]
                    for rows in heights:
                        with fn.when(fn.cmp("eq", high, rows)):
                            form = {"part": width is not None, "far": far or shared, "shared": shared}
                            kernel = emit_pass(fn.module, elem, rows, vectors, item.spec, **form)
                            fn.call(kernel, [a, item.a_stride, b, item.b_stride, *numbers])

            with fn.loop(0, whole) as p:
                groups_of(fn.mul(p.iv, step), widest_pass, None)
            for vectors in range(1, widest_pass + 1):
                with fn.when(fn.cmp("eq", fn.ceildivu(rest, lanes), vectors)):
                    groups_of(fn.mul(whole, step), vectors, rest)
        with item.unplaced(), fn.loop(0, groups) as g:
            row, high = item.rows_of(g.iv, groups)
            item.finish(ld, row, high, strip.iv, columns, fn.gep(item.tile, fn.mul(row, ld), accumulator(elem)))


def _fetched_part(item: _Item, strip: V, columns: V, first: V, depth: V, size: V, column: V, step: int) -> tuple[V, V]:
    """What a pass over `step` columns and `size` rows of a part, the `first` one of B and those below, prefetches: an address, and
    how far apart the pieces of its rows are. That is the same piece of the next part, `depth` rows on; after the last one the first
    part's of the columns behind the strip. Where rows of B lie one behind the other, so do parts and matrices of a batch, and all
    passes together prefetch the next part in the order of memory, which the hardware follows."""
    fn, elem = item.fn, item.elem
    down, next_part = fn.mul(item.b_stride, first), fn.mul(item.b_stride, depth)
    later = fn.select(fn.cmp("ge", fn.add(first, depth), item.k), fn.sub(columns, down), next_part)
    piece = fn.add(fn.add(strip, column), fn.add(down, later))
    behind = fn.add(fn.add(down, next_part), fn.mul(column, size))
    linear = fn.cmp("eq", columns, item.b_stride)
    return fn.gep(item.b, fn.select(linear, behind, piece), elem), fn.select(linear, fn.i64(step), item.b_stride)
