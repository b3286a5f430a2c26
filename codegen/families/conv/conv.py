"""Convolution (aten.convolution) for any batch and image size: weight packing, size arithmetic, variants, launches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import sympy
import torch

from dhlo.codegen.families.box import cycles_from_memory, even_blocks, grain_of, product_wake_cycles, wake_cycles
from dhlo.codegen.families.conv.depthwise import COLUMNS, TILE, depthwise_scratch_bytes, emit_depthwise_kernel, tile_rows
from dhlo.codegen.families.conv.gemm import emit_conv_kernel, scratch_bytes
from dhlo.codegen.families.conv.layout import Array, WeightLayout, is_depthwise
from dhlo.codegen.families.conv.params import ConvParams, Triple
from dhlo.codegen.families.conv.quantised_weights import coded_bytes, pack_codes
from dhlo.codegen.families.conv.tiles import ConvTiles
from dhlo.codegen.families.conv.tiles_form import has_form, is_few, layout_of_few, offset_of_few, with_few
from dhlo.codegen.families.conv.weights import WeightView, emit_pack_weights
from dhlo.codegen.families.conv.winograd import Winograd
from dhlo.codegen.families.conv.winograd_planes import WinogradOfPlanes
from dhlo.codegen.families.gemm.register_tile import BF16, TileSpec
from dhlo.codegen.families.gemm.tiles_microkernel import STEP_UNITS
from dhlo.codegen.kernel_ir.builder import BITS, F32, I32, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["Conv"]

_PACK_WORK = 8  # simple operations that packing an element takes, from where its row of the kernel lies
_ITEMS_PER_THREAD = 4
# Cycles of a depthwise item, and of each of its vectors beyond the multiply-adds.
_ITEM_CYCLES, _VECTOR_CYCLES = 200, 8


@dataclass(frozen=True)
class Conv:
    """A convolution's static parameters; ATen: aten.convolution with transposed=False, and bias left to the epilogue.

    Input [B, in_channels, *spatial], weight [out_channels, in_channels/groups, *kernel], 1 to 3 spatial dims,
    `padding` a pair (before, after) a dim. `elem` is f32 or f64. Batch and spatial sizes are run-time values.
    `winograd`: sides of input tiles for which calls may choose Winograd's algorithm where it is faster; results are then off by up
    to 5e-5 of their scale rather than 5e-6, and a NaN or infinity reaches all outputs of the tiles that it lies in.
    `code`: the form of weights that are kept as codes (`quantised_weights`), if they are; not of those of depthwise convolutions.
    `gated`: kernels of 1 x 1 multiply the input by a number for each image and channel.
    `image`: the type of the input in memory, bf16 or f16, where it isn't `elem`, f32.
    `row_multiple`: epilogues get a multiple of so many output channels at a time.
    """

    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1
    elem: str = F32
    spec: TileSpec = field(kw_only=True)
    winograd: tuple[int, ...] = field(default=(), kw_only=True, repr=False)
    code: str = field(default="", kw_only=True, repr=False)
    gated: bool = field(default=False, kw_only=True, repr=False)
    image: str = field(default="", kw_only=True, repr=False)
    row_multiple: int = field(default=1, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        rank = len(self.kernel)
        if not 1 <= rank <= 3 or {len(self.stride), len(self.padding), len(self.dilation)} != {rank}:
            raise ValueError("kernel, stride, padding and dilation need the same 1 to 3 entries")
        if self.in_channels % self.groups or self.out_channels % self.groups or self.groups < 1:
            raise ValueError(f"{self.in_channels} and {self.out_channels} channels don't divide in {self.groups} groups")
        if min(self.in_channels, self.out_channels, *self.kernel, *self.stride, *self.dilation) < 1:
            raise ValueError("channels, kernel, stride and dilation must be positive")

    @property
    def name(self) -> str:
        """Prefix of the kernels' symbols; equal parameters give equal names."""
        key = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        size = "x".join(map(str, self.kernel))
        coded = (f"_{self.code}" if self.code else "") + ("_gated" if self.gated else "")
        coded += (f"_of_{self.image}" if self.image else "") + ("_pairs" if self.pairs else "")
        coded += f"_by_{self.row_multiple}" if self.row_multiple > 1 else ""
        return f"conv_{self.elem}_{size}_c{self.in_channels}_o{self.out_channels}_{key}{coded}"

    @property
    def pairs(self) -> bool:
        """Whether pairs of channels are multiplied by the target's dot product of bf16: image and weights are numbers of it.
        Targets with matrix registers, whose dot products aren't faster than multiply-adds of f32, do so in place of them."""
        pairs = self.image == self.code == BF16 and self.spec.bf16_dot is not None and not self.depthwise
        return pairs and (self.spec.target.tiles is None or (self.tiles and not self.few))

    @property
    def column_pairs(self) -> bool:
        """Whether pairs are of neighbouring columns of a window, where that makes fewer of few channels."""
        group_in, columns = self.in_channels // self.groups, self.kernel[-1]
        fewer = group_in * -(-columns // 2) < -(-group_in // 2) * columns
        return self.pairs and fewer and self.dilation[-1] == 1 and self.spec.target.tiles is None

    @property
    def tiles(self) -> bool:
        """Whether the target's matrix registers may multiply image and weights."""
        return self._has_tiles and has_form(self._layout(1), self.unit_channels, self.stride, self.dilation)

    @property
    def few(self) -> bool:
        """Whether tiles take groups together or the columns of windows for channels, and have weights of their own."""
        return self.tiles and is_few(self._layout(1), self.unit_channels)

    @property
    def unit_channels(self) -> int:
        """Of a unit that tiles multiply."""
        return 2

    @property
    def _has_tiles(self) -> bool:
        """Whether the target has tiles of the image and weights at hand."""
        target = self.spec.target
        has = target.tiles is not None and BF16 in target.tiles.products and self.spec.bf16_dot is not None
        return has and self.image == self.code == BF16 and not self.depthwise

    @property
    def depthwise(self) -> bool:
        """One input channel a group, and few output channels: done by the direct kernel."""
        return is_depthwise(self.in_channels // self.groups, self.out_channels // self.groups, self.kernel, self.stride)

    def output_size(self, spatial: Sequence[Any]) -> list[Any]:
        """Output sizes of the spatial dims; ints or sympy expressions."""
        sizes = zip(spatial, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(n + lo + hi - d * (k - 1) - 1) // s + 1 for n, k, s, (lo, hi), d in sizes]

    def params(self, module: KernelModule) -> ConvParams:
        """The parameters with unit leading spatial dims, as the emitters want them."""

        def triple(values: Sequence[int]) -> Triple:
            a, b, c = (1,) * (3 - len(values)) + tuple(values)
            return a, b, c

        pads = ((0, 0),) * (3 - len(self.padding)) + tuple(self.padding)
        return ConvParams(
            module,
            self.name,
            self.elem,
            self.in_channels,
            self.out_channels,
            self.groups,
            triple(self.kernel),
            triple(self.stride),
            (pads[0], pads[1], pads[2]),
            triple(self.dilation),
            self.spec,
            code=self.code,
            gated=self.gated,
            image=self.image,
            pairs=self.pairs,
            column_pairs=self.column_pairs,
            tiles=self.tiles,
            few=self.few,
            row_multiple=self.row_multiple,
        )

    def emit_kernels(self, module: KernelModule) -> None:
        """Adds the kernels and what they call to the module, once."""
        p = self.params(module)
        if self.depthwise:
            if f"{self.name}_depthwise" not in module.functions:
                emit_depthwise_kernel(p)
            return
        for form, swapped in (("normal", False), ("swapped", True)):
            if f"{self.name}_{form}" not in module.functions:
                emit_conv_kernel(p, swapped=swapped)
        for variant in self._winograd(p):
            variant.emit_kernel(module)
        if tiles := ConvTiles.of(p):
            tiles.emit_kernel(module)

    def _winograd(self, p: ConvParams) -> list[Winograd]:
        """What calls can choose besides the product of weights and windows."""
        return [*Winograd.variants(p, self.winograd), *WinogradOfPlanes.variants(p, self.winograd)]

    def winograd_shares(self, module: KernelModule) -> dict[str, sympy.Rational]:
        """By kernel of Winograd's algorithm, what part of the arithmetic it takes."""
        return {v.kernel: v.share for v in self._winograd(self.params(module))}

    @property
    def layout(self) -> WeightLayout:
        """How the packed weights lie."""
        if self.column_pairs:
            return self._layout(1, columns=2)
        return self._layout(2 if self.pairs else 1, STEP_UNITS if self.tiles and not self.few else 1)

    def _layout(self, step: int, multiple: int = 1, columns: int = 1) -> WeightLayout:
        group_in, group_out = self.in_channels // self.groups, self.out_channels // self.groups
        panel = 0 if self.depthwise else self.spec.panel(self.elem)
        return WeightLayout(self.groups, group_in, group_out, self.kernel, panel, step, multiple, columns)

    def pack_weight(self, weight: Array) -> Array:
        """Weights [out_channels, in_channels/groups, *kernel] in the kernels' layout; dtype stays."""
        return self.layout.pack(weight)

    def pack_codes(self, weight: torch.Tensor) -> Array:
        """Codes [out_channels, in_channels/groups, *kernel] in the kernels' layouts, as bytes or integers of 16 bits."""
        return with_few(self.layout, self.code, weight) if self.few else pack_codes(self.code, self.layout, weight)

    @property
    def layouts(self) -> tuple[WeightLayout, ...]:
        """How codes lie: twice where tiles want few channels otherwise than other kernels do."""
        return (self.layout, layout_of_few(self.layout, self.unit_channels)) if self.few else (self.layout,)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the packed weights; the workspace that `emit_pack` fills if weights are run-time values."""
        if self.few:
            of_others, of_tiles = (coded_bytes(self.code, layout) for layout in self.layouts)
            return offset_of_few(of_others) + of_tiles
        return coded_bytes(self.code, self.layout) if self.code else prod(self.layout.shape) * BITS[self.elem] // 8

    def emit_pack_kernel(self, module: KernelModule, view: WeightView | None = None) -> str:
        """Emits (once) what `emit_pack` launches and returns its symbol."""
        p = self.params(module)
        return emit_pack_weights(p, view or WeightView.dense(p), self.depthwise)

    def emit_pack(self, host: HostContext, *, weight: V, packed: V, view: WeightView | None = None) -> None:
        """Emits the packing of run-time weights, dense row-major like `pack_weight`'s unless `view` is given."""
        p = self.params(host.module)
        kernel = self.emit_pack_kernel(host.module, view)
        count = self.out_channels if self.depthwise else self.groups * p.channel_panels
        elements = p.points if self.depthwise else p.depth * p.panel
        host.launch(kernel, [weight, packed], host.fn.i64(count), grain_of(host, elements * _PACK_WORK))

    def emit_launch(
        self,
        host: HostContext,
        *,
        x: V,
        w: V,
        sizes: Sequence[V],
        epilogue: V,
        epilogue_args: V,
        x_strides: Sequence[V] | None = None,
        out_sizes: Sequence[V] | None = None,
        gates: Sequence[V] = (),
        touch: V | None = None,
    ) -> None:
        """Emits size arithmetic, variant choice and launches. `sizes` = (batch, *spatial), i64, of the input.

        `w` points to `pack_weight`'s result. `x_strides`, in elements, are those of (batch, channel, *spatial); the
        last must be 1; None means dense. `epilogue(eargs, tile, ld, batch, m0, n0, mr, nr)` is called once for every
        tile of finished sums: rows are output channels m0.., columns flattened output positions n0.. of image
        `batch`; mr <= 32, nr <= 256 (depthwise: mr = 1, any nr). `out_sizes` overrides the output's spatial sizes:
        windows beyond the padded input read zeros. `gates`: the address of [batch, channel], if the convolution is gated. `touch`
        prefetches what the epilogue writes and reads of a tile, with the same arguments.
        Nothing is launched if the output is empty.
        """
        f, p = host.fn, self.params(host.module)
        one = f.i64(1)
        batch, spatial = sizes[0], [*([one] * (4 - len(sizes))), *sizes[1:]]
        out = [
            f.max(
                f.add(
                    f.floordiv(f.add(n, p.padding[d][0] + p.padding[d][1] - p.dilation[d] * (p.kernel[d] - 1) - 1), p.stride[d]),
                    1,
                ),
                0,
            )
            for d, n in enumerate(spatial)
        ]
        if out_sizes is not None:
            out = [*([one] * (3 - len(out_sizes))), *out_sizes]
        positions = f.mul(f.mul(out[0], out[1]), out[2])
        strides = self._strides(host, spatial, x_strides)
        shared = [x, w, epilogue, epilogue_args, *spatial, *out, positions, *strides]
        flat = f.and_(f.cmp("eq", out[2], spatial[2]), f.cmp("eq", strides[3], spatial[2]))
        flat = f.and_(
            flat,
            f.or_(
                f.cmp("eq", out[0], 1),
                f.and_(f.cmp("eq", out[1], spatial[1]), f.cmp("eq", strides[2], f.mul(strides[3], spatial[1]))),
            ),
        )
        flat_flag = f.select(flat, one, f.i64(0))
        end = [f.gep(x, f.mul(strides[0], batch), p.stored)] if p.bounded else []
        if self.depthwise:
            self._launch_depthwise(host, p, shared, flat_flag, f.mul(batch, self.out_channels), out, end)
        else:
            image_end = f.gep(x, f.mul(strides[0], batch), p.stored)
            more = [*([image_end] if p.bounded else []), *gates, self._touch(host, p, touch, f.mul(batch, positions))]
            self._launch_dense(host, p, shared, flat_flag, batch, out, positions, image_end, more)

    def _touch(self, host: HostContext, p: ConvParams, touch: V | None, positions: V) -> V:
        """`touch` where results don't stay in the second-level cache, else null. Results of bytes are bytes again, most often."""
        f = host.fn
        null = f.int_to_ptr(f.i64(0))
        if touch is None:
            return null
        with f.wrapping():
            nbytes = f.mul(positions, self.out_channels * (1 if p.elem == I32 else p.stored_bytes))
        return f.select(f.cmp("gt", nbytes, host.l2_bytes), touch, null)

    def _launch_dense(
        self,
        host: HostContext,
        p: ConvParams,
        shared: Sequence[V],
        flat: V,
        batch: V,
        out: Sequence[V],
        positions: V,
        image_end: V,
        more: Sequence[V],
    ) -> None:
        """Launches what costs least: tiles, Winograd's algorithm, or weights and windows in order of either operand."""
        f = host.fn
        # Cost in multiply-adds a depth step; 1/32 on top for transposing tiles.
        normal = f.mul(f.mul(f.ceildivu(positions, p.nr), p.nr), p.group_out)
        columns = p.channel_panels * p.panel
        swapped = f.mul(positions, columns + columns // 32)
        choice = f.cmp("lt", swapped, normal)
        some = f.cmp("gt", f.mul(positions, batch), 0)
        tiles, variants = ConvTiles.of(p), self._winograd(p)
        best = self._cost(host, p, f.min(normal, swapped), batch) if tiles or variants else normal
        if tiles is not None:
            with f.wrapping():
                blocks = tiles.blocks(host, batch, out)
                cost = tiles.cost(host, blocks)
            in_tiles = f.cmp("lt", cost, best)
            best = f.min(cost, best)
        if variants:
            some = self._launch_winograd(host, variants, shared, batch, out, best, some, more[: p.bounded])
        if tiles is not None:
            with f.when(f.and_(in_tiles, some)):
                tiles.launch(host, blocks, shared, batch, image_end, more[p.bounded : p.bounded + p.gated])
            some = f.and_(some, f.not_(in_tiles))
        for is_swapped, cond in ((True, choice), (False, f.not_(choice))):
            with f.when(f.and_(cond, some)):
                self._launch_gemm(host, p, is_swapped, shared, flat, batch, positions, more)

    def _strides(self, host: HostContext, spatial: Sequence[V], given: Sequence[V] | None) -> list[V]:
        """Input strides of batch, channel, plane and row."""
        f = host.fn
        if given is None:
            plane = f.mul(spatial[1], spatial[2])
            channel = f.mul(spatial[0], plane)
            return [f.mul(channel, self.in_channels), channel, plane, spatial[2]]
        outer = list(given[2:-1])
        return [given[0], given[1], *([spatial[2]] * (2 - len(outer))), *outer]

    @staticmethod
    def _cost(host: HostContext, p: ConvParams, step: V, batch: V) -> V:
        """Multiply-adds of vectors of each thread, modulo 2^64, if weights and windows are multiplied in order: `step` of numbers
        for an image, a group and a step of the depth."""
        f = host.fn
        with f.wrapping():
            # Packing a vector of windows takes some three operations, and serves all output channels.
            packing = f.mul(f.divu(step, p.group_out), 3 * p.step)
            if p.pairs:  # whose percentage is of products, two to each of these
                step = f.divu(f.mul(step, 200), f.max(host.machine("bf16_percent"), 1))
            depth = p.groups * p.depth
            return f.divu(f.divu(f.mul(f.mul(f.add(step, packing), batch), depth), p.lanes), host.num_threads)

    def _allows_winograd(self, host: HostContext, w: V) -> V | None:
        """Whether the packed weights are such that it may be chosen; None: all are."""
        return None

    def _launch_winograd(
        self,
        host: HostContext,
        variants: Sequence[Winograd],
        shared: Sequence[V],
        batch: V,
        out: Sequence[V],
        best: V,
        some: V,
        end: Sequence[V],
    ) -> V:
        """Launches the variant that costs least, where it costs no more than `best`, what all else costs. Returns whether there is
        something left to do."""
        f, allowed = host.fn, self._allows_winograd(host, shared[1])
        cuts = [v.cut(host, batch, out) for v in variants]
        with f.wrapping():
            costs = [v.cost(host, out, cut) for v, cut in zip(variants, cuts, strict=True)]
        for cost in costs:
            best = f.min(best, cost)
        left = some if allowed is None else f.and_(some, allowed)
        for variant, cut, cost in zip(variants, cuts, costs, strict=True):
            chosen = f.cmp("eq", cost, best)
            with f.when(f.and_(left, chosen)):
                variant.launch(host, cut, shared, end)
            left = f.and_(left, f.not_(chosen))
        return left if allowed is None else f.or_(left, f.and_(some, f.not_(allowed)))

    def _launch_gemm(
        self,
        host: HostContext,
        p: ConvParams,
        swapped: bool,
        shared: Sequence[V],
        flat: V,
        batch: V,
        positions: V,
        more: Sequence[V],
    ) -> None:
        """`more`: arguments behind the shared ones, where the image ends or gates, and the function that touches."""
        f = host.fn
        panels = f.ceildivu(positions, p.spec.mr if swapped else p.nr)
        # Blocks as large as packing and weight reuse like, but enough of them to keep the threads evenly busy.
        items = f.mul(f.mul(batch, panels), p.groups * p.channel_panels)
        spread = f.divu(items, f.mul(host.num_threads, _ITEMS_PER_THREAD))
        block = f.max(f.min(spread, p.block_panels(swapped)), 1)
        blocks = f.divu(f.add(panels, f.sub(block, 1)), block)
        images = f.max(f.divu(block, f.max(panels, 1)), 1)
        image_blocks = f.ceildivu(batch, images)
        cells = f.mul(image_blocks, p.groups * p.channel_panels)
        blocks = even_blocks(host, blocks, cells, panels)
        count = f.mul(blocks, cells)
        columns = f.mul(f.divu(f.add(positions, f.sub(blocks, 1)), blocks), images)
        with f.wrapping():
            adds = f.divu(f.mul(columns, p.depth * min(p.panel, p.group_out)), p.lanes)
        # Few positions take less time than their weights take to be read.
        adds = f.max(adds, cycles_from_memory(host, self.workspace_bytes // (p.groups * p.channel_panels)))
        grain = f.add(f.divu(product_wake_cycles(host), f.max(adds, 1)), 1)
        kernel = f"{self.name}_{'swapped' if swapped else 'normal'}"
        args = [*shared, panels, blocks, flat, *more, batch, image_blocks, host.kept()]
        host.launch(kernel, args, count, grain, scratch_bytes(p, swapped))

    def _launch_depthwise(
        self, host: HostContext, p: ConvParams, shared: Sequence[V], flat: V, planes: V, out: Sequence[V], end: Sequence[V]
    ) -> None:
        f, most = host.fn, tile_rows(p)
        columns = f.max(f.min(out[2], COLUMNS), 1)
        rows = f.max(f.mul(f.divu(f.divu(f.i64(TILE), columns), most), most), most)
        rows = f.min(rows, f.mul(f.ceildivu(out[1], most), most))
        row_blocks = f.divu(f.add(out[1], f.sub(rows, 1)), f.max(rows, 1))
        count = f.mul(f.mul(f.mul(planes, out[0]), row_blocks), f.ceildivu(out[2], COLUMNS))
        cycles = f.add(f.mul(f.mul(rows, f.ceildivu(columns, p.lanes)), p.window_steps + _VECTOR_CYCLES), _ITEM_CYCLES)
        with f.when(f.cmp("gt", count, 0)):
            grain = f.add(f.divu(wake_cycles(host), cycles), 1)
            host.launch(f"{self.name}_depthwise", [*shared, rows, row_blocks, flat, *end], count, grain, depthwise_scratch_bytes(p))
