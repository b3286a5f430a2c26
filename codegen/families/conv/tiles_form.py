"""What a convolution multiplies in the target's matrix registers: channels of a position by points of windows, or, where channels
are few, those of all columns of a window by its rows, or those of several groups, with zeros for weights between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch

from dhlo.codegen.families.conv.layout import Array, WeightLayout
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.conv.quantised_weights import bits_of, coded_bytes, pack_codes
from dhlo.codegen.families.gemm.register_tile import BF16
from dhlo.codegen.families.gemm.tiles_microkernel import PANEL_COLUMNS, ROW_BYTES, STEP_UNITS
from dhlo.codegen.kernel_ir.builder import I8, I32, Fn, V

__all__ = ["Phases", "TileForm", "columns_as_channels", "has_form", "is_few", "layout_of_few", "offset_of_few", "with_few"]

# Windows reach so many outputs beyond a block's, at most; they have so many points, and strides so many phases, each of which is
# code of its own.
_MOST_REACH, _MOST_POINTS, _MOST_PHASES = 32, 128, 16
# Steps in the time of what else a tile takes, as measured on a Granite Rapids.
_CALL_STEPS = 6


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


def has_form(layout: WeightLayout, step: int, stride: Sequence[int], dilation: Sequence[int]) -> bool:
    """Whether windows are multiplied in tiles, of channels of which a unit holds `step`."""
    kernel = layout.kernel
    dims = [Phases(k, s, 0, d) for k, s, d in zip(kernel, stride, dilation, strict=True)]
    near = all(dim.reach <= _MOST_REACH for dim in dims)
    few = is_few(layout, step) and groups_together(layout, step) == 1
    points = prod(kernel[:-1]) if few else layout.points
    near = near and points <= _MOST_POINTS and prod(len(dim.all) for dim in dims) <= _MOST_PHASES
    most, columns = STEP_UNITS * step, layout.group_in * kernel[-1]
    return near and (not few or most // 4 <= columns <= most)


def is_few(layout: WeightLayout, step: int) -> bool:
    """Whether channels are too few for a step: groups are multiplied together, or the columns of windows become channels, as these
    fill less than half of it."""
    return groups_together(layout, step) > 1 or 2 * layout.group_in < STEP_UNITS * step


def groups_together(layout: WeightLayout, step: int) -> int:
    """How many groups' channels fill a step and a panel of output channels, where that takes fewer steps than columns of windows
    for channels of each. Of bytes groups stay apart."""
    most, rows, columns = STEP_UNITS * step, prod(layout.kernel[:-1]), layout.group_in * layout.kernel[-1]
    some = min(most // layout.group_in, PANEL_COLUMNS // layout.group_out, layout.groups)
    if step == 1 or some < 2 or layout.points > _MOST_POINTS:
        return 1
    has_columns = 2 * layout.group_in < most and most // 4 <= columns <= most
    return 1 if has_columns and some * (rows + _CALL_STEPS) <= layout.points + _CALL_STEPS else some


def layout_of_few(layout: WeightLayout, step: int) -> WeightLayout:
    """How weights of few channels lie for tiles: those of several groups as one's, or [columns][channels] as channels."""
    if (some := groups_together(layout, step)) > 1:
        channels, kernel, rows = some * layout.group_in, layout.kernel, some * layout.group_out
    else:
        channels, kernel, rows = layout.kernel[-1] * layout.group_in, (*layout.kernel[:-1], 1), layout.group_out
    return WeightLayout(-(-layout.groups // some), channels, rows, kernel, layout.panel, step, STEP_UNITS)


def columns_as_channels(weight: Array) -> Array:
    """Weights [out_channels, in_channels / groups, *kernel] with the columns of windows as channels."""
    return np.moveaxis(weight, -1, 1).reshape(weight.shape[0], -1, *weight.shape[2:-1], 1)


def joined_groups(weight: Array, layout: WeightLayout, some: int) -> Array:
    """Weights [out_channels, in_channels / groups, *kernel] of so many groups as one's, zeros from a group's channels to another's
    and behind the last group."""
    count, rows, channels = -(-layout.groups // some), layout.group_out, layout.group_in
    joined = np.zeros((count * some, rows, some, channels, *layout.kernel), weight.dtype)
    groups = np.arange(layout.groups)
    joined[groups, :, groups % some] = weight.reshape(layout.groups, rows, channels, *layout.kernel)
    return joined.reshape(count * some * rows, some * channels, *layout.kernel)


def with_few(layout: WeightLayout, code: str, weight: torch.Tensor) -> Array:
    """Codes of few channels in the layout of other kernels and, behind it, in pairs in that of tiles."""
    own = pack_codes(code, layout, weight).ravel()
    room = np.zeros(offset_of_few(coded_bytes(code, layout)) // own.itemsize - own.size, own.dtype)
    bits, some = bits_of(code, weight), groups_together(layout, 2)
    others = columns_as_channels(bits) if some == 1 else joined_groups(bits, layout, some)
    return np.concatenate([own, room, layout_of_few(layout, 2).pack(others).ravel()])


def offset_of_few(nbytes: int) -> int:
    """Where the second begins behind so many bytes, as its rows are whole lines."""
    return -(-nbytes // ROW_BYTES) * ROW_BYTES


@dataclass(frozen=True)
class TileForm:
    """A convolution as its kernel in tiles has it: of pairs of bf16, for each of which the image has two rows, or of four bytes,
    which are an i32 of a row already. Columns of windows may be channels, [columns][channels], or several groups one, of which the
    last may have fewer channels than it says in `p`; weights lie `offset` bytes behind those of other kernels. `channels`: of the
    image and the result. `together`: how many groups are one."""

    p: ConvParams
    layout: WeightLayout
    offset: int
    channels: tuple[int, int]
    together: int = 1

    @staticmethod
    def of(p: ConvParams) -> TileForm:
        """Of parameters that have it."""
        step, channels = 1 if p.elem == I32 else 2, (p.in_channels, p.out_channels)
        if not is_few(p.layout, step):
            return TileForm(p, p.layout, 0, channels)
        nbytes = coded_bytes(p.code, p.layout) if p.code else p.groups * p.channel_panels * p.panel_elements * p.bytes
        layout = layout_of_few(p.layout, step)
        if (together := groups_together(p.layout, step)) > 1:
            whole = (layout.groups * layout.group_in, layout.groups * layout.group_out)
            p = replace(p, in_channels=whole[0], out_channels=whole[1], groups=layout.groups)
        return TileForm(p, layout, offset_of_few(nbytes), channels, together)

    @property
    def ends_early(self) -> bool:
        """Whether the last of groups that are multiplied together has fewer channels."""
        return self.channels != (self.p.in_channels, self.p.out_channels)

    @property
    def elem(self) -> str:
        """What tiles multiply."""
        return I8 if self.p.elem == I32 else BF16

    @property
    def step_channels(self) -> int:
        """Rows of the image in a step of the reduction."""
        return STEP_UNITS * self.layout.step

    @property
    def columns(self) -> int:
        """Of a window that are channels."""
        return self.layout.group_in // self.p.group_in

    @property
    def deep(self) -> Phases:
        """Planes of windows."""
        return _phases(self.p, 0)

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
        return -(-self.layout.group_in // self.step_channels)

    @property
    def steps(self) -> int:
        """Of the reduction."""
        return self.step_groups * self.points

    @property
    def phases(self) -> int:
        """Of rows and columns of a plane."""
        return len(self.down.all) * len(self.across.all)

    @property
    def splits_steps(self) -> bool:
        """Whether the last step of a point has fewer units of weights than a tile has rows."""
        return self.layout.units % STEP_UNITS != 0

    def plane(self, f: Fn, rows: V, columns: V) -> V:
        """Positions of a phase of a plane, of a block of so many output rows and columns."""
        return f.mul(f.add(rows, self.down.reach), f.add(columns, self.across.reach))

    def planes(self, f: Fn, planes: V) -> V:
        """Planes of a step's channels, of a block of so many of outputs: [phases of planes][planes][phases of rows and columns]."""
        return f.mul(f.add(planes, self.deep.reach), len(self.deep.all) * self.phases)


def _phases(p: ConvParams, dim: int) -> Phases:
    return Phases(p.kernel[dim], p.stride[dim], p.padding[dim][0], p.dilation[dim])
