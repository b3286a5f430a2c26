"""Special functions: Bessel's, Airy's, zeta and polygamma, the incomplete gammas, orthogonal polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable

from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import LOWERINGS, lowers
from dhlo.ir.dialect import OPS, Op
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import special

_UNARY = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
    "ndtri",
]
_BINARY = [
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "zeta",
]


def _unary(cls: type[Op]) -> Callable[..., Value]:
    return lambda b, x: b.unary(cls, x)


def _binary(b: OpBuilder, cls: type[Op], x: Operand, y: Operand) -> Value:
    d = b.result_type(x, y)
    return b.ew(cls, x, y, dtype=d if d.is_float else "f32")


def _binary_rule(cls: type[Op]) -> Callable[..., Value]:
    return lambda b, x, y: _binary(b, cls, x, y)


def _shifted(cls: type[Op]) -> Callable[..., Value]:
    """The polynomial of 2 x - 1, which f32 would round."""

    def rule(b: OpBuilder, x: Operand, n: Operand) -> Value:
        d = b.result_type(x, n)
        at = b.ew(ew.Sub, b.ew(ew.Mul, x, 2.0, dtype="f64"), 1.0, dtype="f64") if b.is_tensor(x) else 2.0 * x - 1.0
        return b.convert(b.ew(cls, at, n, dtype="f64"), d if d.is_float else "f32")

    return rule


def _register(name: str, rule: Callable[..., Value], scalars: tuple[str, str]) -> None:
    """Of two tensors, or a tensor and a number at either place."""
    packet = getattr(A, f"special_{name}")
    lowers(packet.default, *(getattr(packet, s) for s in scalars))(rule)


for _name in _UNARY:
    lowers(getattr(A, f"special_{_name}").default)(_unary(OPS[f"dhlo.{_name}"]))
for _name in _BINARY:
    _register(
        _name, _binary_rule(OPS[f"dhlo.{_name}"]), ("self_scalar", "other_scalar") if _name == "zeta" else ("x_scalar", "n_scalar")
    )
for _name in (n for n in _BINARY if n.startswith("chebyshev")):
    _register(f"shifted_{_name}", _shifted(OPS[f"dhlo.{_name}"]), ("x_scalar", "n_scalar"))
lowers(A.igamma.default)(_binary_rule(special.Igamma))
lowers(A.igammac.default)(_binary_rule(special.Igammac))
lowers(A.special_modified_bessel_i0.default)(_unary(ew.BesselI0))
lowers(A.special_modified_bessel_i1.default)(_unary(ew.BesselI1))


@lowers(A.polygamma.default)
def _polygamma(b: OpBuilder, n: int, x: Value) -> Value:
    """The derivative of order n of digamma: n! zeta(n + 1, x), with alternating sign."""
    if n == 0:
        return LOWERINGS[A.digamma.default](b, x)
    factor = math.inf if n > 170 else float(math.factorial(n))
    return b.in_f32(lambda v: b.mul(b.ew(special.Zeta, n + 1.0, v), factor if n % 2 else -factor), b.floating(x))
