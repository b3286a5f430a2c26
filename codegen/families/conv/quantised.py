"""Convolutions of bytes with integer sums, for any batch and image size: weight packing, and launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.conv.byte_columns import emit_columns, has_byte_columns
from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.layout import Array, is_depthwise
from dhlo.codegen.families.conv.params import COLUMNS_OF_STEP, ConvParams, column_steps
from dhlo.codegen.families.conv.quantised_kernels import BLOCK, ByteConvKernel, emit_units, unit_channels
from dhlo.codegen.families.conv.tiles import ConvTiles
from dhlo.codegen.families.conv.tiles_form import columns_as_channels
from dhlo.codegen.families.conv.winograd import Winograd
from dhlo.codegen.families.conv.winograd_bytes import WinogradOfBytes, has_winograd, is_exact
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import I8, I32, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["ByteConv"]

# Simple operations in which a position's bytes of four channels, or four columns of its window, become a unit.
_POSITION_WORK = 4


@dataclass(frozen=True)
class _UnitConv(Conv):
    """The product of weights and windows once the image is of units: an i32 holds some channels. `fill` is the unit that lies
    outside of the image, as a number."""

    fill: int = 0

    @property
    def depthwise(self) -> bool:
        return False

    def params(self, module: KernelModule) -> ConvParams:
        return replace(super().params(module), heads=1, fill=self.fill)

    @property
    def unit_channels(self) -> int:
        return 1

    @property
    def _has_tiles(self) -> bool:
        target = self.spec.target
        return target.tiles is not None and self.spec.left in target.tiles.products and self.spec.dot(I8) is not None

    @property
    def workspace_bytes(self) -> int:
        return 4 * prod(self.layout.shape)

    @property
    def has_winograd(self) -> bool:
        """Whether calls may choose Winograd's algorithm, if weights are such that it is exact."""
        apart = (*self.stride, *self.dilation)
        return has_winograd(self.spec, self.in_channels, self.kernel, apart, self.groups)

    @property
    def end_of_panels(self) -> int:
        """Bytes of the packed weights, with what sums begin with. An i32 follows if `has_winograd`: whether it is exact."""
        panels, depth, panel = self.layout.shape
        return 4 * panels * (1 + depth) * panel

    def emit_kernels(self, module: KernelModule) -> None:
        p = self.params(module)
        for form, swapped in (("normal", False), ("swapped", True)):
            if f"{self.name}_{form}" not in module.functions:
                ByteConvKernel(p, swapped).emit()
        for variant in self._winograd(p):
            variant.emit_kernel(module)
        if tiles := ConvTiles.of(p):
            tiles.emit_kernel(module)

    def _winograd(self, p: ConvParams) -> list[Winograd]:
        return [WinogradOfBytes(p)] if self.has_winograd else []

    def _allows_winograd(self, host: HostContext, w: V) -> V | None:
        f = host.fn
        return f.cmp("ne", f.load(f.gep(w, self.end_of_panels, I8), I32), 0)


@dataclass(frozen=True)
class _ByteDepthwise(Conv):
    """Each channel by itself, read as bytes. `fill` is four times the byte that lies outside of the image, as a number."""

    fill: int = 0

    def params(self, module: KernelModule) -> ConvParams:
        return replace(super().params(module), heads=1, fill=self.fill, columns_side_by_side=True)


