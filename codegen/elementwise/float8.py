"""Floats of eight bits in registers: their bits to and from f32, by integer arithmetic that every target has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dhlo.codegen.kernel_ir.builder import F32, I32, Fn, V

__all__ = ["FLOAT8", "from_float8", "to_float8"]

I8 = "i8"


@dataclass(frozen=True)
class Format:
    """mantissa: its bits; bias: of the exponent; over: f32 bits of the magnitude from which all become `most`; infinite: there are
    infinities, else the largest exponent holds numbers, too, and numbers beyond the largest become that, as PyTorch has it from
    2.13 on."""

    mantissa: int
    bias: int
    over: int
    most: int
    infinite: bool


FLOAT8: Final[dict[str, Format]] = {
    "f8E4M3FN": Format(3, 7, 0x43E00000, 0x7E, infinite=False),
    "f8E5M2": Format(2, 15, 143 << 23, 0x7C, infinite=True),
}
"""By dtype."""


def from_float8(fn: Fn, raw: V, dtype: str) -> V:
    """The f32 values of bits (i8, or a wider integer that holds them): through f16, whose subnormal numbers cost nothing."""
    form = FLOAT8[dtype]
    bits = fn.and_(fn.cast(raw, "i16"), 0xFF)
    magnitude = fn.and_(bits, 0x7F)
    half = fn.shl(magnitude, 10 - form.mantissa)
    if not form.infinite:
        half = fn.select(fn.cmp("eq", magnitude, 0x7F), fn.const(0x7E00, half.type), half)
    half = fn.or_(half, fn.shl(fn.and_(bits, 0x80), 8))
    x = fn.cast(fn.bitcast(half, "f16"), F32)
    return x if form.bias == 15 else fn.mul(x, fn.const(2.0 ** (15 - form.bias), x.type))


def to_float8(fn: Fn, x: V, dtype: str) -> V:
    """The bits (i8) of f32 values rounded to nearest, ties to even, as c10/util/Float8_e4m3fn.h and Float8_e5m2.h do it."""
    form = FLOAT8[dtype]
    shift, least = 23 - form.mantissa, (127 + 1 - form.bias) << 23
    with fn.wrapping():
        bits = fn.bitcast(fn.cast(x, F32), I32)
        magnitude = fn.and_(bits, 0x7FFFFFFF)
        # Below the least normal number: adding 2^(last place + 23) leaves the mantissa at the low end, rounded.
        magic = fn.const(2.0 ** (1 - form.bias - form.mantissa + 23), x.type)
        small = fn.sub(fn.bitcast(fn.add(fn.bitcast(magnitude, F32), magic), I32), fn.bitcast(magic, I32))
        odd = fn.and_(fn.shr(magnitude, shift), 1)
        rebased = fn.add(magnitude, ((form.bias - 127) << 23) + (1 << shift - 1) - 1)
        normal = fn.shr(fn.add(rebased, odd), shift)
        y = fn.select(fn.cmp("lt", magnitude, least), small, normal)
        y = fn.select(fn.cmp("ge", magnitude, form.over), fn.const(form.most, y.type), y)
        y = fn.select(fn.cmp("gt", magnitude, 255 << 23), fn.const(0x7F, y.type), y)
        sign = fn.and_(fn.shr(bits, 24), 0x80)
        return fn.cast(fn.or_(y, sign), I8)
