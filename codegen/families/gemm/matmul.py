"""Matrix products of run-time sizes: packed panels, a split over rows and column panels, and an epilogue per tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import sympy

from dhlo.codegen.families.box import cycles_from_memory, product_wake_cycles, steps_ahead, wake_cycles
from dhlo.codegen.families.gemm import byte_rows
from dhlo.codegen.families.gemm.blocked import emit_blocked_kernel, packs_on_the_way, prefetching
from dhlo.codegen.families.gemm.gemv import (
    STREAM_ROWS,
    emit_stream_kernel,
)
from dhlo.codegen.families.gemm.in_place import crowds, leaves_caches, reads_in_place, row_distance
from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.pack import PACK_AHEAD, PackItems, emit_pack_b_kernel, may_stream, streams_packed
from dhlo.codegen.families.gemm.pack_rows import units
from dhlo.codegen.families.gemm.panels import PackedPanels, PanelSource, StridedPanels
from dhlo.codegen.families.gemm.parts import count_parts, emit_join_kernel, emit_store_part, launch_join, part_items
from dhlo.codegen.families.gemm.plan import Plan
from dhlo.codegen.families.gemm.plan_cost import shared_copies
from dhlo.codegen.families.gemm.register_tile import BF16, F16, TileSpec, depth, unit
from dhlo.codegen.families.gemm.stream import column_splits, launch_stream, streams
from dhlo.codegen.families.gemm.tiles import TileProduct
from dhlo.codegen.kernel_ir.builder import BITS, I1, I8, I64, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext
from dhlo.codegen.target import LINE_BYTES

__all__ = ["DOTS_PAY", "Matmul", "workspace_bytes"]

# Products this deep hide the memory that their epilogue will need, fetched before them, and its cost.
_TOUCH_DEPTH = 64
DOTS_PAY = 71
"""What bf16 dot products must multiply in the time in which f32 multiply-adds multiply 100: these take two instructions a pair,
beside which B's are taken apart. In the middle of what is measured, 50 and 100."""
# Of B that few rows of bytes read in a cycle.
_BYTES_A_CYCLE = 16

_PACKED, _STRIDED = PackedPanels(), StridedPanels()

Size = TypeVar("Size", int, sympy.Expr)


def workspace_bytes(batch: Size, n: Size, k: Size, elem: str, spec: TileSpec) -> Size:
    """Workspace of a product whose B is packed at run time: `batch` matrices of n x k, as ints or sympy expressions."""
    columns, step = spec.panel(elem), depth(elem)
    panels, steps = (n + (columns - 1)) // columns, (k + (step - 1)) // step
    return batch * panels * steps * spec.row_bytes(elem)


@dataclass(frozen=True)
class _Blocking:
    """A product's plan and what it was made from: panels of B, whether A is read in place; `count` items."""

    plan: Plan
    panels: V
    in_place: V
    count: V