@dataclass(frozen=True)
class ByteConv:
    """A dhlo.conv_bytes by its static parameters: those of `Conv`, and of the image whether its bytes are `unsigned` and which
    stands for `zero`.

    The image is brought to units of some channels first, which an instruction takes at once; the rest is `Conv`'s. Of few channels
    an i32 holds four columns of a window instead, where that makes fewer products. Each channel by itself (depthwise) is read as it
    lies where columns of windows can be multiplied by dot products, and widened to i32 first elsewhere. What `zero` adds to a sum
    is the same everywhere, as padding holds it, too: sums begin with its opposite, which lies beside the weights.
    """

    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    zero: int
    spec: TileSpec

    @property
    def depthwise(self) -> bool:
        return is_depthwise(self.in_channels // self.groups, self.out_channels // self.groups, self.kernel, self.stride)

    @property
    def as_it_lies(self) -> bool:
        """Whether kernels read the image itself: of depthwise convolutions over one or two dims."""
        kernel, pads = (1, 1, *self.kernel)[-3:], ((0, 0), (0, 0), *self.padding)[-3:]
        flat = kernel[0] == 1 and pads[0] == (0, 0)
        return self.depthwise and flat and self._has_columns

    @property
    def _has_columns(self) -> bool:
        return has_byte_columns(self.kernel[-1], self.stride[-1], self.dilation[-1], self.spec)

    @property
    def by_columns(self) -> bool:
        """Whether an i32 holds columns of a window, so that what is left has windows of one column. Tiles have their own form for
        few channels."""
        group_in, kernel = self.in_channels // self.groups, self.kernel[-1]
        fewer = group_in * column_steps(kernel) < -(-group_in // self.unit) * kernel
        return fewer and not self.depthwise and self.spec.target.tiles is None and self._has_columns

    @property
    def units(self) -> int:
        """Of a group: i32s for a position that the image is brought to, if it is."""
        group_in = self.in_channels // self.groups
        if self.by_columns:
            return group_in * column_steps(self.kernel[-1])
        return 0 if self.as_it_lies else 1 if self.depthwise else -(-group_in // self.unit)

    @property
    def unit(self) -> int:
        """Channels of an i32."""
        return unit_channels(self.spec)

    @property
    def _zero(self) -> int:
        """As the kernels read bytes."""
        return self.zero if not self.spec.flips(I8) else self.zero - 128 if self.spec.unsigned else self.zero + 128

    @property
    def conv(self) -> Conv:
        """The convolution of i32s that is left."""
        static = (self.out_channels, self.kernel, self.stride, self.padding, self.dilation, self.groups, I32)
        if self.as_it_lies:
            fill = int.from_bytes((self.zero % 256).to_bytes(1, "little") * 4, "little", signed=True)
            return _ByteDepthwise(self.in_channels, *static, spec=self.spec, image=I8, fill=fill)
        if self.depthwise:
            return Conv(self.in_channels, *static, spec=self.spec)
        spec = replace(self.spec, mr=self.spec.mr - 2) if self.unit == 4 and self.spec.widens(I8) else self.spec
        outside = (self._zero % 256).to_bytes(1, "little") if self.unit == 4 else (self._zero % 65536).to_bytes(2, "little")
        fill = int.from_bytes(outside * self.unit, "little", signed=True)
        if self.by_columns:
            static = (
                self.out_channels,
                (*self.kernel[:-1], 1),
                (*self.stride[:-1], 1),
                (*self.padding[:-1], (0, 0)),
                (*self.dilation[:-1], 1),
                self.groups,
                I32,
            )
        return _UnitConv(self.groups * self.units, *static, spec=spec, fill=fill)

    @property
    def weight_bytes(self) -> int:
        """Of the packed weights."""
        conv = self.conv
        if self.as_it_lies:
            return 4 * self.out_channels * (1 + prod(self.kernel[:-1]) * column_steps(self.kernel[-1]))
        if not isinstance(conv, _UnitConv):
            return 4 * prod(conv.layout.shape)
        of_tiles = sum(4 * prod(layout.shape) for layout in conv.layouts[1:])
        return conv.end_of_panels + of_tiles + (4 if conv.has_winograd else 0)

    @property
    def key(self) -> tuple[object, ...]:
        """What the packed weights depend on besides the weights."""
        read = self.depthwise and not self.as_it_lies
        form = (self.unit, self.as_it_lies, self.by_columns)
        return (*self.conv.layouts, *form, None if read else self._zero, self._least if self._has_winograd else None)

    @property
    def _has_winograd(self) -> bool:
        return isinstance(self.conv, _UnitConv) and self.conv.has_winograd

    @property
    def _least(self) -> int:
        """The least number that the image's bytes stand for; the greatest is 255 more."""
        return (0 if self.spec.unsigned else -128) - self.zero

    def pack_weight(self, weight: Array) -> Array:
        """i8 weights [out_channels, in_channels / groups, *kernel] as the kernels read them, i32; of few channels twice, for tiles
        behind those of other kernels; with what says whether Winograd's algorithm is exact."""
        layout = self.conv.layout
        if self.as_it_lies:
            return self._pack_rows(weight)
        if self.depthwise:
            return layout.pack(weight.astype(np.int32))
        out, group_in, *kernel = weight.shape
        if self.by_columns:
            units = _columns_of(weight)
        else:
            padded = np.zeros((out, self.units * self.unit, *kernel), np.int8 if self.unit == 4 else np.int16)
            padded[:, :group_in] = weight
            units = np.moveaxis(padded.reshape(out, self.units, self.unit, *kernel), 2, -1)
            units = np.ascontiguousarray(units).view(np.int32)[..., 0]
        panels = layout.pack(units)
        sums = -self._zero * weight.reshape(self.groups, -1, group_in * int(np.prod(kernel))).sum(-1, dtype=np.int64)
        heads = np.zeros((self.groups, layout.panels * layout.panel), np.int64)
        heads[:, : sums.shape[1]] = sums
        own = np.concatenate([heads.astype(np.int32).reshape(panels.shape[0], 1, layout.panel), panels], 1)
        more = [of_tiles.pack(columns_as_channels(units)).ravel() for of_tiles in self.conv.layouts[1:]]
        if self._has_winograd:
            more.append(np.array([is_exact(weight, self._least, self._least + 255)], np.int32))
        return np.concatenate([own.ravel(), *more]) if more else own

    def _pack_rows(self, weight: Array) -> Array:
        """[out_channels, 1 + steps of a window] of i32: what sums begin with, and columns of rows."""
        heads = -self._zero * weight.reshape(self.out_channels, -1).sum(1, dtype=np.int64)
        columns = _side_by_side(weight).reshape(self.out_channels, -1)
        return np.concatenate([heads.astype(np.int32)[:, None], columns], 1)

    def emit_kernels(self, module: KernelModule) -> None:
        """Adds the kernels to the module, once."""
        if not self.as_it_lies:
            self._emit_units(module)
        self.conv.emit_kernels(module)

    def _emit_units(self, module: KernelModule) -> str:
        if self.by_columns:
            return emit_columns(
                module, self.spec, self.kernel[-1], self.stride[-1], self.dilation[-1], self.padding[-1][0], self.zero
            )
        channels = 1 if self.depthwise else self.in_channels // self.groups
        return emit_units(module, self.spec, channels, self.zero if self.depthwise else None)

    def emit_launch(
        self,
        host: HostContext,
        *,
        x: V,
        w: V,
        sizes: Sequence[V],
        workspace: V,
        epilogue: V,
        epilogue_args: V,
        touch: V | None = None,
    ) -> None:
        """As `Conv.emit_launch`, of a dense image; `workspace` has room for an i32 for each position and unit."""
        if self.as_it_lies:
            self.conv.emit_launch(host, x=x, w=w, sizes=sizes, epilogue=epilogue, epilogue_args=epilogue_args, touch=touch)
            return
        make = self._launch_columns if self.by_columns else self._launch_units
        sizes = make(host, x, sizes, workspace)
        self.conv.emit_launch(host, x=workspace, w=w, sizes=sizes, epilogue=epilogue, epilogue_args=epilogue_args, touch=touch)

    def _launch_units(self, host: HostContext, x: V, sizes: Sequence[V], workspace: V) -> list[V]:
        """Makes the image of units, of the same sizes."""
        f = host.fn
        positions = f.i64(1)
        for n in sizes[1:]:
            positions = f.mul(positions, n)
        blocks = f.ceildivu(positions, BLOCK)
        count = f.mul(f.mul(sizes[0], self.groups * self.units), blocks)
        with f.when(f.cmp("gt", count, 0)):
            grain = grain_of(host, f.mul(f.min(positions, BLOCK), _POSITION_WORK))
            host.launch(self._emit_units(host.module), [x, workspace, positions, blocks], count, grain)
        return [*sizes]

    def _launch_columns(self, host: HostContext, x: V, sizes: Sequence[V], workspace: V) -> list[V]:
        """Makes the image of columns of windows, and returns its sizes."""
        f, (lo, hi), reach = host.fn, self.padding[-1], self.dilation[-1] * (self.kernel[-1] - 1) + 1
        *outer, width = sizes
        out = f.max(f.add(f.floordiv(f.add(width, lo + hi - reach), self.stride[-1]), 1), 0)
        rows = f.i64(1)
        for n in outer[1:]:
            rows = f.mul(rows, n)
        count = f.mul(f.mul(outer[0], self.in_channels), rows)
        with f.when(f.and_(f.cmp("gt", count, 0), f.cmp("gt", out, 0))):
            grain = grain_of(host, f.mul(out, column_steps(self.kernel[-1]) * _POSITION_WORK))
            host.launch(self._emit_units(host.module), [x, workspace, rows, width, out], count, grain)
        return [*outer, out]


def _side_by_side(weight: Array) -> Array:
    """Weights [out_channels, in_channels / groups, *kernel] of i8 with columns of windows in i32s: [..., steps]."""
    *outer, kernel = weight.shape
    padded = np.zeros((*outer, column_steps(kernel) * COLUMNS_OF_STEP), np.int8)
    padded[..., :kernel] = weight
    return padded.view(np.int32)


def _columns_of(weight: Array) -> Array:
    """Those of an image of columns: steps of the columns are channels, [channels][steps], and windows have one column."""
    units = np.moveaxis(_side_by_side(weight), -1, 2)
    return units.reshape(weight.shape[0], -1, *weight.shape[2:-1], 1)
