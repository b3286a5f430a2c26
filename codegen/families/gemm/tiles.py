"""Products in the target's matrix registers: where they pay, how they are blocked, and their launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dhlo.codegen.families.box import cycles_from_memory, passes_caches, product_wake_cycles
from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.pack_rows import units
from dhlo.codegen.families.gemm.panels import PanelSource
from dhlo.codegen.families.gemm.register_tile import TileSpec, depth, result_type
from dhlo.codegen.families.gemm.tiles_kernel import (
    CHUNKS,
    FIXED_BYTES,
    IN_PLACE,
    WHOLE,
    count_tails,
    emit_tiles_kernel,
    tiles_kernel_name,
)
from dhlo.codegen.families.gemm.tiles_microkernel import (
    PANEL_ROWS,
    ROW_BYTES,
    STEP_BYTES,
    STEP_UNITS,
    SUMS_BYTES,
    TILE_BYTES,
    TILE_ROWS,
)
from dhlo.codegen.kernel_ir.builder import BITS, I8, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext
from dhlo.codegen.target import LINE_BYTES

__all__ = ["LEAST_ROWS", "LEAST_SHARE", "TILES_PAY", "TilePlan", "TileProduct"]

TILES_PAY: Final = 400
"""What products of tiles must multiply of bf16 in the time in which f32 multiply-adds multiply 100: twice what dot products do at
best. Bytes are twice as many in either."""
LEAST_ROWS: Final = 5
"""Fewer rows are streams of B, which vectors keep up with."""
# So many blocks copy B for themselves sooner than that a launch before them writes it to memory; any number, of fewer panels.
_OWN_USES, _OWN_PANELS = 1, 8
# Part of a step of k that a product has at least.
LEAST_SHARE = 4
# Parts of caches: a piece of a panel of B takes two thirds of the first level. A block's rows, or their chunk, take a quarter of
# the second, or half as much again if that spares chunks; a group's panels a quarter, sums that wait the rest.
_L1_PART, _A_SHARE, _WHOLE_A, _GROUP_SHARE, _WAITING_SHARE = (2, 3), 4, (3, 8), 4, 2
# A block has so many tiles of rows if there are as many, more where it copies B: what it reads of B, from the third level or
# memory, serves so many rows.
_BLOCK_TILES, _COPYING_TILES = 16, 20
# Copies are of few steps of k, as a group then has more panels, whose pieces of a row are long enough for the hardware to see a
# stream (found on a Granite Rapids: 1 KiB of each row comes at 60 %, 2 KiB at 80 % of memory's bandwidth). Where sums of so many
# rows would wait for the next ones they are of as many as a piece of a panel, and of all if a row panel's take no more than five
# sixths of the first level. Copies, a block's chunk and waiting sums take so much of the second; pieces of a row so many bytes.
_COPIED_STEPS, _LONG_ROWS, _ALL_PART, _COPIES_PART, _MOST_PIECE_BYTES = 8, 192, (5, 6), (4, 5), 2048
# Blocks of rows for each thread, where panels are few: so many items that they balance; fewer where each block copies B.
_ITEMS_PER_THREAD, _COPYING_ITEMS = 4, 2
# A is packed where so many panels meet it: rows in place take a tenth longer than tiles, packing as long as some products. Twice as
# long, where they aren't whole lines and don't wait in the first level.
_PACKED_PANELS, _PACKED_PANELS_OF_SPLIT_LINES = 8, 2
# With each chunk of a launch rows are packed, so that each thread gets so many.
_PACKED_RUNS = 2
# Multiply-adds of vectors, two a cycle, in the time of a step of 16 rows (16 cycles for each of two tiles of sums), and in that of
# the calls for a tile.
_STEP_CYCLES, _CALL_CYCLES = 64, 256
_PANEL_TILES = PANEL_ROWS // TILE_ROWS
# Addresses this far apart share sets of the first-level cache.
_WAY_BYTES = 4096


@dataclass(frozen=True)
class TilePlan:
    """How a product is cut: rows of a block, steps of k in a chunk and in a piece of it, panels in a group whose sums wait; chunks,
    blocks, panels, how A is read, items, and how few of these are worth a thread."""

    rows: V
    kc: V
    piece: V
    nc: V
    chunks: V
    blocks: V
    panels: V
    form: V
    count: V
    grain: V


@dataclass(frozen=True)
class TileProduct:
    """C[b, m, n] = sum over k of A[b, m, k] * B[b, k, n] as `Matmul` has it, in tiles of matrices.

    A tile's sums are added step by step in order of k, and within a step of bf16 as the instruction has it: even and odd k by
    multiply-adds in order, then both; subnormal numbers are 0. Neither threads nor blocks change a bit.
    """

    elem: str
    spec: TileSpec

    @staticmethod
    def of(elem: str, spec: TileSpec) -> TileProduct | None:
        """None where the target has no such instruction, or is not to be asked for more than multiply-adds."""
        tiles = spec.target.tiles
        left = "ui8" if elem == I8 and spec.unsigned else elem
        return TileProduct(elem, spec) if tiles is not None and left in tiles.products and not spec.widen else None

    def emit_kernels(self, module: KernelModule, source: PanelSource) -> None:
        """Emits the kernel that reads B from a source, once a module."""
        emit_tiles_kernel(module, self.elem, self.spec, source)

    def emit_choice(self, host: HostContext, x: Operands, tiles: Callable[[], list[V]], others: Callable[[], list[V]]) -> list[V]:
        """Launches the tiles' product where the machine multiplies in them fast and it is large enough, else others."""
        fn = host.fn
        large = fn.and_(fn.cmp("ge", x.m, LEAST_ROWS), fn.cmp("ge", x.k, STEP_UNITS * depth(self.elem) // LEAST_SHARE))
        return fn.if_else(fn.and_(fn.cmp("ge", host.machine("tiles_percent"), TILES_PAY), large), tiles, others, [])

    def plan(self, host: HostContext, x: Operands, source: PanelSource) -> TilePlan:
        """Rows of a block are what the second-level cache holds of a chunk, or fewer where there would be too few items."""
        fn, l2 = host.fn, host.l2_bytes
        panels = fn.ceildivu(x.n, self.spec.panel(self.elem))
        steps = fn.max(fn.ceildivu(units(fn, x.k, self.elem), STEP_UNITS), 1)
        part, of = _L1_PART
        most_piece = fn.max(fn.divu(fn.mul(host.machine("l1d_bytes"), part), of * STEP_BYTES), 1)
        tile_rows = fn.max(fn.ceildivu(x.m, TILE_ROWS), 1)
        room = fn.max(fn.divu(l2, _A_SHARE * TILE_BYTES), 1)
        fit = fn.max(fn.divu(room, steps), _COPYING_TILES if source.together else _BLOCK_TILES)
        cells = fn.mul(fn.mul(*x.batch), panels)
        each = _COPYING_ITEMS if source.together else _ITEMS_PER_THREAD
        wanted = fn.divu(fn.mul(host.num_threads, each), fn.max(cells, 1))
        cut = fn.min(fn.max(_over(fn, tile_rows, fit), wanted), tile_rows)
        high = _over(fn, tile_rows, fn.max(cut, 1))
        # Whole row panels, where there is more than one.
        high = fn.select(fn.cmp("gt", high, 1), fn.mul(fn.ceildivu(high, _PANEL_TILES), _PANEL_TILES), high)
        rows = fn.mul(high, TILE_ROWS)
        blocks = fn.divu(fn.add(x.m, fn.sub(rows, 1)), rows)
        few = fn.i64(_PACKED_PANELS)
        if not source.together:
            few = fn.select(self._splits_lines(fn, x), fn.i64(_PACKED_PANELS_OF_SPLIT_LINES), few)
        packed = fn.or_(fn.cmp("ge", panels, few), fn.not_(self._reads_in_place(host, x)))
        at_once = fn.cmp("le", fn.mul(steps, high), fn.divu(fn.mul(l2, _WHOLE_A[0]), _WHOLE_A[1] * TILE_BYTES))
        most = fn.max(fn.divu(room, high), most_piece)
        if source.together:
            part, of = _ALL_PART
            some = fn.select(fn.cmp("ge", rows, _LONG_ROWS), most_piece, fn.min(most_piece, _COPIED_STEPS))
            most = fn.select(fn.cmp("le", fn.mul(steps, of * STEP_BYTES), fn.mul(host.machine("l1d_bytes"), part)), steps, some)
        else:
            most = fn.select(at_once, steps, most)
        chunks = _over(fn, steps, most)
        kc = _over(fn, steps, chunks)
        piece = kc if source.together else _over(fn, kc, _over(fn, kc, most_piece))
        several = fn.cmp("gt", chunks, 1)
        if source.together:
            nc = self._copied_panels(host, rows, kc, several)
        else:
            waiting = fn.divu(l2, fn.mul(rows, _WAITING_SHARE * STEP_BYTES // STEP_UNITS))
            nc = fn.select(several, waiting, fn.divu(l2, fn.mul(kc, _GROUP_SHARE * STEP_BYTES)))
        in_chunks = fn.and_(several, fn.not_(at_once))
        form = fn.select(packed, fn.select(in_chunks, fn.i64(CHUNKS), WHOLE), IN_PLACE)
        nc = fn.max(fn.min(nc, panels), 1)
        count = fn.mul(cells, blocks)
        with fn.wrapping():
            products, read = fn.mul(high, _STEP_CYCLES), cycles_from_memory(host, STEP_BYTES)
            work = fn.add(products, read) if source.together else fn.max(products, read)
            cycles = fn.add(fn.mul(steps, work), fn.mul(high, _CALL_CYCLES))
            grain = fn.add(fn.divu(product_wake_cycles(host), fn.max(cycles, 1)), 1)
            runs = fn.mul(host.num_threads, _PACKED_RUNS)
            grain = fn.max(grain, fn.select(packed, fn.divu(count, runs), 1))
        return TilePlan(rows, kc, piece, nc, chunks, blocks, panels, form, count, grain)

    @staticmethod
    def _copied_panels(host: HostContext, rows: V, kc: V, several: V) -> V:
        """How many panels a block copies together, so many steps of each; 0 where the cache hasn't room for one."""
        fn, (part, of), sums = host.fn, _COPIES_PART, STEP_BYTES // STEP_UNITS
        room = fn.divu(fn.mul(host.l2_bytes, part), of)
        left = fn.max(fn.sub(room, fn.mul(fn.mul(rows, kc), ROW_BYTES)), 0)
        each = fn.add(fn.mul(kc, STEP_BYTES), fn.select(several, fn.mul(rows, sums), 0))
        return fn.min(fn.divu(left, each), _MOST_PIECE_BYTES // ROW_BYTES)

    @staticmethod
    def copies_own(fn: Fn, plan: TilePlan, uses: V) -> V:
        """Whether each block copies the B that it multiplies with, of whose panels there are so many uses: there are more uses than
        blocks where batches share B."""
        few = fn.and_(fn.cmp("lt", plan.panels, _OWN_PANELS), fn.cmp("eq", uses, plan.blocks))
        return fn.or_(few, fn.cmp("le", uses, _OWN_USES))

    def launch(self, host: HostContext, x: Operands, source: PanelSource, b: Sequence[V], touch: V, plan: TilePlan) -> list[V]:
        """Launches the kernel with B from a source, given its arguments `b`."""
        fn, null = host.fn, host.fn.int_to_ptr(host.fn.i64(0))
        batch0, batch1, row, column = x.a_strides
        sizes = [x.m, x.n, x.k, fn.max(x.batch[1], 1), plan.rows, plan.kc, plan.piece, plan.nc]
        sizes += [plan.form, host.machine("ahead_more"), self._streams(host, x)]
        tiles = fn.divu(plan.rows, TILE_ROWS)
        several = fn.cmp("gt", plan.chunks, 1)
        waiting = fn.mul(fn.ceildivu(plan.rows, PANEL_ROWS), fn.select(several, plan.nc, 1))
        tails = count_tails(fn, source, several, plan.kc, plan.piece, plan.nc)
        scratch = fn.add(fn.mul(waiting, SUMS_BYTES), fn.mul(tails, STEP_BYTES))
        steps = fn.ceildivu(units(fn, x.k, self.elem), STEP_UNITS)
        of_rows = fn.select(fn.cmp("eq", plan.form, WHOLE), steps, fn.select(fn.cmp("eq", plan.form, CHUNKS), plan.kc, 1))
        scratch = fn.add(scratch, fn.mul(fn.mul(tiles, of_rows), TILE_BYTES))
        if not source.in_place:
            scratch = fn.add(scratch, fn.mul(plan.kc, fn.mul(plan.nc, STEP_BYTES) if source.together else STEP_BYTES))
        host.launch(
            tiles_kernel_name(self.elem, self.spec, source),
            [
                *[x.a, row, column, batch0, batch1, *b, *sizes],
                *[null if x.result is None else x.result, x.epilogue, touch, x.epilogue_args, host.kept()],
            ],
            plan.count,
            plan.grain,
            fn.add(scratch, FIXED_BYTES),
        )
        return []

    def _streams(self, host: HostContext, x: Operands) -> V:
        """1 where the result is stored past the caches, whose rows are then whole lines, else 0."""
        fn, elem = host.fn, result_type(self.elem)
        if x.result is None:
            return fn.i64(0)
        with fn.wrapping():
            nbytes = fn.mul(fn.mul(fn.mul(x.m, x.n), fn.mul(*x.batch)), BITS[elem] // 8)
        lines = fn.or_(fn.ptr_to_int(x.result), fn.mul(x.n, BITS[elem] // 8))
        whole = fn.cmp("eq", fn.and_(lines, LINE_BYTES - 1), 0)
        return fn.select(fn.and_(whole, passes_caches(host, nbytes)), fn.i64(1), 0)

    def _splits_lines(self, fn: Fn, x: Operands) -> V:
        """Whether 64 bytes of most rows of A, of the batch's first matrix, lie in two lines."""
        starts = fn.or_(fn.ptr_to_int(x.a), fn.mul(x.a_strides[2], BITS[self.elem] // 8))
        return fn.cmp("ne", fn.and_(starts, LINE_BYTES - 1), 0)

    def _reads_in_place(self, host: HostContext, x: Operands) -> V:
        """Whether A is read where it lies: k contiguous, and the lines of a tile's rows don't crowd few sets of the first cache."""
        fn = host.fn
        stride = fn.mul(x.a_strides[2], BITS[self.elem] // 8)
        g = fn.min(fn.and_(stride, fn.sub(0, stride)), _WAY_BYTES)
        crowd = fn.mul(fn.min(x.m, PANEL_ROWS), g)
        room = fn.divu(host.machine("l1d_bytes"), 2)
        return fn.and_(fn.cmp("eq", x.a_strides[3], 1), fn.cmp("le", crowd, room))


def _over(fn: Fn, x: V, y: V) -> V:
    """x / y rounded up, of numbers of 1 and more."""
    return fn.divu(fn.add(x, fn.sub(y, 1)), y)
