"""Winograd's convolution of windows of several planes: planes of the input are mapped once for all windows that they are in.

A group is some rows of tiles in a run of output planes, or a part of one row; what `winograd_kernel` keeps of it is here

    inputs     [block of channels][point][plane, tile][DEPTH]   planes of the input: those of all windows of the run
    sums       [point][plane, tile][panel]                      planes of the output

so that plane k of all windows begins k planes of tiles behind the first one's, and is a product like others. Planes beyond
the image, which are zero, are left out, but of the first product, which begins the sums: that is of the plane with most to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.conv.winograd import Cut, Winograd
from dhlo.codegen.families.conv.winograd_kernel import FIELDS, Group, WinogradKernel
from dhlo.codegen.kernel_ir.builder import Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["WinogradOfPlanes"]


class WinogradOfPlanes(Winograd):
    """The same in the host program: windows of some planes, one apart."""

    @staticmethod
    def variants(p: ConvParams, sides: Sequence[int]) -> list[Winograd]:
        """Those of the given n; none where windows are of one plane, or planes of them not side by side."""
        if p.kernel[0] == 1 or p.stride[0] > 1 or p.dilation[0] > 1:
            return []
        return [WinogradOfPlanes(w.p, w.down, w.across) for w in Winograd.variants(p, sides)]

    @property
    def together(self) -> int:
        return 1

    @property
    def kernel(self) -> str:
        return self.blocking.kernel + "_planes"

    def emit_kernel(self, module: KernelModule) -> None:
        if self.kernel not in module.functions:
            _Kernel(module, self.blocking, self.kernel).emit()

    def cut_by(self, host: HostContext, batch: V, out: Sequence[V], unit: V) -> Cut:
        """Runs as deep as sums and mapped planes have room for, of as many rows as have room beside that."""
        f, planes, b = host.fn, self.p.kernel[0], self.blocking
        most, th, tw = b.most_tiles(host, self.depth_blocks), *self.tiles_of(host, out)
        of_sums, of_inputs = f.i64(b.most_tiles_of_sums), f.mul(most, planes)
        column_groups = f.max(f.ceildivu(tw, most), 1)
        across = f.max(f.ceildivu(tw, column_groups), 1)
        deep = f.min(f.divu(of_sums, across), f.sub(f.divu(of_inputs, across), planes - 1))
        plane_groups = f.max(f.ceildivu(out[0], f.max(f.min(deep, out[0]), 1)), 1)
        deep = f.max(f.ceildivu(out[0], plane_groups), 1)
        lines = f.min(f.divu(of_sums, f.mul(across, deep)), f.divu(of_inputs, f.mul(across, f.add(deep, planes - 1))))
        line_groups = f.ceildivu(th, f.max(f.min(lines, th), 1))
        line_groups = f.select(f.cmp("eq", column_groups, 1), f.min(f.mul(f.ceildivu(line_groups, unit), unit), th), th)
        rows = f.mul(f.mul(batch, out[0]), th)
        return Cut(rows, th, tw, line_groups, column_groups, f.mul(batch, plane_groups), plane_groups)

    def mapped_rows(self, host: HostContext, out: Sequence[V], cut: Cut) -> V:
        f = host.fn
        run = f.add(out[0], f.mul(cut.plane_groups, self.p.kernel[0] - 1))
        return f.mul(f.mul(f.divu(cut.outer, f.max(cut.plane_groups, 1)), cut.th), run)

    def planes_of_windows(self, host: HostContext, out: Sequence[V]) -> V:
        f, (front, back), planes = host.fn, self.p.padding[0], self.p.kernel[0]
        there = f.add(out[0], planes - 1 - front - back)
        total = f.i64(0)
        for k in range(planes):
            end = f.min(out[0], f.add(there, front - k))
            total = f.add(total, f.max(f.sub(end, max(front - k, 0)), 0))
        return total

    def numbers_of_cut(self, f: Fn, cut: Cut) -> list[V]:
        return [*super().numbers_of_cut(f, cut), cut.plane_groups]


@dataclass(frozen=True)
class _Run(Group):
    """Rows are those of a plane. [plane0, plane1): the run of output planes, counted over all images; z0: the first one's number in
    its own; plane_tiles: tiles of a plane."""

    plane0: V
    plane1: V
    z0: V
    plane_tiles: V


class _Kernel(WinogradKernel):
    """Emits the kernel of a kind of tile."""

    fields = (*FIELDS, "plane_groups")

    def group(self, number: V) -> _Run:
        f, geo, b = self.f, self.geo, self.b
        assert geo.plane_groups is not None

        def part(size: V, parts: V, i: V) -> tuple[V, V]:
            return f.divu(f.mul(i, size), parts), f.divu(f.mul(f.add(i, 1), size), parts)

        column, rest = f.remu(number, geo.column_groups), f.divu(number, geo.column_groups)
        line, rest = f.remu(rest, geo.row_groups), f.divu(rest, geo.row_groups)
        run, image = f.remu(rest, geo.plane_groups), f.divu(rest, geo.plane_groups)
        (row0, row1), (first, end) = part(geo.th, geo.row_groups, line), part(geo.tw, geo.column_groups, column)
        z0, z1 = part(geo.od, geo.plane_groups, run)
        across, deep, plane0 = f.sub(end, first), f.sub(z1, z0), f.mul(image, geo.od)
        of_plane = f.mul(f.sub(row1, row0), across)
        tiles = f.mul(of_plane, deep)
        mapped = f.mul(of_plane, f.add(deep, f.sub(geo.planes, 1)))
        input_stride, sum_stride = f.add(f.mul(mapped, b.depth), b.lanes), f.add(f.mul(tiles, b.panel), b.lanes)
        planes = f.add(plane0, z0), f.add(plane0, z1)
        return _Run(row0, row1, first, across, tiles, input_stride, sum_stride, *planes, z0, of_plane)

    def map_inputs(self, g: Group) -> None:
        f, geo, b = self.f, self.geo, self.b
        assert isinstance(g, _Run)
        image = f.divu(g.plane0, geo.od)
        mapped = f.add(f.sub(g.plane1, g.plane0), f.sub(geo.planes, 1))
        with f.loop(0, mapped) as plane, f.loop(g.row0, g.row1) as row:
            z = f.sub(f.add(g.z0, plane.iv), geo.front)
            y0 = f.sub(f.mul(row.iv, b.down.step), geo.top)
            tile0 = f.add(f.mul(plane.iv, g.plane_tiles), f.mul(f.sub(row.iv, g.row0), g.across))
            for t0, tiles, x0 in self.strips_of(g):
                with f.loop(0, self.channel_blocks) as block:
                    c0, channels = self.channels_of(block.iv)
                    to = f.add(f.mul(f.mul(block.iv, b.points), g.input_stride), f.mul(f.add(tile0, t0), b.depth))
                    self.map_strip(g, image, z, (y0, x0), c0, channels, tiles, to)

    def multiply(self, g: Group, panel: V) -> None:
        f, geo, b = self.f, self.geo, self.b
        assert isinstance(g, _Run)
        columns, packed = self.weights_of(panel)
        middle = f.min(f.max(geo.front, 0), f.sub(geo.planes, 1))
        z1 = f.add(g.z0, f.sub(g.plane1, g.plane0))
        with f.loop(0, self.channel_blocks) as block, f.loop(0, geo.planes) as nth:
            c0, depth = self.channels_of(block.iv)
            k = f.remu(f.add(middle, nth.iv), geo.planes)
            begins = f.cmp("eq", f.add(block.iv, nth.iv), 0)
            lo = f.select(begins, g.z0, f.max(g.z0, f.sub(geo.front, k)))
            hi = f.select(begins, z1, f.min(z1, f.sub(f.add(geo.id, geo.front), k)))
            with f.when(f.cmp("gt", hi, lo)):
                self.map_weights(packed, k, c0, depth, f.i64(0))
                done = f.mul(f.sub(lo, g.z0), g.plane_tiles)
                ahead = f.add(done, f.mul(k, g.plane_tiles))
                a = f.add(f.mul(f.mul(block.iv, b.points), g.input_stride), f.mul(ahead, b.depth))
                sums = f.gep(self.at(self.layout.sums), f.mul(done, b.panel), b.elem)
                numbers = [f.mul(f.sub(hi, lo), g.plane_tiles), depth, columns, f.select(begins, f.i64(0), 1)]
                # The next plane's weights, or those of the next channels.
                last = f.cmp("eq", f.add(nth.iv, 1), geo.planes)
                next_plane = f.mul(f.remu(f.add(k, 1), geo.planes), b.taps)
                later = f.mul(f.select(last, f.add(c0, depth), c0), self.taps)
                later = self.packed_at(packed, f.add(later, f.mul(next_plane, depth)))
                at = f.gep(self.at(self.layout.inputs), a, b.elem)
                f.call(self.products, [at, g.input_stride, self.at(0), sums, g.sum_stride, *numbers, later])

    def planes_of(self, g: Group) -> Iterator[tuple[V, V, V, V]]:
        f = self.f
        assert isinstance(g, _Run)
        with f.loop(g.plane0, g.plane1) as plane:
            yield plane.iv, g.row0, g.row1, f.mul(f.sub(plane.iv, g.plane0), g.plane_tiles)
