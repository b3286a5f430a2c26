"""Winograd's convolution in the host program: what it would cost at the sizes of a call, and its launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from dhlo.codegen.families.box import product_wake_cycles, update_cycles, waiting_cycles
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.conv.winograd_blocking import Blocking
from dhlo.codegen.families.conv.winograd_kernel import FIELDS, emit_winograd_kernel
from dhlo.codegen.families.conv.winograd_transforms import Filter
from dhlo.codegen.kernel_ir.builder import F32, Fn, KernelModule, Num, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["STORE", "Cut", "Winograd"]

STORE = 2
"""Turns of the multiply-add's pipeline that a store of a whole vector takes."""

# Where a launch's shared arguments have an input's and an output's height; widths follow.
_IH, _OH = FIELDS.index("ih"), FIELDS.index("oh")
# Rows of a register tile below which multiply-adds wait for one another.
_LATENCY_ROWS = 4


@dataclass(frozen=True)
class Cut:
    """How the tiles of a launch are cut into groups; see `winograd_kernel`."""

    rows: V  # of tiles, in all planes of all images
    th: V
    tw: V
    row_groups: V
    column_groups: V
    outer: V  # parts that are cut alike into groups of rows
    plane_groups: V  # of an image, where these are such parts

    def groups(self, f: Fn) -> V:
        """All groups."""
        return f.mul(f.mul(self.outer, self.row_groups), self.column_groups)


