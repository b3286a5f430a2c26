"""Vector math (exp, log, tanh, erf, sin, pow, ...) as inlined polynomial code with a stated and tested error bound.

`call(fn, name, *operands)` emits the function once a module for an element type and lane count, as an always-inline
internal function, and calls it; scalars (lanes 0) and vectors are served alike. f16 and bf16 callers convert to f32
first. `ULP` states the largest error of each f32 function in units in the last place of the result, over all finite
arguments; special values (NaN, infinities, signed zeros, denormals) are as in C99. f64 functions are correct to a few
ULP; some go through libm lane by lane. Where operands and result are normal numbers far from the subnormal
ones, so is all in between: many CPUs take a hundred cycles for an operation that reads or makes a subnormal number.
"""

from __future__ import annotations

from dhlo.codegen.elementwise import (  # noqa: F401  (they register)
    vmath_bessel,
    vmath_cephes,
    vmath_f32,
    vmath_f64,
    vmath_gamma,
    vmath_orthogonal,
    vmath_pow,
    vmath_special,
)
from dhlo.codegen.elementwise.vmath_base import ARITY, ULP, call

__all__ = ["ARITY", "ULP", "call"]
