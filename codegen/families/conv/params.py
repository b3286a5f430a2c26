"""The static parameters of a convolution kernel, and what follows from them: names, blocking, packed weight layout."""

from __future__ import annotations

from dataclasses import dataclass

from dhlo.codegen.families.gemm.microkernel import TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, KernelModule

__all__ = ["ConvParams", "Triple"]

Triple = tuple[int, int, int]
# Depth of a panel block: a panel of positions and one of weights, both [depth][NR], stay near the core.
_K_BLOCK = 288
# Output channels whose partial tiles are kept between depth blocks.
_RUN_CHANNELS = 512
# Input panels of a block, and what they may take of the second cache.
_WIDE_PANELS, _WIDE_BYTES = 8, 1 << 17


@dataclass(frozen=True)
class ConvParams:
    """A convolution over three spatial dims (leading ones unit) as the kernel emitters see it."""

    module: KernelModule
    name: str
    elem: str
    in_channels: int
    out_channels: int
    groups: int
    kernel: Triple
    stride: Triple
    padding: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    dilation: Triple
    spec: TileSpec

    @property
    def lanes(self) -> int:
        return self.spec.lanes(self.elem)

    @property
    def nr(self) -> int:
        """Columns of a register tile."""
        return self.spec.nr(self.elem)

    @property
    def bytes(self) -> int:
        return BITS[self.elem] // 8

    @property
    def group_in(self) -> int:
        return self.in_channels // self.groups

    @property
    def group_out(self) -> int:
        return self.out_channels // self.groups

    @property
    def points(self) -> int:
        """Kernel points."""
        return self.kernel[0] * self.kernel[1] * self.kernel[2]

    @property
    def depth(self) -> int:
        """Length of the reduction."""
        return self.group_in * self.points

    @property
    def block_channels(self) -> int:
        """Input channels of a depth block, balanced over the blocks."""
        most = max(1, _K_BLOCK // self.points)
        blocks = -(-self.group_in // most)
        return -(-self.group_in // blocks)

    @property
    def depth_blocks(self) -> int:
        return -(-self.group_in // self.block_channels)

    @property
    def channel_panels(self) -> int:
        """Weight panels of `nr` output channels in a group; the last may be partly zero."""
        return -(-self.group_out // self.nr)

    @property
    def run_panels(self) -> int:
        """Weight panels that are worked on with one packing of the input."""
        return min(self.channel_panels, _RUN_CHANNELS // self.nr)

    def panel_width(self, swapped: bool) -> int:
        """Positions in a packed input panel: `nr`, or a tile's rows in whole vectors where they are broadcast."""
        return -(-self.spec.mr // self.lanes) * self.lanes if swapped else self.nr

    @property
    def pointwise(self) -> bool:
        """A product over channels at each position: the input needs no masks."""
        return self.points == 1 and all(s == 1 for s in self.stride) and not any(map(any, self.padding))

    def block_panels(self, swapped: bool) -> int:
        """Input panels packed together, over which weights are reused from the near cache.

        As many as fit next to them, if partial sums needn't be kept: long rows of the output are then written at once.
        """
        if swapped:
            return 4
        if self.depth_blocks > 1:
            return 2
        return max(2, min(_WIDE_PANELS, _WIDE_BYTES // (self.depth * self.nr * self.bytes)))
