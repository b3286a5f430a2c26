"""Static parameters of a chain of convolutions, and how its rows are cut and lie in scratch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from dhlo.codegen.families.conv.params import Tiled
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import Fn, V

__all__ = ["First", "Window", "part_of_row"]

# Outputs of a row that are summed together.
_OUTPUTS = 8


@dataclass(frozen=True)
class _OfImages:
    """A convolution's static parameters, of rows and columns."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    dilation: tuple[int, int]


@dataclass(frozen=True)
class First(_OfImages):
    """The first convolution's parameters. Kernels' names are made of what it prints as."""

    @property
    def pointwise(self) -> bool:
        """Its positions are those of the image."""
        return self.kernel == self.stride == (1, 1) and not any(map(any, self.padding))


@dataclass(frozen=True)
class Window(_OfImages, Tiled):
    """The depthwise convolution's parameters, and those of the convolution before it. An item has a panel of channels."""

    elem: str
    spec: TileSpec
    first: First
    code: str = ""  # the form in which the first convolution's weights are kept, where it isn't `elem`; see quantised_weights
    image: str = ""  # the type of the image in memory, where it isn't `elem`
    pairs: bool = False  # image and `code` are bf16, two channels of the first convolution are multiplied by a dot product

    @property
    def stored(self) -> str:
        """The type of the image in memory."""
        return self.image or self.elem

    @property
    def step(self) -> int:
        """Input channels of a step of the first convolution's sums."""
        return 2 if self.pairs else 1

    @property
    def decodes(self) -> bool:
        """Whether the first convolution's weights are widened to the scratch."""
        return bool(self.code) and not self.pairs

    @property
    def bounded(self) -> bool:
        """As `ConvParams.bounded`: the last of the launch's arguments."""
        return bool(self.image) and not self.spec.target.mask_registers

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        key = (self.kernel, self.stride, self.padding, self.dilation, self.elem, self.spec.name, self.first)
        size = "x".join(map(str, self.kernel))
        coded = (f"_{self.code}" if self.code else "") + (f"_of_{self.image}" if self.image else "")
        coded += "_pairs" if self.pairs else ""
        return f"conv_chain_{self.elem}_{size}_{hashlib.sha256(repr(key).encode()).hexdigest()[:8]}{coded}"

    @property
    def outputs(self) -> int:
        """Outputs of a row that are summed together: sums, a row of weights and an input are in registers."""
        return max(1, min(_OUTPUTS, self.spec.target.registers - self.kernel[1] - 2))

    @property
    def reach(self) -> int:
        """Expanded rows of an output row."""
        return (self.kernel[0] - 1) * self.dilation[0] + 1

    def span(self, outputs: V, f: Fn) -> V:
        """Expanded rows of neighbouring output rows."""
        return f.add(f.mul(f.sub(outputs, 1), self.stride[0]), self.reach)

    def slot(self, f: Fn, depth: V | int) -> V:
        """Elements of a packed part of a row; whole vectors are written past its last channel."""
        return f.add(f.mul(depth, self.spec.mr), self.lanes)

    def row(self, f: Fn, width: V) -> V:
        """Elements of a row of expanded channels."""
        return f.mul(f.add(width, sum(self.padding[1])), self.panel)

    def row_elements(self, f: Fn, depth: V | int, width: V) -> V:
        """Of scratch for each expanded row of a band; `depth` is that of the first convolution's sums."""
        return f.add(f.mul(f.ceildivu(width, self.spec.mr), self.slot(f, depth)), self.row(f, width))


def part_of_row(f: Fn, number: V, width: V, most: int) -> tuple[V, V]:
    """First position of a part of a row, and how many it has: the fewest parts of up to `most`, balanced."""
    parts = f.ceildivu(width, most)
    first = f.divu(f.mul(number, width), parts)
    return first, f.sub(f.divu(f.mul(f.add(number, 1), width), parts), first)
