"""aarch64: NEON, which every such CPU has, and what some have beyond it."""

from __future__ import annotations

from collections.abc import Iterable

from dhlo.codegen.target.base import DotProduct, Target

__all__ = ["EXTRAS", "LEVEL", "TRIPLE", "aarch64"]

TRIPLE = "aarch64-unknown-linux-gnu"
LEVEL = "aarch64"
FEATURES = ("fp-armv8", "neon")
EXTRAS = {"dotprod": ("dotprod",), "i8mm": ("i8mm",), "bf16": ("bf16",), "sve": ("sve",)}
"""What a target's name may add, and the features behind it."""


def aarch64(extras: Iterable[str] = (), tune: str = "") -> Target:
    """A target with some of `EXTRAS`, scheduled for the CPU `tune`."""
    names = sorted(extras)
    dots = {"bf16": DotProduct("llvm.aarch64.neon.bfdot.v4f32.v8bf16", "bf16")} if "bf16" in names else {}
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
        extras=frozenset(f for n in names for f in EXTRAS[n]),
        dots=dots,
        lane_factors=True,
        constraint="w",
    )
