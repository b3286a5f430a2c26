"""The static parameters of a convolution kernel, and what follows from them: tiles and blocking."""

from __future__ import annotations

from dataclasses import dataclass

from dhlo.codegen.families.conv.layout import WeightLayout, is_depthwise
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.families.gemm.tiles_microkernel import STEP_UNITS
from dhlo.codegen.kernel_ir.builder import BITS, Fn, KernelModule, V

__all__ = ["COLUMNS_OF_STEP", "TRANSPOSED_LD", "ConvParams", "Tiled", "Triple", "column_steps"]

Triple = tuple[int, int, int]
COLUMNS_OF_STEP = 4
"""Columns of a window that a dot product of bytes multiplies and adds."""

# Leading dimension of the tile handed to the epilogue when positions were the broadcast operand: as many panels as fit in it,
# the last of them written in whole vectors.
TRANSPOSED_LD = 64
# Output channels whose partial tiles are kept between depth blocks.
_RUN_CHANNELS = 512
# Bytes of a row of the positions packed together: if no partial sums are kept, and if they are. What they may take of the second
# cache.
_WIDE_ROW, _KEPT_ROW, _WIDE_BYTES = 1024, 256, 1 << 17


def column_steps(kernel: int) -> int:
    """Dot products over a row of a window of so many columns."""
    return -(-kernel // COLUMNS_OF_STEP)


class Tiled:
    """What follows from the type of elements and the target's register tiles."""

    elem: str
    spec: TileSpec

    @property
    def lanes(self) -> int:
        return self.spec.lanes(self.elem)

    @property
    def panel(self) -> int:
        """Output channels of a packed weight panel."""
        return self.spec.panel(self.elem)

    @property
    def bytes(self) -> int:
        """Of an element."""
        return BITS[self.elem] // 8


@dataclass(frozen=True)
class ConvParams(Tiled):
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
    heads: int = 0  # rows of a weight panel before those of the reduction
    fill: int = 0  # what lies outside of the image
    code: str = ""  # the form in which weights are kept, where it isn't `elem`; see quantised_weights
    gated: bool = False  # pointwise: a number for each image and channel, by which the input is multiplied as it is packed
    image: str = ""  # the type of the image in memory, where it isn't `elem`: bf16 or f16
    pairs: bool = False  # image and `code` are bf16, two numbers side by side are multiplied and added by a dot product
    column_pairs: bool = False  # these pairs are of neighbouring columns of a window, not of channels
    tiles: bool = False  # the target's matrix registers may multiply image and weights
    few: bool = False  # of few channels then, whose weights they want otherwise than other kernels do
    row_multiple: int = 1  # of output channels that epilogues get at a time
    columns_side_by_side: bool = False  # depthwise, of bytes: a dot product multiplies and adds four columns of a window

    @property
    def nr(self) -> int:
        """Columns of a register tile, and positions in a packed input panel."""
        return self.spec.nr(self.elem)

    @property
    def group_in(self) -> int:
        return self.in_channels // self.groups

    @property
    def group_out(self) -> int:
        return self.out_channels // self.groups

    @property
    def layout(self) -> WeightLayout:
        """How weights lie that kernels read."""
        by_channel = is_depthwise(self.group_in, self.group_out, self.kernel, self.stride)
        depthwise = by_channel and (not self.heads or self.columns_side_by_side)
        multiple, columns = STEP_UNITS if self.tiles and not self.few else 1, 2 if self.column_pairs else 1
        form = (0 if depthwise else self.panel, self.step, multiple, columns)
        return WeightLayout(self.groups, self.group_in, self.group_out, self.kernel, *form)

    @property
    def stored(self) -> str:
        """The type of the image in memory."""
        return self.image or self.elem

    @property
    def stored_bytes(self) -> int:
        """Of an element of the image."""
        return BITS[self.stored] // 8

    @property
    def channel_pairs(self) -> bool:
        """Whether pairs are of channels."""
        return self.pairs and not self.column_pairs

    @property
    def step(self) -> int:
        """Channels of a step of the reduction."""
        return 2 if self.channel_pairs else 1

    def steps(self, f: Fn, channels: V) -> V:
        """Steps of the reduction over channels at a kernel point."""
        return f.ceildivu(channels, 2) if self.channel_pairs else channels

    @property
    def decodes(self) -> bool:
        """Whether weights are widened to the scratch before they are multiplied."""
        return bool(self.code) and not self.pairs

    @property
    def bounded(self) -> bool:
        """Whether kernels must know where the image ends (`load_elements`); that is then a launch's last argument."""
        return bool(self.image) and not self.spec.target.mask_registers

    @property
    def points(self) -> int:
        """Kernel points."""
        return self.layout.points

    @property
    def row_steps(self) -> int:
        """Of a depthwise sum, over a row of the window."""
        return column_steps(self.kernel[2]) if self.columns_side_by_side else self.kernel[2]

    @property
    def window_steps(self) -> int:
        """Of a depthwise sum."""
        return self.kernel[0] * self.kernel[1] * self.row_steps

    @property
    def depth(self) -> int:
        """Length of the reduction."""
        return self.layout.depth

    @property
    def block_channels(self) -> int:
        """Input channels of a depth block."""
        return self.layout.block_channels

    @property
    def depth_blocks(self) -> int:
        return -(-self.group_in // self.block_channels)

    @property
    def channel_panels(self) -> int:
        """Weight panels in a group."""
        return self.layout.panels

    @property
    def panel_elements(self) -> int:
        """Of a weight panel in memory."""
        return (self.heads + self.depth) * self.panel

    @property
    def run_panels(self) -> int:
        """Weight panels that are worked on with one packing of the input."""
        return min(self.channel_panels, _RUN_CHANNELS // self.panel)

    def panel_width(self, swapped: bool) -> int:
        """Positions in a packed input panel: `nr`, or a tile's rows in whole vectors where they are broadcast."""
        return -(-self.spec.mr // self.lanes) * self.lanes if swapped else self.nr

    @property
    def pointwise(self) -> bool:
        """A product over channels at each position: the input needs no masks."""
        return self.kernel == (1, 1, 1) and all(s == 1 for s in self.stride) and not any(map(any, self.padding))

    def block_panels(self, swapped: bool) -> int:
        """Input panels packed together, over which weights are reused from the near cache.

        As many as fit next to them, if partial sums needn't be kept: long rows of the output are then written at once.
        """
        if swapped:
            return (TRANSPOSED_LD - self.panel_width(swapped)) // self.spec.mr + 1
        row = self.nr * self.bytes
        if self.depth_blocks > 1:
            return max(2, _KEPT_ROW // row)
        return max(2, min(_WIDE_ROW // row, _WIDE_BYTES // (self.depth * row)))
