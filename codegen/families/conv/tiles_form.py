"""What a convolution multiplies in the target's matrix registers: channels of a position by points of windows, or, where channels
are few, those of all columns of a window by its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from dhlo.codegen.families.conv.layout import Array, WeightLayout
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.conv.quantised_weights import coded_bytes, pack_codes
from dhlo.codegen.families.gemm.tiles_microkernel import ROW_BYTES, STEP_UNITS
from dhlo.codegen.kernel_ir.builder import Fn, V

__all__ = ["STEP_CHANNELS", "Phases", "TileForm", "has_form", "is_few", "layout_of_few", "offset_of_few", "with_few"]

STEP_CHANNELS: Final = 2 * STEP_UNITS
"""Channels of a step of the reduction."""
# Of a step's channels a group has at least half, or else their columns are brought together; windows reach so many outputs beyond a
# block's, at most.
_LEAST_CHANNELS: Final = STEP_CHANNELS // 2
_MOST_REACH: Final = 32


@dataclass(frozen=True)
class Phases:
    """Windows along a dim of the image, by the phase of the stride in which their points lie."""

    kernel: int
    stride: int
    before: int  # zeros before the image
    dilation: int

    @property
    def all(self) -> list[int]:
        """The phases that windows read."""
        return sorted({k * self.dilation % self.stride for k in range(self.kernel)})

    @property
    def reach(self) -> int:
        """How many positions of a phase windows reach beyond as many as there are outputs."""
        return (self.kernel - 1) * self.dilation // self.stride

    def place(self, point: int) -> tuple[int, int]:
        """Where a point of the window lies: the number of its phase, and how many positions on."""
        on, phase = divmod(point * self.dilation, self.stride)
        return self.all.index(phase), on

    def first(self, f: Fn, phase: int, output: V) -> V:
        """Where a phase's position for an output lies in the image, or outside of it."""
        return f.add(f.mul(output, self.stride), phase - self.before)


def has_form(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], group_in: int) -> bool:
    """Whether windows of one or two dims, of so many channels, are multiplied in tiles."""
    near = all(Phases(k, s, 0, d).reach <= _MOST_REACH for k, s, d in zip(kernel, stride, dilation, strict=True))
    fits = not is_few(group_in) or _LEAST_CHANNELS // 2 <= group_in * kernel[-1] <= STEP_CHANNELS
    return len(kernel) <= 2 and near and fits


def is_few(group_in: int) -> bool:
    """Whether the columns of windows of so many channels become channels."""
    return group_in < _LEAST_CHANNELS


def layout_of_few(layout: WeightLayout) -> WeightLayout:
    """How weights of few channels lie for tiles, [columns][channels] as channels."""
    channels, kernel = layout.kernel[-1] * layout.group_in, (*layout.kernel[:-1], 1)
    return WeightLayout(layout.groups, channels, layout.group_out, kernel, layout.panel, 2, STEP_UNITS)


def with_few(layout: WeightLayout, code: str, weight: torch.Tensor) -> Array:
    """Weights of few channels in the layout of other kernels and, behind it, in that of tiles."""
    own = pack_codes(code, layout, weight).ravel()
    columns = weight.movedim(-1, 1)
    rows = columns.reshape(weight.shape[0], -1, *weight.shape[2:-1], 1)
    room = np.zeros(offset_of_few(layout, code) // own.itemsize - own.size, own.dtype)
    return np.concatenate([own, room, pack_codes(code, layout_of_few(layout), rows).ravel()])


def offset_of_few(layout: WeightLayout, code: str) -> int:
    """Bytes from the first to the second, whose rows are whole lines."""
    return -(-coded_bytes(code, layout) // ROW_BYTES) * ROW_BYTES


@dataclass(frozen=True)
class TileForm:
    """A convolution as its kernel in tiles has it. Columns of windows may be channels, [columns][channels]; weights lie `offset`
    bytes behind those of other kernels."""

    p: ConvParams
    layout: WeightLayout
    offset: int

    @staticmethod
    def of(p: ConvParams) -> TileForm:
        """Of parameters that have it."""
        few = is_few(p.group_in)
        layout = layout_of_few(p.layout) if few else p.layout
        return TileForm(p, layout, offset_of_few(p.layout, p.code) if few else 0)

    @property
    def columns(self) -> int:
        """Of a window that are channels."""
        return self.layout.group_in // self.p.group_in

    @property
    def down(self) -> Phases:
        """Rows of windows."""
        return _phases(self.p, 1)

    @property
    def across(self) -> Phases:
        """Columns of windows that aren't channels."""
        across = _phases(self.p, 2)
        return across if self.layout.kernel[-1] == self.p.kernel[2] else Phases(1, across.stride, across.before, 1)

    @property
    def points(self) -> int:
        """Of a window."""
        return self.layout.points

    @property
    def step_groups(self) -> int:
        """Steps of the reduction at a point of the window."""
        return -(-self.layout.group_in // STEP_CHANNELS)

    @property
    def steps(self) -> int:
        """Of the reduction."""
        return self.step_groups * self.points

    @property
    def phases(self) -> int:
        """Planes of each 32 channels."""
        return len(self.down.all) * len(self.across.all)

    @property
    def splits_steps(self) -> bool:
        """Whether the last step of a point has fewer units of weights than a tile has rows."""
        return self.layout.units % STEP_UNITS != 0

    def plane(self, f: Fn, rows: V, columns: V) -> V:
        """Positions of a phase, of a block of so many output rows and columns."""
        return f.mul(f.add(rows, self.down.reach), f.add(columns, self.across.reach))


def _phases(p: ConvParams, dim: int) -> Phases:
    return Phases(p.kernel[dim], p.stride[dim], p.padding[dim][0], p.dilation[dim])
