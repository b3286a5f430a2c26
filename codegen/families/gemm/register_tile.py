"""The register tile of matrix products: how large it is on a target, what its panels hold, what it's summed in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dhlo.codegen.kernel_ir.builder import BITS, F32, I8, I32, Fn, V
from dhlo.codegen.target import DotProduct, Target

__all__ = [
    "BF16",
    "F16",
    "MATRIX",
    "SIGN_BITS",
    "TileSpec",
    "accumulator",
    "depth",
    "in_one_set",
    "result_type",
    "tile_spec",
    "unit",
]

BF16, F16 = "bf16", "f16"

SIGN_BITS = -0x7F7F7F80
"""Of a unit of bytes."""


def accumulator(elem: str) -> str:
    """The element type of tiles: products of bf16 and f16 are summed in f32, those of i8 in i32."""
    return {BF16: F32, F16: F32, I8: I32}.get(elem, elem)


def result_type(elem: str) -> str:
    """The element type of results that micro-kernels store: sums as they are, or rounded to the operands' type."""
    return elem if elem in (BF16, F16) else accumulator(elem)


def unit(elem: str) -> str:
    """The element type of panels: bf16 and i8 lie in groups of adjacent k, as the dot-product instruction reads them; f16 becomes
    f32 as it is packed."""
    return I32 if depth(elem) > 1 else F32 if elem == F16 else elem


def depth(elem: str) -> int:
    """How many steps of k a unit of a panel holds."""
    return {BF16: 2, I8: 4}.get(elem, 1)


