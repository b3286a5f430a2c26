"""aarch64: NEON, which every such CPU has, and what some have beyond it."""

from __future__ import annotations

from collections.abc import Iterable

from dhlo.codegen.target.base import DotProduct, Target

__all__ = ["EXTRAS", "LEVEL", "TRIPLE", "aarch64"]

TRIPLE = "aarch64-unknown-linux-gnu"
LEVEL = "aarch64"
FEATURES = ("fp-armv8", "neon")
EXTRAS: dict[str, tuple[str, ...]] = {"dotprod": ("dotprod",), "i8mm": ("i8mm",), "bf16": ("bf16",), "sve": ("sve",)}
"""What a target's name may add, and the features behind it."""

# By the type of x; those of i8mm multiply rows of eight by columns of as many.
_DOTS = (("bf16", "bf16", "bfdot.v4f32.v8bf16"), ("dotprod", "i8", "sdot.v4i32.v16i8"), ("i8mm", "ui8", "usdot.v4i32.v16i8"))
_MATRIX_DOTS = (("i8mm", "i8", "smmla.v4i32.v16i8"), ("i8mm", "ui8", "usmmla.v4i32.v16i8"))


def aarch64(extras: Iterable[str] = (), tune: str = "") -> Target:
    """A target with some of `EXTRAS`, scheduled for the CPU `tune`."""
    names = sorted(extras)
    dots, matrix_dots = (
        {key: DotProduct(f"llvm.aarch64.neon.{name}", has) for has, key, name in table if has in names}
        for table in (_DOTS, _MATRIX_DOTS)
    )
    return Target(
        name="+".join([LEVEL, *names]),
        tag=LEVEL,
        triple=TRIPLE,
        features=FEATURES,
        tune=tune or "neoverse-n1",
        vector_bits=128,
        registers=32,
        strides=1,
        mask_registers=False,
        maxima_choose=False,
        reads_factors=False,
        extras=frozenset(f for n in names for f in EXTRAS[n]),
        dots=dots,
        matrix_dots=matrix_dots,
        byte_lookup="llvm.aarch64.neon.tbl1.v16i8",
        lane_factors=True,
        constraint="w",
    )
