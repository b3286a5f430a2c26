"""The kernel of a product in the target's matrix registers: 32 rows by a panel of 32 columns as 2 x 2 tiles of sums.

A panel of B is what tiles hold already: 16 units of k by 16 columns are 16 rows of 64 bytes, 128 apart. Rows of A are read where
they lie, 64 bytes of each, or packed tile by tile. What is left of k is multiplied as whole tiles, from copies that end with zeros;
what is left of rows by tiles of fewer rows.

Four products of tiles take as long as the first-level cache takes to deliver twice what they read, and the second-level one less
than that: a piece of a panel of B stays in the first while a block's row panels pass by it, which are loaded past that cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dhlo.codegen.families.gemm.multiply_add import as_vector_of
from dhlo.codegen.families.gemm.pack_rows import emit_pack_rows, units
from dhlo.codegen.families.gemm.panels import Chunk, PanelSource
from dhlo.codegen.families.gemm.register_tile import TileSpec, accumulator, depth, result_type
from dhlo.codegen.families.gemm.tile_memory import rounded_together
from dhlo.codegen.kernel_ir.builder import BITS, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.target import LINE_BYTES, MatrixTiles

__all__ = [
    "FIXED_BYTES",
    "PANEL_ROWS",
    "STEP_BYTES",
    "STEP_UNITS",
    "SUMS_BYTES",
    "TILE_BYTES",
    "TILE_ROWS",
    "emit_tiles_kernel",
    "tiles_kernel_name",
]

TILE_ROWS: Final = 16
_ROW_BYTES: Final = 64
TILE_BYTES: Final = TILE_ROWS * _ROW_BYTES
STEP_UNITS: Final = TILE_ROWS
"""Units of k in a step: rows of a tile of B."""
PANEL_ROWS: Final = 2 * TILE_ROWS
_COLUMNS: Final = 32
_SUMS_ROW_BYTES: Final = _COLUMNS * 4  # of a panel of B, too
STEP_BYTES: Final = STEP_UNITS * _SUMS_ROW_BYTES
"""Of a panel of B in a step."""
SUMS_BYTES: Final = PANEL_ROWS * _SUMS_ROW_BYTES
_CONFIG_BYTES: Final = 128  # the configuration, and the number of rows that it is for
FIXED_BYTES: Final = _CONFIG_BYTES + TILE_BYTES + STEP_BYTES
"""Scratch for the configuration, a tile on its way to be transposed, and the last step of a panel of B."""

# Tiles: sums by row and column, A by row, B by column.
_SUMS, _LEFT, _RIGHT = ((0, 1), (2, 3)), (4, 5), (6, 7)
# A configuration's words of bytes: 64 of a row of each tile; rows of those that one row's height decides, and of B's.
_WIDTHS, _FIRST, _SECOND, _OF_RIGHT = 0x0040_0040_0040_0040, 0x0000_0001_0000_0101, 0x0000_0100_0101_0000, 0x1010 << 48
# Of a panel of B ahead of its use, to the second level.
_PREFETCH_LOCALITY = 2


def tiles_kernel_name(elem: str, spec: TileSpec, source: PanelSource) -> str:
    """Symbol of the kernel."""
    return f"matmul_{elem}_tiles{source.name}{'_unsigned' if spec.unsigned else ''}"


def emit_tiles_kernel(module: KernelModule, elem: str, spec: TileSpec, source: PanelSource) -> str:
    """Emits the kernel of products of bf16 or i8 in tiles, once a module; returns its symbol.

    Items are (batch, row block, column panel). Arguments: A and its strides (m, k, batch 0, batch 1), those of the source, m, n, k,
    size of batch 1, rows of a block, steps of k in a chunk and in a piece of it, panels in a group, whether A is packed, how many
    bytes ahead a lone row panel prefetches B, whether stores stream, a result, epilogue, touch, and the argument of both. The
    result is null, or the address of a dense matrix of `result_type(elem)`: tiles of whole panels are stored there, and have no
    epilogue then. Stores stream past the caches where its rows and itself are whole lines.
    """
    name = tiles_kernel_name(elem, spec, source)
    if name not in module.functions:
        _Kernel(module, name, elem, spec, source).emit()
    return name


def _do(fn: Fn, intrinsic: str, *args: V | int) -> None:
    """Calls an intrinsic of tiles, whose numbers are i8."""
    values = [x if isinstance(x, V) else fn.const(x, I8) for x in args]
    names, types = ", ".join(x.name for x in values), ", ".join(x.type for x in values)
    fn.raw(f'llvm.call_intrinsic "{intrinsic}"({names}) : ({types}) -> ()')


def _tiles_of(fn: Fn) -> MatrixTiles:
    tiles = fn.target.tiles
    assert tiles is not None
    return tiles


def _product(fn: Fn, elem: str, spec: TileSpec) -> str:
    """The intrinsic that multiplies these elements."""
    return _tiles_of(fn).products["ui8" if elem == I8 and spec.unsigned else elem].intrinsic


@dataclass(frozen=True)
class _Rows:
    """A block's rows in a chunk of k: where they lie, bytes from a row to the next, from a step of k to the next and from a tile to
    the one below; those of tiles below each other where they are packed, of which the last step is all where only it is; whole
    steps, and units that are left."""

    size: V
    chunk: V
    stride: V
    step: V
    second: V
    pitch: V
    whole: V
    rest: V


@dataclass(frozen=True)
class _Sums:
    """Where a tile's sums are kept, whether they have begun, and whether they are whole after this."""

    tile: V
    begun: V
    done: V


