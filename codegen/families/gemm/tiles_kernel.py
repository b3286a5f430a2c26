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

from dhlo.codegen.families.blocks import Blocks
from dhlo.codegen.families.gemm.pack_rows import units
from dhlo.codegen.families.gemm.panels import Chunk, PanelSource
from dhlo.codegen.families.gemm.register_tile import TileSpec, accumulator, depth, result_type
from dhlo.codegen.families.gemm.tiles_microkernel import (
    PANEL_COLUMNS,
    PANEL_ROWS,
    ROW_BYTES,
    STEP_BYTES,
    STEP_UNITS,
    SUMS_BYTES,
    SUMS_ROW_BYTES,
    TILE_BYTES,
    TILE_ROWS,
    emit_pack_tile,
    emit_place_tile,
    emit_tiles_microkernel,
    on_tiles,
    tiles_of,
)
from dhlo.codegen.kernel_ir.builder import BITS, I1, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.target import LINE_BYTES

__all__ = ["CHUNKS", "FIXED_BYTES", "IN_PLACE", "WHOLE", "count_tails", "emit_tiles_kernel", "tiles_kernel_name"]

_CONFIG_BYTES: Final = 128  # the configuration, and the number of rows that it is for
FIXED_BYTES: Final = _CONFIG_BYTES + TILE_BYTES
"""Scratch for the configuration, and a tile on its way to be transposed; the last step of each of a group's panels takes more."""

# A configuration's words of bytes: 64 of a row of each tile; rows of those that one row's height decides, and of B's.
_WIDTHS, _FIRST, _SECOND, _OF_RIGHT = 0x0040_0040_0040_0040, 0x0000_0001_0000_0101, 0x0000_0100_0101_0000, 0x1010 << 48
IN_PLACE, CHUNKS, WHOLE = 0, 1, 2
"""How rows of A are read: where they lie, or packed, a chunk of k at a time or all of it."""


def _is_alone(fn: Fn, several: V, kc: V, piece: V) -> V:
    """Whether all of k is one piece, where there may be `several` chunks of `kc` steps."""
    return fn.and_(fn.cmp("le", kc, piece), fn.not_(several))


def count_tails(fn: Fn, source: PanelSource, several: V, kc: V, piece: V, nc: V) -> V:
    """Of how many panels a last step of k that isn't whole is kept at a time: of all of a group where rows come first."""
    return fn.select(_is_alone(fn, several, kc, piece), nc, 1) if source.in_place else fn.i64(1)


def tiles_kernel_name(elem: str, spec: TileSpec, source: PanelSource) -> str:
    """Symbol of the kernel."""
    return f"matmul_{elem}_tiles{source.name}{'_unsigned' if spec.unsigned else ''}"


def emit_tiles_kernel(module: KernelModule, elem: str, spec: TileSpec, source: PanelSource) -> str:
    """Emits the kernel of products of bf16 or i8 in tiles, once a module; returns its symbol.

    Items are (batch, row block, column panel). Arguments: A and its strides (m, k, batch 0, batch 1), those of the source, m, n, k,
    size of batch 1, rows of a block, steps of k in a chunk and in a piece of it, panels in a group, how A is read (IN_PLACE, packed
    by CHUNKS or WHOLE), how many bytes ahead a lone row panel prefetches B, whether stores stream, a result, epilogue, touch, and
    the argument of both. The result is null, or the address of a dense matrix of `result_type(elem)`: tiles of whole panels are
    stored there, and have no epilogue then. Stores stream past the caches where its rows and itself are whole lines.
    """
    name = tiles_kernel_name(elem, spec, source)
    if name not in module.functions:
        _Kernel(module, name, elem, spec, source).emit()
    return name


@dataclass(frozen=True)
class _Rows:
    """A block's rows in a chunk of k: how many; where the chunk's first step is as they lie and where it is packed; bytes from a
    row to the next, from a step of k to the next and from a tile to the one below; of tiles below each other in the pack; from a
    tile to its last step there, if that isn't whole; whole steps, and units that are left."""

    size: V
    chunk: V
    packed: V
    stride: V
    step: V
    second: V
    pitch: V
    tail: V
    whole: V
    rest: V


