"""Matrix products of run-time sizes: packed panels, a split over rows and column panels, and an epilogue per tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import sympy

from dhlo.codegen.families.gemm.gemv import STREAM_ROWS, emit_stream_kernel, narrow_columns, stream_scratch_elements
from dhlo.codegen.families.gemm.microkernel import (
    BF16,
    TileSpec,
    accumulator,
    depth,
    emit_microkernel_table,
    unit,
)
from dhlo.codegen.families.gemm.pack import emit_pack_a_panel, emit_pack_b_kernel, units
from dhlo.codegen.families.gemm.panels import Chunk, PackedPanels, PanelSource, StridedPanels
from dhlo.codegen.families.gemm.plan import STREAM_CYCLES, WAKE_CYCLES, Plan, RowSplit, call_cycles
from dhlo.codegen.kernel_ir.builder import BITS, I1, I8, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext, kernel_fn, load_args

__all__ = ["Matmul", "Operands", "workspace_bytes"]

# Addresses this far apart share sets of the first-level cache, whatever its size.
_L1_WAY_BYTES = 4096
# Products this deep hide the memory that their epilogue will need, fetched before them, and its cost.
_TOUCH_DEPTH = 64
# What bf16 dot products must multiply in the time in which f32 multiply-adds multiply 100: these take two instructions a pair, and
# one or two to take it apart.
_DOTS_PAY = 80
# How far ahead in its own panel of B a lone row panel of so many rows prefetches, in bytes. Nearer for a few rows and further for
# more than a hardware prefetcher's page: in between the two get in each other's way, at up to 1.7 times the time.
_AHEAD_ONE, _AHEAD_FEW, _AHEAD_MORE, _FEW_ROWS = 4096, 1024, 8192, 4

# So many packings of B, each to a panel that stays in the cache, are cheaper than one by a launch of its own, all of B to memory.
_FEW_USES = 2

_LINE_BYTES = 64

_PACKED, _STRIDED = PackedPanels(), StridedPanels()

Size = TypeVar("Size", int, sympy.Expr)


def workspace_bytes(batch: Size, n: Size, k: Size, elem: str, spec: TileSpec) -> Size:
    """Workspace of a product whose B is packed at run time: `batch` matrices of n x k, as ints or sympy expressions."""
    columns, step = spec.panel(elem), depth(elem)
    panels, steps = (n + (columns - 1)) // columns, (k + (step - 1)) // step
    return batch * panels * steps * spec.row_bytes(elem)


@dataclass(frozen=True)
class Operands:
    """What a product is given in the host program: addresses, and sizes and strides (in elements) as i64.

    `a_strides` are those of (batch 0, batch 1, m, k), 0 to broadcast. Without `workspace`, B is in panels (see `pack_b`) and
    `b_strides` are those of (batch 0, batch 1) in panel units (pairs for bf16, else elements); otherwise B is any matrix with
    strides of (batch 0, batch 1, k, n), and `workspace` has room for `workspace_bytes(distinct batches of B, n, k)`, 64-byte
    aligned. `touch`, a function called like the epilogue before a tile's products, prefetches what the epilogue will write
    and read.
    """

    a: V
    b: V
    m: V
    n: V
    k: V
    a_strides: Sequence[V]
    b_strides: Sequence[V]
    batch: Sequence[V]
    epilogue: V
    epilogue_args: V
    touch: V | None = None
    workspace: V | None = None


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
    spec.rows(elem) rows from row m0 and nr <= spec.panel(elem) columns from column n0 of the linear batch index `batch`;
    every (batch, row, column) once, in any order and from several threads. The tile may be overwritten. It's called
    with zeros where K is 0, not at all where the result is empty. Sums run in order of k with fused multiply-adds (for
    at most 5 rows in up to 6 interleaved partial sums, added up at the end). Neither the
    number of threads nor how the work is cut into chunks changes a bit of the result.
    """

    elem: str
    spec: TileSpec
    narrow: bool = False  # the last panel may be at most a vector wide, and is then computed as one

    def kernel(self, *, rows: bool, source: PanelSource) -> str:
        """Symbol of a variant: A read in place or packed, B from a source of panels."""
        form = f"{'_rows' if rows else ''}{source.name}{'_narrow' if self.narrow else ''}"
        return f"matmul_{self.elem}{form}{self.spec.suffix}"

    @property
    def _row_forms(self) -> tuple[bool, ...]:
        """Forms of A: in place or packed; bf16 is always packed, for its pairs."""
        return (False,) if self.elem == BF16 else (True, False)

    @property
    def widened(self) -> Matmul | None:
        """The same product by f32 multiply-adds, for machines whose dot products of bf16 are slow; None for other types."""
        return replace(self, spec=replace(self.spec, widen=True)) if self.elem == BF16 and self.spec.bf16_dot else None

    def emit_kernels(self, module: KernelModule, *, packed: bool) -> None:
        """Emits the kernels that `emit_launch` chooses from and all that they call, once a module."""
        if self.widened is not None:
            self.widened.emit_kernels(module, packed=packed)
        for source in (_PACKED,) if packed else (_PACKED, _STRIDED):
            self.emit_kernels_from(module, source)
        if not packed:
            emit_pack_b_kernel(module, self.elem, self.spec)
            if True in self._row_forms:
                emit_stream_kernel(module, self.elem, self.spec)

    def emit_kernels_from(self, module: KernelModule, source: PanelSource) -> None:
        """Emits the kernels that read B from a source, once a module."""
        for rows in self._row_forms:
            if self.kernel(rows=rows, source=source) not in module.functions:
                _emit_kernel(self, module, source, rows=rows)

    def emit_launch(self, host: HostContext, x: Operands) -> None:
        """Emits size arithmetic, variant choice and launches of what `emit_kernels` emitted."""
        widened = self.widened
        if widened is None:
            self._emit_launch(host, x)
            return

        def launch(product: Matmul) -> list[V]:
            product._emit_launch(host, x)
            return []

        dots_pay = host.fn.cmp("ge", host.machine("bf16_percent"), _DOTS_PAY)
        host.fn.if_else(dots_pay, lambda: launch(self), lambda: launch(widened), [])

    def _emit_launch(self, host: HostContext, x: Operands) -> None:
        """The same by this tile."""
        fn = host.fn
        if x.workspace is None:
            self.launch_from(host, x, _PACKED, [x.b, *x.b_strides])
            return
        workspace = x.workspace

        def tiled() -> list[V]:
            blocking = self._blocking(host, x, _STRIDED)

            def pack_first() -> list[V]:
                strides = self._launch_pack(host, x, workspace, blocking)
                return self._launch(host, x, _PACKED, [workspace, *strides], blocking)

            def own() -> list[V]:
                return self._launch(host, x, _STRIDED, [x.b, *x.b_strides], blocking)

            # Panels of B that few blocks use are packed to scratch by each: no second launch, no way through memory.
            uses = blocking.plan.blocks
            for stride, size in zip(x.b_strides, x.batch, strict=False):
                uses = fn.select(fn.cmp("eq", stride, 0), fn.mul(uses, size), uses)
            return fn.if_else(fn.cmp("le", uses, _FEW_USES), own, pack_first, [])

        if self._row_forms == (False,):
            tiled()
            return
        few = fn.and_(fn.cmp("le", x.m, STREAM_ROWS), fn.cmp("ge", x.n, narrow_columns(self.elem, self.spec)))
        streams = fn.and_(fn.and_(few, fn.cmp("eq", x.a_strides[3], 1)), fn.cmp("eq", x.b_strides[3], 1))
        fn.if_else(streams, lambda: self._launch_stream(host, x), tiled, [])

    def launch_from(self, host: HostContext, x: Operands, source: PanelSource, b: Sequence[V]) -> None:
        """Launches the product with B from a source, given its arguments `b`; `x.b`, its strides and the workspace aren't read."""
        self._launch(host, x, source, b, self._blocking(host, x, source))

    def _blocking(self, host: HostContext, x: Operands, source: PanelSource) -> _Blocking:
        fn = host.fn
        panels = fn.ceildivu(x.n, self.spec.panel(self.elem))
        cells = fn.mul(fn.mul(x.batch[0], x.batch[1]), panels)
        in_place = self._reads_in_place(host, x.m, x.a_strides[2], x.a_strides[3])
        steps = units(fn, x.k, self.elem)
        plan = Plan(self.spec, self.elem, host, x.m, steps, panels, cells, in_place, copied=not source.in_place)
        count = fn.select(fn.cmp("eq", x.m, 0), 0, fn.mul(cells, plan.blocks))
        return _Blocking(plan, panels, in_place, count)

    def _launch(self, host: HostContext, x: Operands, source: PanelSource, b: Sequence[V], blocking: _Blocking) -> list[V]:
        fn, plan = host.fn, blocking.plan
        touch = self._touch_where_deep(fn, x.k, x.touch)
        batch0, batch1, row, column = x.a_strides
        cuts = [plan.blocks, plan.kc, plan.nc, plan.tiles]
        sizes = [x.m, x.n, x.k, fn.max(x.batch[1], 1)]
        args = [x.a, row, column, batch0, batch1, *b, *sizes, *cuts, x.epilogue, touch, x.epilogue_args]

        def launch(*, rows: bool) -> list[V]:
            scratch = plan.scratch_bytes(rows=rows, copied=not source.in_place)
            host.launch(self.kernel(rows=rows, source=source), args, blocking.count, plan.grain, scratch)
            return []

        if self._row_forms == (False,):
            return launch(rows=False)
        return fn.if_else(blocking.in_place, lambda: launch(rows=True), lambda: launch(rows=False), [])

    def _launch_stream(self, host: HostContext, x: Operands) -> list[V]:
        """The few-rows kernel: as many chunks of columns of each batch as give every thread one."""
        fn, m, n, k, columns = host.fn, x.m, x.n, x.k, narrow_columns(self.elem, self.spec)
        sa, sb, batches = x.a_strides, x.b_strides, fn.mul(*x.batch)
        some = fn.max(batches, 1)
        splits = fn.divu(fn.add(host.num_threads, fn.sub(some, 1)), some)
        chunk = fn.mul(fn.divu(fn.add(n, fn.sub(fn.mul(splits, columns), 1)), fn.mul(splits, columns)), columns)
        chunks = fn.divu(fn.add(n, fn.sub(chunk, 1)), chunk)
        count = fn.select(fn.cmp("eq", m, 0), 0, fn.mul(batches, chunks))
        panel_cycles = fn.add(fn.mul(k, STREAM_CYCLES), call_cycles(self.spec))
        cycles = fn.divu(fn.mul(panel_cycles, chunk), self.spec.panel(self.elem))
        grain = fn.add(fn.divu(fn.const(WAKE_CYCLES, I64), cycles), 1)
        scratch = fn.add(fn.mul(k, self.spec.nr(self.elem)), stream_scratch_elements(self.elem, self.spec))
        host.launch(
            emit_stream_kernel(host.module, self.elem, self.spec),
            [x.a, sa[2], *sa[:2], x.b, *sb[:3], m, n, k, fn.max(x.batch[1], 1), chunk, x.epilogue, x.epilogue_args],
            count,
            grain,
            fn.mul(scratch, BITS[self.elem] // 8),
        )
        return []

    def _touch_where_deep(self, fn: Fn, k: V, touch: V | None) -> V:
        """The function that fetches a tile's memory, null where the product is too short to hide that."""
        null = fn.int_to_ptr(fn.i64(0))
        return null if touch is None else fn.select(fn.cmp("lt", k, _TOUCH_DEPTH), null, touch)

    def _reads_in_place(self, host: HostContext, m: V, row_stride: V, k_stride: V) -> V:
        """Whether A is read where it lies: k contiguous, and a row panel's lines don't crowd few sets of the L1 cache.

        The rows' lines fall on 4096 / g different places, where g is the largest power of two that divides the row
        stride. There they may take two thirds of the cache: B passes through it, a line each while a row's line is in use.
        """
        fn = host.fn
        if True not in self._row_forms:
            return fn.const(0, I1)
        stride = fn.mul(row_stride, BITS[self.elem] // 8)
        g = fn.min(fn.and_(stride, fn.sub(0, stride)), _L1_WAY_BYTES)
        room = fn.divu(fn.mul(host.machine("l1d_bytes"), 2), 3)
        fits = fn.cmp("le", fn.mul(fn.min(m, self.spec.rows(self.elem)), g), room)
        return fn.and_(fn.cmp("eq", k_stride, 1), fits)

    def _launch_pack(self, host: HostContext, x: Operands, workspace: V, blocking: _Blocking) -> tuple[V, V]:
        """Packs B, each distinct matrix once, if there is a product to compute; returns the packed batch strides."""
        fn, n, k, batch, panels = host.fn, x.n, x.k, x.batch, blocking.panels
        s0, s1, sk, sn = x.b_strides
        n0 = fn.select(fn.cmp("eq", s0, 0), fn.min(batch[0], 1), batch[0])
        n1 = fn.select(fn.cmp("eq", s1, 0), fn.min(batch[1], 1), batch[1])
        size = fn.mul(fn.mul(panels, units(fn, k, self.elem)), self.spec.panel(self.elem))
        count = fn.select(fn.cmp("eq", blocking.count, 0), 0, fn.mul(fn.mul(n0, n1), panels))
        cycles = fn.add(fn.mul(k, STREAM_CYCLES), 1)
        host.launch(
            emit_pack_b_kernel(host.module, self.elem, self.spec),
            [x.b, s0, s1, sk, sn, fn.max(n1, 1), n, k, workspace],
            count,
            fn.add(fn.divu(fn.const(WAKE_CYCLES, I64), cycles), 1),
        )
        p1 = fn.select(fn.cmp("eq", s1, 0), 0, size)
        p0 = fn.select(fn.cmp("eq", s0, 0), 0, fn.mul(size, n1))
        return p0, p1


def _emit_kernel(matmul: Matmul, module: KernelModule, source: PanelSource, *, rows: bool) -> None:
    """Items are (batch, row block, column panel). Of runs of panels of one row block, groups take one chunk of k after the other:
    the chunk's rows of A are packed once for a group, the sums of its tiles wait in scratch from chunk to chunk."""
    spec, elem = matmul.spec, matmul.elem
    columns, row_bytes, part = spec.panel(elem), spec.row_bytes(elem), unit(elem)
    table = emit_microkernel_table(module, elem, rows=rows, ahead=True, narrow=matmul.narrow, spec=spec)
    fn = kernel_fn(module, matmul.kernel(rows=rows, source=source))
    types = [PTR, *[I64] * 4, *source.args, *[I64] * 8, PTR, PTR, PTR]
    a, sm, sk, a0, a1, *args = load_args(fn, types)
    b_args, (m, n, k, batch1, blocks, kc, nc, tiles, epilogue, touch, eargs) = args[: len(source.args)], args[len(source.args) :]
    _, begin, end, _, tile = fn.args
    steps = units(fn, k, elem)
    b_pack = fn.gep(tile, tiles, part)
    a_pack = b_pack if source.in_place else fn.gep(b_pack, fn.mul(kc, columns), part)
    touches = fn.cmp("ne", fn.ptr_to_int(touch), 0)
    panels = fn.max(fn.ceildivu(n, columns), 1)
    chunks = fn.max(fn.divu(fn.add(steps, fn.sub(kc, 1)), kc), 1)
    # Elements between rows of tiles that wait for the next chunk; where none waits, all use one.
    kept = fn.select(fn.cmp("gt", chunks, 1), fn.i64(columns), 0)
    with fn.loop(fn.divu(begin, panels), fn.divu(fn.add(end, fn.sub(panels, 1)), panels)) as run:
        before = fn.mul(run.iv, panels)
        p0, p1 = fn.max(fn.sub(begin, before), 0), fn.min(fn.sub(end, before), panels)
        batch, block = fn.divu(run.iv, blocks), fn.remu(run.iv, blocks)
        i0, i1 = fn.divu(batch, batch1), fn.remu(batch, batch1)
        split = RowSplit(fn, m, blocks, block, spec.rows(elem))
        a_block = fn.gep(a, fn.add(fn.add(fn.mul(i0, a0), fn.mul(i1, a1)), fn.mul(split.first, sm)), elem)
        matrix = source.matrix(fn, elem, b_args, i0, i1)
        ahead_step = fn.divu(fn.const(row_bytes, I64), split.panels)
        in_run = fn.sub(p1, p0)
        groups = fn.divu(fn.add(in_run, fn.sub(nc, 1)), nc)
        with fn.loop(0, groups) as group, fn.loop(0, chunks) as chunk:
            g0, g1 = (fn.add(p0, fn.divu(fn.mul(x, in_run), groups)) for x in (group.iv, fn.add(group.iv, 1)))
            first = fn.mul(chunk.iv, kc)
            size, begins = fn.min(fn.sub(steps, first), kc), fn.mul(first, depth(elem))
            elements = fn.min(fn.sub(k, begins), fn.mul(size, depth(elem)))
            a_chunk = fn.gep(a_block, fn.mul(begins, sk), elem)
            if not rows:
                with fn.loop(0, split.panels) as i:
                    offset, mr = split.panel(i.iv)
                    to = fn.gep(a_pack, fn.mul(offset, size), part)
                    emit_pack_a_panel(fn, elem, spec, fn.gep(a_chunk, fn.mul(offset, sm), elem), sm, sk, mr, elements, to)
            slice_bytes = fn.mul(size, ahead_step)
            last = fn.cmp("eq", fn.add(chunk.iv, 1), chunks)
            adds = fn.cmp("gt", chunk.iv, 0)
            accumulate, touches_now = fn.select(adds, fn.i64(1), 0), fn.and_(touches, last)
            calls = _TileCalls(matmul, fn, fn.address_of(table), size, adds, accumulate, epilogue, touch, touches_now, last, eargs)
            with fn.loop(g0, g1) as p:
                n0 = fn.mul(p.iv, columns)
                width = fn.min(fn.sub(n, n0), columns)
                panel = source.chunk(fn, elem, spec, matrix, Chunk(n0, width, first, size, steps, elements, b_pack))
                ahead = fn.i64(0)
                if source.in_place:
                    ahead = _next_chunk(calls, split, p.iv, g0, g1, first, steps, row_bytes)
                variants = calls.variants(width) if spec.per_panel == 1 else None
                tile_row = fn.mul(fn.sub(p.iv, g0), split.size)
                with fn.loop(0, split.panels) as i:
                    offset, mr = split.panel(i.iv)
                    operand = (
                        [fn.gep(a_chunk, fn.mul(offset, sm), elem), sm] if rows else [fn.gep(a_pack, fn.mul(offset, size), part)]
                    )
                    fetch = fn.add(ahead, fn.mul(i.iv, slice_bytes))
                    row = [batch, fn.add(split.first, offset)]
                    sums = fn.gep(tile, fn.mul(fn.add(tile_row, offset), kept), part)
                    if variants is not None:
                        place = [*row, n0, mr, width]
                        calls.emit(variants, operand, panel, sums, place, spec.nr(elem), fn.gep(panel, fetch, I8), ahead_step)
                    else:
                        calls.emit_across(operand, panel, sums, kept, row, n0, mr, width, fetch, ahead_step)
    fn.done()


def _next_chunk(calls: _TileCalls, split: RowSplit, p: V, g0: V, g1: V, first: V, steps: V, row_bytes: int) -> V:
    """How many bytes from the chunk of packed panel `p` lies what is read next: that of the group's next panel, after the last the
    first one's next chunk, after all chunks the next group. Where one tile takes all rows, it streams ahead in its own panel."""
    fn = calls.fn
    whole = fn.mul(steps, row_bytes)
    turn = fn.select(
        calls.last, fn.sub(whole, fn.mul(first, row_bytes)), fn.sub(fn.mul(calls.steps, row_bytes), fn.mul(fn.sub(p, g0), whole))
    )
    onward = fn.select(fn.cmp("lt", fn.add(p, 1), g1), whole, turn)
    alone = fn.select(fn.cmp("le", split.size, _FEW_ROWS), fn.i64(_AHEAD_FEW), fn.i64(_AHEAD_MORE))
    alone = fn.select(fn.cmp("eq", split.size, 1), _AHEAD_ONE, alone)
    return fn.select(calls.single(split), alone, onward)


@dataclass(frozen=True)
class _TileCalls:
    """Emits the calls of micro-kernel and epilogue in the kernel `fn`."""

    matmul: Matmul
    fn: Fn
    table: V
    steps: V  # of the chunk of k
    adds: V  # whether it adds to the tile
    accumulate: V  # the same for micro-kernels
    epilogue: V
    touch: V
    touches: V  # whether there is such a function, and the chunk is the last
    last: V
    eargs: V

    def single(self, split: RowSplit) -> V:
        """Whether one tile takes all rows and columns of an item."""
        fn, spec = self.fn, self.matmul.spec
        few = spec.rows(self.matmul.elem) if spec.per_panel == 1 else spec.whole_panel_rows(self.matmul.elem)
        return fn.cmp("le", split.size, few)

    def variants(self, width: V) -> V:
        """The micro-kernels by number of rows, for a tile of `width` columns."""
        if not self.matmul.narrow:
            return self.table
        fn, spec, elem = self.fn, self.matmul.spec, self.matmul.elem
        narrow = fn.cmp("le", width, spec.lanes(elem))
        return fn.gep(self.table, fn.select(narrow, fn.i64(spec.rows(elem)), 0), PTR)

    def emit(self, variants: V, a: Sequence[V], b: V, tile: V, place: Sequence[V], ld: V | int, fetch: V, fetch_step: V) -> None:
        """One chunk of the sums in `tile`, which are at `place` (batch, row, column, rows, columns) of C."""
        fn, acc = self.fn, accumulator(self.matmul.elem)
        ukr = fn.load(fn.gep(variants, fn.sub(place[3], 1), PTR), PTR)
        place = [self.eargs, tile, fn.i64(ld), *place]
        with fn.when(self.touches):
            fn.call_ptr(self.touch, place)
        with fn.when(self.adds), fn.loop(0, fn.mul(fn.mul(place[6], ld), BITS[acc] // 8), _LINE_BYTES) as line:
            fn.prefetch(fn.gep(fn.gep(tile, fn.mul(place[6], ld), acc), line.iv, I8))  # the sums that are needed next
        fn.call_ptr(ukr, [*a, b, self.steps, tile, self.accumulate, fetch, fetch_step])
        with fn.when(self.last):
            fn.call_ptr(self.epilogue, place)

    def emit_across(
        self, a: Sequence[V], panel: V, tile: V, kept: V, row: Sequence[V], n0: V, mr: V, width: V, fetch: V, fetch_step: V
    ) -> None:
        """The tiles of some rows across a panel that is wider than they are, one after the other in `tile` where sums are `kept`.
        What lies `fetch` bytes from the panel's start they prefetch between them, at `fetch_step` bytes a step of k."""
        fn, spec, elem = self.fn, self.matmul.spec, self.matmul.elem
        columns, part = spec.panel(elem), unit(elem)
        ld = fn.select(fn.cmp("le", mr, spec.whole_panel_rows(elem)), fn.i64(columns), spec.nr(elem))
        share = fn.divu(fn.mul(fetch_step, ld), columns)
        with fn.loop(0, width, ld) as t:
            b, left = fn.gep(panel, t.iv, part), fn.min(fn.sub(width, t.iv), ld)
            later = fn.mul(fn.mul(fn.divu(t.iv, ld), share), self.steps)
            at = fn.gep(panel, fn.add(fetch, later), I8)
            # The columns before it take mr * t.iv elements: kept is 0 or the columns of a panel.
            sums = fn.gep(tile, fn.divu(fn.mul(fn.mul(mr, t.iv), kept), columns), part)
            self.emit(self.variants(left), a, b, sums, [*row, fn.add(n0, t.iv), mr, left], ld, at, share)
