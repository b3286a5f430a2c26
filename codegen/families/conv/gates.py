"""Numbers for each image and channel by which kernels multiply an image as they load it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dhlo.codegen.families.conv.image import Stored
from dhlo.codegen.families.gemm.register_tile import BF16
from dhlo.codegen.kernel_ir.builder import F32, I32, Fn, V

__all__ = ["StepGates", "gated", "load_gate", "load_step_gates"]

StepGates = Sequence[V]
"""The gates of the channels of a step, one or two, in all lanes; none where an image isn't gated."""


class Gated(Stored, Protocol):
    """Parameters that say how many channels a vector has, and in how many lanes."""

    @property
    def stored(self) -> str:
        """The image's type in memory, which its gates are of."""
        ...

    @property
    def tiles(self) -> bool:
        """Whether the target's matrix registers may multiply the image, of bf16."""
        ...

    @property
    def lanes(self) -> int: ...

    @property
    def channel_pairs(self) -> bool:
        """Whether two channels lie side by side."""
        ...


def load_gate(f: Fn, p: Gated, gates: V, channel: V | int, has: V | None = None) -> V:
    """The gate of a channel in all lanes, 0 where `has` doesn't hold: there is none in memory then."""
    at = f.i64(channel)
    one = f.load(f.gep(gates, at if has is None else f.select(has, at, f.i64(0)), p.stored), p.stored)
    one = f.cast(one, p.elem)
    return f.splat(one if has is None else f.select(has, one, f.const(0, p.elem)), p.lanes)


def load_step_gates(f: Fn, p: Gated, gates: V, step: V | int, both: V | None) -> StepGates:
    """Of a step of the reduction, whose second channel there is where `both` holds."""
    if not p.channel_pairs:
        return (load_gate(f, p, gates, step),)
    first = f.mul(f.i64(step), 2)
    return load_gate(f, p, gates, first), load_gate(f, p, gates, f.add(first, 1), both)


def gated(f: Fn, p: Gated, x: V, gates: StepGates) -> V:
    """A vector of `load_elements` or `load_pairs` multiplied by gates. Products are rounded to bf16 again for dot products and for
    matrix registers, and for kernels beside these."""
    if not gates:
        return x
    if len(gates) == 1:
        product = f.mul(x, gates[0])
        return f.cast(f.cast(product, BF16), F32) if p.tiles else product
    halves = (f.bitcast(h, F32) for h in (f.shl(x, 16), f.and_(x, -0x10000)))
    products = (f.cast(f.mul(h, gate), BF16) for h, gate in zip(halves, gates, strict=True))
    low, high = (f.cast(f.bitcast(h, "i16"), I32, signed=False) for h in products)
    return f.or_(low, f.shl(high, 16))
