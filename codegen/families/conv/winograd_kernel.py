"""Kernels of Winograd's convolution: input tiles, weights and output tiles mapped in vectors of channels, products in between.

A kernel serves all convolutions of a kind of tile; channels, sizes and padding are arguments. Its items are
(group of tiles, panel of output channels), the panel fastest. A group is some rows of tiles, or a part of one; a worker keeps of
it, in its scratch:

    inputs     [depth block][point][tile][DEPTH]   mapped once a group
    weights    [factor][DEPTH][panel]              of one depth block, mapped for each group and panel
    sums       [point][tile][panel]                over the depth blocks

Rows and columns are mapped, each as its `Filter` says: of windows in one dim only one of them. Planes of windows in three dims are
summed over, as channels are. A depth block is some channels of one plane of the window, or all channels of some planes.

Weights are mapped where they are used, rather than stored mapped: that takes about 100 operations for 36 multiply-adds a
tile, where mapped weights would be 4 times as many bytes in files, memory and caches, and small images are bound by bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dhlo.codegen.families.blocks import Blocks
from dhlo.codegen.families.conv.microkernel import emit_transpose
from dhlo.codegen.families.conv.winograd_blocking import POSITIONS, Blocking, Scratch
from dhlo.codegen.families.conv.winograd_tiles import emit_inputs, emit_outputs, emit_products, emit_weights
from dhlo.codegen.kernel_ir.builder import I8, I64, PTR, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = ["FIELDS", "WinogradKernel", "emit_winograd_kernel"]

FIELDS = (
    "x",
    "w",
    "epilogue",
    "eargs",
    "id",
    "ih",
    "iw",
    "od",
    "oh",
    "ow",
    "sxb",
    "sxc",
    "sxd",
    "sxh",
    "front",
    "top",
    "left",
    "planes",
    "together",
    "plane_stride",
    "plane_dilation",
    "in_channels",
    "out_channels",
    "block_channels",
    "span",
    "rows",
    "th",
    "tw",
    "row_groups",
    "column_groups",
)
"""Arguments of a kernel. i*, o*: input and output size; sx*: input strides in elements; front, top, left: padding; planes: of the
window, of which `together` are a depth block; plane_stride, plane_dilation: between windows and inside of one; block_channels:
those of a depth block of the packed weights, of which `span` are one of this kernel; rows: of tiles, in all planes of all images;
th, tw: tiles down and across a plane; row_groups, column_groups: in how many groups all rows of tiles, and the tiles of a row, are
cut."""
_POINTERS = {"x", "w", "epilogue", "eargs"}


@dataclass(frozen=True)
class _Geometry:
    """The arguments of a launch; see FIELDS."""

    x: V
    w: V
    epilogue: V
    eargs: V
    id: V
    ih: V
    iw: V
    od: V
    oh: V
    ow: V
    sxb: V
    sxc: V
    sxd: V
    sxh: V
    front: V
    top: V
    left: V
    planes: V
    together: V
    plane_stride: V
    plane_dilation: V
    in_channels: V
    out_channels: V
    block_channels: V
    span: V
    rows: V
    th: V
    tw: V
    row_groups: V
    column_groups: V
    plane_groups: V | None = None  # of kernels that map planes once for several windows
    fill: V | None = None  # of bytes: the element that lies outside of the image


@dataclass(frozen=True)
class Group:
    """Tiles that are worked on together: rows [row0, row1) of all planes' rows of tiles, tiles [first, first + across) of each."""

    row0: V
    row1: V
    first: V
    across: V
    tiles: V
    input_stride: V  # elements between points of mapped inputs
    sum_stride: V  # elements between points of sums


