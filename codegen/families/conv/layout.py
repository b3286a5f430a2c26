"""How the weights of a convolution lie in memory when kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "WeightLayout", "is_depthwise"]

Array = npt.NDArray[Any]
# Depth of a block (KC in BLIS's terms): a panel of positions and one of weights stay near the core. All targets have the same, so
# that they can share packed weights.
_K_BLOCK = 288


def is_depthwise(group_in: int, group_out: int, kernel: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether each output channel is a sum over the windows of its one input channel, rather than a column of a product of windows
    and weights, for which windows are brought together once for all output channels of a group."""
    if group_in != 1:
        return False
    # Cycles of a vector of outputs, as measured on a Zen 4: columns that are far apart are gathered; one row shares no loads.
    points, far, flat = prod(kernel), stride[-1] > 2, prod(kernel[:-1]) == 1
    alone = points * (19.0 if far else 3.0 if flat else 0.6 + 0.9 * stride[-1]) + (6 if flat else 3)
    together = 1.2 * points + 4 + (75 + points * (40 if far else 4)) / group_out
    return alone <= together


@dataclass(frozen=True)
class WeightLayout:
    """[groups * panels, depth, panel] for weights [groups * group_out, group_in, *kernel].

    Depth runs over blocks of input channels, in a block over kernel points, then channels; `panel` output channels innermost,
    zeros beyond the group's last. Depthwise weights (`panel` 0) are [groups * group_out, kernel points]. Targets whose layouts
    are equal read the same memory. With a `step` of 2, weights of two channels lie side by side and count as one of the depth;
    behind the last of an odd number lies 0. With 2 `columns` those of neighbouring columns of the window do. Blocks of channels,
    but for the last, hold a `multiple` of steps.
    """

    groups: int
    group_in: int
    group_out: int
    kernel: tuple[int, ...]
    panel: int
    step: int = field(default=1, repr=False)
    multiple: int = field(default=1, repr=False)
    columns: int = field(default=1, repr=False)

    @property
    def side(self) -> int:
        """Weights that lie side by side."""
        return self.step * self.columns

    @property
    def row(self) -> int:
        """Kernel points in a row of the window: columns, or some side by side."""
        return -(-self.kernel[-1] // self.columns)

    @property
    def points(self) -> int:
        """Kernel points."""
        return prod(self.kernel[:-1]) * self.row

    @property
    def depth(self) -> int:
        """Length of the reduction."""
        return self.units * self.points

    @property
    def units(self) -> int:
        """Steps of the reduction over the channels at a kernel point."""
        return -(-self.group_in // self.step)

    @property
    def block_channels(self) -> int:
        """Input channels of a depth block, balanced over the blocks."""
        most = max(1, _K_BLOCK // self.points)
        blocks = -(-self.units // most)
        return min(-(-self.units // (blocks * self.multiple)) * self.multiple, self.units) * self.step

    @property
    def panels(self) -> int:
        """Weight panels in a group; the last may be partly zero."""
        return -(-self.group_out // self.panel)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        if not self.panel:
            return (self.groups * self.group_out, self.points)
        return (self.groups * self.panels, self.depth, self.panel)

    def pack(self, weight: Array) -> Array:
        """Weights [groups * group_out, group_in, *kernel] in this layout, a row panel * side of them; the dtype stays. Raises
        ValueError for another shape."""
        expected = (self.groups * self.group_out, self.group_in, *self.kernel)
        if weight.shape != expected:
            raise ValueError(f"weight of shape {weight.shape} given, {expected} expected")
        if not self.panel:
            return np.ascontiguousarray(weight.reshape(self.shape))
        rows, columns = prod(self.kernel[:-1]), self.kernel[-1]
        shape = (self.groups, self.panels * self.panel, self.units * self.step, rows, self.row * self.columns)
        padded = np.zeros(shape, weight.dtype)
        given = weight.reshape(self.groups, self.group_out, self.group_in, rows, columns)
        padded[:, : self.group_out, : self.group_in, :, :columns] = given
        panels = padded.reshape(self.groups * self.panels, self.panel, self.units, self.step, self.points, self.columns)
        some = self.block_channels // self.step
        blocks = [
            panels[:, :, c : c + some].transpose(0, 4, 2, 1, 3, 5).reshape(panels.shape[0], -1, self.panel * self.side)
            for c in range(0, self.units, some)
        ]
        return np.ascontiguousarray(np.concatenate(blocks, axis=1))