class _Kernel:
    """The kernel under construction. As in the kernel of vectors, a run of panels of one row block is taken in groups, each one
    chunk of k after the other, its sums waiting in scratch in between: a block's chunk of A stays in the second-level cache. Of a
    panel's chunk each piece meets all row panels before the next one does: it stays in the first-level cache."""

    def __init__(self, module: KernelModule, name: str, elem: str, spec: TileSpec, source: PanelSource) -> None:
        self.elem, self.spec, self.source, self.bytes = elem, spec, source, BITS[elem] // 8
        self.micro = [emit_tiles_microkernel(module, elem, spec, high) for high in (1, 2)]
        self.pack = emit_pack_tile(module, elem, spec)
        self.placed = result_type(elem)
        self.fn = fn = kernel_fn(module, name)
        types = [PTR, *[I64] * 4, *source.args, *[I64] * 11, *[PTR] * 4]
        self.a, self.sm, self.sk, self.a0, self.a1, *rest = load_args(fn, types)
        self.b, sizes = rest[: len(source.args)], rest[len(source.args) :]
        self.m, self.n, self.k, self.batch1, self.rows, self.kc, self.piece, self.nc, *sizes = sizes
        packed, self.ahead, streams, self.result, self.epilogue, self.touch, self.eargs = sizes
        _, self.begin, self.end, _, scratch = fn.args
        self.packed, self.streams = (fn.cmp("ne", x, 0) for x in (packed, streams))
        self.config = scratch
        self.corner = fn.gep(scratch, _CONFIG_BYTES, I8)
        self.b_tail = fn.gep(self.corner, TILE_BYTES, I8)
        self.sums = fn.gep(self.b_tail, STEP_BYTES, I8)
        self.units = units(fn, self.k, elem)
        steps = fn.ceildivu(self.units, STEP_UNITS)
        self.chunks = fn.max(fn.divu(fn.add(steps, fn.sub(self.kc, 1)), self.kc), 1)
        # The sums of panels in a group wait for another chunk, else those of a panel's tiles for another piece.
        self.several = fn.cmp("gt", self.chunks, 1)
        waiting = fn.mul(fn.ceildivu(self.rows, PANEL_ROWS), fn.select(self.several, self.nc, 1))
        self.b_scratch = fn.gep(self.sums, fn.mul(waiting, SUMS_BYTES), I8)
        self.a_pack = self.b_scratch if source.in_place else fn.gep(self.b_scratch, fn.mul(self.kc, STEP_BYTES), I8)
        self.touches, self.places = (fn.cmp("ne", fn.ptr_to_int(p), 0) for p in (self.touch, self.result))

    def emit(self) -> None:
        """Walks the row blocks that [begin, end) touches."""
        fn = self.fn
        for place, word in enumerate((1, 0, _WIDTHS, _WIDTHS, 0, 0, 0, 0, 0)):
            fn.store(fn.i64(word), fn.gep(self.config, place, I64))
        panels = fn.max(fn.ceildivu(self.n, _COLUMNS), 1)
        blocks = fn.max(fn.ceildivu(self.m, self.rows), 1)
        with fn.loop(fn.divu(self.begin, panels), fn.ceildivu(self.end, panels)) as run:
            before = fn.mul(run.iv, panels)
            p0, p1 = fn.max(fn.sub(self.begin, before), 0), fn.min(fn.sub(self.end, before), panels)
            batch, row = fn.divu(run.iv, blocks), fn.mul(fn.remu(run.iv, blocks), self.rows)
            i0, i1 = fn.divu(batch, self.batch1), fn.remu(batch, self.batch1)
            at = fn.add(fn.add(fn.mul(i0, self.a0), fn.mul(i1, self.a1)), fn.mul(row, self.sm))
            a_block, matrix = fn.gep(self.a, at, self.elem), self.source.matrix(fn, self.elem, self.b, i0, i1)
            size = fn.min(fn.sub(self.m, row), self.rows)
            with fn.loop(p0, p1, self.nc) as group, fn.loop(0, self.chunks) as chunk:
                g1 = fn.min(fn.add(group.iv, self.nc), p1)
                self._group(batch, row, size, a_block, matrix, group.iv, g1, chunk.iv)
        _do(fn, _tiles_of(fn).release)
        with fn.when(self.streams):
            _do(fn, _tiles_of(fn).fence)
        fn.done()

    def _group(self, batch: V, row: V, size: V, a_block: V, matrix: Sequence[V], g0: V, g1: V, chunk: V) -> None:
        """The panels [g0, g1) of `size` rows in one chunk of k."""
        fn, elem = self.fn, self.elem
        first = fn.mul(fn.mul(chunk, self.kc), STEP_UNITS)
        count = fn.min(fn.sub(self.units, first), fn.mul(self.kc, STEP_UNITS))
        begins = fn.mul(first, depth(elem))
        elements = fn.min(fn.sub(self.k, begins), fn.mul(count, depth(elem)))
        steps, row_panels = fn.ceildivu(count, STEP_UNITS), fn.ceildivu(size, PANEL_ROWS)
        rows = self._pack_a(fn.gep(a_block, fn.mul(begins, self.sk), elem), size, elements, count)
        pieces = fn.max(fn.divu(fn.add(steps, fn.sub(self.piece, 1)), self.piece), 1)
        last = fn.cmp("eq", fn.add(chunk, 1), self.chunks)
        with fn.loop(g0, g1) as p:
            n0, turn = fn.mul(p.iv, _COLUMNS), fn.sub(p.iv, g0)
            width = fn.min(fn.sub(self.n, n0), _COLUMNS)
            ends = fn.cmp("eq", fn.add(p.iv, 1), g1)
            # After the last panel comes the first one's next chunk.
            next_n0 = fn.select(ends, fn.mul(g0, _COLUMNS), fn.add(n0, _COLUMNS))
            next_first = fn.select(ends, fn.add(first, count), first)
            c = Chunk(n0, width, first, count, self.units, elements, self.b_scratch, turn, ends, next_n0, next_first)
            panel = self.source.chunk(fn, elem, self.spec, matrix, c)
            with fn.when(fn.cmp("ne", rows.rest, 0)):
                self._copy_b_tail(fn.gep(panel, fn.mul(rows.whole, STEP_BYTES), I8), rows.rest)
            slots = fn.mul(fn.select(self.several, turn, 0), row_panels)
            with fn.loop(0, pieces) as piece, fn.loop(0, row_panels) as i:
                tile = fn.gep(self.sums, fn.mul(fn.add(slots, i.iv), SUMS_BYTES), I8)
                begun = fn.or_(fn.cmp("gt", chunk, 0), fn.cmp("gt", piece.iv, 0))
                sums = _Sums(tile, begun, fn.and_(last, fn.cmp("eq", fn.add(piece.iv, 1), pieces)))
                at = fn.mul(piece.iv, self.piece)
                ahead = self._ahead(matrix, c, panel, at, i.iv, row_panels)
                self._tile(batch, row, i.iv, n0, width, rows, panel, at, sums, ahead)

    def _ahead(self, matrix: Sequence[V], c: Chunk, panel: V, at: V, i: V, row_panels: V) -> list[V]:
        """What the row panel `i` prefetches while it meets the piece from step `at` on: an address, lines of each step, bytes from
        one to the next. Row panels share a packed panel's next one, a lone one reads ahead; the first fetches the rows of a B as
        it lies."""
        fn, elem = self.fn, self.elem
        if not self.source.in_place:
            address, apart = self.source.ahead(fn, elem, self.spec, matrix, c)
            none = fn.or_(fn.cmp("gt", i, 0), fn.cmp("eq", apart, 0))
            begins = fn.mul(fn.mul(at, STEP_UNITS), apart)
            return [fn.gep(address, begins, I8), fn.select(none, 0, STEP_UNITS), apart]
        lines = STEP_BYTES // LINE_BYTES
        share = fn.select(fn.cmp("ge", row_panels, lines), fn.i64(1), fn.ceildivu(fn.i64(lines), row_panels))
        following = self.source.chunk(fn, elem, self.spec, matrix, replace(c, n0=c.next_n0, first=c.next_first))
        piece = fn.gep(following, fn.mul(at, STEP_BYTES), I8)
        shared = fn.gep(piece, fn.mul(fn.mul(i, share), fn.mul(self.piece, LINE_BYTES)), I8)
        alone = fn.gep(panel, fn.add(fn.mul(at, STEP_BYTES), self.ahead), I8)
        lone = fn.cmp("eq", row_panels, 1)
        needed = fn.select(fn.cmp("lt", fn.mul(i, share), lines), share, 0)
        return [fn.select(lone, alone, shared), fn.select(lone, fn.i64(lines), needed), fn.i64(LINE_BYTES)]

    def _tile(self, batch: V, row: V, i: V, n0: V, width: V, rows: _Rows, panel: V, at: V, sums: _Sums, ahead: Sequence[V]) -> None:
        """The row panel `i` by the piece of a panel of B from step `at` of a chunk on."""
        fn, elem = self.fn, self.elem
        offset = fn.mul(i, PANEL_ROWS)
        mr = fn.min(fn.sub(rows.size, offset), PANEL_ROWS)
        self._configure(mr)
        in_pack = fn.gep(self.a_pack, fn.mul(fn.mul(i, 2), rows.pitch), I8)
        a = fn.select(self.packed, in_pack, fn.gep(rows.chunk, fn.mul(offset, self.sm), elem))
        a_tail = fn.gep(in_pack, fn.sub(rows.pitch, TILE_BYTES), I8)
        place = [self.eargs, sums.tile, fn.i64(_COLUMNS), batch, fn.add(row, offset), n0, mr, width]
        with fn.when(fn.and_(fn.and_(self.touches, fn.not_(self.streams)), sums.done)):
            fn.call_ptr(self.touch, place)
        stored = fn.and_(fn.and_(self.places, sums.done), fn.cmp("eq", width, _COLUMNS))
        first = fn.mul(fn.add(fn.mul(fn.add(fn.mul(batch, self.m), fn.add(row, offset)), self.n), n0), BITS[self.placed] // 8)
        result, row_bytes = fn.gep(self.result, first, I8), fn.mul(self.n, BITS[self.placed] // 8)
        to, apart = sums.tile, fn.i64(_SUMS_ROW_BYTES)
        if self.placed == accumulator(elem):  # tiles are stored where they belong
            directly = fn.and_(stored, fn.not_(self.streams))
            to, apart = fn.select(directly, result, to), fn.select(directly, row_bytes, apart)
        ends = fn.cmp("ge", fn.add(at, self.piece), rows.whole)
        steps = fn.select(ends, fn.max(fn.sub(rows.whole, at), 0), self.piece)
        rest = fn.select(fn.cmp("gt", fn.add(at, self.piece), rows.whole), rows.rest, 0)
        left = [fn.gep(a, fn.mul(at, rows.step), I8), rows.stride, rows.step, rows.second]
        right = [fn.gep(panel, fn.mul(at, STEP_BYTES), I8), steps, a_tail, rows.pitch, self.b_tail, rest]
        begun = fn.cast(sums.begun, I64, signed=False)
        self._call(mr, [*left, *right, sums.tile, begun, to, apart, *ahead])

        def finish() -> list[V]:
            with fn.when(sums.done):
                fn.call_ptr(self.epilogue, place)
            return []

        def store() -> list[V]:
            args = [sums.tile, mr, result, self.n]
            streaming, placing = (emit_place_tile(fn.module, elem, self.spec, streams=x) for x in (True, False))

            def place_tile() -> list[V]:
                if self.placed != accumulator(elem):
                    fn.call(placing, args)
                return []

            def stream() -> list[V]:
                fn.call(streaming, args)
                return []

            return fn.if_else(self.streams, stream, place_tile, [])

        fn.if_else(stored, store, finish, [])

    def _call(self, mr: V, args: Sequence[V]) -> None:
        def of(micro: str) -> list[V]:
            self.fn.call(micro, args)
            return []

        one, two = self.micro
        self.fn.if_else(self.fn.cmp("le", mr, TILE_ROWS), lambda: of(one), lambda: of(two), [])

    def _pack_a(self, a: V, size: V, elements: V, count: V) -> _Rows:
        """Packs `size` rows of a chunk of A by tiles of 16 rows, [rows / 16][steps][16][64 bytes]: all of it, or where it's read in
        place a last step that isn't whole: what follows in a row there isn't this product's."""
        fn, elem = self.fn, self.elem
        each = STEP_UNITS * depth(elem)
        whole, steps = fn.divu(elements, each), fn.ceildivu(count, STEP_UNITS)
        first = fn.select(self.packed, fn.i64(0), whole)
        pitch = fn.mul(fn.sub(steps, first), TILE_BYTES)
        with fn.loop(0, fn.ceildivu(size, TILE_ROWS)) as i, fn.loop(first, steps) as s:
            row, k = fn.mul(i.iv, TILE_ROWS), fn.mul(s.iv, each)
            rows, left = fn.min(fn.sub(size, row), TILE_ROWS), fn.min(fn.sub(elements, k), each)
            src = fn.gep(a, fn.add(fn.mul(row, self.sm), fn.mul(k, self.sk)), elem)
            to = fn.gep(self.a_pack, fn.add(fn.mul(i.iv, pitch), fn.mul(fn.sub(s.iv, first), TILE_BYTES)), I8)
            fn.call(self.pack, [src, self.sm, self.sk, rows, left, to, self.corner])
        stride = fn.select(self.packed, fn.i64(_ROW_BYTES), fn.mul(self.sm, self.bytes))
        step = fn.select(self.packed, fn.i64(TILE_BYTES), _ROW_BYTES)
        second = fn.select(self.packed, pitch, fn.mul(stride, TILE_ROWS))
        return _Rows(size, a, stride, step, second, pitch, whole, fn.sub(count, fn.mul(whole, STEP_UNITS)))

    def _copy_b_tail(self, src: V, count: V) -> None:
        """The last units of a panel, with zeros after them: what follows in memory may be anything, and times zero be NaN."""
        fn, lanes = self.fn, self.spec.target.lanes(I32)
        ty = vec(I32, lanes)
        nbytes = lanes * 4
        done = fn.mul(count, _SUMS_ROW_BYTES)
        with fn.loop(0, done, nbytes) as at:
            fn.store(fn.load(fn.gep(src, at.iv, I8), ty), fn.gep(self.b_tail, at.iv, I8))
        with fn.loop(done, STEP_BYTES, nbytes) as at:
            fn.store(fn.const(0, ty), fn.gep(self.b_tail, at.iv, I8))

    def _configure(self, mr: V) -> None:
        """Tiles for `mr` rows, unless they are so already."""
        fn = self.fn
        now = fn.gep(self.config, _ROW_BYTES, I8)
        with fn.when(fn.cmp("ne", fn.load(now, I64), mr)):
            left = fn.sub(mr, TILE_ROWS)
            second = fn.select(fn.cmp("gt", left, 0), left, TILE_ROWS)  # a tile without rows would have to have no columns
            heights = fn.add(fn.mul(fn.min(mr, TILE_ROWS), _FIRST), fn.mul(second, _SECOND))
            fn.store(fn.add(heights, _OF_RIGHT), fn.gep(self.config, 6, I64))
            fn.store(mr, now)
            _do(fn, _tiles_of(fn).configure, self.config)


def emit_tiles_microkernel(module: KernelModule, elem: str, spec: TileSpec, high: int) -> str:
    """Emits `ukr_{elem}_tiles_{high}` once and returns its symbol. Its arguments: a, stride, step, second, b, steps, a_tail,
    tail_second, b_tail, rest, tile, accumulate, to, ld, ahead, lines, apart.

    to[16 * high][32], rows `ld` bytes apart, = the products of `steps` steps and, if `rest` isn't 0, of one more from the tails,
    added to the content of tile[16 * high][32] if `accumulate`. Rows of A are `stride` bytes apart and 64 long, the next step's
    `step` bytes on, the second tile's `second`; in its tail rows follow each other. Each product has as many rows as the
    configuration says. At each step so many `lines` are prefetched, from `ahead` on each `apart` bytes after the one before.
    """
    name = f"ukr_{elem}_tiles_{high}{'_unsigned' if spec.unsigned else ''}"
    if name in module.functions:
        return name
    pointers = ("a", "b", "a_tail", "b_tail", "tile", "to", "ahead")
    order = (
        "a", "stride", "step", "second", "b", "steps", "a_tail", "tail_second", "b_tail", "rest", "tile", "accumulate", "to", "ld",
        "ahead", "lines", "apart",
    )  # fmt: skip
    fn = Fn(module, name, [(x, PTR if x in pointers else I64) for x in order], noinline=True)
    a, stride, step, second, b, steps, a_tail, tail_second, b_tail, rest, tile, accumulate, to, ld, ahead, lines, apart = fn.args
    tiles, product, row_bytes = _tiles_of(fn), _product(fn, elem, spec), fn.i64(_SUMS_ROW_BYTES)
    used = _SUMS[:high]

    def cells(at: V, row_bytes: V | int) -> list[tuple[int, V]]:
        """The tiles of sums and where they lie."""
        rows = [at if r == 0 else fn.gep(at, fn.mul(row_bytes, TILE_ROWS), I8) for r in range(high)]
        return [(number, fn.gep(rows[r], c * _ROW_BYTES, I8)) for r, row in enumerate(used) for c, number in enumerate(row)]

    def load() -> list[V]:
        for number, p in cells(tile, row_bytes):
            _do(fn, tiles.load_once, number, p, row_bytes)
        return []

    def clear() -> list[V]:
        for row in used:
            for number in row:
                _do(fn, tiles.zero, number)
        return []

    def multiply(left: V, below: V, stride: V, right: V) -> None:
        _do(fn, tiles.load, _RIGHT[0], right, row_bytes)
        for r, row in enumerate(used):
            _do(fn, tiles.load_once, _LEFT[r], fn.gep(left, below, I8) if r else left, stride)
            if r == 0:
                _do(fn, tiles.load, _RIGHT[1], fn.gep(right, _ROW_BYTES, I8), row_bytes)
            for c, number in enumerate(row):
                _do(fn, product, number, _LEFT[r], _RIGHT[c])

    fn.if_else(fn.cmp("ne", accumulate, 0), load, clear, [])
    with fn.loop(0, steps, 1, [a, b, ahead]) as s:
        left, right, later = s.carried
        with fn.loop(0, lines, 1, [later]) as line:
            fn.prefetch(line.carried[0], _PREFETCH_LOCALITY)
            line.yield_(fn.gep(line.carried[0], apart, I8))
        multiply(left, second, stride, right)
        s.yield_(fn.gep(left, step, I8), fn.gep(right, STEP_BYTES, I8), line.results[0])
    with fn.when(fn.cmp("ne", rest, 0)):
        multiply(a_tail, tail_second, fn.i64(_ROW_BYTES), b_tail)
    for number, p in cells(to, ld):
        _do(fn, tiles.store, number, p, ld)
    fn.done()
    return name


def emit_place_tile(module: KernelModule, elem: str, spec: TileSpec, *, streams: bool) -> str:
    """Emits `place_tile_{elem}(tile, rows, to, n)`, or `stream_tile_{elem}`, once and returns its symbol: stores so many rows of 32
    sums at `tile` as `result_type(elem)` at `to`, rows `n` elements apart. Where it `streams`, these are whole lines, and no cache
    reads them first; a fence must follow."""
    name = f"{'stream' if streams else 'place'}_tile_{elem}"
    if name in module.functions:
        return name
    fn = Fn(module, name, [("tile", PTR), ("rows", I64), ("to", PTR), ("n", I64)], noinline=True)
    tile, rows, to, n = fn.args
    placed, sums = result_type(elem), accumulator(elem)
    lanes, together = spec.lanes(elem), 2 if placed != sums else 1
    with fn.loop(0, rows, 1, [tile, to]) as row:
        at, out = row.carried
        for v in range(0, _COLUMNS, lanes * together):
            xs = [fn.load(fn.gep(at, v + i * lanes, sums), vec(sums, lanes)) for i in range(together)]
            x = xs[0] if placed == sums else rounded_together(fn, elem, xs, placed)
            p = fn.gep(out, v, placed)
            if streams:
                fn.store(_integers(fn, x), p, x.lanes * BITS[placed] // 8, nontemporal=True)
            else:
                fn.store(x, p, BITS[placed] // 8)
        row.yield_(fn.gep(at, _SUMS_ROW_BYTES, I8), fn.gep(out, n, placed))
    fn.done()
    return name


def _integers(fn: Fn, x: V) -> V:
    """The same bits, of which LLVM doesn't know that they were bf16: of these it has no streaming store."""
    x = as_vector_of(fn, I32, x)
    return fn.op(x.type, f'llvm.inline_asm "", "={fn.target.constraint},0" {x.name} : ({x.type}) -> {x.type}')


def emit_pack_tile(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits `pack_tile_{elem}(src, row_stride, k_stride, rows, k, dst, corner)` once and returns its symbol.

    Copies `rows` rows, 1 to 16, of `k` elements, 1 to 64 bytes, to rows of 64 bytes at dst that end with zeros; those after them
    are undefined. Strides are in elements; `corner` is memory for a tile.
    """
    name = f"pack_tile_{elem}"
    if name in module.functions:
        return name
    names = [("src", PTR), ("row_stride", I64), ("k_stride", I64), ("rows", I64), ("k", I64), ("dst", PTR), ("corner", PTR)]
    fn = Fn(module, name, names, noinline=True)
    src, row_stride, k_stride, rows, k, dst, corner = fn.args
    memory = f"i{BITS[elem]}"  # bf16 as integers, which are never converted
    lanes, whole = spec.target.lanes(memory), STEP_UNITS * depth(elem)
    parts = range(0, whole, lanes)

    def copy(load: Sequence[V] | None) -> list[V]:
        """The rows where k is contiguous: whole ones, or through masks."""
        ty = vec(memory, lanes)
        with fn.loop(0, rows) as r:
            row, to = fn.gep(src, fn.mul(r.iv, row_stride), elem), fn.gep(dst, fn.mul(r.iv, _ROW_BYTES), I8)
            for i, part in enumerate(parts):
                p = fn.gep(row, part, elem)
                x = fn.load(p, ty) if load is None else fn.masked_load(p, load[i], fn.const(0, ty))
                fn.store(x, fn.gep(to, part, memory))
        return []

    def contiguous() -> list[V]:
        def masked() -> list[V]:
            return copy([fn.tail_mask(fn.max(fn.sub(k, part), 0), lanes) for part in parts])

        return fn.if_else(fn.cmp("eq", k, whole), lambda: copy(None), masked, [])

    def transposed() -> list[V]:
        """Units of all rows side by side, as panels of vectors have them, and then each row's."""
        wide, zero = spec.target.lanes(I32), fn.const(0, vec(I32, spec.target.lanes(I32)))
        pack, turn = emit_pack_rows(module, elem, spec), emit_pack_rows(module, I32, spec)
        of_lanes = range(0, TILE_ROWS, wide)
        for first in of_lanes:
            left = fn.max(fn.min(fn.sub(rows, first), wide), 0)
            to = fn.gep(corner, first, I32)
            with fn.when(fn.cmp("gt", left, 0)):
                fn.call(pack, [fn.gep(src, fn.mul(row_stride, first), elem), row_stride, k_stride, left, k, to, fn.i64(TILE_ROWS)])
            with fn.loop(units(fn, k, elem), STEP_UNITS) as u:
                fn.store(zero, fn.gep(to, fn.mul(u.iv, TILE_ROWS), I32))
        for first in of_lanes:
            at, row = fn.gep(corner, first * TILE_ROWS, I32), fn.i64(TILE_ROWS)
            fn.call(turn, [at, row, fn.i64(1), fn.i64(wide), rows, fn.gep(dst, first, I32), row])
        return []

    fn.if_else(fn.cmp("eq", k_stride, 1), contiguous, transposed, [])
    fn.done()
    return name
