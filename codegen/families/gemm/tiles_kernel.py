"""The kernel of a product in the target's matrix registers: 32 rows by a panel of 32 columns as 2 x 2 tiles of sums.

A panel of B is what tiles hold already: 16 units of k by 16 columns are 16 rows of 64 bytes, 128 apart. Rows of A are read where
they lie, 64 bytes of each, or packed tile by tile. What is left of k is multiplied as whole tiles, from copies that end with zeros;
what is left of rows by tiles of fewer rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dhlo.codegen.families.gemm.pack_rows import emit_pack_rows, units
from dhlo.codegen.families.gemm.panels import Chunk, PanelSource
from dhlo.codegen.families.gemm.register_tile import TileSpec, accumulator, depth
from dhlo.codegen.kernel_ir.builder import BITS, I1, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.target import MatrixTiles

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
STEP_BYTES: Final = STEP_UNITS * _COLUMNS * 4
"""Of a panel of B in a step."""
SUMS_BYTES: Final = PANEL_ROWS * _COLUMNS * 4
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
    size of batch 1, rows of a block, steps of k in a chunk, panels in a group, whether A is packed, how many bytes ahead B is
    prefetched, epilogue, touch, and the argument of both.
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


class _Kernel:
    """The kernel under construction. As in the kernel of vectors, a run of panels of one row block is taken in groups, each one
    chunk of k after the other, its sums waiting in scratch in between: a chunk of a panel stays in the first-level cache."""

    def __init__(self, module: KernelModule, name: str, elem: str, spec: TileSpec, source: PanelSource) -> None:
        self.elem, self.spec, self.source, self.bytes = elem, spec, source, BITS[elem] // 8
        self.micro = [emit_tiles_microkernel(module, elem, spec, high) for high in (1, 2)]
        self.pack = emit_pack_tile(module, elem, spec)
        self.fn = fn = kernel_fn(module, name)
        types = [PTR, *[I64] * 4, *source.args, *[I64] * 9, PTR, PTR, PTR]
        self.a, self.sm, self.sk, self.a0, self.a1, *rest = load_args(fn, types)
        self.b, sizes = rest[: len(source.args)], rest[len(source.args) :]
        self.m, self.n, self.k, self.batch1, self.rows, self.kc, self.nc, *sizes = sizes
        packed, self.ahead, self.epilogue, self.touch, self.eargs = sizes
        _, self.begin, self.end, _, scratch = fn.args
        self.packed = fn.cmp("ne", packed, 0)
        self.config = scratch
        self.corner = fn.gep(scratch, _CONFIG_BYTES, I8)
        self.b_tail = fn.gep(self.corner, TILE_BYTES, I8)
        self.sums = fn.gep(self.b_tail, STEP_BYTES, I8)
        self.units = units(fn, self.k, elem)
        steps = fn.ceildivu(self.units, STEP_UNITS)
        self.chunks = fn.max(fn.divu(fn.add(steps, fn.sub(self.kc, 1)), self.kc), 1)
        # The sums of panels in a group wait for another chunk, else each takes the place of the last one's.
        self.row_panels = fn.ceildivu(self.rows, PANEL_ROWS)
        waiting = fn.mul(self.row_panels, self.nc)
        self.several = fn.cmp("gt", self.chunks, 1)
        self.b_scratch = fn.gep(self.sums, fn.mul(fn.select(self.several, waiting, 1), SUMS_BYTES), I8)
        self.a_pack = self.b_scratch if source.in_place else fn.gep(self.b_scratch, fn.mul(self.kc, STEP_BYTES), I8)
        self.touches = fn.cmp("ne", fn.ptr_to_int(self.touch), 0)

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
        fn.done()

    def _group(self, batch: V, row: V, size: V, a_block: V, matrix: Sequence[V], g0: V, g1: V, chunk: V) -> None:
        """The panels [g0, g1) of `size` rows in one chunk of k."""
        fn, elem = self.fn, self.elem
        first = fn.mul(fn.mul(chunk, self.kc), STEP_UNITS)
        count = fn.min(fn.sub(self.units, first), fn.mul(self.kc, STEP_UNITS))
        begins = fn.mul(first, depth(elem))
        elements = fn.min(fn.sub(self.k, begins), fn.mul(count, depth(elem)))
        # A step whose last unit isn't whole isn't, either: what follows in a row of A isn't this product's.
        whole, steps = fn.divu(elements, STEP_UNITS * depth(elem)), fn.ceildivu(count, STEP_UNITS)
        rest = fn.sub(count, fn.mul(whole, STEP_UNITS))
        a_chunk = fn.gep(a_block, fn.mul(begins, self.sk), elem)
        pitch = self._pack_a(a_chunk, size, elements, whole, steps)
        stride = fn.select(self.packed, fn.i64(_ROW_BYTES), fn.mul(self.sm, self.bytes))
        step = fn.select(self.packed, fn.i64(TILE_BYTES), _ROW_BYTES)
        second = fn.select(self.packed, pitch, fn.mul(stride, TILE_ROWS))
        row_panels = fn.ceildivu(size, PANEL_ROWS)
        adds, last = fn.cmp("gt", chunk, 0), fn.cmp("eq", fn.add(chunk, 1), self.chunks)
        with fn.loop(g0, g1) as p:
            n0 = fn.mul(p.iv, _COLUMNS)
            width = fn.min(fn.sub(self.n, n0), _COLUMNS)
            turn = fn.sub(p.iv, g0)
            piece = Chunk(n0, width, first, count, self.units, elements, self.b_scratch, turn, fn.const(0, I1), n0, first)
            panel = self.source.chunk(fn, elem, self.spec, matrix, piece)
            with fn.when(fn.cmp("ne", rest, 0)):
                self._copy_b_tail(fn.gep(panel, fn.mul(whole, STEP_BYTES), I8), rest)
            with fn.loop(0, row_panels) as i:
                offset = fn.mul(i.iv, PANEL_ROWS)
                mr = fn.min(fn.sub(size, offset), PANEL_ROWS)
                self._configure(mr)
                slot = fn.add(fn.mul(fn.sub(p.iv, g0), row_panels), i.iv)
                tile = fn.gep(self.sums, fn.mul(fn.select(self.several, slot, 0), SUMS_BYTES), I8)
                in_pack = fn.gep(self.a_pack, fn.mul(fn.mul(i.iv, 2), pitch), I8)
                a = fn.select(self.packed, in_pack, fn.gep(a_chunk, fn.mul(offset, self.sm), elem))
                a_tail = fn.gep(in_pack, fn.sub(pitch, TILE_BYTES), I8)
                place = [self.eargs, tile, fn.i64(_COLUMNS), batch, fn.add(row, offset), n0, mr, width]
                with fn.when(fn.and_(self.touches, last)):
                    fn.call_ptr(self.touch, place)
                fetch = fn.select(fn.cmp("eq", i.iv, 0), self.ahead, 0)
                args = [a, stride, step, second, panel, whole, a_tail, pitch, self.b_tail, rest, tile]
                args += [fn.cast(adds, I64, signed=False), fetch]
                self._call(mr, args)
                with fn.when(last):
                    fn.call_ptr(self.epilogue, place)

    def _call(self, mr: V, args: Sequence[V]) -> None:
        def of(micro: str) -> list[V]:
            self.fn.call(micro, args)
            return []

        one, two = self.micro
        self.fn.if_else(self.fn.cmp("le", mr, TILE_ROWS), lambda: of(one), lambda: of(two), [])

    def _pack_a(self, a: V, size: V, elements: V, whole: V, steps: V) -> V:
        """Packs `size` rows of a chunk of A by tiles of 16 rows, [rows / 16][steps][16][64 bytes]: all of it, or where it's read in
        place a last step that isn't whole. Returns bytes of the steps of a tile's rows there."""
        fn, elem = self.fn, self.elem
        first = fn.select(self.packed, fn.i64(0), whole)
        pitch, each = fn.mul(fn.sub(steps, first), TILE_BYTES), STEP_UNITS * depth(elem)
        with fn.loop(0, fn.ceildivu(size, TILE_ROWS)) as i, fn.loop(first, steps) as s:
            row, k = fn.mul(i.iv, TILE_ROWS), fn.mul(s.iv, each)
            rows, left = fn.min(fn.sub(size, row), TILE_ROWS), fn.min(fn.sub(elements, k), each)
            src = fn.gep(a, fn.add(fn.mul(row, self.sm), fn.mul(k, self.sk)), elem)
            to = fn.gep(self.a_pack, fn.add(fn.mul(i.iv, pitch), fn.mul(fn.sub(s.iv, first), TILE_BYTES)), I8)
            fn.call(self.pack, [src, self.sm, self.sk, rows, left, to, self.corner])
        return pitch

    def _copy_b_tail(self, src: V, count: V) -> None:
        """The last units of a panel, with zeros after them: what follows in memory may be anything, and times zero be NaN."""
        fn, lanes = self.fn, self.spec.target.lanes(I32)
        ty = vec(I32, lanes)
        row_bytes, nbytes = _COLUMNS * 4, lanes * 4
        done = fn.mul(count, row_bytes)
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
    tail_second, b_tail, rest, tile, accumulate, fetch.

    tile[16 * high][32] = the products of `steps` steps and, if `rest` isn't 0, of one more from the tails, added to the tile's
    content if `accumulate`. Rows of A are `stride` bytes apart and 64 long, the next step's `step` bytes on, the second tile's
    `second`; in its tail rows follow each other. Each product has as many rows as the configuration says. B is prefetched `fetch`
    bytes ahead, unless that is 0.
    """
    name = f"ukr_{elem}_tiles_{high}{'_unsigned' if spec.unsigned else ''}"
    if name in module.functions:
        return name
    numbers = ("stride", "step", "second", "steps", "tail_second", "rest", "accumulate", "fetch")
    order = (
        "a", "stride", "step", "second", "b", "steps", "a_tail", "tail_second", "b_tail", "rest", "tile", "accumulate", "fetch",
    )  # fmt: skip
    fn = Fn(module, name, [(x, I64 if x in numbers else PTR) for x in order], noinline=True)
    a, stride, step, second, b, steps, a_tail, tail_second, b_tail, rest, tile, accumulate, fetch = fn.args
    tiles, product, row_bytes = _tiles_of(fn), _product(fn, elem, spec), fn.i64(_COLUMNS * 4)
    used = _SUMS[:high]
    cells = [
        (number, fn.gep(tile, r * TILE_ROWS * _COLUMNS + c * TILE_ROWS, accumulator(elem)))
        for r, row in enumerate(used)
        for c, number in enumerate(row)
    ]

    def load() -> list[V]:
        for number, p in cells:
            _do(fn, tiles.load, number, p, row_bytes)
        return []

    def clear() -> list[V]:
        for number, _ in cells:
            _do(fn, tiles.zero, number)
        return []

    def multiply(left: Sequence[V], stride: V, right: V) -> None:
        for r, row in enumerate(used):
            _do(fn, tiles.load, _LEFT[r], left[r], stride)
            for c, number in enumerate(row):
                if r == 0:
                    _do(fn, tiles.load, _RIGHT[c], fn.gep(right, c * _ROW_BYTES, I8), row_bytes)
                _do(fn, product, number, _LEFT[r], _RIGHT[c])

    fn.if_else(fn.cmp("ne", accumulate, 0), load, clear, [])
    fetches = fn.cmp("ne", fetch, 0)
    with fn.loop(0, steps) as s:
        right, left = fn.gep(b, fn.mul(s.iv, STEP_BYTES), I8), fn.gep(a, fn.mul(s.iv, step), I8)
        with fn.when(fetches), fn.loop(0, STEP_BYTES, 64) as line:
            fn.prefetch(fn.gep(fn.gep(right, fetch, I8), line.iv, I8), _PREFETCH_LOCALITY)
        multiply([left, fn.gep(left, second, I8)], stride, right)
    with fn.when(fn.cmp("ne", rest, 0)):
        multiply([a_tail, fn.gep(a_tail, tail_second, I8)], fn.i64(_ROW_BYTES), b_tail)
    for number, p in cells:
        _do(fn, tiles.store, number, p, row_bytes)
    fn.done()
    return name


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