@dataclass(frozen=True)
class Winograd:
    """F(m, r) down and across the planes of a convolution of one group, f32, whose windows are of r x r, r x 1 or 1 x r, 2 or 3, or
    of some planes of as much. Stride and dilation are 1 in these; the stride of windows of 3 in one dim may be 2."""

    p: ConvParams
    down: Filter
    across: Filter

    @staticmethod
    def variants(p: ConvParams, sides: Sequence[int]) -> list[Winograd]:
        """Those of the given n; none where the convolution isn't of that kind."""
        if p.groups > 1 or p.elem != F32 or min(p.in_channels, p.out_channels) < p.lanes or (p.pairs and p.in_channels % 2):
            return []
        found = []
        for side in sides:
            down, across = (Filter.of(side, *dim) for dim in list(zip(p.kernel, p.stride, p.dilation, strict=True))[1:])
            if down is None or across is None or down.window == across.window == 1:
                continue
            if 1 in (down.window, across.window) or (down == across and down.stride == 1):
                found.append(Winograd(p, down, across))
        return [w for w in found if p.block_channels <= w.blocking.depth]

    @property
    def in_channels(self) -> int:
        """Those of a depth step of what is multiplied."""
        return self.p.in_channels

    @property
    def block_channels(self) -> int:
        """The same of a block of packed weights."""
        return self.p.block_channels

    @property
    def blocking(self) -> Blocking:
        return Blocking(self.down, self.across, self.p.spec, self.p.code, self.p.image, self.p.pairs)

    @property
    def span(self) -> int:
        """Depth blocks of packed weights in one of the kernel's."""
        return self.blocking.span(self.block_channels, self.p.depth_blocks)

    @property
    def together(self) -> int:
        """Planes of the window in a depth block: several only where it has room for all of their channels, in whole vectors."""
        p = self.p
        room = self.blocking.depth // self.in_channels if self.in_channels % p.lanes == 0 else 1
        return max(1, min(room, p.kernel[0]))

    @property
    def depth_blocks(self) -> int:
        return -(-self.p.depth_blocks // self.span) * -(-self.p.kernel[0] // self.together)

    @property
    def kernel(self) -> str:
        """The symbol of the kernel."""
        return self.blocking.kernel

    @property
    def share(self) -> sympy.Rational:
        """Instructions of a whole tile over those of sums of products in order: products of points, maps of inputs to them, and of
        their sums to outputs. Maps of weights depend on how the tiles are grouped, and are left out."""
        p, b = self.p, self.blocking
        of_inputs, _, of_outputs = self._operations
        channels = self.in_channels * p.kernel[0]
        maps = of_inputs * channels + of_outputs * p.out_channels
        direct = b.taps * b.outputs * p.in_channels * p.kernel[0] * p.out_channels
        return sympy.Rational(b.points * channels * p.out_channels + maps, direct)

    @property
    def _operations(self) -> tuple[int, int, int]:
        """Vector operations of the maps of a tile's inputs, of weights, and of its outputs: of columns, then of rows."""
        down, across = self.down, self.across
        columns = (across.inputs, across.window, across.points)
        rows = (down.points, down.factors, down.m)
        maps = zip(columns, down.operations, rows, across.operations, strict=True)
        of_inputs, of_weights, of_outputs = (c * d + r * a for c, d, r, a in maps)
        return of_inputs, of_weights, of_outputs

    def map_cycles(self, host: HostContext) -> tuple[Num, Num, Num]:
        """Those of a vector of a tile's inputs, of weights, and of a tile's outputs: arithmetic, beside which stores go on."""
        b = self.blocking
        stored = zip(self._operations, (b.points, b.factors, b.outputs), strict=True)
        of_inputs, of_weights, of_outputs = (max(operations, STORE * stores) for operations, stores in stored)
        return of_inputs, of_weights, of_outputs

    def emit_kernel(self, module: KernelModule) -> None:
        """Adds the kernel to the module, once for all convolutions."""
        emit_winograd_kernel(module, self.blocking)

    def cut(self, host: HostContext, batch: V, out: Sequence[V]) -> Cut:
        """Groups as large as fit a worker's scratch, and as many as threads can share evenly. Where these are few, threads share
        the panels of each, which they may not share evenly, or there is a group for each thread, for which weights are mapped once
        more: whichever costs less."""
        f = host.fn
        each = self.cut_by(host, batch, out, host.num_threads)
        shared = self.cut_by(host, batch, out, f.ceildivu(host.num_threads, self.p.channel_panels))
        with f.wrapping():
            cheaper = f.cmp("lt", self.cost(host, out, shared), self.cost(host, out, each))
        few = f.and_(f.cmp("lt", shared.groups(f), host.num_threads), cheaper)
        return replace(each, row_groups=f.select(few, shared.row_groups, each.row_groups))

    def tiles_of(self, host: HostContext, out: Sequence[V]) -> tuple[V, V]:
        """Tiles down and across a plane."""
        return host.fn.ceildivu(out[1], self.down.m), host.fn.ceildivu(out[2], self.across.m)

    def cut_by(self, host: HostContext, batch: V, out: Sequence[V], unit: V) -> Cut:
        """As large as fit, in a multiple of `unit` parts."""
        f, most = host.fn, self.blocking.most_tiles(host, self.depth_blocks)
        th, tw = self.tiles_of(host, out)
        rows = f.mul(f.mul(batch, out[0]), th)
        column_groups = f.max(f.ceildivu(tw, most), 1)
        least = f.ceildivu(rows, f.max(f.divu(most, f.max(tw, 1)), 1))
        row_groups = f.min(f.mul(f.ceildivu(least, unit), unit), rows)
        one = f.i64(1)
        return Cut(rows, th, tw, f.select(f.cmp("eq", column_groups, 1), row_groups, rows), column_groups, one, one)

    def mapped_rows(self, host: HostContext, out: Sequence[V], cut: Cut) -> V:
        """Rows of tiles of the input that are mapped, of one plane each."""
        return host.fn.mul(cut.rows, self.p.kernel[0])

    def planes_of_windows(self, host: HostContext, out: Sequence[V]) -> V:
        """Planes of the windows of all planes of an image that are multiplied."""
        return host.fn.mul(out[0], self.p.kernel[0])

    def numbers_of_cut(self, f: Fn, cut: Cut) -> list[V]:
        """The kernel's arguments."""
        return [cut.rows, cut.th, cut.tw, cut.row_groups, cut.column_groups]

    def cost(self, host: HostContext, out: Sequence[V], cut: Cut) -> V:
        """Vector operations of the thread that has most to do; modulo 2^64."""
        f, p, b = host.fn, self.p, self.blocking
        in_channels = self.in_channels * p.kernel[0]
        in_vectors, out_vectors = -(-self.in_channels // p.lanes), p.channel_panels * p.panel // p.lanes
        computed = -(-p.out_channels // p.nr) * p.spec.vectors
        by_inputs, by_weights, by_outputs = self.map_cycles(host)
        tiles, groups = f.mul(cut.rows, cut.tw), cut.groups(f)
        of_plane = f.mul(f.divu(cut.rows, f.max(out[0], 1)), cut.tw)  # of all images' first ones
        multiplied = f.mul(of_plane, self.planes_of_windows(host, out))
        products = f.mul(f.max(multiplied, _LATENCY_ROWS * p.kernel[0]), b.points * self.in_channels * computed)
        # Sums lie in the second cache, and are read and written again for each depth block.
        updates = f.mul(update_cycles(host), self.depth_blocks)
        sums = f.mul(tiles, f.mul(f.add(f.mul(f.add(updates, 1), b.points), by_outputs), out_vectors))
        weight = f.add(f.mul(waiting_cycles(host), b.taps), by_weights)
        mapped = f.mul(groups, f.mul(weight, in_channels * out_vectors))
        # Transposing a square of vectors takes a load and a store each, and as many shuffles as there are bits in an index.
        strips = f.mul(
            f.ceildivu(f.add(f.mul(cut.tw, self.across.step), self.across.overlap), p.lanes),
            self.down.inputs * p.lanes * (p.lanes.bit_length() + STORE),
        )
        inputs = f.mul(self.mapped_rows(host, out, cut), f.add(f.mul(cut.tw, f.add(by_inputs, b.points)), strips))

        def most(work: V, parts: V) -> V:
            """What of the work the thread has that gets most of the parts."""
            return f.mul(f.divu(work, f.max(parts, 1)), f.ceildivu(parts, host.num_threads))

        work = most(f.add(f.add(products, sums), mapped), f.mul(groups, p.channel_panels))
        return f.add(work, most(f.mul(inputs, in_vectors), groups))  # each thread that has a panel of a group maps its inputs

    def launch(self, host: HostContext, cut: Cut, shared: Sequence[V], end: Sequence[V]) -> None:
        """`shared`: pointers, sizes and strides as `Conv.emit_launch` has them; `end`: where the image ends, if kernels ask."""
        f, p, b = host.fn, self.p, self.blocking
        *head, _, sxb, sxc, sxd, sxh = shared
        groups = cut.groups(f)
        numbers = [
            *(p.padding[d][0] for d in range(3)),
            p.kernel[0],
            self.together,
            p.stride[0],
            p.dilation[0],
            self.in_channels,
            p.out_channels,
            self.block_channels,
            self.span,
        ]
        # Tiles that overhang read no input that no window has: negative padding crops images.
        for side, d, at, outs in ((self.down, 1, _IH, _OH), (self.across, 2, _IH + 1, _OH + 1)):
            reach = f.add(f.mul(f.sub(head[outs], 1), side.stride), side.window - p.padding[d][0])
            head[at] = f.max(f.min(head[at], reach), 0)
        args = [*head, sxb, sxc, sxd, sxh, *map(f.i64, numbers), *self.numbers_of_cut(f, cut), *end, host.kept()]
        tiles = f.divu(f.mul(cut.rows, cut.tw), f.max(groups, 1))
        adds = f.mul(f.add(tiles, 1), b.points * self.in_channels * p.kernel[0] * p.panel // p.lanes)
        grain = f.add(f.divu(product_wake_cycles(host), adds), 1)
        host.launch(self.kernel, args, f.mul(groups, p.channel_panels), grain, b.scratch_bytes(host, self.depth_blocks))
