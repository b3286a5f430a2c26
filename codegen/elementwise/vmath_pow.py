"""Powers of f32."""

from __future__ import annotations

import math

from dhlo.codegen.elementwise.vmath_base import clamp, magic_round, poly, pow2, register
from dhlo.codegen.kernel_ir.builder import F32, F64, I32, I64, Fn, V

__all__: list[str] = []

# Of log2((1 + s) / (1 - s)) / s in s^2 for mantissas between the roots of 1/2 and of 2 (relative error 2^-37.8), and of 2^x for
# |x| <= 1/2 (2^-29): minimax.
_LOG2_SHORT = (0.34073010669082104, 0.41167271876779726, 0.5770835849751289, 0.9617966733416883, 2.8853900817900864)
_EXP2_OF_POWER = (
    *(0.00015345812158740183, 0.001339993120947414, 0.009618488956522791, 0.055503287769976636),
    *(0.24022646890639573, 0.6931472057372526, 1.0000000005541663),
)
_ROOT_OF_HALF = 0x3FE6A09E667F3BCD


@register("pow", ulp=1.0, arity=2)
def _pow(f: Fn, x: V, y: V) -> V:
    # 2^(y log2 |x|) in f64, as far as f32 tells: numbers of f32 are normal there, and so are powers on both sides of its range.
    magnitude, one = f.unary("fabs", x), f.const(1.0, x.type)
    a = f.cast(magnitude, F64)
    t = f.sub(f.bitcast(a, I64), _ROOT_OF_HALF)
    m = f.bitcast(f.add(f.and_(t, 0xFFFFFFFFFFFFF), _ROOT_OF_HALF), F64)
    s = f.div(f.sub(m, 1.0), f.add(m, 1.0))
    log2 = f.fma(s, poly(f, f.mul(s, s), _LOG2_SHORT), f.cast(f.shr(t, 52), F64))
    log2 = f.select(f.cmp("lt", a, math.inf), log2, a)
    log2 = f.select(f.cmp("eq", a, 0.0), f.const(-math.inf, a.type), log2)
    power = clamp(f, f.mul(f.cast(y, F64), log2), -200.0, 200.0)
    n, i = magic_round(f, power, 1.0)
    r = f.cast(f.mul(poly(f, f.sub(power, n), _EXP2_OF_POWER), pow2(f, i, F64)), F32)

    r = f.select(f.cmp("eq", magnitude, 1.0), f.select(f.cmp("uno", y, y), y, one), r)  # 1 to an infinite power too
    half = f.mul(y, 0.5)
    is_int = f.cmp("eq", y, f.unary("trunc", y))
    odd = f.and_(is_int, f.cmp("ne", half, f.unary("trunc", half)))
    negative = f.cmp("lt", f.bitcast(x, I32), 0)
    r = f.select(f.and_(negative, odd), f.neg(r), r)
    no_root = f.and_(f.and_(f.cmp("lt", x, 0.0), f.cmp("lt", magnitude, math.inf)), f.not_(is_int))
    r = f.select(no_root, f.const(math.nan, x.type), r)
    return f.select(f.or_(f.cmp("eq", y, 0.0), f.cmp("eq", x, 1.0)), one, r)
