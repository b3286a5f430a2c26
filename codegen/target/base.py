"""What code generation knows of a machine: an instruction set as data, fixed when a program is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dhlo.ir.dtypes import REGISTER_BITS

__all__ = ["BITS", "LINE_BYTES", "DotProduct", "MatrixTiles", "Target"]

BITS = REGISTER_BITS
_LEAST_BITS = 128  # of a vector register, on x86 and aarch64 alike
LINE_BYTES = 64
"""Of a line of caches, on every target; where a machine's are longer, some prefetches meet a line twice."""


@dataclass(frozen=True)
class DotProduct:
    """An instruction that adds dot products of neighbouring elements to each lane of an accumulator.

    `intrinsic` is LLVM's: (accumulator, x, y) -> accumulator, all of them a vector register wide. Nothing saturates.
    """

    intrinsic: str
    feature: str  # LLVM's name of what a CPU must have


@dataclass(frozen=True)
class MatrixTiles:
    """Eight registers that hold matrices of up to 16 rows of 64 bytes, and instructions that multiply them.

    A product adds to a tile of sums [m][n] that of a tile with a unit [k] for each m and one with a unit [n] for each k: units are
    pairs of bf16 with sums in f32, or four bytes with sums in i32 that wrap. Intrinsics are LLVM's, tiles are given by number:
    configure(address), load, load_once and store(tile, address, bytes between rows), zero(tile), release(); products are
    (sums, left, right). What is loaded once needn't be kept in the first-level cache.
    The 64 bytes of a configuration are 1, 15 zeros, bytes of a row of each tile as u16 (8), 16 zeros, rows of each tile as u8 (8),
    8 zeros; to configure clears all tiles, and what is done for tiles without a configuration, or of sizes that don't match, traps.
    """

    feature: str  # LLVM's name of what a CPU must have
    configure: str
    release: str
    zero: str
    load: str
    load_once: str
    store: str
    products: Mapping[str, DotProduct]  # by the type of the left side: bf16, i8 or ui8 (the right side is i8)

    @property
    def features(self) -> dict[str, str]:
        """The feature behind each intrinsic."""
        own = {x: self.feature for x in (self.configure, self.release, self.zero, self.load, self.load_once, self.store)}
        return own | {x.intrinsic: x.feature for x in self.products.values()}


@dataclass(frozen=True)
class Target:
    """An instruction set. What depends on the machine at hand besides (cache sizes, cores) isn't here: it reaches
    kernels as values of the call.

    name            as users and files spell it: "x86-64-v4+bf16"
    tag             what symbols of code for it end with
    triple          LLVM's
    features        LLVM's names of what all code may use
    tune            the CPU, by LLVM's name, that instructions are scheduled for
    vector_bits     width of a vector register
    registers       how many of them there are
    mask_registers  masks have registers of their own; elsewhere they take vector registers and instructions to make
    maxima_choose   max(a, b) is a where it is larger, else b, so also where one is NaN; elsewhere it is NaN then
    reads_factors   multiply-adds can read a vector from memory, and registers are too few to hold what loops multiply by
    strides         multiples of a run-time stride, counted from 0, that an address may add to its base
    extras          what some code uses besides, by the features' names
    dots            dot-product instructions by the type of the elements that they multiply: pairs of bf16; four of "i8" or
                    "ui8" (x) with as many i8 (y), in accumulators of i32
    matrix_dots     instructions that multiply two rows of eight bytes (x) by two columns of as many i8 (y), by the type of x: the
                    sums of i32 are [row][column]. Each is four of `dots`
    pair_products   LLVM's intrinsic of the baseline that adds products of neighbouring i16: (x, y) -> i32; "" if there is none
    byte_lookup     LLVM's intrinsic of the baseline that looks bytes up: (table, indices below 16) -> bytes, each from the 16 bytes
                    of the table that lie where its own 128 bits do
    lane_lookup     LLVM's intrinsic of the baseline that permutes a vector of i32: (vector, lanes) -> i32; "" if there is none
    tiles           matrices in registers; None if it has none, or multiplies nothing in them
    lane_factors    a multiply-add takes a factor from any lane of a register
    repeats_memory  a multiply-add takes a factor from memory that is repeated in all lanes
    fence           LLVM's intrinsic that orders stores past the caches with those after it; empty: there are no such stores
    constraint      how inline assembly asks for a vector register
    """

    name: str
    tag: str
    triple: str
    features: tuple[str, ...] = field(repr=False)
    tune: str
    vector_bits: int
    registers: int
    strides: int
    mask_registers: bool
    maxima_choose: bool
    reads_factors: bool
    extras: frozenset[str] = field(default=frozenset(), repr=False)
    dots: Mapping[str, DotProduct] = field(default_factory=dict, compare=False, repr=False)
    matrix_dots: Mapping[str, DotProduct] = field(default_factory=dict, compare=False, repr=False)
    pair_products: str = field(default="", repr=False)
    byte_lookup: str = field(default="", repr=False)
    lane_lookup: str = field(default="", repr=False)
    tiles: MatrixTiles | None = field(default=None, compare=False, repr=False)
    lane_factors: bool = field(default=False, repr=False)
    repeats_memory: bool = field(default=False, repr=False)
    fence: str = field(default="", repr=False)
    constraint: str = field(default="v", repr=False)

    @property
    def loses_prefetches(self) -> bool:
        """Whether CPUs may drop prefetches while memory is busy. Those that have matrix tiles let them wait instead, in the place
        of others: found on a Granite Rapids."""
        return self.tiles is None

    def lanes(self, elem: str) -> int:
        """Elements of an MLIR type in a vector register."""
        return self.vector_bits // BITS[elem]

    def holds(self, bits: int) -> bool:
        """Whether a vector of so many bits fills a register, or the part of one that shorter instructions take."""
        return _LEAST_BITS <= bits <= self.vector_bits and bits.bit_count() == 1

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")
