"""The kernel of a matrix product: blocks of rows, groups of panels and chunks of k around the micro-kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dhlo.codegen.families.blocks import Blocks
from dhlo.codegen.families.box import cycles_from_memory
from dhlo.codegen.families.gemm.microkernel import (
    emit_microkernel_table,
    emit_packing_table,
    emit_shared_table,
    least_packing,
    near_heights,
)
from dhlo.codegen.families.gemm.pack_rows import emit_pack_a_panel, emit_widen_rows, units, widened_row
from dhlo.codegen.families.gemm.panels import Chunk, PanelSource, StridedPanels
from dhlo.codegen.families.gemm.parts import emit_store_part, part_of, store_part_args
from dhlo.codegen.families.gemm.plan import RowSplit
from dhlo.codegen.families.gemm.register_tile import F16, TileSpec, depth, result_type, unit
from dhlo.codegen.families.gemm.sharing import Sharing
from dhlo.codegen.families.gemm.sides import PACKING_FIELDS
from dhlo.codegen.families.gemm.tile_calls import TileCalls
from dhlo.codegen.kernel_ir.builder import BITS, F32, I1, I8, I32, I64, PTR, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext, kernel_fn, load_args

__all__ = ["emit_blocked_kernel", "packs_on_the_way", "prefetching"]

# Facts of the machine that the kernel takes: how many bytes ahead in its own panel of B a lone row panel prefetches, of one
# row, of a few and of more. At some distances prefetches and the hardware's get in each other's way, at up to 1.7 times the time.
# Where none is lost a few rows are as more are: on a Granite Rapids 2 to 4 rows by weights of 76 MB take 0.85 to 0.96 of the time.
_AHEAD: Final = ("ahead_one", "ahead_few", "ahead_more")
_FEW_ROWS = 4
# A lone panel prefetches to the first cache where its products take no longer than so much of the time of B from memory: that cache
# has few buffers for misses, which don't keep more multiply-adds at work. On a Zen 4 it pays up to 4 rows (0.78 to 0.86 of the
# time), 8 rows take 1.22 and 14 rows 1.09; on a Zen 5, with twice the multiply-adds, 12 rows take 0.86.
_NEAR_SHARE = (7, 8)
# A lone panel that is packed is prefetched so many rows ahead. Found on a Zen 5: the distances that are measured of a machine are
# of rows one behind the other.
_ROWS_AHEAD = 32


def prefetching(host: HostContext, elem: str, spec: TileSpec) -> list[V]:
    """What the kernel takes of the machine: how far lone row panels prefetch, and of how many rows to the first cache."""
    fn, (part, whole) = host.fn, _NEAR_SHARE
    row = spec.vectors * spec.per_panel * spec.left_parts(elem)
    near_rows = fn.divu(fn.mul(cycles_from_memory(host, spec.row_bytes(elem)), part), row * whole)
    return [*map(host.machine, _AHEAD), near_rows]


def packs_on_the_way(elem: str) -> bool:
    """Whether a B whose rows lie in memory is packed by the tiles that read it first: elements that are units by themselves."""
    return elem == unit(elem)


def emit_blocked_kernel(
    module: KernelModule, name: str, elem: str, spec: TileSpec, source: PanelSource, rows: bool, narrow: bool, parts: bool = False
) -> None:
    """Emits the kernel `name`; it reads A in place where `rows`, and a last panel may be `narrow` (see `Matmul`).

    Items are (batch, row block, column panel). Arguments: A and its strides (m, k, batch 0, batch 1), those of the source, m, n,
    k, size of batch 1, row blocks, units of k in a chunk, panels in a group, elements of all tiles in scratch, what `prefetching`
    gives, whether micro-kernels fetch what they store (instead of touch), a result, epilogue, touch, the argument of both, and
    what workers keep of row blocks. The result is null, or the address of a dense matrix of `result_type(elem)`: the micro-kernel
    itself stores whole tiles there, which have no epilogue then. Of the kernel of `parts` of k, which take the place of batches,
    the size of batch 1 is their number, and the last argument but one the memory for their sums; it calls neither epilogue nor
    touch.
    """
    _Kernel(module, name, elem, spec, source, rows, narrow, parts).emit()


@dataclass(frozen=True)
class _Rows:
    """A block's rows in a chunk of k: the first one's place, and how many elements of a type the next one is on."""

    split: RowSplit
    first: V
    apart: V
    elem: str


class _Kernel:
    """The kernel under construction. Of runs of panels of one row block, groups take one chunk of k after the other: the chunk's
    rows of A are packed once for a group, the sums of its tiles wait in scratch from chunk to chunk."""

    def __init__(
        self, module: KernelModule, name: str, elem: str, spec: TileSpec, source: PanelSource, rows: bool, narrow: bool, parts: bool
    ) -> None:
        self.source, self.rows, self.narrow, self.parts = source, rows, narrow, parts
        self.spec, self.elem, self.part = spec, elem, unit(elem)
        self.columns, self.row_bytes = spec.panel(elem), spec.row_bytes(elem)
        placed = result_type(elem)
        packed = F32 if elem == F16 else elem

        def emit_table(near: range) -> str:
            return emit_microkernel_table(module, packed, rows=rows, narrow=narrow, placed=placed, spec=spec, near=near)

        self.table = emit_table(range(0))
        # Of a block that is one tile of a panel.
        self.near = emit_table(near_heights(elem, spec, rows=rows)) if source.in_place else self.table
        self.by_units = rows and depth(elem) > 1  # of several elements, the last of which may miss some
        self.packing: str | None = None
        if isinstance(source, StridedPanels) and packs_on_the_way(elem):
            self.packing = emit_packing_table(module, elem, rows=rows, placed=placed, spec=spec)
        # Micro-kernels of those that share what they fetch, and of those that pack.
        self.shared: tuple[str, str | None] | None = None
        if self._shares():
            tables = (emit_shared_table(module, packed, placed=placed, spec=spec, packing=packing) for packing in (False, True))
            self.shared = next(tables), next(tables) if self.packing is not None else None
        self.fn = fn = kernel_fn(module, name)
        types = [PTR, *[I64] * 4, *source.args, *[I64] * 13, *[PTR] * 5]
        self.a, self.sm, self.sk, self.a0, self.a1, *rest = load_args(fn, types)
        self.b, sizes = rest[: len(source.args)], rest[len(source.args) :]
        self.m, self.n, self.k, self.batch1, self.blocks, self.kc, self.nc, tiles, *ahead = sizes[:12]
        fetches, self.result, self.epilogue, self.touch, self.eargs, kept = sizes[12:]
        self.ahead_one, self.ahead_few, self.ahead_more, self.near_rows = ahead
        *_, self.tile = fn.args
        self.runs = Blocks(fn, kept)
        self.steps = units(fn, self.k, self.elem)
        self.b_pack = fn.gep(self.tile, tiles, self.part)
        self.a_pack = self.b_pack if source.in_place else fn.gep(self.b_pack, fn.mul(self.kc, self.columns), self.part)
        self.touches, self.fetches = fn.cmp("ne", fn.ptr_to_int(self.touch), 0), fn.cmp("ne", fetches, 0)
        self.packed = fn.alloca(PACKING_FIELDS, I64) if self.packing is not None else None
        self.column_sums = fn.alloca(self.columns, I32) if spec.flips(elem) else None  # of a chunk of a panel
        self.chunks = fn.max(fn.divu(fn.add(self.steps, fn.sub(self.kc, 1)), self.kc), 1)
        if parts:
            self._store_parts()

    def _shares(self) -> bool:
        """Whether a panel's tiles share what they fetch of the next one: of a B that they pack as it comes, and of panels that are
        wider than tiles, of which each would ask for every line again and again."""
        if self.parts or self.rows or self.spec.matrices:  # addresses of rows leave no register
            return False
        return self.packing is not None or self.source.in_place and self.spec.per_panel > 1

    def _store_parts(self) -> None:
        """Makes the epilogue one that stores sums of parts."""
        fn, elem, spec = self.fn, self.elem, self.spec
        self.epilogue = fn.address_of(emit_store_part(fn.module, elem, spec))
        self.eargs = store_part_args(fn, elem, spec, self.eargs, self.m, self.n)

    def emit(self) -> None:
        """Walks the row blocks of the kernel's items, each with its run of panels in groups."""
        fn, spec, elem = self.fn, self.spec, self.elem
        panels = fn.max(fn.ceildivu(self.n, self.columns), 1)
        with self.runs.each(panels) as (run, p0, p1, other):
            batch, block = fn.divu(run, self.blocks), fn.remu(run, self.blocks)
            i0, i1 = (fn.i64(0), fn.i64(0)) if self.parts else (fn.divu(batch, self.batch1), fn.remu(batch, self.batch1))
            split = RowSplit(fn, self.m, self.blocks, block, spec.rows(elem))
            at = fn.add(fn.add(fn.mul(i0, self.a0), fn.mul(i1, self.a1)), fn.mul(split.first, self.sm))
            a_block, matrix = fn.gep(self.a, at, elem), self.source.matrix(fn, elem, self.b, i0, i1)

            def whole() -> list[V]:
                self._group(batch, split, a_block, matrix, p0, p1, None, other)
                return []

            def in_chunks() -> list[V]:
                in_run = fn.sub(p1, p0)
                groups = fn.divu(fn.add(in_run, fn.sub(self.nc, 1)), self.nc)
                with fn.loop(0, groups) as group, fn.loop(0, self.chunks) as chunk:
                    g0, g1 = (fn.add(p0, fn.divu(fn.mul(x, in_run), groups)) for x in (group.iv, fn.add(group.iv, 1)))
                    self._group(batch, split, a_block, matrix, g0, g1, chunk.iv, fn.const(1, I1))
                return []

            if self.parts:
                self._group(batch, split, a_block, matrix, p0, p1, None, other, part_of(fn, batch, self.batch1, self.steps))
            else:  # Most products are of one chunk: their tiles are spared what chunks ask for.
                fn.if_else(fn.cmp("eq", self.chunks, 1), whole, in_chunks, [])
        fn.done()

    def _group(
        self,
        batch: V,
        split: RowSplit,
        a_block: V,
        matrix: Sequence[V],
        g0: V,
        g1: V,
        chunk: V | None,
        packs: V,
        part: tuple[V, V] | None = None,
    ) -> None:
        """The panels [g0, g1) in one chunk of k, in a part of so many units from a first one on, or in whole depth. Rows must be
        packed if `packs`, unless they are read in place."""
        fn, spec, elem = self.fn, self.spec, self.elem
        first, begins, size, elements = fn.i64(0), fn.i64(0), self.steps, self.k
        if chunk is not None:
            first = fn.mul(chunk, self.kc)
            size, begins = fn.min(fn.sub(self.steps, first), self.kc), fn.mul(first, depth(elem))
            elements = fn.min(fn.sub(self.k, begins), fn.mul(size, depth(elem)))
        elif part is not None:
            first, size = part
            begins = fn.mul(first, depth(elem))
            elements = fn.min(fn.sub(self.k, begins), fn.mul(size, depth(elem)))
        a_chunk = a_block if chunk is None and part is None else fn.gep(a_block, fn.mul(begins, self.sk), elem)
        rows = self._rows_of(split, a_chunk, size, elements, packs)
        sharing = None if self.shared is None else Sharing.of(fn, elem, spec, split.panels, size)
        half = fn.remu(elements, depth(elem)) if self.by_units else None
        few = spec.rows(elem) if spec.per_panel == 1 else spec.whole_panel_rows(elem)
        single = fn.cmp("le", split.size, few)  # one tile takes all rows and columns of an item
        near = fn.and_(single, fn.cmp("le", split.size, self.near_rows))
        calls = self._calls(fn.divu(elements, depth(elem)) if self.by_units else size, half, chunk, sharing, near)
        slices = fn.divu(fn.const(self.row_bytes, I64), split.panels)
        alone = fn.select(fn.cmp("le", split.size, _FEW_ROWS), self.ahead_few, self.ahead_more)
        alone = fn.select(fn.cmp("eq", split.size, 1), self.ahead_one, alone)
        whole = fn.mul(self.steps, self.row_bytes)
        # After the last panel comes the first one's next chunk; a lone panel is prefetched itself.
        first_column, only = fn.mul(g0, self.columns), fn.cmp("le", fn.sub(g1, g0), 1)
        if chunk is None:
            only = fn.const(1, I1)
        with fn.loop(g0, g1) as p:
            n0 = fn.mul(p.iv, self.columns)
            width = fn.min(fn.sub(self.n, n0), self.columns)
            last = fn.cmp("eq", fn.add(p.iv, 1), g1)
            following = fn.select(only, n0, first_column), fn.add(first, fn.select(only, fn.i64(_ROWS_AHEAD), size))
            piece = Chunk(n0, width, first, size, self.steps, elements, self.b_pack, fn.sub(p.iv, g0), last, *following)
            packing = self._packing(split, matrix, piece)
            if packing is None:
                panel = self.source.chunk(fn, elem, spec, matrix, piece)
            else:
                with fn.when(fn.not_(packing)):
                    self.source.chunk(fn, elem, spec, matrix, piece)
                panel = piece.scratch
            if self.source.in_place:
                onward = whole if chunk is None else self._onward(calls, piece, p.iv, g0, g1)
                later, later_step = fn.gep(panel, fn.select(single, alone, onward), I8), slices
            else:
                later, later_step = self.source.ahead(fn, elem, spec, matrix, piece)
            self._tiles(batch, rows, calls, sharing, piece, packing, panel, later, later_step, waits=chunk is not None)

    def _rows_of(self, split: RowSplit, a_chunk: V, size: V, elements: V, packs: V) -> _Rows:
        """A block's rows in a chunk of so many units, packed or widened unless they are read where they lie, or it's done."""
        fn, spec, elem = self.fn, self.spec, self.elem
        if not self.rows:
            a_size = fn.mul(spec.left_steps(fn, size), spec.left_parts(elem))
            with fn.when(packs), fn.loop(0, split.panels) as i:
                offset, mr = split.panel(i.iv)
                rows, to = fn.gep(a_chunk, fn.mul(offset, self.sm), elem), fn.gep(self.a_pack, fn.mul(offset, a_size), self.part)
                emit_pack_a_panel(fn, elem, spec, rows, self.sm, self.sk, mr, elements, to)
            return _Rows(split, self.a_pack, a_size, self.part)
        if elem == F16:
            apart = widened_row(fn, size, spec)
            with fn.when(packs):
                fn.call(emit_widen_rows(fn.module, spec), [a_chunk, self.sm, split.size, size, self.a_pack, apart])
            return _Rows(split, self.a_pack, apart, F32)
        return _Rows(split, a_chunk, self.sm, elem)

    def _tiles(
        self,
        batch: V,
        rows: _Rows,
        calls: TileCalls,
        sharing: Sharing | None,
        piece: Chunk,
        packing: V | None,
        panel: V,
        later: V,
        later_step: V,
        *,
        waits: bool,
    ) -> None:
        """A panel's tiles of a block's rows, the first of which pack it if `packing`, and which prefetch what is at `later`, so
        many bytes for each unit of k. They wait for the next chunk side by side, if one `waits`."""
        fn, spec, elem, split = self.fn, self.spec, self.elem, rows.split
        variants = calls.variants(piece.width, calls.table) if spec.per_panel == 1 else None
        slice_bytes, zero = fn.mul(piece.units, later_step), fn.i64(0)
        with fn.loop(0, split.panels) as i:
            offset, mr = split.panel(i.iv)
            a = [fn.gep(rows.first, fn.mul(offset, rows.apart), rows.elem)]
            if self.rows:
                a += [rows.apart, *(() if calls.half is None else (calls.half,))]
            if self.column_sums is not None:
                a += [self.column_sums, i.iv]
            if self.source.in_place:
                fetch = [fn.gep(later, fn.mul(i.iv, slice_bytes), I8), later_step, zero, zero]
                if sharing is not None:
                    at = fn.select(sharing.shares, later, fetch[0]), fn.select(sharing.shares, self.row_bytes, later_step)
                    fetch = [*at, *sharing.share(i.iv)]
            else:
                lead, share = fn.cmp("eq", i.iv, 0), (zero, zero)
                if sharing is not None:  # narrow tiles, which don't share, leave it to the first one
                    wide = fn.cmp("gt", piece.width, spec.lanes(elem) if self.narrow else 0)
                    lead, share = fn.or_(lead, fn.and_(sharing.shares, wide)), sharing.share(i.iv)
                other, other_step = self._rows_ahead(a[0], mr, piece.k, fn.cmp("eq", piece.turn, 0), panel)
                fetch = [fn.select(lead, later, other), fn.select(lead, later_step, other_step), *share]
            packs = None if packing is None else fn.and_(packing, fn.cmp("eq", i.iv, 0))
            tile = self.tile
            if waits:
                tile_row = fn.add(fn.mul(piece.turn, split.size), offset)
                tile = fn.gep(tile, fn.mul(tile_row, self.columns), self.part)
            place = [batch, fn.add(split.first, offset), piece.n0, mr, piece.width]
            lower, below = fn.add(offset, mr), fn.cmp("lt", fn.add(i.iv, 1), split.panels)
            beside = fn.add(piece.n0, self.columns)
            following = fn.select(below, fn.add(split.first, lower), split.first), fn.select(below, piece.n0, beside)
            if variants is not None:
                kernels, b = calls.either(packs, variants, panel)
                calls.emit(kernels, a, b, tile, place, spec.nr(elem), fetch, following)
            else:
                slices = self.source.in_place
                calls.emit_across(a, panel, tile, place, fetch, following, packs=packs, slices=slices, sharing=sharing)

    def _calls(self, steps: V, half: V | None, chunk: V | None, sharing: Sharing | None, near: V) -> TileCalls:
        """What tiles of so many steps, and perhaps a `half` one, call, whether they share a panel or prefetch what is `near`."""
        fn, table = self.fn, self.fn.address_of(self.table)
        if self.near != self.table:
            table = fn.select(near, fn.address_of(self.near), table)

        def either(table: V, packing: int) -> V:
            shared = None if self.shared is None else self.shared[packing]
            if shared is None or sharing is None:
                return table
            return fn.select(sharing.shares, fn.address_of(shared), table)

        adds, last, accumulate, touches = None, None, fn.i64(0), self.touches
        if chunk is not None:
            adds, last = fn.cmp("gt", chunk, 0), fn.cmp("eq", fn.add(chunk, 1), self.chunks)
            accumulate, touches = fn.select(adds, fn.i64(1), 0), fn.and_(touches, last)
        packs = None if self.packing is None or self.packed is None else (either(fn.address_of(self.packing), 1), self.packed)
        return TileCalls(
            elem=self.elem,
            spec=self.spec,
            narrow=self.narrow,
            rows=self.rows,
            fn=fn,
            table=table,
            wide=either(table, 0),
            packing=packs,
            steps=steps,
            half=half,
            adds=adds,
            last=last,
            accumulate=accumulate,
            touches=touches,
            fetches=self.fetches,
            result=self.result if chunk is None else None,
            m=self.m,
            n=self.n,
            epilogue=self.epilogue,
            touch=self.touch,
            eargs=self.eargs,
        )

    def _rows_ahead(self, a: V, mr: V, elements: V, first: V, panel: V) -> tuple[V, V]:
        """What tiles below the first one prefetch, and how many bytes of it for a step: the next row panel, where rows are read in
        place for the first time and lie one behind the other; else nothing new."""
        fn, elem = self.fn, self.elem
        if not self.rows or depth(elem) > 1 or elem == F16:
            return panel, fn.i64(0)
        streams = fn.and_(first, fn.cmp("eq", self.sm, elements))
        later = fn.gep(a, fn.mul(mr, self.sm), elem)
        return fn.select(streams, later, panel), fn.select(streams, fn.mul(mr, BITS[elem] // 8), 0)

    def _packing(self, split: RowSplit, matrix: Sequence[V], c: Chunk) -> V | None:
        """Whether the first row panel's tiles pack the chunk, for which `packed` is filled in; None where they never do."""
        fn, spec, elem = self.fn, self.spec, self.elem
        if self.packed is None or not isinstance(self.source, StridedPanels):
            return None
        rows, stride, contiguous = self.source.rows(fn, elem, matrix, c)
        # A lone row panel needs no copy: its lines are written over one another.
        step = fn.select(fn.cmp("eq", split.panels, 1), 0, self.columns)
        for i, x in enumerate((fn.ptr_to_int(c.scratch), step, fn.ptr_to_int(rows), stride, c.width)):
            fn.store(x, fn.gep(self.packed, i, I64))
        least = self.columns if not spec.target.mask_registers else spec.lanes(elem) + 1 if self.narrow else 1
        high = fn.cmp("ge", split.panel(fn.i64(0))[1], least_packing(elem, spec))
        return fn.and_(fn.and_(contiguous, high), fn.cmp("ge", c.width, least))

    def _onward(self, calls: TileCalls, c: Chunk, p: V, g0: V, g1: V) -> V:
        """How many bytes on is the packed chunk that is read after that of panel `p`: the group's next panel's, after the last the
        first one's next chunk, after all chunks the next group's."""
        fn = self.fn
        assert calls.last is not None
        whole = fn.mul(self.steps, self.row_bytes)
        again = fn.sub(fn.mul(c.units, self.row_bytes), fn.mul(fn.sub(p, g0), whole))
        turn = fn.select(calls.last, fn.sub(whole, fn.mul(c.first, self.row_bytes)), again)
        return fn.select(fn.cmp("lt", fn.add(p, 1), g1), whole, turn)
