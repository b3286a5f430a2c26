"""Convolution as an implicit matrix product: packed input panels times packed weights, tile by tile."""

from __future__ import annotations

from collections.abc import Callable

from dhlo.codegen.families.conv.microkernel import emit_strided_microkernel, emit_transpose, row_splits, share_of_fetching
from dhlo.codegen.families.conv.pack import (
    Geometry,
    emit_coords,
    emit_pack,
    emit_pack_pointwise,
    load_bounds,
    load_gates,
    load_geometry,
    load_touch,
)
from dhlo.codegen.families.conv.params import TRANSPOSED_LD, ConvParams
from dhlo.codegen.families.conv.quantised_weights import emit_decode, row_bytes
from dhlo.codegen.kernel_ir.builder import I1, PTR, Fn, V
from dhlo.codegen.kernel_ir.launch import kernel_fn

__all__ = ["ConvKernel", "emit_conv_kernel", "scratch_bytes"]


class _Scratch:
    """Offsets in bytes of a worker's scratch: packed panels, their coordinates, partial tiles, the transposed tile."""

    def __init__(self, p: ConvParams, swapped: bool) -> None:
        width, panels = p.panel_width(swapped), p.block_panels(swapped)
        depth = p.block_channels // p.step * p.points
        self.panel = depth * width * p.bytes
        self.coord = 3 * width * 4
        self.wide = not swapped and p.depth_blocks == 1
        self.tile = (width * p.panel if swapped else (p.spec.mr if self.wide else p.panel) * p.nr) * p.bytes
        self.coords = panels * self.panel
        self.tiles = self.coords + panels * self.coord
        kept = p.run_panels if p.depth_blocks > 1 else 1
        self.transposed = self.tiles + kept * panels * self.tile
        self.decoded = self.transposed + (p.panel * TRANSPOSED_LD * p.bytes if swapped else 0)
        self.total = self.decoded + (depth * p.panel * p.bytes if p.decodes else 0)


def scratch_bytes(p: ConvParams, swapped: bool) -> int:
    """Scratch of a worker."""
    return _Scratch(p, swapped).total


