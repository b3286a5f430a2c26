"""Sizes and numbers of a Winograd kernel: how channels and tiles are blocked, what is computed in, and where a worker's scratch
has what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dhlo.codegen.families.conv.quantised_weights import load_codes, row_bytes
from dhlo.codegen.families.conv.winograd_transforms import Filter
from dhlo.codegen.families.gemm.multiply_add import widened_pair
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, F32, I32, Fn, V, vec
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["POSITIONS", "Blocking", "Scratch"]

# Input channels of a depth block by n and the window's taps, no fewer than a block of packed weights has: mapped weights of a panel
# then take 256 to 360 KiB, those of one dim less, lest a point's outgrow the first cache. Code and layout rest on it; on a machine
# whose second cache is smaller they come from the third, once a group.
_DEPTH = {(6, 9): 64, (6, 4): 80, (4, 9): 128, (4, 4): 128, (6, 3): 96, (6, 2): 144, (4, 3): 96, (4, 2): 144}
# Points of all tiles of a group: the sums of a panel take 252 KiB. Weights are mapped once a group.
_MOST_POINTS = 2016
# Vectors of a row of the input that are brought into channels together, with all rows of a tile: they stay in the first cache.
_STRIP = 64
# Output positions of whole rows that are handed to the epilogue together.
POSITIONS = 256


@dataclass(frozen=True)
class Blocking:
    """Sizes that follow from what a tile is down and across, and from the register tiles."""

    down: Filter
    across: Filter
    spec: TileSpec
    code: str = ""  # the form of weights that are kept as codes
    image: str = ""  # the type of the image in memory, where it isn't f32
    pairs: bool = False  # packed weights hold two channels side by side, of which there is an even number

    @property
    def elem(self) -> str:
        """What is computed in."""
        return F32

    @property
    def parts(self) -> int:
        """Channels of an element of the image: vectors that one of elements becomes before it is mapped."""
        return 1

    @property
    def mapped(self) -> str:
        """The type of a vector that inputs and weights are mapped in."""
        return vec(F32, self.lanes)

    @property
    def heads(self) -> int:
        """What a panel of packed weights has before those of the reduction, counted as channels."""
        return 0

    @property
    def more_of_inputs(self) -> tuple[str, ...]:
        """Further arguments of what maps inputs: of an image that is `bounded` where it is."""
        return ("begin", "end") if self.bounded else ()

    def outside(self, f: Fn, more: Sequence[V]) -> V:
        """A vector of the elements that lie outside of the image; `more` are those arguments."""
        return f.const(0, vec(self.elem, self.lanes))

    def split(self, f: Fn, x: V, outside: V) -> list[V]:
        """The parts of a vector of the image's elements, 0 where these are as `outside`."""
        return [x]

    def load_taps(self, f: Fn, row: V, column: int) -> list[V]:
        """A vector of packed weights for each channel that a row holds."""
        if self.pairs:
            return list(widened_pair(f, f.load(f.gep(row, column, I32), vec(I32, self.lanes))))
        if self.code:
            return [load_codes(f, self.code, row, column, self.lanes, self.panel)]
        return [f.load(f.gep(row, column, F32), self.mapped)]

    def multiply_add(self, f: Fn, x: V, y: V, total: V) -> V:
        return f.fma(x, y, total)

    def finished(self, f: Fn, block: list[list[V]]) -> Sequence[Sequence[V]]:
        """Outputs of a tile, of the mapped sums."""
        return block

    @property
    def stored(self) -> str:
        """The type of the image in memory."""
        return self.image or F32

    @property
    def bounded(self) -> bool:
        """As `ConvParams.bounded`: two more arguments."""
        return bool(self.image) and not self.spec.target.mask_registers

    @property
    def coded(self) -> str:
        """What tells names of functions apart by the form of weights."""
        return (f"_{self.code}" if self.code else "") + ("_pairs" if self.pairs else "")

    @property
    def taps(self) -> int:
        """Kernel points of a plane of the window."""
        return self.down.window * self.across.window

    @property
    def name(self) -> str:
        """The kernel's, without its register tiles."""
        window = max(self.down.window, self.across.window)
        return f"winograd{window if window != 3 else ''}_{self.down.name}x{self.across.name}"

    @property
    def kernel(self) -> str:
        """The kernel's symbol."""
        return f"{self.name}_{self.spec.name}" + self.coded + (f"_of_{self.image}" if self.image else "")

    @property
    def prefix(self) -> str:
        """Of the names of functions."""
        return self.name.partition("x")[0] if self.down == self.across else self.name

    @property
    def products(self) -> str:
        """The same of those that multiply points, which depend on `depth` alone."""
        return self.prefix if self.down == self.across else f"winograd_deep{self.depth}"

    @property
    def points(self) -> int:
        """Products of a tile."""
        return self.down.points * self.across.points

    @property
    def factors(self) -> int:
        """Mapped weights of a channel."""
        return self.down.factors * self.across.factors

    @property
    def outputs(self) -> int:
        """Of a tile."""
        return self.down.m * self.across.m

    @property
    def most_tiles_of_sums(self) -> int:
        """Tiles of a group whose sums are kept."""
        return max(_MOST_POINTS // self.points, 2 * self.spec.mr)

    @property
    def lanes(self) -> int:
        return self.spec.lanes(F32)

    @property
    def panel(self) -> int:
        return self.spec.panel(F32)

    @property
    def depth(self) -> int:
        """Channels that a depth block has room for."""
        return _DEPTH[max(self.down.side, self.across.side), self.taps]

    @property
    def packed_bytes(self) -> int:
        """Bytes of a channel in a panel of packed weights."""
        return row_bytes(self.code, self.panel) if self.code else self.panel * BITS[F32] // 8

    @property
    def row_channels(self) -> int:
        """Channels that a row of packed weights holds."""
        return 2 if self.pairs else 1

    @property
    def strip(self) -> int:
        """Columns of the input that are brought into vectors of channels together."""
        return _STRIP // self.parts

    @property
    def strip_tiles(self) -> int:
        """Tiles of a row that are brought into vectors of channels together."""
        return (self.strip - self.across.overlap) // self.across.step

    # Points are a line more apart than their content takes: a power of two apart, they would share sets of the caches.
    @property
    def weight_stride(self) -> int:
        """Elements between points of mapped weights."""
        return self.depth * self.panel + self.panel

    def span(self, block_channels: int, blocks: int) -> int:
        """Depth blocks of packed weights that are one of these kernels, balanced."""
        most = max(1, self.depth // block_channels)
        return -(-blocks // -(-blocks // most))

    def tile_bytes(self, depth_blocks: int) -> int:
        """Bytes of a tile's mapped inputs."""
        return depth_blocks * self.points * self.depth * 4

    def most_tiles(self, host: HostContext, depth_blocks: int) -> V:
        """Tiles of a group: as many as the second cache has room for, at least the rows of two register tiles. Mapped inputs may
        take all of it: they are read once for each panel, in order."""
        fn = host.fn
        fit = fn.min(fn.divu(host.l2_bytes, self.tile_bytes(depth_blocks)), _MOST_POINTS // self.points)
        return fn.max(fit, 2 * self.spec.mr)

    @property
    def row_elements(self) -> int:
        """Room for the output positions that are finished together, and for what tiles and vectors write past them."""
        return max(POSITIONS, self.outputs * self.most_tiles_of_sums) + self.across.m + 2 * self.lanes

    def scratch_bytes(self, host: HostContext, depth_blocks: int) -> V:
        """Scratch of a worker."""
        inputs = host.fn.mul(self.most_tiles(host, depth_blocks), self.tile_bytes(depth_blocks))
        return host.fn.add(inputs, Scratch(self).inputs + depth_blocks * self.points * self.lanes * 4)


class Scratch:
    """Offsets in bytes of a worker's scratch."""

    def __init__(self, b: Blocking) -> None:
        self.sums = b.factors * b.weight_stride * 4
        self.strip = self.sums + b.points * (b.most_tiles_of_sums * b.panel + b.lanes) * 4
        self.stage = self.strip + b.down.inputs * _STRIP * b.lanes * 4
        self.tile = self.stage + b.row_elements * b.panel * 4
        self.inputs = self.tile + b.row_elements * b.panel * 4