@dataclass(frozen=True)
class TileSpec:
    """How a target's vector registers are tiled (MR x NR in BLIS's terms): `mr` rows by `vectors` vectors.

    A panel of B is [k][panel(elem)] on every target, so that all read the same packed weights: as wide as a tile, or as
    `per_panel` tiles side by side. A panel of A is [k][mr] with exactly as many rows as the micro-kernel variant that
    reads it (1 to rows(elem), so tails are balanced rather than padded), a tile row-major with its columns as leading
    dimension. For bf16, panels hold pairs: [ceil(k / 2)][columns or mr][2], an odd k padded with 0; tiles are f32.
    Without a dot product of pairs, panels of A hold f32 instead, [ceil(k / 2)][2][mr], and those of B are widened in
    registers, one k after the other: a tile then is as large as that of f32. For i8 they hold four:
    [ceil(k / 4)][columns or mr][4], and tiles are i32, whose sums wrap; the left side may be ui8 as well, and lies there
    as the dot product wants it (`flips`). Where the target multiplies matrices of bytes (`matrices`), a panel of A holds two
    units of a row side by side, [ceil(k / 8)][mr][8].
    """

    target: Target
    mr: int
    vectors: int
    per_panel: int
    widen: bool = False  # even where the target has a dot product of pairs
    unsigned: bool = False  # the left side of i8 is ui8
    matrices: bool = False  # bytes are multiplied by `Target.matrix_dots`

    def __str__(self) -> str:
        return f"{self.target.name} {self.name}"

    @property
    def name(self) -> str:
        return f"{self.mr}x{self.nr(F32)}{self.suffix}"

    @property
    def suffix(self) -> str:
        """What tells symbols of kernels apart: for wider panels than a tile, for units that needn't be widened, for ui8."""
        of = "" if self.per_panel == 1 else f"_of{self.panel(F32)}"
        return (
            of
            + ("_widened" if self.widen else "")
            + ("_unsigned" if self.unsigned else "")
            + ("_matrices" if self.matrices else "")
        )

    @property
    def alone(self) -> TileSpec:
        """The same tiles with panels of their own width, for what is packed and read in one place."""
        return replace(self, per_panel=1)

    def of_bytes(self, *, unsigned: bool) -> TileSpec:
        """Tiles of products of i8, or of ui8 and i8: higher and narrower ones where the target multiplies matrices of them, since
        the units of B, which lie as all targets read them, are brought to pairs of columns once for all rows."""
        spec, target = replace(self, unsigned=unsigned), self.target
        if spec._own not in target.matrix_dots:
            return spec
        # Columns of a register of B, and as many sums for each two rows, beside it and two vectors of each side.
        pairs = _MATRIX_VECTORS * target.lanes(I32) // MATRIX
        mr = (target.registers - pairs - 4) // pairs * MATRIX
        per_panel = self.vectors * self.per_panel // _MATRIX_VECTORS
        return replace(spec, mr=mr, vectors=_MATRIX_VECTORS, per_panel=per_panel, matrices=True)

    @property
    def by_dots(self) -> TileSpec:
        """The same without products of matrices."""
        return replace(self, matrices=False)

    @property
    def bf16_dot(self) -> DotProduct | None:
        return None if self.widen else self.target.dots.get(BF16)

    def dot(self, elem: str) -> DotProduct | None:
        """The target's dot product of the elements of a unit."""
        return self.bf16_dot if elem == BF16 else self.target.dots.get(self.left) if elem == I8 else None

    @property
    def matrix_dot(self) -> DotProduct | None:
        """The target's product of matrices of bytes, where it is used."""
        return self.target.matrix_dots[self._own] if self.matrices else None

    @property
    def _own(self) -> str:
        """The type of the left side's bytes."""
        return "ui8" if self.unsigned else I8

    @property
    def left(self) -> str:
        """What the left side of the dot product of bytes is: the operand's type if there is a choice."""
        mine, other = ("ui8", I8) if self.unsigned else (I8, "ui8")
        return other if other in self.target.dots and mine not in self.target.dots else mine

    def flips(self, elem: str) -> bool:
        """Whether panels of A hold bytes with their sign bit flipped, i8 + 128 as ui8 or ui8 - 128 as i8, since the dot product
        wants the other kind. The micro-kernels take back what that adds to each sum, a multiple of the sum of B's column, and
        have two arguments more, after A: `sums`, memory for panel(elem) of those in i32, and `turn`, which is 0 in the first
        call for some columns and steps of B. That one computes them, the calls after it read them."""
        return elem == I8 and not self.matrices and self.left != self._own

    def lanes(self, elem: str) -> int:
        """Columns of the tile in a vector register."""
        return self.target.lanes(accumulator(elem))

    def rows(self, elem: str) -> int:
        """The most rows of a tile: taking bytes apart takes registers, and so do sums of B's columns."""
        return self.mr - 2 if self._takes_apart(elem) else self.mr - self.flips(elem)

    def widens(self, elem: str) -> bool:
        """Whether units are taken apart: bf16 is then multiplied as f32, i8 as i16 or i32."""
        return depth(elem) > 1 and not self.dot(elem)

    def _takes_apart(self, elem: str) -> bool:
        """Whether the parts of units of both sides lie in registers at once."""
        return elem == I8 and self.widens(elem) and not self.matrices

    def left_parts(self, elem: str) -> int:
        """How many numbers of unit(elem)'s size a panel of A has for one row's unit: the elements of bf16 that is widened, or 1."""
        return depth(elem) if elem == BF16 and self.widens(elem) else 1

    def left_steps(self, fn: Fn, steps: V) -> V:
        """How many units a panel of A has for one row's `steps`."""
        return fn.mul(fn.ceildivu(steps, MATRIX), MATRIX) if self.matrices else steps

    def products(self, elem: str) -> int:
        """Multiplications for a unit: of each of its elements, of pairs of bytes, or of all by a dot product."""
        if elem != I8:
            return self.left_parts(elem)
        return 1 if self.dot(elem) else 2 if self.target.pair_products else 4

    def nr(self, elem: str) -> int:
        """Columns of a tile."""
        return self.vectors * self.lanes(elem)

    def panel(self, elem: str) -> int:
        """Columns of a panel of B."""
        return self.nr(elem) * self.per_panel

    def columns(self, elem: str, mr: int) -> int:
        """Columns of a tile of `mr` rows over packed panels, and its leading dimension."""
        return self.panel(elem) if mr <= self.whole_panel_rows(elem) else self.nr(elem)

    def tile_elements(self, elem: str) -> int:
        """Room for the largest tile."""
        return max(mr * self.columns(elem, mr) for mr in range(1, self.rows(elem) + 1))

    def row_bytes(self, elem: str) -> int:
        """Bytes of a panel of B at one step of k."""
        return self.panel(elem) * BITS[unit(elem)] // 8

    def accumulators(self, elem: str) -> int:
        """Registers left for sums of few rows beside a row of B and two more vectors. Bytes taken apart have two of each row of B,
        the second of pairs take a mask."""
        beside = self.vectors * (1 + self._takes_apart(elem)) + (self.left_parts(elem) > 1)
        return self.target.registers - beside - 2

    def whole_panel_rows(self, elem: str) -> int:
        """The most rows for which a tile spans a panel, where panels are wider than tiles: sums of few rows leave registers
        for more columns, and B then streams through in one pass."""
        if self.per_panel == 1:
            return 0
        if self.matrices:
            return MATRIX
        columns = self.vectors * self.per_panel * (1 + self._takes_apart(elem))
        return self.accumulators(elem) // columns - self.flips(elem)


MATRIX = 2
"""Rows, columns and units of k of a product of matrices."""
# Vectors of a tile of such products.
_MATRIX_VECTORS = 2
# Columns of f32 of a tile, at least, and of a panel of B on every target.
_LEAST_COLUMNS, _PANEL_COLUMNS = 16, 32


def tile_spec(target: Target) -> TileSpec:
    """The largest tile whose accumulators, a row of B and two more vectors fit the target's registers: at least two vectors and 16
    columns of f32 wide, so that an element of A serves several multiply-adds."""
    vectors = max(2, _LEAST_COLUMNS // target.lanes(F32))
    mr = (target.registers - vectors - 2) // vectors
    return TileSpec(target, mr, vectors, _PANEL_COLUMNS // (vectors * target.lanes(F32)))


def in_one_set(elem: str, spec: TileSpec) -> int:
    """From so many rows on the steps of k are summed one after the other: those of panels of products that are split, so that no
    split changes a sum's order."""
    return (spec.rows(elem) + 1) // 2