@dataclass(frozen=True)
class _Block:
    """A block of rows in a chunk of k: batch, first row, the rows, row panels, what the source says of the matrix B, the chunk."""

    batch: V
    row: V
    rows: _Rows
    row_panels: V
    matrix: Sequence[V]
    chunk: V


@dataclass(frozen=True)
class _Sums:
    """Where a tile's sums are kept, whether they have begun, whether they are whole after this; in which order tiles follow."""

    tile: V
    begun: V
    done: V
    rows_first: bool


class _Kernel:
    """The kernel under construction. As in the kernel of vectors, a run of panels of one row block is taken in groups, each one
    chunk of k after the other, its sums waiting in scratch in between: a block's chunk of A stays in the second-level cache. Of a
    panel's chunk each piece meets all row panels before the next one does: it stays in the first-level cache."""

    def __init__(self, module: KernelModule, name: str, elem: str, spec: TileSpec, source: PanelSource) -> None:
        self.elem, self.spec, self.source, self.bytes = elem, spec, source, BITS[elem] // 8
        self.micro = {x: [emit_tiles_microkernel(module, elem, spec, high, x) for high in (1, 2)] for x in _orders(source)}
        self.pack = emit_pack_tile(module, elem, spec)
        self.placed = result_type(elem)
        self.fn = fn = kernel_fn(module, name)
        types = [PTR, *[I64] * 4, *source.args, *[I64] * 11, *[PTR] * 5]
        self.a, self.sm, self.sk, self.a0, self.a1, *rest = load_args(fn, types)
        self.b, sizes = rest[: len(source.args)], rest[len(source.args) :]
        self.m, self.n, self.k, self.batch1, self.rows, self.kc, self.piece, self.nc, *sizes = sizes
        packed, self.ahead, streams, self.result, self.epilogue, self.touch, self.eargs, kept = sizes
        self.runs = Blocks(fn, kept)
        *_, scratch = fn.args
        self.packed, self.streams = fn.cmp("ne", packed, IN_PLACE), fn.cmp("ne", streams, 0)
        self.at_once = fn.cmp("eq", packed, WHOLE)
        self.config = scratch
        self.corner = fn.gep(scratch, _CONFIG_BYTES, I8)
        self.b_tails = fn.gep(self.corner, TILE_BYTES, I8)
        self.units = units(fn, self.k, elem)
        steps = fn.ceildivu(self.units, STEP_UNITS)
        self.chunks = fn.max(fn.divu(fn.add(steps, fn.sub(self.kc, 1)), self.kc), 1)
        self.several = fn.cmp("gt", self.chunks, 1)
        tails = count_tails(fn, source, self.several, self.kc, self.piece, self.nc)
        self.sums = fn.gep(self.b_tails, fn.mul(tails, STEP_BYTES), I8)
        # The sums of panels in a group wait for another chunk, else those of a panel's tiles for another piece.
        waiting = fn.mul(fn.ceildivu(self.rows, PANEL_ROWS), fn.select(self.several, self.nc, 1))
        self.b_scratch = fn.gep(self.sums, fn.mul(waiting, SUMS_BYTES), I8)
        copied = fn.mul(self.kc, fn.mul(self.nc, STEP_BYTES) if source.together else STEP_BYTES)
        self.a_pack = self.b_scratch if source.in_place else fn.gep(self.b_scratch, copied, I8)
        self.touches, self.places = (fn.cmp("ne", fn.ptr_to_int(p), 0) for p in (self.touch, self.result))

    def emit(self) -> None:
        """Walks the row blocks of the kernel's items."""
        fn = self.fn
        for place, word in enumerate((1, 0, _WIDTHS, _WIDTHS, 0, 0, 0, 0, 0)):
            fn.store(fn.i64(word), fn.gep(self.config, place, I64))
        panels = fn.max(fn.ceildivu(self.n, PANEL_COLUMNS), 1)
        blocks = fn.max(fn.ceildivu(self.m, self.rows), 1)
        with self.runs.each(panels) as (run, p0, p1, other):
            batch, row = fn.divu(run, blocks), fn.mul(fn.remu(run, blocks), self.rows)
            i0, i1 = fn.divu(batch, self.batch1), fn.remu(batch, self.batch1)
            at = fn.add(fn.add(fn.mul(i0, self.a0), fn.mul(i1, self.a1)), fn.mul(row, self.sm))
            a_block, matrix = fn.gep(self.a, at, self.elem), self.source.matrix(fn, self.elem, self.b, i0, i1)
            size = fn.min(fn.sub(self.m, row), self.rows)
            with fn.when(fn.and_(self.at_once, other)):
                steps = fn.ceildivu(self.units, STEP_UNITS)
                self._pack_steps(a_block, size, self.k, fn.i64(0), steps, fn.mul(steps, TILE_BYTES))
            with fn.loop(p0, p1, self.nc) as group, fn.loop(0, self.chunks) as chunk:
                g1 = fn.min(fn.add(group.iv, self.nc), p1)
                self._group(batch, row, size, a_block, matrix, group.iv, g1, chunk.iv)
        on_tiles(fn, tiles_of(fn).release)
        with fn.when(self.streams):
            on_tiles(fn, fn.target.fence)
        fn.done()

    def _group(self, batch: V, row: V, size: V, a_block: V, matrix: Sequence[V], g0: V, g1: V, chunk: V) -> None:
        """The panels [g0, g1) of `size` rows in one chunk of k."""
        fn, elem = self.fn, self.elem
        first = fn.mul(fn.mul(chunk, self.kc), STEP_UNITS)
        count = fn.min(fn.sub(self.units, first), fn.mul(self.kc, STEP_UNITS))
        begins = fn.mul(first, depth(elem))
        elements = fn.min(fn.sub(self.k, begins), fn.mul(count, depth(elem)))
        steps, row_panels = fn.ceildivu(count, STEP_UNITS), fn.ceildivu(size, PANEL_ROWS)
        rows = self._rows_of(fn.gep(a_block, fn.mul(begins, self.sk), elem), size, elements, count, fn.mul(chunk, self.kc))
        n0, width = fn.mul(g0, PANEL_COLUMNS), fn.sub(fn.min(self.n, fn.mul(g1, PANEL_COLUMNS)), fn.mul(g0, PANEL_COLUMNS))
        # After the last panel comes the first one's next chunk, or the next group's first panel.
        onward = [fn.select(self.several, n0, fn.mul(g1, PANEL_COLUMNS)), fn.select(self.several, fn.add(first, count), 0)]
        c = Chunk(n0, width, first, count, self.units, elements, self.b_scratch, fn.i64(0), fn.const(1, I1), *onward)
        block = _Block(batch, row, rows, row_panels, matrix, chunk)
        if self.source.together:
            self._rows_first(block, c)
            return
        if not self.source.in_place:
            self._panels_first(block, c, g0, g1, steps)
            return
        alone = fn.and_(_is_alone(fn, self.several, self.kc, self.piece), fn.cmp("gt", row_panels, 1))
        fn.if_else(alone, lambda: self._rows_first(block, c), lambda: self._panels_first(block, c, g0, g1, steps), [])

    def _rows_first(self, x: _Block, c: Chunk) -> list[V]:
        """A chunk of a group's panels, which fit the second-level cache: one row panel after the other meets them all, and writes
        its rows of the result from end to end."""
        fn, panels = self.fn, self.fn.ceildivu(c.width, PANEL_COLUMNS)
        copied = self.source.together
        pitch = fn.mul(fn.ceildivu(c.units, STEP_UNITS), STEP_UNITS)
        if copied:
            self.source.chunks(fn, self.elem, self.spec, x.matrix, c, pitch)
        tails = fn.cmp("ne", x.rows.rest, 0)
        done, none, lines = fn.cmp("eq", fn.add(x.chunk, 1), self.chunks), fn.i64(0), STEP_BYTES // LINE_BYTES
        with fn.loop(0, x.row_panels) as i, fn.loop(0, panels) as p:
            n0 = fn.add(c.n0, fn.mul(p.iv, PANEL_COLUMNS))
            slot = fn.select(self.several, fn.add(fn.mul(p.iv, x.row_panels), i.iv), 0)
            sums = _Sums(fn.gep(self.sums, fn.mul(slot, SUMS_BYTES), I8), fn.cmp("gt", x.chunk, 0), done, True)
            width, ahead = fn.min(fn.sub(self.n, n0), PANEL_COLUMNS), none
            if copied:
                panel = fn.gep(c.scratch, fn.mul(fn.mul(p.iv, pitch), SUMS_ROW_BYTES), I8)
                tail = fn.gep(panel, fn.mul(x.rows.whole, STEP_BYTES), I8)
            else:
                panel = self.source.chunk(fn, self.elem, self.spec, x.matrix, replace(c, n0=n0))
                tail = fn.gep(self.b_tails, fn.mul(p.iv, STEP_BYTES), I8)
                first = fn.cmp("eq", i.iv, 0)
                ahead = fn.select(first, fn.i64(lines), 0)
                with fn.when(fn.and_(tails, first)):
                    self._copy_b_tail(fn.gep(panel, fn.mul(x.rows.whole, STEP_BYTES), I8), x.rows.rest, tail)
            later = fn.gep(panel, self.ahead, I8)
            self._tile(x, i.iv, n0, width, panel, none, sums, tail, [later, ahead, fn.i64(LINE_BYTES)])
        return []

    def _panels_first(self, x: _Block, group: Chunk, g0: V, g1: V, steps: V) -> list[V]:
        """A chunk of a group's panels: a piece of each meets all row panels, then the next one does."""
        fn, rows = self.fn, x.rows
        pieces = fn.max(fn.divu(fn.add(steps, fn.sub(self.piece, 1)), self.piece), 1)
        last = fn.cmp("eq", fn.add(x.chunk, 1), self.chunks)
        with fn.loop(g0, g1) as p:
            n0, turn = fn.mul(p.iv, PANEL_COLUMNS), fn.sub(p.iv, g0)
            width = fn.min(fn.sub(self.n, n0), PANEL_COLUMNS)
            ends = fn.cmp("eq", fn.add(p.iv, 1), g1)
            next_n0 = fn.select(ends, group.next_n0, fn.add(n0, PANEL_COLUMNS))
            next_first = fn.select(ends, group.next_first, group.first)
            c = replace(group, n0=n0, width=width, turn=turn, last=ends, next_n0=next_n0, next_first=next_first)
            panel = self.source.chunk(fn, self.elem, self.spec, x.matrix, c)
            with fn.when(fn.cmp("ne", rows.rest, 0)):
                self._copy_b_tail(fn.gep(panel, fn.mul(rows.whole, STEP_BYTES), I8), rows.rest, self.b_tails)
            slots = fn.mul(fn.select(self.several, turn, 0), x.row_panels)
            with fn.loop(0, pieces) as piece, fn.loop(0, x.row_panels) as i:
                tile = fn.gep(self.sums, fn.mul(fn.add(slots, i.iv), SUMS_BYTES), I8)
                begun = fn.or_(fn.cmp("gt", x.chunk, 0), fn.cmp("gt", piece.iv, 0))
                sums = _Sums(tile, begun, fn.and_(last, fn.cmp("eq", fn.add(piece.iv, 1), pieces)), False)
                at = fn.mul(piece.iv, self.piece)
                ahead = self._ahead(x.matrix, c, panel, at, i.iv, x.row_panels)
                with fn.when(fn.and_(fn.and_(self.touches, fn.not_(self.streams)), sums.done)):
                    fn.call_ptr(self.touch, self._place(x, i.iv, n0, width, sums))
                self._tile(x, i.iv, n0, width, panel, at, sums, self.b_tails, ahead)
        return []

    def _ahead(self, matrix: Sequence[V], c: Chunk, panel: V, at: V, i: V, row_panels: V) -> list[V]:
        """What the row panel `i` prefetches while it meets the piece from step `at` on: an address, lines of each step, bytes from
        one to the next. Row panels share a packed panel's next one, a lone one reads ahead; the first fetches what the next copy is
        made of."""
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

    def _place(self, x: _Block, i: V, n0: V, width: V, sums: _Sums) -> list[V]:
        """What epilogues are told of a tile."""
        fn, offset = self.fn, self.fn.mul(i, PANEL_ROWS)
        mr = fn.min(fn.sub(x.rows.size, offset), PANEL_ROWS)
        return [self.eargs, sums.tile, fn.i64(PANEL_COLUMNS), x.batch, fn.add(x.row, offset), n0, mr, width]

    def _tile(self, x: _Block, i: V, n0: V, width: V, panel: V, at: V, sums: _Sums, b_tail: V, ahead: Sequence[V]) -> None:
        """The row panel `i` by the piece of a panel of B from step `at` of a chunk on. `b_tail` is the last step of B, if it isn't
        whole."""
        fn, elem, rows = self.fn, self.elem, x.rows
        place = self._place(x, i, n0, width, sums)
        first_row, mr = place[4], place[6]
        self._configure(mr)
        in_pack = fn.gep(rows.packed, fn.mul(fn.mul(i, 2), rows.pitch), I8)
        a = fn.select(self.packed, in_pack, fn.gep(rows.chunk, fn.mul(fn.mul(i, PANEL_ROWS), self.sm), elem))
        a_tail = fn.gep(in_pack, rows.tail, I8)
        stored = fn.and_(fn.and_(self.places, sums.done), fn.cmp("eq", width, PANEL_COLUMNS))
        first = fn.mul(fn.add(fn.mul(fn.add(fn.mul(x.batch, self.m), first_row), self.n), n0), BITS[self.placed] // 8)
        result, row_bytes = fn.gep(self.result, first, I8), fn.mul(self.n, BITS[self.placed] // 8)
        to, apart = sums.tile, fn.i64(SUMS_ROW_BYTES)
        if self.placed == accumulator(elem):  # tiles are stored where they belong
            directly = fn.and_(stored, fn.not_(self.streams))
            to, apart = fn.select(directly, result, to), fn.select(directly, row_bytes, apart)
        ends = fn.cmp("ge", fn.add(at, self.piece), rows.whole)
        steps = fn.select(ends, fn.max(fn.sub(rows.whole, at), 0), self.piece)
        rest = fn.select(fn.cmp("gt", fn.add(at, self.piece), rows.whole), rows.rest, 0)
        left = [fn.gep(a, fn.mul(at, rows.step), I8), rows.stride, rows.step, rows.second]
        right = [fn.gep(panel, fn.mul(at, STEP_BYTES), I8), steps, a_tail, rows.pitch, b_tail, rest]
        begun = fn.cast(sums.begun, I64, signed=False)
        self._call(mr, sums.rows_first, [*left, *right, sums.tile, begun, to, apart, *ahead])

        def finish() -> list[V]:
            with fn.when(sums.done):
                fn.call_ptr(self.epilogue, place)
            return []

        def store() -> list[V]:
            args = [sums.tile, mr, result, self.n]

            def place_tile() -> list[V]:
                if self.placed != accumulator(elem):
                    fn.call(emit_place_tile(fn.module, elem, self.spec, streams=False), args)
                return []

            def stream() -> list[V]:
                fn.call(emit_place_tile(fn.module, elem, self.spec, streams=True), args)
                return []

            return fn.if_else(self.streams, stream, place_tile, [])

        fn.if_else(stored, store, finish, [])

    def _call(self, mr: V, rows_first: bool, args: Sequence[V]) -> None:
        def of(micro: str) -> list[V]:
            self.fn.call(micro, args)
            return []

        one, two = self.micro[rows_first]
        self.fn.if_else(self.fn.cmp("le", mr, TILE_ROWS), lambda: of(one), lambda: of(two), [])

    def _rows_of(self, a: V, size: V, elements: V, count: V, begins: V) -> _Rows:
        """`size` rows of a chunk of A, packed by tiles of 16 rows, [rows / 16][steps][16][64 bytes]: all of it, or where it's read
        in place a last step that isn't whole: what follows in a row there isn't this product's. Of rows that are packed at once
        it's the steps from `begins` on."""
        fn = self.fn
        whole, steps = fn.divu(elements, STEP_UNITS * depth(self.elem)), fn.ceildivu(count, STEP_UNITS)
        first = fn.select(self.packed, fn.i64(0), whole)
        all_steps = fn.select(self.at_once, fn.ceildivu(self.units, STEP_UNITS), fn.sub(steps, first))
        pitch = fn.mul(all_steps, TILE_BYTES)
        with fn.when(fn.not_(self.at_once)):
            self._pack_steps(a, size, elements, first, steps, pitch)
        packed = fn.gep(self.a_pack, fn.mul(fn.select(self.at_once, begins, 0), TILE_BYTES), I8)
        stride = fn.select(self.packed, fn.i64(ROW_BYTES), fn.mul(self.sm, self.bytes))
        step = fn.select(self.packed, fn.i64(TILE_BYTES), ROW_BYTES)
        second = fn.select(self.packed, pitch, fn.mul(stride, TILE_ROWS))
        tail = fn.mul(fn.sub(whole, first), TILE_BYTES)
        return _Rows(size, a, packed, stride, step, second, pitch, tail, whole, fn.sub(count, fn.mul(whole, STEP_UNITS)))

    def _pack_steps(self, a: V, size: V, elements: V, first: V, steps: V, pitch: V) -> None:
        """Packs the steps [first, steps) of so many rows of so many elements, tiles below each other `pitch` bytes apart."""
        fn, elem = self.fn, self.elem
        each = STEP_UNITS * depth(elem)
        with fn.loop(0, fn.ceildivu(size, TILE_ROWS)) as i, fn.loop(first, steps) as s:
            row, k = fn.mul(i.iv, TILE_ROWS), fn.mul(s.iv, each)
            rows, left = fn.min(fn.sub(size, row), TILE_ROWS), fn.min(fn.sub(elements, k), each)
            src = fn.gep(a, fn.add(fn.mul(row, self.sm), fn.mul(k, self.sk)), elem)
            to = fn.gep(self.a_pack, fn.add(fn.mul(i.iv, pitch), fn.mul(fn.sub(s.iv, first), TILE_BYTES)), I8)
            fn.call(self.pack, [src, self.sm, self.sk, rows, left, to, self.corner])

    def _copy_b_tail(self, src: V, count: V, to: V) -> None:
        """The last units of a panel, with zeros after them: what follows in memory may be anything, and times zero be NaN."""
        fn, lanes = self.fn, self.spec.target.lanes(I32)
        ty = vec(I32, lanes)
        nbytes = lanes * 4
        done = fn.mul(count, SUMS_ROW_BYTES)
        with fn.loop(0, done, nbytes) as at:
            fn.store(fn.load(fn.gep(src, at.iv, I8), ty), fn.gep(to, at.iv, I8))
        with fn.loop(done, STEP_BYTES, nbytes) as at:
            fn.store(fn.const(0, ty), fn.gep(to, at.iv, I8))

    def _configure(self, mr: V) -> None:
        """Tiles for `mr` rows, unless they are so already."""
        fn = self.fn
        now = fn.gep(self.config, ROW_BYTES, I8)
        with fn.when(fn.cmp("ne", fn.load(now, I64), mr)):
            left = fn.sub(mr, TILE_ROWS)
            second = fn.select(fn.cmp("gt", left, 0), left, TILE_ROWS)  # a tile without rows would have to have no columns
            heights = fn.add(fn.mul(fn.min(mr, TILE_ROWS), _FIRST), fn.mul(second, _SECOND))
            fn.store(fn.add(heights, _OF_RIGHT), fn.gep(self.config, 6, I64))
            fn.store(mr, now)
            on_tiles(fn, tiles_of(fn).configure, self.config)


def _orders(source: PanelSource) -> tuple[bool, ...]:
    """Whether rows may come first, and whether panels may."""
    return (True,) if source.together else (False, True) if source.in_place else (False,)
