"""Convolution as an implicit matrix product: packed input panels times packed weights, tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dhlo.codegen.families.blocks import Blocks
from dhlo.codegen.families.conv.microkernel import emit_strided_microkernel, emit_transpose, row_splits, share_of_fetching
from dhlo.codegen.families.conv.pack import (
    Geometry,
    emit_coords,
    emit_pack,
    emit_pack_pointwise,
    load_bounds,
    load_gates,
    load_geometry,
    load_last,
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


@dataclass(frozen=True)
class _Block:
    """Positions that are packed together: `count` panels of each of `images` images from `image` on, those from `panel` on. Blocks
    of several images hold all of their panels. They lie in the scratch image by image."""

    image: V
    images: V
    group: V
    panel: V
    count: V


class ConvKernel:
    """Emits one kernel. Items are (images, group, position block, weight panel), the weight panel fastest."""

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
        self.args, *_, self.scratch = self.f.args
        self.geo: Geometry = load_geometry(self.f, self.args)
        self.gates = load_gates(p, self.f, self.args) if p.gated else None
        self.bounds = load_bounds(p, self.f, self.args)
        self.touch, self.batch, self.image_blocks, kept = load_last(p, self.f, self.args)
        self.blocks = Blocks(self.f, kept)
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
        """Walks the blocks of the kernel's items; the weight panels of a block share its packed input, or those of a run do where
        it's packed in parts."""
        f, p, geo = self.f, self.p, self.geo
        if self.swapped:
            self.table = f.alloca(p.spec.mr + 1, PTR)
            for n, symbol in self.ukr.items():
                f.store(f.address_of(symbol), f.gep(self.table, n, PTR), 8)
        with self.blocks.each(p.channel_panels) as (number, lo, hi, other):
            images_group = f.divu(number, geo.blocks)
            image, images = self.share(f.divu(images_group, p.groups), self.batch, self.image_blocks)
            panel, count = self.share(f.remu(number, geo.blocks), geo.panels, geo.blocks)
            block = _Block(image, images, f.remu(images_group, p.groups), panel, count)
            with f.when(other):
                self.coords(block)
                if p.depth_blocks == 1:
                    self.pack_block(block, f.i64(0), f.i64(p.group_in))
            with f.loop(lo, hi, p.run_panels) as run:
                self.run(block, run.iv, f.min(f.add(run.iv, p.run_panels), hi))
        f.done()
        return self.name

    def share(self, part: V, of: V, parts: V) -> tuple[V, V]:
        """Where a part begins, if so many things are cut in parts that differ by one at most, and how many it has."""
        f = self.f
        first = f.divu(f.mul(part, of), parts)
        return first, f.sub(f.divu(f.mul(f.add(part, 1), of), parts), first)

    def start(self, panel: V) -> V:
        """First position of a panel."""
        f, geo = self.f, self.geo
        if self.swapped:
            return f.divu(f.mul(panel, geo.positions), geo.panels)
        return f.min(f.mul(panel, self.width), geo.positions)

    def span(self, panel: V) -> tuple[V, V]:
        """First position of a panel of an image, and how many it has."""
        p0 = self.start(panel)
        return p0, self.f.sub(self.start(self.f.add(panel, 1)), p0)

    def columns(self, block: _Block) -> tuple[V, V]:
        """First position of a block in each of its images, and how many it has there."""
        p0 = self.start(block.panel)
        return p0, self.f.sub(self.start(self.f.add(block.panel, block.count)), p0)

    def each_panel(self, block: _Block, body: Callable[[V, V, V], None]) -> None:
        """Calls body(image of the block, panel of it, panel of the block) inside loops."""
        f = self.f
        with f.loop(0, block.images) as images:
            before = f.mul(images.iv, block.count)
            with f.loop(0, block.count) as lp:
                body(images.iv, lp.iv, f.add(before, lp.iv))

    def coords(self, block: _Block) -> None:
        """Input coordinates of the block's positions in an image; only the contiguous packing path reads them."""
        f = self.f
        if any(s != 1 for s in self.p.stride):
            return
        with f.when(f.and_(f.cmp("ne", self.geo.flat, 0), f.not_(self.plain))), f.loop(0, block.count) as lp:
            p0, n = self.span(f.add(block.panel, lp.iv))
            emit_coords(self.p, f, self.geo, p0, n, self.width, self.at(self.layout.coords, lp.iv, self.layout.coord))

    def run(self, block: _Block, lo: V, hi: V) -> None:
        """All depth blocks of one position block and the weight panels [lo, hi)."""
        f, p = self.f, self.p
        with f.loop(0, p.depth_blocks) as depth:
            c0 = f.mul(depth.iv, p.block_channels)
            channels = f.min(f.sub(p.group_in, c0), p.block_channels)
            k = f.mul(p.steps(f, channels), p.points)
            if p.depth_blocks > 1:
                self.pack_block(block, c0, channels)
            with f.loop(lo, hi) as panel:
                index = f.add(f.mul(block.group, p.channel_panels), panel.iv)
                before = f.divu(c0, 2) if p.channel_pairs else c0
                at = f.add(f.mul(index, p.panel_elements), f.mul(before, p.points * p.panel))
                slot = f.sub(panel.iv, lo) if p.depth_blocks > 1 else f.i64(0)
                tiles = self.at(self.layout.tiles, slot, self.layout.tile * self.block)
                w = self.decoded(at, k) if p.decodes else self.weights(at)
                # The weights needed next: this depth block of the next panel, or the next depth block of the first. Of one depth
                # block all panels follow each other, though they may come in several ranges.
                first, end = (lo, hi) if p.depth_blocks > 1 else (f.i64(0), f.i64(p.channel_panels))
                more = f.cmp("lt", f.add(panel.iv, 1), end)
                depth_step = f.mul(k, p.panel) if p.depth_blocks > 1 else f.i64(0)
                back = f.sub(depth_step, f.mul(f.sub(panel.iv, first), p.panel_elements))
                ahead = self.weights(f.add(at, f.select(more, f.i64(p.panel_elements), back)))
                if self.layout.wide:
                    self.wide(block, w, ahead, panel.iv, k)
                else:
                    last = f.cmp("eq", depth.iv, p.depth_blocks - 1)
                    with f.when(f.and_(last, self.touches)):
                        self.touch_block(block, panel.iv, tiles)
                    self.multiply(block, w, ahead, panel.iv, k, tiles, depth.iv)
                    with f.when(last):
                        self.finish(block, panel.iv, tiles)

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

    def pack_block(self, block: _Block, c0: V, channels: V) -> None:
        """Packs the block's positions of `channels` channels from `c0` of its group on."""
        f, p, geo = self.f, self.p, self.geo

        def source(image: V) -> tuple[V, list[V]]:
            """An image of the block from its first channel on, and the gates of these channels, if there are any."""
            number = f.add(block.image, image)
            first = f.add(f.mul(block.group, p.group_in), c0)
            x = f.gep(geo.x, f.add(f.mul(number, geo.sxb), f.mul(first, geo.sxc)), p.stored)
            if self.gates is None:
                return x, []
            return x, [f.gep(self.gates, f.add(f.mul(number, p.in_channels), first), p.stored)]

        def plain() -> list[V]:
            p0, n = self.columns(block)
            stride = f.i64(self.layout.panel // p.bytes)
            pack = emit_pack_pointwise(p, self.width)
            with f.loop(0, block.images) as images:
                x, gates = source(images.iv)
                to = self.at(0, f.mul(images.iv, block.count), self.layout.panel)
                f.call(pack, [f.gep(x, p0, p.stored), to, geo.sxc, channels, stride, n, *(self.bounds or ()), *gates])
            return []

        def windows() -> list[V]:
            def pack(image: V, panel: V, number: V) -> None:
                x, gates = source(image)
                p0, n = self.span(f.add(block.panel, panel))
                coords = self.at(self.layout.coords, panel, self.layout.coord)
                f.call(self.pack, [self.args, x, channels, self.at(0, number, self.layout.panel), p0, n, coords, *gates])

            self.each_panel(block, pack)
            return []

        if p.pointwise and not self.swapped:
            f.if_else(self.plain, plain, windows, [])
        else:
            windows()

    def wide(self, block: _Block, w: V, ahead: V, panel: V, k: V) -> None:
        """One weight panel times the block's input panels, some rows over all positions at a time, to the epilogue."""
        f, p, geo = self.f, self.p, self.geo
        tile, ld = self.at(self.layout.tiles), f.i64(self.block * p.nr)
        p0, positions = self.columns(block)
        m0 = f.add(f.mul(block.group, p.group_out), f.mul(panel, p.panel))
        panels = f.mul(block.images, block.count)

        def rows(splits: list[tuple[int, int]]) -> list[V]:
            for i, (row, n) in enumerate(splits):

                def multiply(image: V, panel: V, number: V, i: int = i, row: int = row, n: int = n) -> None:
                    fetch = self.fetch(ahead, k, f.add(f.mul(panels, i), number), f.mul(panels, len(splits)))
                    x, out = self.at(0, number, self.layout.panel), f.gep(tile, f.mul(number, p.nr), p.elem)
                    first = f.mul(panel, p.nr)
                    with f.when(self.touches):
                        there = f.min(f.sub(positions, first), p.nr)
                        place = [tile, ld, f.add(block.image, image), f.add(m0, row), f.add(p0, first), f.i64(n), there]
                        f.call_ptr(self.touch, [geo.eargs, *place])
                    f.call(self.ukr[n], [f.gep(w, row, p.elem), f.i64(p.panel), x, k, out, ld, f.i64(0), *fetch])

                self.each_panel(block, multiply)
                with f.loop(0, block.images) as images:
                    sums = f.gep(tile, f.mul(f.mul(images.iv, block.count), p.nr), p.elem)
                    place = [f.add(block.image, images.iv), f.add(m0, row), p0, f.i64(n), positions]
                    f.call_ptr(geo.epilogue, [geo.eargs, sums, ld, *place])
            return []

        if p.channel_panels == 1 or self.full_splits == self.last_splits:
            rows(self.last_splits)
        else:
            last = f.cmp("eq", panel, p.channel_panels - 1)
            f.if_else(last, lambda: rows(self.last_splits), lambda: rows(self.full_splits), [])

    def multiply(self, block: _Block, w: V, ahead: V, panel: V, k: V, tiles: V, accumulate: V) -> None:
        """One weight panel times the block's input panels, into the tiles, which prefetch `ahead` between them."""
        f, p = self.f, self.p
        panels = f.mul(block.images, block.count)

        def tile(_: V, place: V, number: V) -> None:
            def fetch(i: int, of: int) -> tuple[V, V]:
                return self.fetch(ahead, k, f.add(f.mul(number, of), i), f.mul(panels, of))

            x = self.at(0, number, self.layout.panel)
            to = f.gep(tiles, f.mul(number, self.layout.tile), "i8")
            if self.swapped:
                _, n = self.span(f.add(block.panel, place))
                fn = f.load(f.gep(self.table, n, PTR), PTR)
                columns = range(0, min(p.panel, p.group_out), p.nr)
                for i, column in enumerate(columns):
                    b, c = f.gep(w, column, p.elem), f.gep(to, column, p.elem)
                    f.call_ptr(fn, [x, f.i64(self.width), b, k, c, f.i64(p.panel), accumulate, *fetch(i, len(columns))])
            elif p.channel_panels == 1 or self.full_splits == self.last_splits:
                self.rows(self.last_splits, w, x, k, to, accumulate, fetch)
            else:

                def side(splits: list[tuple[int, int]]) -> list[V]:
                    return self.rows(splits, w, x, k, to, accumulate, fetch)

                f.if_else(
                    f.cmp("eq", panel, p.channel_panels - 1),
                    lambda: side(self.last_splits),
                    lambda: side(self.full_splits),
                    [],
                )

        self.each_panel(block, tile)

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

    def place(self, block: _Block, panel: V) -> tuple[V, V]:
        """A weight panel's first output channel and how many."""
        f, p = self.f, self.p
        row = f.mul(panel, p.panel)
        return f.add(f.mul(block.group, p.group_out), row), f.min(f.sub(p.group_out, row), p.panel)

    def touch_block(self, block: _Block, panel: V, tiles: V) -> None:
        """Prefetches what the epilogue writes and reads of a weight panel."""
        f, p = self.f, self.p
        m0, rows = self.place(block, panel)
        p0, positions = self.columns(block)
        with f.loop(0, block.images) as images:
            place = [f.add(block.image, images.iv), m0, p0, rows, positions]
            f.call_ptr(self.touch, [self.geo.eargs, tiles, f.i64(p.nr), *place])

    def finish(self, block: _Block, panel: V, tiles: V) -> None:
        """Hands the finished tiles of a weight panel to the epilogue."""
        f, p, geo = self.f, self.p, self.geo
        m0, rows = self.place(block, panel)
        if not self.swapped:

            def hand(image: V, place: V, number: V) -> None:
                first, n = self.span(f.add(block.panel, place))
                tile = f.gep(tiles, f.mul(number, self.layout.tile), "i8")
                f.call_ptr(geo.epilogue, [geo.eargs, tile, f.i64(p.nr), f.add(block.image, image), m0, first, rows, n])

            self.each_panel(block, hand)
            return
        out, ld = self.at(self.layout.transposed), f.i64(TRANSPOSED_LD)
        p0, positions = self.columns(block)
        with f.loop(0, block.images) as images:
            before = f.mul(images.iv, block.count)
            with f.loop(0, block.count) as lp:
                column = f.sub(self.start(f.add(block.panel, lp.iv)), p0)
                tile = f.gep(tiles, f.mul(f.add(before, lp.iv), self.layout.tile), "i8")
                f.call(self.transpose, [tile, f.gep(out, column, p.elem), ld])
            f.call_ptr(geo.epilogue, [geo.eargs, out, ld, f.add(block.image, images.iv), m0, p0, rows, positions])


def emit_conv_kernel(p: ConvParams, *, swapped: bool) -> str:
    """Emits the kernel and returns its symbol. `swapped` makes positions the broadcast operand and channels the
    vector one: no waste on position counts that are no multiple of the vector tile, at the cost of transposing the
    finished tile."""
    return ConvKernel(p, swapped).emit()