class WinogradKernel:
    """Emits the kernel of a kind of tile."""

    fields: tuple[str, ...] = FIELDS

    def __init__(self, module: KernelModule, b: Blocking, name: str) -> None:
        self.b, self.layout = b, Scratch(b)
        self.inputs, self.weights = emit_inputs(module, b), emit_weights(module, b)
        self.products, self.outputs = emit_products(module, b), emit_outputs(module, b)
        self.transpose = emit_transpose(module, b.elem, b.lanes, b.spec)
        self.f = kernel_fn(module, name)
        *_, self.scratch = self.f.args
        types = [PTR if n in _POINTERS else I64 for n in self.fields]
        *values, kept = load_args(self.f, [*types, *([PTR] if b.bounded else []), PTR])
        self.geo = _Geometry(**dict(zip(self.fields, values, strict=False)))
        self.end_of_image = values[-1]
        self.groups = Blocks(self.f, kept)
        f, geo = self.f, self.geo
        self.depth = f.mul(geo.block_channels, geo.span)  # channels of a depth block
        self.channel_blocks = f.ceildivu(geo.in_channels, self.depth)
        self.plane_blocks = f.ceildivu(geo.planes, geo.together)
        self.blocks = f.mul(self.channel_blocks, self.plane_blocks)
        self.panels = f.ceildivu(geo.out_channels, b.panel)
        self.taps = f.mul(geo.planes, b.taps)  # of a window

    def at(self, offset: int) -> V:
        return self.f.gep(self.scratch, offset, "i8")

    def emit(self) -> str:
        """Walks the groups of the kernel's items; the panels of a group share its mapped inputs."""
        f = self.f
        with self.groups.each(self.panels) as (number, lo, hi, other):
            group = self.group(number)
            with f.when(other):
                self.map_inputs(group)
            with f.loop(lo, hi) as panel:
                self.multiply(group, panel.iv)
                self.finish(group, panel.iv)
        f.done()
        return f.name

    def group(self, number: V) -> Group:
        f, geo, b = self.f, self.geo, self.b
        column, row = f.remu(number, geo.column_groups), f.divu(number, geo.column_groups)
        row0 = f.divu(f.mul(row, geo.rows), geo.row_groups)
        row1 = f.divu(f.mul(f.add(row, 1), geo.rows), geo.row_groups)
        first = f.divu(f.mul(column, geo.tw), geo.column_groups)
        across = f.sub(f.divu(f.mul(f.add(column, 1), geo.tw), geo.column_groups), first)
        tiles = f.mul(f.sub(row1, row0), across)
        return Group(row0, row1, first, across, tiles, f.add(f.mul(tiles, b.depth), b.lanes), f.add(f.mul(tiles, b.panel), b.lanes))

    def block(self, number: V) -> tuple[V, V, V, V]:
        """First channel of a depth block, how many channels of a plane it has, its first plane, and the one after its last."""
        f, geo = self.f, self.geo
        of_planes = f.remu(number, self.plane_blocks)
        c0, channels = self.channels_of(f.divu(number, self.plane_blocks))
        first = f.divu(f.mul(of_planes, geo.planes), self.plane_blocks)
        end = f.divu(f.mul(f.add(of_planes, 1), geo.planes), self.plane_blocks)
        return c0, channels, first, end

    def channels_of(self, block: V) -> tuple[V, V]:
        """First channel of a block of channels, and how many it has."""
        f = self.f
        c0 = f.mul(block, self.depth)
        return c0, f.min(f.sub(self.geo.in_channels, c0), self.depth)

    def map_inputs(self, g: Group) -> None:
        """The group's mapped inputs, row by row of tiles and vector by vector of channels."""
        f, geo, b = self.f, self.geo, self.b
        with f.loop(g.row0, g.row1) as row:
            plane, line = f.divu(row.iv, geo.th), f.remu(row.iv, geo.th)
            image, z0 = f.divu(plane, geo.od), f.sub(f.mul(f.remu(plane, geo.od), geo.plane_stride), geo.front)
            y0 = f.sub(f.mul(line, b.down.step), geo.top)
            tile0 = f.mul(f.sub(row.iv, g.row0), g.across)
            for t0, tiles, x0 in self.strips_of(g):
                with f.loop(0, self.blocks) as block:
                    c0, channels, first, end = self.block(block.iv)
                    to = f.mul(f.mul(block.iv, b.points), g.input_stride)
                    to = f.add(to, f.mul(f.add(tile0, t0), b.depth))
                    with f.loop(first, end) as k:
                        z = f.add(z0, f.mul(k.iv, geo.plane_dilation))
                        inside = f.add(to, f.mul(f.sub(k.iv, first), channels))
                        self.map_strip(g, image, z, (y0, x0), c0, channels, tiles, inside)

    def strips_of(self, g: Group) -> Iterator[tuple[V, V, V]]:
        """In a loop over the strips of a group's row of tiles: their first tiles, how many they have, and the first column of the
        input that they read."""
        f, geo, b = self.f, self.geo, self.b
        parts = f.ceildivu(g.across, b.strip_tiles)
        with f.loop(0, parts) as part:
            t0 = f.divu(f.mul(part.iv, g.across), parts)
            tiles = f.sub(f.divu(f.mul(f.add(part.iv, 1), g.across), parts), t0)
            yield t0, tiles, f.sub(f.mul(f.add(g.first, t0), b.across.step), geo.left)

    def map_strip(self, g: Group, image: V, z: V, corner: tuple[V, V], c0: V, channels: V, tiles: V, to: V) -> None:
        """Maps `tiles` of a row of tiles in plane z of the input, from `corner` on, `channels` of them from c0 on, to the
        element `to` of the mapped inputs. A plane that isn't there is zero."""
        f, geo, b = self.f, self.geo, self.b
        height = f.select(f.cmp("ult", z, geo.id), geo.ih, 0)
        with f.loop(0, channels, b.parts * b.lanes) as c:
            element = f.divu(f.add(c0, c.iv), b.parts)
            source = f.add(f.mul(image, geo.sxb), f.mul(element, geo.sxc))
            source = f.add(source, f.mul(z, geo.sxd))
            numbers = [geo.sxc, geo.sxh, height, geo.iw, *corner, f.divu(f.sub(channels, c.iv), b.parts), tiles]
            at = f.gep(self.at(self.layout.inputs), f.add(to, c.iv), b.elem)
            strip = self.at(self.layout.strip)
            more = [f.ptr_to_int(geo.x), f.ptr_to_int(self.end_of_image)] if b.bounded else [] if geo.fill is None else [geo.fill]
            f.call(self.inputs, [f.gep(geo.x, source, b.stored), *numbers, strip, at, g.input_stride, *more])

    def multiply(self, g: Group, panel: V) -> None:
        """The sums of a panel, over all depth blocks."""
        f, b = self.f, self.b
        columns, packed = self.weights_of(panel)
        with f.loop(0, self.blocks) as block:
            c0, k, first, end = self.block(block.iv)
            with f.loop(first, end) as plane:
                self.map_weights(packed, plane.iv, c0, k, f.mul(f.sub(plane.iv, first), k))
            a = f.gep(self.at(self.layout.inputs), f.mul(f.mul(block.iv, b.points), g.input_stride), b.elem)
            sums = self.at(self.layout.sums)
            depth = f.mul(k, f.sub(end, first))
            numbers = [g.tiles, depth, columns, block.iv]
            later = self.packed_at(packed, f.mul(f.add(c0, k), self.taps))
            f.call(self.products, [a, g.input_stride, self.at(0), sums, g.sum_stride, *numbers, later])

    def weights_of(self, panel: V) -> tuple[V, V]:
        """Columns of a panel that are output channels, and where its packed weights are."""
        f, geo, b = self.f, self.geo, self.b
        columns = f.min(f.sub(geo.out_channels, f.mul(panel, b.panel)), b.panel)
        rows = f.mul(panel, f.add(f.mul(geo.in_channels, self.taps), b.heads))
        return columns, self.packed_at(geo.w, f.add(rows, b.heads))

    def packed_at(self, packed: V, rows: V) -> V:
        """Where a channel of packed weights is."""
        return self.f.gep(packed, self.f.mul(rows, self.b.packed_bytes), I8)

    def map_weights(self, packed: V, plane: V, c0: V, k: V, to: V) -> None:
        """Maps those of a plane of the window and k channels from c0 on to the row `to` of a depth block."""
        f, geo, b = self.f, self.geo, self.b
        with f.loop(0, k, geo.block_channels) as part:
            channels = f.min(f.sub(k, part.iv), geo.block_channels)
            at = f.add(f.mul(f.add(c0, part.iv), self.taps), f.mul(f.mul(plane, b.taps), channels))
            row = f.mul(f.add(to, part.iv), b.panel)
            f.call(self.weights, [self.packed_at(packed, at), channels, f.gep(self.at(0), row, b.elem)])

    def finish(self, g: Group, panel: V) -> None:
        """Hands a panel's outputs to the epilogue: some rows of tiles at a time where they are whole, else one."""
        f, geo, b = self.f, self.geo, self.b
        columns = f.sub(f.min(f.mul(f.add(g.first, g.across), b.across.m), geo.ow), f.mul(g.first, b.across.m))
        whole = f.cmp("eq", geo.column_groups, 1)
        together = f.select(whole, f.max(f.divu(f.i64(POSITIONS), f.mul(geo.ow, b.down.m)), 1), 1)
        for plane, lo, hi, tile0 in self.planes_of(g):
            with f.loop(lo, hi, together) as row:
                lines = f.min(f.sub(hi, row.iv), together)
                first = f.add(tile0, f.mul(f.sub(row.iv, lo), g.across))
                self.finish_rows(g, panel, plane, row.iv, lines, first, columns, whole)

    def planes_of(self, g: Group) -> Iterator[tuple[V, V, V, V]]:
        """In a loop over the planes that a group has part of: their numbers, their rows in it, and the first one's first tile."""
        f, geo = self.f, self.geo
        with f.loop(f.divu(g.row0, geo.th), f.ceildivu(g.row1, geo.th)) as plane:
            above = f.mul(plane.iv, geo.th)
            lo, hi = f.sub(f.max(g.row0, above), above), f.min(f.sub(g.row1, above), geo.th)
            yield plane.iv, lo, hi, f.mul(f.sub(f.add(above, lo), g.row0), g.across)

    def finish_rows(self, g: Group, panel: V, plane: V, row: V, lines: V, tile0: V, columns: V, whole: V) -> None:
        """The same for `lines` rows of tiles, the first of which is `row` of the plane and begins with the group's `tile0`."""
        f, geo, b = self.f, self.geo, self.b
        sums, stage, tile = (self.at(n) for n in (self.layout.sums, self.layout.stage, self.layout.tile))
        with f.loop(0, lines) as line:
            source = f.gep(sums, f.mul(f.add(tile0, f.mul(line.iv, g.across)), b.panel), b.elem)
            to = f.gep(stage, f.mul(f.mul(line.iv, columns), b.down.m * b.panel), b.elem)
            f.call(self.outputs, [source, g.sum_stride, g.across, columns, to])
        y0 = f.mul(row, b.down.m)
        height = f.sub(f.min(f.mul(f.add(row, lines), b.down.m), geo.oh), y0)
        positions = f.mul(height, columns)
        ld = f.mul(f.add(f.ceildivu(positions, b.lanes), 1), b.lanes)  # not a power of two
        with f.loop(0, positions, b.lanes) as p:
            f.call(self.transpose, [f.gep(stage, f.mul(p.iv, b.panel), b.elem), f.gep(tile, p.iv, b.elem), ld])
        m0 = f.mul(panel, b.panel)
        channels = f.min(f.sub(geo.out_channels, m0), b.panel)
        image, z = f.divu(plane, geo.od), f.remu(plane, geo.od)
        n0 = f.add(f.mul(f.add(f.mul(z, geo.oh), y0), geo.ow), f.mul(g.first, b.across.m))
        calls, step = f.select(whole, f.i64(1), height), f.select(whole, positions, columns)
        with f.loop(0, calls) as c:
            at, n = f.gep(tile, f.mul(c.iv, step), b.elem), f.add(n0, f.mul(c.iv, geo.ow))
            f.call_ptr(geo.epilogue, [geo.eargs, at, ld, image, m0, n, channels, step])


def emit_winograd_kernel(module: KernelModule, b: Blocking) -> str:
    """Emits the kernel once and returns its symbol."""
    return b.kernel if b.kernel in module.functions else WinogradKernel(module, b, b.kernel).emit()
