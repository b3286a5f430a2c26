"""Division of vectors of integers, which processors divide one at a time: by divisions of floats, which are exact.

For whole a and b below 2^p, p the bits of a float's precision, the quotient a / b lies at least 1 / b below any whole number n that
it is less than, and it is rounded to n only if that is at most n / 2^(p + 1), for which n b would have to be 2^p and more. So its
whole part is that of the exact quotient, rounded down or to zero.
"""

from __future__ import annotations

from typing import Final, Literal

from dhlo.codegen.elementwise.vmath_base import any_lane
from dhlo.codegen.kernel_ir.builder import F32, F64, I32, I64, Fn, V

__all__ = ["divide"]

# Integers of 64 bits are converted by the bits of 1.5 * 2^52 plus the integer, which every target can do: those of 52 bits.
_MAGIC: Final = 1.5 * 2.0**52
_MAGIC_BITS: Final = 0x4338 << 48
_LIMIT: Final = 1 << 51

Rounding = Literal["floor", "trunc"]


def divide(fn: Fn, a: V, b: V, rounding: Rounding) -> tuple[V, V]:
    """a / b rounded down or to zero, and the remainder, which has the sign of b or of a; both are 0 where b is 0.

    Vectors of up to 32 bits are divided as floats; of 64 bits where all are below 2^51, others one at a time. By constants of up to
    32 bits, and powers of two, LLVM multiplies and shifts.
    """
    # Division by 0, and of the lowest value by -1, stops the processor: both divide by 1 instead, whose remainder 0 is right.
    safe = fn.select(fn.or_(fn.cmp("eq", b, 0), fn.cmp("eq", b, -1)), fn.const(1, b.type), b)
    known = fn.constant(b)
    if not a.lanes or known is not None and (a.elem != I64 or abs(known).bit_count() == 1):
        q, r = _one_by_one(fn, a, safe, rounding)
    else:
        q, r = _by_floats(fn, a, safe, rounding)
    q = fn.select(fn.cmp("eq", b, 0), fn.const(0, a.type), fn.select(fn.cmp("eq", b, -1), fn.neg(a), q))
    return q, r


def _by_floats(fn: Fn, a: V, b: V, rounding: Rounding) -> tuple[V, V]:
    if a.elem != I64:
        elem = F64 if a.elem == I32 else F32
        q = fn.cast(fn.unary(rounding, fn.div(fn.cast(a, elem), fn.cast(b, elem))), a.elem)
        return q, fn.sub(a, fn.mul(q, b))

    def fast() -> list[V]:
        x, y = (fn.sub(fn.bitcast(fn.add(v, _MAGIC_BITS), F64), _MAGIC) for v in (a, b))
        q = fn.unary(rounding, fn.div(x, y))
        whole = fn.sub(fn.bitcast(fn.add(q, _MAGIC), I64), _MAGIC_BITS)
        rest = fn.fma(fn.sub(0.0, q), y, x)  # exact
        return [whole, fn.sub(fn.bitcast(fn.add(rest, _MAGIC), I64), _MAGIC_BITS)]

    high = fn.or_(fn.add(a, _LIMIT), fn.add(b, _LIMIT))
    large = fn.cmp("ne", fn.and_(high, -2 * _LIMIT), 0)
    q, r = fn.if_else(any_lane(fn, large), lambda: list(_one_by_one(fn, a, b, rounding)), fast, [a.type] * 2)
    return q, r


def _one_by_one(fn: Fn, a: V, b: V, rounding: Rounding) -> tuple[V, V]:
    q, r = fn.div(a, b), fn.rem(a, b)
    if rounding == "trunc":
        return q, r
    wrong = fn.and_(fn.cmp("ne", r, 0), fn.cmp("ne", fn.cmp("lt", r, 0), fn.cmp("lt", b, 0)))
    return fn.select(wrong, fn.sub(q, 1), q), fn.select(wrong, fn.add(r, b), r)
