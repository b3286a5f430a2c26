"""Winograd's convolution of bytes, whose integer sums are exact: F(4, 3) of windows of 3 x 3, by products of pairs of i16.

With the points 0, 1, -1, 2, -2 and infinity B^T holds integers, and so do G and A^T once each product has a factor of its own:

    B^T =  4  0 -5  0  1  0    G =  6  0  0    A^T = 1  4  4  1  1  0   of 24 times output 0
           0  4  4 -1 -1  0         1  1  1          0  2 -2  1 -1  0      12                1
           0  4 -4  1 -1  0         1 -1  1          0  1  1  1  1  0       6                2
           0 -2 -1  2  1  0         1  2  4          0  1 -1  2 -2  1       6                3
           0  2 -1 -2  1  0         1 -2  4
           0  4  0 -5  0  1         0  0  6

In two dims inputs that are at most 255 become at most 100 times as large, weights 49 times: both fit an i16, of which an
instruction multiplies two pairs and adds them. Sums wrap, as do those that A^T makes of them; what comes out is 9 * 2^s times the
output modulo 2^32, s at most 6. 9 has an inverse there, and a shift to the right does the rest: outputs are exact if they fit 26
bits, whatever wrapped in between. That depends on the weights (`is_exact`).

36 products of pairs replace 144 of bytes, of which an instruction does four: half the instructions, a quarter where products of
bytes take those of pairs. An instruction for matrices of bytes beats both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dhlo.codegen.families.box import update_cycles
from dhlo.codegen.families.conv.layout import Array
from dhlo.codegen.families.conv.quantised_kernels import unit_channels
from dhlo.codegen.families.conv.winograd import STORE, Cut, Winograd
from dhlo.codegen.families.conv.winograd_blocking import Blocking
from dhlo.codegen.families.conv.winograd_kernel import FIELDS, WinogradKernel
from dhlo.codegen.families.conv.winograd_transforms import Filter
from dhlo.codegen.families.gemm.multiply_add import add_pair_products, as_vector_of
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, I8, I32, Fn, KernelModule, Num, V, vec
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["SHIFTS", "WholeFilter", "WinogradOfBytes", "has_winograd", "is_exact"]

_I16 = "i16"
SHIFTS = (3, 2, 1, 1)
"""By output of a dim: it comes out 3 * 2^s times as large."""
_INVERSE_OF_9 = pow(9, -1, 1 << 32)
# What is left of 32 bits.
_BITS = 32 - 2 * max(SHIFTS)


def has_winograd(spec: TileSpec, units: int, kernel: Sequence[int], apart: Sequence[int], groups: int) -> bool:
    """Whether there is a form for a convolution of so many units of channels; `apart`: its strides and dilations."""
    one_plane = all(k == 1 for k in kernel[:-2]) and tuple(kernel[-2:]) == (3, 3)
    some = units * unit_channels(spec) >= spec.lanes(I32)
    return (
        one_plane and some and groups == 1 and set(apart) == {1} and bool(spec.target.pair_products) and spec.target.tiles is None
    )


def is_exact(weight: Array, lowest: int, highest: int) -> bool:
    """Whether all outputs fit the bits that are left, for weights [out_channels, ...] and images of `lowest` to `highest`."""
    rows = weight.reshape(weight.shape[0], -1).astype(np.int64)
    above, below = (np.where(rows > 0, rows, 0).sum(1), np.where(rows < 0, rows, 0).sum(1))
    most = (highest * above + lowest * below).max(initial=0)
    least = (lowest * above + highest * below).min(initial=0)
    return bool(-(1 << _BITS - 1) <= least and most < 1 << _BITS - 1)


@dataclass(frozen=True)
class WholeFilter(Filter):
    """F(4, 3) in whole numbers. Vectors of inputs and weights are of i16, of sums i32."""

    side: int = 6
    window: int = 3

    @property
    def operations(self) -> tuple[int, int, int]:
        return 17, 11, 13

    def map_inputs(self, f: Fn, d: Sequence[V]) -> list[V]:
        a, b = f.sub(f.shl(d[2], 2), d[4]), f.sub(f.shl(d[1], 2), d[3])
        even, odd = f.sub(d[4], d[2]), f.sub(d[3], d[1])
        twice = f.shl(odd, 1)
        first = f.add(f.shl(f.sub(d[0], d[2]), 2), even)
        last = f.sub(f.sub(d[5], d[3]), f.shl(odd, 2))
        return [first, f.add(a, b), f.sub(a, b), f.add(even, twice), f.sub(even, twice), last]

    def map_weights(self, f: Fn, g: Sequence[V]) -> list[V]:
        ends, far, twice = f.add(g[0], g[2]), f.add(g[0], f.shl(g[2], 2)), f.shl(g[1], 1)
        ones, twos = [f.add(ends, g[1]), f.sub(ends, g[1])], [f.add(far, twice), f.sub(far, twice)]
        return [f.mul(g[0], 6), *ones, *twos, f.mul(g[2], 6)]

    def map_outputs(self, f: Fn, s: Sequence[V]) -> list[V]:
        p, q, r, t = f.add(s[1], s[2]), f.sub(s[1], s[2]), f.add(s[3], s[4]), f.sub(s[3], s[4])
        first, last = f.add(s[0], f.add(f.shl(p, 2), r)), f.add(s[5], f.add(q, f.shl(t, 1)))
        return [first, f.add(f.shl(q, 1), t), f.add(p, r), last]


@dataclass(frozen=True)
class _ByteBlocking(Blocking):
    """An element of the image is a unit: four bytes, or two integers of 16 bits. Channels are pairs."""

    @property
    def elem(self) -> str:
        return I32

    @property
    def name(self) -> str:
        return "winograd_bytes_4x4"

    @property
    def parts(self) -> int:
        return unit_channels(self.spec) // 2

    @property
    def mapped(self) -> str:
        return vec(_I16, 2 * self.lanes)

    @property
    def heads(self) -> int:
        return self.parts

    @property
    def row_channels(self) -> int:
        return self.parts

    @property
    def packed_bytes(self) -> int:
        return self.panel * BITS[I32] // 8 // self.parts

    @property
    def more_of_inputs(self) -> tuple[str, ...]:
        return ("fill",)

    def outside(self, f: Fn, more: Sequence[V]) -> V:
        return f.splat(f.cast(more[0], I32), self.lanes)

    def split(self, f: Fn, x: V, outside: V) -> list[V]:
        return [f.sub(a, b) for a, b in zip(self._pairs(f, x), self._pairs(f, outside), strict=True)]

    def _pairs(self, f: Fn, units: V) -> list[V]:
        """Those of a vector of units in order of channels, as many to a vector as there are units."""
        if self.parts == 1:
            return [as_vector_of(f, _I16, units)]
        x, n = as_vector_of(f, I8, units), 2 * self.lanes
        return [f.cast(f.shuffle(x, x, range(at, at + n)), _I16, signed=self.spec.left == I8) for at in (0, n)]

    def load_taps(self, f: Fn, row: V, column: int) -> list[V]:
        units = f.load(f.gep(row, column, I32), vec(I32, self.lanes))
        if self.parts == 1:
            return [as_vector_of(f, _I16, units)]
        x = as_vector_of(f, I8, units)
        zero, n = f.const(0, x.type), x.lanes
        # Bytes come to the upper halves of i16s, from where a shift brings their signs down.
        halves = [[n if i % 2 == 0 else i // 4 * 4 + 2 * half + i % 4 // 2 for i in range(n)] for half in (0, 1)]
        return [f.shr(as_vector_of(f, _I16, f.shuffle(x, zero, idx)), 8) for idx in halves]

    def multiply_add(self, f: Fn, x: V, y: V, total: V) -> V:
        return add_pair_products(f, x, y, total)

    def finished(self, f: Fn, block: list[list[V]]) -> Sequence[Sequence[V]]:
        shifted = [[s + t for t in SHIFTS] for s in SHIFTS]
        return [
            [f.shr(f.mul(x, _INVERSE_OF_9), s) for x, s in zip(row, of_row, strict=True)]
            for row, of_row in zip(block, shifted, strict=True)
        ]


class _Kernel(WinogradKernel):
    fields = (*FIELDS, "fill")


@dataclass(frozen=True)
class WinogradOfBytes(Winograd):
    """The same in the host program, of a convolution of units."""

    down: Filter = field(default_factory=WholeFilter)
    across: Filter = field(default_factory=WholeFilter)

    @property
    def blocking(self) -> Blocking:
        return _ByteBlocking(self.down, self.across, self.p.spec)

    @property
    def in_channels(self) -> int:
        return self.p.in_channels * self.blocking.parts

    @property
    def block_channels(self) -> int:
        return self.p.block_channels * self.blocking.parts

    @property
    def _operations(self) -> tuple[int, int, int]:
        of_inputs, of_weights, of_outputs = super()._operations
        return of_inputs, of_weights, of_outputs + 2 * self.blocking.outputs

    def map_cycles(self, host: HostContext) -> tuple[Num, Num, Num]:
        """There is half as much arithmetic as of f32, so that stores show: those of points are to lines of the second cache, each
        of which is brought to the first one and back. Outputs are transposed, as inputs are."""
        f, b = host.fn, self.blocking
        line, transposed = update_cycles(host), b.outputs * (b.lanes.bit_length() + STORE)
        of_inputs, of_weights, of_outputs = self._operations
        return (
            f.max(f.mul(line, b.points), of_inputs),
            f.max(f.mul(line, b.factors), of_weights),
            of_outputs + transposed,
        )

    def emit_kernel(self, module: KernelModule) -> None:
        if self.kernel not in module.functions:
            _Kernel(module, self.blocking, self.kernel).emit()

    def numbers_of_cut(self, f: Fn, cut: Cut) -> list[V]:
        return [*super().numbers_of_cut(f, cut), f.i64(self.p.fill)]