class ConvKernel:
    """Emits one kernel. Items are (image, group, position block, weight panel), the weight panel fastest."""

    def __init__(self, p: ConvParams, swapped: bool) -> None:
        self.p, self.swapped = p, swapped
        self.width, self.block = p.panel_width(swapped), p.block_panels(swapped)
        self.layout = _Scratch(p, swapped)
        self.pack = emit_pack(p, self.width)
        self.name = f"{p.name}_{'swapped' if swapped else 'normal'}"
        last = p.group_out - (p.channel_panels - 1) * p.panel
        self.full_splits, self.last_splits = (row_splits(n, p.spec.mr, p.row_multiple) for n in (p.panel, last))
        rows = range(1, p.spec.mr + 1) if swapped else sorted({n for _, n in self.full_splits + self.last_splits})
        self.ukr = {n: self.microkernel(n, p.panel if swapped else p.nr) for n in rows}
        self.transpose = emit_transpose(p.module, p.elem, self.width, p.spec) if swapped else ""
        self.f: Fn = kernel_fn(p.module, self.name)
        self.args, self.begin, self.end, _, self.scratch = self.f.args
        self.geo: Geometry = load_geometry(self.f, self.args)
        self.gates = load_gates(p, self.f, self.args) if p.gated else None
        self.bounds = load_bounds(p, self.f, self.args)
        self.touch = load_touch(p, self.f, self.args)
        self.touches = self.f.cmp("ne", self.f.ptr_to_int(self.touch), 0)
        self.plain = self.f.const(0, I1)  # the input's positions are the output's
        if p.pointwise and not swapped:
            f, geo = self.f, self.geo
            inside = f.cmp("le", geo.positions, f.mul(f.mul(geo.id, geo.ih), geo.iw))
            self.plain = f.and_(f.cmp("ne", geo.flat, 0), inside)

    def microkernel(self, rows: int, ldb: int) -> str:
        """The symbol of a register tile's kernel."""
        return emit_strided_microkernel(self.p.module, self.p.elem, rows, self.p.spec, ldb, pairs=self.p.pairs)

    def at(self, offset: int, index: V | int = 0, size: int = 0) -> V:
        """Scratch address at byte `offset` + index * size."""
        f = self.f
        return f.gep(f.gep(self.scratch, offset, "i8"), f.mul(index, size) if size else 0, "i8")

    def emit(self) -> str:
        """Walks the blocks touched by [begin, end); within a block, runs of weight panels share the packed input."""
        f, p, panels = self.f, self.p, self.p.channel_panels
        if self.swapped:
            self.table = f.alloca(p.spec.mr + 1, PTR)
            for n, symbol in self.ukr.items():
                f.store(f.address_of(symbol), f.gep(self.table, n, PTR), 8)
        with f.loop(f.divu(self.begin, panels), f.ceildivu(self.end, panels)) as blocks:
            first = f.mul(blocks.iv, panels)
            lo = f.sub(f.max(self.begin, first), first)
            hi = f.min(f.sub(self.end, first), panels)
            block = f.remu(blocks.iv, self.geo.blocks)
            image_group = f.divu(blocks.iv, self.geo.blocks)
            image, group = f.divu(image_group, p.groups), f.remu(image_group, p.groups)
            panel0 = f.divu(f.mul(block, self.geo.panels), self.geo.blocks)
            count = f.sub(f.divu(f.mul(f.add(block, 1), self.geo.panels), self.geo.blocks), panel0)
            self.coords(panel0, count)
            with f.loop(lo, hi, p.run_panels) as run:
                self.run(image, group, panel0, count, run.iv, f.min(f.add(run.iv, p.run_panels), hi))
        f.done()
        return self.name

    def start(self, panel: V) -> V:
        """First position of a panel."""
        f, geo = self.f, self.geo
        if self.swapped:
            return f.divu(f.mul(panel, geo.positions), geo.panels)
        return f.min(f.mul(panel, self.width), geo.positions)

    def coords(self, panel0: V, count: V) -> None:
        """Input coordinates of the block's positions; only the contiguous packing path reads them."""
        f = self.f
        if any(s != 1 for s in self.p.stride):
            return
        with f.when(f.and_(f.cmp("ne", self.geo.flat, 0), f.not_(self.plain))), f.loop(0, count) as lp:
            p0 = self.start(f.add(panel0, lp.iv))
            n = f.sub(self.start(f.add(f.add(panel0, lp.iv), 1)), p0)
            emit_coords(self.p, f, self.geo, p0, n, self.width, self.at(self.layout.coords, lp.iv, self.layout.coord))

    def run(self, image: V, group: V, panel0: V, count: V, lo: V, hi: V) -> None:
        """All depth blocks of one position block and the weight panels [lo, hi)."""
        f, p, geo = self.f, self.p, self.geo
        x = f.gep(geo.x, f.add(f.mul(image, geo.sxb), f.mul(f.mul(group, p.group_in), geo.sxc)), p.stored)
        with f.loop(0, p.depth_blocks) as depth:
            c0 = f.mul(depth.iv, p.block_channels)
            channels = f.min(f.sub(p.group_in, c0), p.block_channels)
            k = f.mul(p.steps(f, channels), p.points)
            xc = f.gep(x, f.mul(c0, geo.sxc), p.stored)
            gates: list[V] = []
            if self.gates is not None:
                first = f.add(f.mul(f.add(f.mul(image, p.groups), group), p.group_in), c0)
                gates = [f.gep(self.gates, first, p.stored)]
            self.pack_block(xc, channels, panel0, count, gates)
            with f.loop(lo, hi) as panel:
                index = f.add(f.mul(group, p.channel_panels), panel.iv)
                before = f.divu(c0, 2) if p.channel_pairs else c0
                at = f.add(f.mul(index, p.panel_elements), f.mul(before, p.points * p.panel))
                slot = f.sub(panel.iv, lo) if p.depth_blocks > 1 else f.i64(0)
                tiles = self.at(self.layout.tiles, slot, self.layout.tile * self.block)
                w = self.decoded(at, k) if p.decodes else self.weights(at)
                # The weights needed next: this depth block of the next panel, or the next depth block of the first.
                more = f.cmp("lt", f.add(panel.iv, 1), hi)
                back = f.sub(f.mul(k, p.panel), f.mul(f.sub(panel.iv, lo), p.panel_elements))
                ahead = self.weights(f.add(at, f.select(more, f.i64(p.panel_elements), back)))
                if self.layout.wide:
                    self.wide(w, ahead, image, group, panel.iv, panel0, count, k)
                else:
                    last = f.cmp("eq", depth.iv, p.depth_blocks - 1)
                    m0, rows, p0, positions = self.place(group, panel.iv, panel0, count)
                    with f.when(f.and_(last, self.touches)):
                        f.call_ptr(self.touch, [geo.eargs, tiles, f.i64(p.nr), image, m0, p0, rows, positions])
                    self.multiply(w, ahead, panel.iv, panel0, count, k, tiles, depth.iv)
                    with f.when(last):
                        self.finish(image, group, panel.iv, panel0, count, tiles)

    @property
    def row_bytes(self) -> int:
        """Of a row of a weight panel in memory."""
        p = self.p
        return row_bytes(p.code, p.panel) if p.decodes else p.panel * p.bytes

    def weights(self, at: V) -> V:
        """Where the weight panels' element `at` is, the first one of a row."""
        f, p = self.f, self.p
        if p.decodes:
            return f.gep(self.geo.w, f.mul(f.divu(at, p.panel), self.row_bytes), "i8")
        return f.gep(f.gep(self.geo.w, p.heads * p.panel, p.elem), at, p.elem)

    def decoded(self, at: V, rows: V) -> V:
        """Rows of a panel of codes from element `at` on, as numbers in the scratch."""
        p, to = self.p, self.at(self.layout.decoded)
        self.f.call(emit_decode(p.module, p.code, p.spec), [self.weights(at), rows, to])
        return to

    def pack_block(self, x: V, channels: V, panel0: V, count: V, gates: list[V]) -> None:
        """Packs the block's positions of `channels` channels from `x` on; `gates` is empty, or where theirs begin."""
        f, p = self.f, self.p

        def plain() -> list[V]:
            p0 = self.start(panel0)
            n = f.sub(self.start(f.add(panel0, count)), p0)
            stride = f.i64(self.layout.panel // p.bytes)
            pack = emit_pack_pointwise(p, self.width)
            f.call(pack, [f.gep(x, p0, p.stored), self.at(0), self.geo.sxc, channels, stride, n, *(self.bounds or ()), *gates])
            return []

        def windows() -> list[V]:
            with f.loop(0, count) as lp:
                p0 = self.start(f.add(panel0, lp.iv))
                n = f.sub(self.start(f.add(f.add(panel0, lp.iv), 1)), p0)
                coords = self.at(self.layout.coords, lp.iv, self.layout.coord)
                f.call(self.pack, [self.args, x, channels, self.at(0, lp.iv, self.layout.panel), p0, n, coords, *gates])
            return []

        if p.pointwise and not self.swapped:
            f.if_else(self.plain, plain, windows, [])
        else:
            windows()

    def wide(self, w: V, ahead: V, image: V, group: V, panel: V, panel0: V, count: V, k: V) -> None:
        """One weight panel times the block's input panels, some rows over all positions at a time, to the epilogue."""
        f, p, geo = self.f, self.p, self.geo
        tile, ld = self.at(self.layout.tiles), f.i64(self.block * p.nr)
        p0 = self.start(panel0)
        positions = f.sub(self.start(f.add(panel0, count)), p0)
        m0 = f.add(f.mul(group, p.group_out), f.mul(panel, p.panel))

        def rows(splits: list[tuple[int, int]]) -> list[V]:
            for i, (row, n) in enumerate(splits):
                with f.loop(0, count) as lp:
                    fetch = self.fetch(ahead, k, f.add(f.mul(count, i), lp.iv), f.mul(count, len(splits)))
                    x, out = self.at(0, lp.iv, self.layout.panel), f.gep(tile, f.mul(lp.iv, p.nr), p.elem)
                    first = f.mul(lp.iv, p.nr)
                    with f.when(self.touches):
                        there = f.min(f.sub(positions, first), p.nr)
                        place = [tile, ld, image, f.add(m0, row), f.add(p0, first), f.i64(n), there]
                        f.call_ptr(self.touch, [geo.eargs, *place])
                    f.call(self.ukr[n], [f.gep(w, row, p.elem), f.i64(p.panel), x, k, out, ld, f.i64(0), *fetch])
                f.call_ptr(geo.epilogue, [geo.eargs, tile, ld, image, f.add(m0, row), p0, f.i64(n), positions])
            return []

        if p.channel_panels == 1 or self.full_splits == self.last_splits:
            rows(self.last_splits)
        else:
            last = f.cmp("eq", panel, p.channel_panels - 1)
            f.if_else(last, lambda: rows(self.last_splits), lambda: rows(self.full_splits), [])

    def multiply(self, w: V, ahead: V, panel: V, panel0: V, count: V, k: V, tiles: V, accumulate: V) -> None:
        """One weight panel times the block's input panels, into the tiles, which prefetch `ahead` between them."""
        f, p = self.f, self.p
        with f.loop(0, count) as lp:

            def fetch(i: int, of: int) -> tuple[V, V]:
                return self.fetch(ahead, k, f.add(f.mul(lp.iv, of), i), f.mul(count, of))

            x = self.at(0, lp.iv, self.layout.panel)
            tile = f.gep(tiles, f.mul(lp.iv, self.layout.tile), "i8")
            if self.swapped:
                p0 = self.start(f.add(panel0, lp.iv))
                n = f.sub(self.start(f.add(f.add(panel0, lp.iv), 1)), p0)
                fn = f.load(f.gep(self.table, n, PTR), PTR)
                columns = range(0, min(p.panel, p.group_out), p.nr)
                for i, column in enumerate(columns):
                    b, c = f.gep(w, column, p.elem), f.gep(tile, column, p.elem)
                    f.call_ptr(fn, [x, f.i64(self.width), b, k, c, f.i64(p.panel), accumulate, *fetch(i, len(columns))])
            elif p.channel_panels == 1 or self.full_splits == self.last_splits:
                self.rows(self.last_splits, w, x, k, tile, accumulate, fetch)
            else:

                def side(splits: list[tuple[int, int]]) -> list[V]:
                    return self.rows(splits, w, x, k, tile, accumulate, fetch)

                f.if_else(
                    f.cmp("eq", panel, p.channel_panels - 1),
                    lambda: side(self.last_splits),
                    lambda: side(self.full_splits),
                    [],
                )

    def rows(
        self, splits: list[tuple[int, int]], w: V, x: V, k: V, tile: V, accumulate: V, fetch: Callable[[int, int], tuple[V, V]]
    ) -> list[V]:
        """Register tiles down a weight panel; `fetch` says what each of so many prefetches."""
        f, p = self.f, self.p
        for i, (row, n) in enumerate(splits):
            a, c = f.gep(w, row, p.elem), f.gep(tile, row * p.nr, p.elem)
            f.call(self.ukr[n], [a, f.i64(p.panel), x, k, c, f.i64(p.nr), accumulate, *fetch(i, len(splits))])
        return []

    def fetch(self, ahead: V, k: V, tile: V, tiles: V) -> tuple[V, V]:
        """What the tile prefetches of the weight panel `ahead`; see `share_of_fetching`."""
        return share_of_fetching(self.f, self.row_bytes, ahead, k, tile, tiles)

    def place(self, group: V, panel: V, panel0: V, count: V) -> tuple[V, V, V, V]:
        """A weight panel's first output channel and how many, the block's first position and how many."""
        f, p = self.f, self.p
        row, p0 = f.mul(panel, p.panel), self.start(panel0)
        rows = f.min(f.sub(p.group_out, row), p.panel)
        return f.add(f.mul(group, p.group_out), row), rows, p0, f.sub(self.start(f.add(panel0, count)), p0)

    def finish(self, image: V, group: V, panel: V, panel0: V, count: V, tiles: V) -> None:
        """Hands the finished tiles of a weight panel to the epilogue."""
        f, p, geo = self.f, self.p, self.geo
        m0, rows, p0, positions = self.place(group, panel, panel0, count)
        if not self.swapped:
            with f.loop(0, count) as lp:
                first = self.start(f.add(panel0, lp.iv))
                n = f.sub(self.start(f.add(f.add(panel0, lp.iv), 1)), first)
                tile = f.gep(tiles, f.mul(lp.iv, self.layout.tile), "i8")
                f.call_ptr(geo.epilogue, [geo.eargs, tile, f.i64(p.nr), image, m0, first, rows, n])
            return
        out = self.at(self.layout.transposed)
        with f.loop(0, count) as lp:
            column = f.sub(self.start(f.add(panel0, lp.iv)), p0)
            f.call(
                self.transpose,
                [f.gep(tiles, f.mul(lp.iv, self.layout.tile), "i8"), f.gep(out, column, p.elem), f.i64(TRANSPOSED_LD)],
            )
        f.call_ptr(geo.epilogue, [geo.eargs, out, f.i64(TRANSPOSED_LD), image, m0, p0, rows, positions])


def emit_conv_kernel(p: ConvParams, *, swapped: bool) -> str:
    """Emits the kernel and returns its symbol. `swapped` makes positions the broadcast operand and channels the
    vector one: no waste on position counts that are no multiple of the vector tile, at the cost of transposing the
    finished tile."""
    return ConvKernel(p, swapped).emit()
