"""Special functions computed a number at a time: Bessel, Airy, zeta, incomplete gammas, orthogonal polynomials."""

# ruff: noqa: E704
from typing import Any

import torch

from dhlo.ir.dialect import Op
from dhlo.ir.ops.elementwise import Binary, SpecialOp

_WORK = 200  # simple operations; they call and branch for each number


class SpecialBinary(Binary):
    """A function of two numbers that vector math has under the op's name, as torch.special."""

    takes = "f"
    work = _WORK

    def torch(self, a: Any, b: Any) -> Any:
        return getattr(torch.special, self._torch_name())(a.double(), b.double()).to(a.dtype)

    def _torch_name(self) -> str:
        return type(self).OPERATION_NAME.removeprefix("dhlo.")


class SlowSpecialOp(SpecialOp):
    """A function of one number."""

    work = _WORK


class AiryAi(SlowSpecialOp, name="airy_ai"):
    pass


class BesselJ0(SlowSpecialOp, name="bessel_j0"):
    pass


class BesselJ1(SlowSpecialOp, name="bessel_j1"):
    pass


class BesselY0(SlowSpecialOp, name="bessel_y0"):
    pass


class BesselY1(SlowSpecialOp, name="bessel_y1"):
    pass


class ModifiedBesselK0(SlowSpecialOp, name="modified_bessel_k0"):
    pass


class ModifiedBesselK1(SlowSpecialOp, name="modified_bessel_k1"):
    pass


class ScaledModifiedBesselK0(SlowSpecialOp, name="scaled_modified_bessel_k0"):
    pass


class ScaledModifiedBesselK1(SlowSpecialOp, name="scaled_modified_bessel_k1"):
    pass


class SphericalBesselJ0(SlowSpecialOp, name="spherical_bessel_j0"):
    pass


class Ndtri(SlowSpecialOp, name="ndtri"):
    pass


class ChebyshevPolynomialT(SpecialBinary, name="chebyshev_polynomial_t"):
    pass


class ChebyshevPolynomialU(SpecialBinary, name="chebyshev_polynomial_u"):
    pass


class ChebyshevPolynomialV(SpecialBinary, name="chebyshev_polynomial_v"):
    pass


class ChebyshevPolynomialW(SpecialBinary, name="chebyshev_polynomial_w"):
    pass


class HermitePolynomialH(SpecialBinary, name="hermite_polynomial_h"):
    pass


class HermitePolynomialHe(SpecialBinary, name="hermite_polynomial_he"):
    pass


class LaguerrePolynomialL(SpecialBinary, name="laguerre_polynomial_l"):
    pass


class LegendrePolynomialP(SpecialBinary, name="legendre_polynomial_p"):
    pass


class Zeta(SpecialBinary, name="zeta"):
    pass


class Igamma(SpecialBinary, name="igamma"):
    def _torch_name(self) -> str:
        return "gammainc"


class Igammac(SpecialBinary, name="igammac"):
    def _torch_name(self) -> str:
        return "gammaincc"


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op) and c.__module__ == __name__]