@dataclass(frozen=True)
class Matmul:
    """C[b, m, n] = sum over k of A[b, m, k] * B[b, k, n], handed tile by tile to an epilogue.

    The epilogue gets finished sums in `tile` (row-major, leading dimension `ld`, first-level cache): mr <=
    spec.rows(elem) rows, or two tiles of them where the target has matrices in registers (`TileProduct`), from row m0 and
    nr <= spec.panel(elem) columns from column n0 of the linear batch index `batch`; every
    (batch, row, column) once, in any order and from several threads, but for whole tiles, and all sums of few rows by a B that is
    streamed, which are stored as they are where the operands name a `result`. The tile may be overwritten. It's called
    with zeros where K is 0, not at all where the result is empty. Sums run in order of k with fused multiply-adds (for
    at most 5 rows in up to 6 interleaved partial sums, added up at the end); those of few tiles or columns and much depth in parts
    of k that follow from the sizes (`parts.py`), where `splits`. Neither the number of threads nor how the work is cut
    into chunks changes a bit of the result.
    """

    elem: str
    spec: TileSpec
    narrow: bool = False  # the last panel may be at most a vector wide, and is then computed as one
    splits: bool = False  # products without batches may be split over k; operands have memory for the parts
    beside: int = 0  # bytes of all constants of the program, of which B is one

    def kernel(self, *, rows: bool, source: PanelSource, parts: bool = False) -> str:
        """Symbol of a variant: A read in place or packed, B from a source of panels, parts of k."""
        form = f"{'_rows' if rows else ''}{source.name}{'_narrow' if self.narrow else ''}{'_parts' if parts else ''}"
        return f"matmul_{self.elem}{form}{self.spec.suffix}"

    @property
    def _row_forms(self) -> tuple[bool, ...]:
        """Forms of A: in place or packed; bytes always are, and rows of f16 are a copy in f32 instead of in place."""
        return (False,) if self.elem == I8 else (True, False)

    @property
    def widened(self) -> Matmul | None:
        """The same product by f32 multiply-adds, for machines whose dot products of bf16 are slow; None for other types."""
        return replace(self, spec=replace(self.spec, widen=True)) if self.elem == BF16 and self.spec.bf16_dot else None

    @property
    def _by_dots(self) -> TileSpec:
        """Of few rows of bytes, which are no matrices."""
        return self.spec.by_dots

    @property
    def _tiles(self) -> TileProduct | None:
        """The same product in matrices that registers hold, where the target has them."""
        return TileProduct.of(self.elem, self.spec)

    def _in_place(self, host: HostContext, x: Operands) -> V:
        """Whether A is read where it lies, or f16 in rows of f32 that are copied from there."""
        return reads_in_place(host, self.elem, self.spec, x) if True in self._row_forms else host.fn.const(0, I1)

    def emit_kernels(self, module: KernelModule, *, packed: bool) -> None:
        """Emits the kernels that `emit_launch` chooses from and all that they call, once a module."""
        if self.widened is not None:
            self.widened._emit_tiled_kernels(module, packed=packed)
        self._emit_tiled_kernels(module, packed=packed)
        if not packed and self.elem in STREAM_ROWS:
            emit_stream_kernel(module, self.elem, self.spec)
            if self.splits:
                emit_store_part(module, self.elem, self.spec)

    def _emit_tiled_kernels(self, module: KernelModule, *, packed: bool) -> None:
        """Those of this tile."""
        for source in (_PACKED,) if packed else (_PACKED, _STRIDED):
            self.emit_kernels_from(module, source)
        if self.splits:
            self.emit_kernels_from(module, _PACKED if packed else _STRIDED, parts=True)
            emit_join_kernel(module, self.elem, self.spec)
        if not packed:
            emit_pack_b_kernel(module, self.elem, self.spec)
            if self.elem == I8 and byte_rows.serves(self._by_dots):
                for form in byte_rows.FORMS:
                    byte_rows.emit_byte_rows_kernel(module, self._by_dots, form)

    def emit_kernels_from(self, module: KernelModule, source: PanelSource, *, parts: bool = False) -> None:
        """Emits the kernels that read B from a source, once a module."""
        for rows in self._row_forms:
            name = self.kernel(rows=rows, source=source, parts=parts)
            if name not in module.functions:
                emit_blocked_kernel(module, name, self.elem, self.spec, source, rows, self.narrow, parts)
        if self._tiles is not None and not parts:
            self._tiles.emit_kernels(module, source)

    def emit_launch(self, host: HostContext, x: Operands) -> None:
        """Emits size arithmetic, variant choice and launches of what `emit_kernels` emitted."""
        fn, widened, tiles = host.fn, self.widened, self._tiles

        def tiled() -> list[V]:
            if tiles is None:
                return by_vectors()
            return tiles.emit_choice(host, x, partial(self._launch_tiles, host, x, tiles), by_vectors)

        def by_vectors() -> list[V]:
            if widened is None:
                return self._launch_tiled(host, x)
            dots_pay = fn.cmp("ge", host.machine("bf16_percent"), DOTS_PAY)
            return fn.if_else(dots_pay, lambda: self._launch_tiled(host, x), lambda: widened._launch_tiled(host, x), [])

        if x.workspace is not None and self.elem == I8 and byte_rows.serves(self._by_dots):
            self._launch_few_bytes(host, x, tiled)
            return
        if x.workspace is None or self.elem not in STREAM_ROWS:
            tiled()
            return
        few = streams(host, self.elem, self.spec, x, self._parts(fn, x))
        fn.if_else(few, lambda: launch_stream(host, self.elem, self.spec, x, splits=self.splits), tiled, [])

    def _launch_tiled(self, host: HostContext, x: Operands) -> list[V]:
        """Products by this tile."""
        fn, memory = host.fn, x.parts
        parts = self._parts(fn, x)
        if parts is None or memory is None:
            return self._launch_whole(host, x)
        split = fn.cmp("gt", parts, 1)
        return fn.if_else(split, lambda: self._launch_parts(host, x, memory, parts), lambda: self._launch_whole(host, x), [])

    def _parts(self, fn: Fn, x: Operands) -> V | None:
        """In how many parts k is taken, less than 2 where it isn't split; None where it never is."""
        if not self.splits:
            return None
        return count_parts(fn, self.elem, self.spec, x.m, units(fn, x.k, self.elem), fn.ceildivu(x.n, self.spec.panel(self.elem)))

    @staticmethod
    def _panels(host: HostContext, x: Operands) -> tuple[PanelSource, list[V]]:
        """Where the kernels read B from as it lies, and the source's arguments."""
        b = [x.b, *x.b_strides]
        return (_PACKED, b) if x.workspace is None else (_STRIDED, [*b, steps_ahead(host, PACK_AHEAD)])

    def _launch_parts(self, host: HostContext, x: Operands, memory: V, parts: V) -> list[V]:
        """The product in parts of k, and their sum."""
        fn, elem, spec = host.fn, self.elem, self.spec
        source, b = self._panels(host, x)
        steps, panels, zero, null = units(fn, x.k, elem), fn.ceildivu(x.n, spec.panel(elem)), fn.i64(0), fn.int_to_ptr(fn.i64(0))

        def launch(*, rows: bool) -> list[V]:
            blocks, each, count, grain, scratch = part_items(host, elem, spec, source, x.m, steps, panels, parts, rows=rows)
            cuts = [blocks, each, fn.i64(1), fn.i64(spec.tile_elements(elem)), *prefetching(host, elem, spec)]
            args = [x.a, *x.a_strides[2:], zero, zero, *b, x.m, x.n, x.k, parts, *cuts, zero, null, null, null, memory, host.kept()]
            host.launch(self.kernel(rows=rows, source=source, parts=True), args, count, grain, scratch)
            return []

        if self._row_forms == (False,):
            launch(rows=False)
        else:
            in_place = self._in_place(host, x)
            fn.if_else(in_place, lambda: launch(rows=True), lambda: launch(rows=False), [])
        launch_join(host, elem, spec, x, memory, parts)
        return []

    def _launch_whole(self, host: HostContext, x: Operands) -> list[V]:
        """Products in whole depth."""
        fn = host.fn
        if x.workspace is None:
            return self._launch(host, x, *self._panels(host, x), self._blocking(host, x, _PACKED))
        workspace, blocking = x.workspace, self._blocking(host, x, _STRIDED)

        def pack_first() -> list[V]:
            strides = self._launch_pack(host, x, workspace, blocking.panels, blocking.count)
            return self._launch(host, x, _PACKED, [workspace, *strides], self._blocking(host, x, _PACKED))

        def own() -> list[V]:
            return self._launch(host, x, *self._panels(host, x), blocking)

        owns = blocking.plan.packs_own(self._uses(fn, x, blocking.plan.blocks))
        if packs_on_the_way(self.elem):
            dear = fn.and_(crowds(host, self.elem, x), blocking.plan.right.outweighs_copies(x.m))
            owns = fn.and_(owns, fn.not_(dear))
        elif self.spec.panel(self.elem) * BITS[self.elem] // 8 < LINE_BYTES:
            owns = fn.and_(owns, fn.not_(crowds(host, self.elem, x)))
        return fn.if_else(owns, own, pack_first, [])

    @staticmethod
    def _uses(fn: Fn, x: Operands, blocks: V) -> V:
        """How many blocks use a panel of B."""
        uses = blocks
        for stride, size in zip(x.b_strides, x.batch, strict=False):
            uses = fn.select(fn.cmp("eq", stride, 0), fn.mul(uses, size), uses)
        return uses

    def _launch_tiles(self, host: HostContext, x: Operands, tiles: TileProduct) -> list[V]:
        """Products in matrix registers."""
        touch, (source, b) = self._touch(host, x), self._panels(host, x)
        plan = tiles.plan(host, x, source)

        def as_it_lies() -> list[V]:
            return tiles.launch(host, x, source, b, touch, plan)

        if x.workspace is None:
            return as_it_lies()
        workspace = x.workspace

        def pack_first() -> list[V]:
            panels = tiles.plan(host, x, _PACKED)
            strides = self._launch_pack(host, x, workspace, panels.panels, panels.count)
            return tiles.launch(host, x, _PACKED, [workspace, *strides], touch, panels)

        own = tiles.copies_own(host.fn, plan, self._uses(host.fn, x, plan.blocks))
        return host.fn.if_else(own, as_it_lies, pack_first, [])

    def launch_from(self, host: HostContext, x: Operands, source: PanelSource, b: Sequence[V]) -> None:
        """Launches the product with B from a source, given its arguments `b`; `x.b`, its strides and the workspace aren't read."""
        tiles = self._tiles

        def by_vectors() -> list[V]:
            return self._launch(host, x, source, b, self._blocking(host, x, source))

        def by_tiles(tiles: TileProduct) -> list[V]:
            return tiles.launch(host, x, source, b, self._touch(host, x), tiles.plan(host, x, source))

        if tiles is None:
            by_vectors()
        else:
            tiles.emit_choice(host, x, partial(by_tiles, tiles), by_vectors)

    def _blocking(self, host: HostContext, x: Operands, source: PanelSource) -> _Blocking:
        fn = host.fn
        panels = fn.ceildivu(x.n, self.spec.panel(self.elem))
        cells = fn.mul(fn.mul(x.batch[0], x.batch[1]), panels)
        in_place = self._in_place(host, x)
        steps = units(fn, x.k, self.elem)
        copied, by_tiles = not source.in_place, None
        if source is _STRIDED and packs_on_the_way(self.elem):
            by_tiles = fn.cmp("eq", x.b_strides[3], 1)
        uncopied = fn.const(0, I1) if self.elem == F16 else in_place
        plan = Plan(
            self.spec,
            self.elem,
            host,
            x.m,
            steps,
            panels,
            cells,
            uncopied,
            copied=copied,
            by_tiles=by_tiles,
            always=copied and source is not _STRIDED,
            beside=self.beside,
            distance=None if by_tiles is None else row_distance(host.fn, self.elem, x),
        )
        count = fn.select(fn.cmp("eq", x.m, 0), 0, fn.mul(cells, plan.blocks))
        return _Blocking(plan, panels, in_place, count)

    def _launch(self, host: HostContext, x: Operands, source: PanelSource, b: Sequence[V], blocking: _Blocking) -> list[V]:
        fn, plan = host.fn, blocking.plan
        # Blocks of one row panel go on beside their last tile, where stores find lines that the hardware has fetched.
        beside = fn.and_(fn.cmp("gt", plan.blocks, 1), fn.cmp("le", plan.rows, self.spec.rows(self.elem)))
        touch = fn.select(beside, fn.int_to_ptr(fn.i64(0)), self._touch(host, x))
        batch0, batch1, row, column = x.a_strides
        cuts = [plan.blocks, plan.kc, plan.nc, plan.tiles, *prefetching(host, self.elem, self.spec)]
        sizes = [x.m, x.n, x.k, fn.max(x.batch[1], 1)]
        result = fn.int_to_ptr(fn.i64(0)) if x.result is None else x.result
        fetches = fn.cast(leaves_caches(host, self.elem, x), I64, signed=False)
        ends = [fetches, result, x.epilogue, touch, x.epilogue_args]

        def launch(*, rows: bool) -> list[V]:
            args = [x.a, row, column, batch0, batch1, *b, *sizes, *cuts, *ends, host.kept()]
            scratch = plan.scratch_bytes(rows=rows, copied=not source.in_place)
            host.launch(self.kernel(rows=rows, source=source), args, blocking.count, plan.grain, scratch)
            return []

        if self._row_forms == (False,):
            return launch(rows=False)
        return fn.if_else(blocking.in_place, lambda: launch(rows=True), lambda: launch(rows=False), [])

    def _launch_few_bytes(self, host: HostContext, x: Operands, tiled: Callable[[], list[V]]) -> None:
        """Few rows of bytes with B as it lies, where its rows or columns are contiguous."""
        fn, (b0, b1, bk, bn) = host.fn, x.b_strides

        def of(form: str, contiguous: V, apart: V, size: V, other: Callable[[], list[V]]) -> list[V]:
            least = byte_rows.bytes_of_vector(self._by_dots)
            few = fn.and_(fn.cmp("le", x.m, byte_rows.most_rows(self._by_dots, form)), fn.cmp("ge", size, least))
            serves = fn.and_(few, fn.cmp("eq", contiguous, 1))

            def launch() -> list[V]:
                chunk, count, grain = self._column_chunks(host, x, least)
                args = [x.a, *x.a_strides[2:], *x.a_strides[:2], x.b, b0, b1, apart, x.m, x.n, x.k, fn.max(x.batch[1], 1), chunk]
                kernel = byte_rows.emit_byte_rows_kernel(host.module, self._by_dots, form)
                scratch = byte_rows.scratch_bytes(fn, self._by_dots, x.m, x.k)
                host.launch(kernel, [*args, x.epilogue, x.epilogue_args], count, grain, scratch)
                return []

            return fn.if_else(serves, launch, other, [])

        of("rows", bn, bk, x.n, lambda: of("columns", bk, bn, x.k, tiled))

    def _column_chunks(self, host: HostContext, x: Operands, columns: int) -> tuple[V, V, V]:
        """Of a kernel that streams B: columns of an item, a multiple of `columns`, so many that every thread has one of each batch;
        items; and how few are worth a thread."""
        fn, batches = host.fn, host.fn.mul(*x.batch)
        splits = fn.mul(column_splits(host, x), columns)
        chunk = fn.mul(fn.max(fn.divu(fn.add(x.n, fn.sub(splits, 1)), splits), 1), columns)
        chunks = fn.divu(fn.add(x.n, fn.sub(chunk, 1)), chunk)
        count = fn.select(fn.cmp("eq", x.m, 0), 0, fn.mul(batches, chunks))
        with fn.wrapping():  # a B of strides 0 has any size
            work = fn.mul(fn.mul(x.k, chunk), fn.max(x.m, cycles_from_memory(host, _BYTES_A_CYCLE)))
        cycles = fn.divu(work, _BYTES_A_CYCLE)
        return chunk, count, fn.add(fn.divu(product_wake_cycles(host), fn.add(cycles, 1)), 1)

    def _touch(self, host: HostContext, x: Operands) -> V:
        """The function that fetches a tile's memory, null where the product is too short to hide that and the result may be in the
        second-level cache."""
        fn = host.fn
        null = fn.int_to_ptr(fn.i64(0))
        if x.touch is None:
            return null
        needed = fn.or_(fn.cmp("ge", x.k, _TOUCH_DEPTH), leaves_caches(host, self.elem, x))
        return fn.select(needed, x.touch, null)

    def _launch_pack(self, host: HostContext, x: Operands, workspace: V, panels: V, items: V) -> tuple[V, V]:
        """Packs B, each distinct matrix once, if the product has `items`; returns the packed batch strides."""
        fn, n, k, batch = host.fn, x.n, x.k, x.batch
        s0, s1, sk, sn = x.b_strides
        n0 = fn.select(fn.cmp("eq", s0, 0), fn.min(batch[0], 1), batch[0])
        n1 = fn.select(fn.cmp("eq", s1, 0), fn.min(batch[1], 1), batch[1])
        steps = units(fn, k, self.elem)
        size = fn.mul(fn.mul(panels, steps), self.spec.panel(self.elem))
        cut = PackItems.of(fn, self.elem, self.spec, sn, panels, steps)
        count = fn.select(fn.cmp("eq", items, 0), 0, fn.mul(fn.mul(n0, n1), fn.mul(cut.groups, cut.blocks)))
        wide, deep = fn.min(cut.panels, panels), fn.min(cut.steps, steps)
        step = fn.mul(cycles_from_memory(host, self.spec.row_bytes(self.elem)), fn.max(shared_copies(host), 1))
        cycles = fn.add(fn.mul(fn.mul(wide, deep), step), 1)
        past = fn.i64(0)
        if may_stream(self.spec):
            with fn.wrapping():
                nbytes = fn.mul(fn.mul(size, fn.mul(n0, n1)), BITS[unit(self.elem)] // 8)
            past = fn.select(streams_packed(host, self.elem, nbytes), fn.i64(1), 0)
        host.launch(
            emit_pack_b_kernel(host.module, self.elem, self.spec),
            [x.b, s0, s1, sk, sn, fn.max(n1, 1), n, k, steps_ahead(host, PACK_AHEAD), past, workspace],
            count,
            fn.add(fn.divu(wake_cycles(host), cycles), 1),
        )
        p1 = fn.select(fn.cmp("eq", s1, 0), 0, size)
        p0 = fn.select(fn.cmp("eq", s0, 0), 0, fn.mul(size, n1))
        return p0, p1
