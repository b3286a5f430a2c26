"""Special functions computed one number at a time: the translation of scripts, and their accuracy."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from dhlo.codegen.backends.cpu import llvm
from dhlo.codegen.elementwise import vmath_cephes as cephes
from dhlo.codegen.elementwise import vmath_gamma as gamma
from dhlo.codegen.elementwise import vmath_orthogonal as orthogonal
from dhlo.codegen.elementwise.script import Script, script
from dhlo.codegen.elementwise.script_math import emit_scalar
from dhlo.codegen.kernel_ir.builder import F32, F64, Fn, KernelModule
from dhlo.errors import InternalError
from tests.codegen.test_vmath import build, run
from tests.targets import TARGET

LINE = [
    -40.5,
    -9.25,
    -3.0,
    -2.09,
    -1.0,
    -0.3,
    -1e-7,
    0.0,
    1e-9,
    0.1,
    0.5,
    1.0,
    1.9,
    2.0,
    2.4,
    4.99,
    5.0,
    5.5,
    8.0,
    9.0,
    30.7,
    104.0,
    1e4,
]
ODD = [math.inf, -math.inf, math.nan]
UNARY: list[Callable[..., Any]] = cephes._FUNCTIONS
POLYNOMIALS: list[Callable[..., Any]] = orthogonal._POLYNOMIALS
GAMMAS = [gamma.zeta, gamma.igamma, gamma.igammac]


def python(f: Callable[..., Any], *xs: float) -> float:
    """The script as Python; NaN where Python's functions raise, as C's then give."""
    try:
        return float(f(*xs))
    except (ValueError, OverflowError, ZeroDivisionError):
        return math.nan


def operands(f: Callable[..., Any]) -> list[tuple[float, ...]]:
    if f in UNARY:
        return [(x,) for x in LINE + ODD + [0.9, 0.97, 1 - 1e-9]]
    if f in POLYNOMIALS:
        return [(x, n) for x in (-1.5, -1.0, -0.4, 0.0, 0.3, 0.99, 1.0, 1.7) for n in (-1.0, 0.0, 1.0, 2.0, 3.7, 6.0, 9.0, 33.0)]
    return [(x, y) for x in LINE[7:] + [3e6, 1.5] + ODD for y in LINE[5:] + [3e6 + 100] + ODD]


@pytest.mark.parametrize("f", [*UNARY, *POLYNOMIALS, *GAMMAS], ids=lambda f: f.__name__)
def test_scripts_compute_what_they_compute_as_python(f: Callable[..., Any]) -> None:
    cases = operands(f)
    xs = [np.array(x) for x in zip(*cases, strict=True)]
    want = np.array([python(f, *x) for x in cases])
    known = ~np.isnan(want)
    got = run(build([f.__name__], F64, TARGET.lanes(F64)), f.__name__, *xs)
    # An angle that differs in its last place makes up to 33 times as much of a difference beside 1.
    nearly = 1e-15 if f in GAMMAS else 2e-14 if f in POLYNOMIALS else 1e-300
    np.testing.assert_allclose(got[known], want[known], rtol=2e-13, atol=nearly)
    narrow = [x.astype(np.float32) for x in xs]
    want32 = np.array([python(f, *map(float, x)) for x in zip(*narrow, strict=True)])
    got32 = run(build([f.__name__], F32, TARGET.lanes(F32)), f.__name__, *narrow)
    small = known & ~np.isnan(want32) & (abs(want32) < 1e38) & (abs(want32) > 1e-37)
    np.testing.assert_allclose(got32[small], want32[small], rtol=4e-6 if f in GAMMAS else 2e-7)


EXACT: dict[str, Callable[..., Any]] = {
    "bessel_j0": lambda x: mpmath.besselj(0, x),
    "bessel_j1": lambda x: mpmath.besselj(1, x),
    "bessel_y0": lambda x: mpmath.bessely(0, x),
    "bessel_y1": lambda x: mpmath.bessely(1, x),
    "modified_bessel_k0": lambda x: mpmath.besselk(0, x),
    "modified_bessel_k1": lambda x: mpmath.besselk(1, x),
    "scaled_modified_bessel_k0": lambda x: mpmath.exp(x) * mpmath.besselk(0, x),
    "scaled_modified_bessel_k1": lambda x: mpmath.exp(x) * mpmath.besselk(1, x),
    "spherical_bessel_j0": lambda x: mpmath.sin(x) / x,
    "airy_ai": mpmath.airyai,
    "ndtri": lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1),
}


@pytest.mark.parametrize("f", UNARY, ids=lambda f: f.__name__)
def test_functions_of_one_number_are_right(f: Callable[..., Any]) -> None:
    points = [x for x in LINE if 0 < x < 1] if f is cephes.ndtri else [x for x in LINE if 1e-9 < x < 50]
    points += [-x for x in points if f in (cephes.airy_ai, cephes.bessel_j0, cephes.bessel_j1, cephes.spherical_bessel_j0)]
    with mpmath.workdps(40):
        for x in points:
            want = EXACT[f.__name__](mpmath.mpf(x))
            assert abs(f(x) - want) <= 4e-15 * abs(want) + 2e-15, (x, f(x), want)


def _lower_gamma(a: float, x: float) -> Any:
    """The regularised lower incomplete gamma function by its series (DLMF 8.11.4), which mpmath gives up on for large `a`."""
    term, total, k = mpmath.mpf(1), mpmath.mpf(1), 0
    while k < x - a or term > total * mpmath.eps:
        k += 1
        term *= x / mpmath.mpf(a + k)
        total += term
    return total * mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(mpmath.mpf(a) + 1))


def test_gamma_functions_are_right() -> None:
    with mpmath.workdps(40):
        for a in (0.3, 1.0, 4.5, 30.0, 150.0, 400.0, 2e4, 3e6):
            for x in (a / 3, 0.97 * a, a, a * 1.002, a * 2):
                if a > 1e5 and abs(x - a) > 1e4:
                    continue
                lower = _lower_gamma(a, x)
                upper = 1 - lower
                assert abs(gamma.igamma(a, x) - lower) <= 1e-11 * lower + 1e-300, (a, x)
                assert abs(gamma.igammac(a, x) - upper) <= 1e-11 * upper + 1e-15, (a, x)
    with mpmath.workdps(90):  # digits after the point of numbers down to 1e-40
        for s in (1.1, 2.0, 3.5, 20.0):
            for q in (0.1, 1.0, 7.5, 100.0):
                assert abs(gamma.zeta(s, q) / mpmath.zeta(s, q) - 1) <= 1e-13, (s, q)
    assert gamma.zeta(3.0, -2.0) == math.inf and math.isnan(gamma.zeta(2.5, -2.5))


@pytest.mark.parametrize("f", POLYNOMIALS, ids=lambda f: f.__name__)
def test_polynomials_of_any_degree_end(f: Callable[..., Any]) -> None:
    for n in (math.inf, -math.inf, math.nan, 1e300, -1e300):
        assert python(f, 0.5, n) == 0.0 or math.isnan(python(f, 0.5, n)), n


# ---------------------------------------------------------------------------------------------------- translation
@script
def _tables(k: int) -> float:
    return (2.0, 3.0, 5.0)[k] + (0.5 if k == 1 else 0.0)


@script
def _control(x: float, y: float) -> float:
    """Loops with break, continue and early return; conditions with and, or, not."""
    total, k = 0.0, 0
    for i in range(10, 0, -2):
        if i == 4 or x < 0.0 and not y > 0.0:
            continue
        total += i * x
    while True:
        k += 1
        if k % 3 == 2 and total > 100.0:
            return total - k // 2
        if k > 5:
            break
    for c in (1.0, 2.5):
        total = total * c + _tables(min(k, 2)) - _tables(int(abs(min(x, 1.0))))
    return total if total == total else -1.0


@script
def _unknown(x: float) -> float:
    return math.degrees(x)


def test_control_flow_of_scripts() -> None:
    module = KernelModule(TARGET)
    name = emit_scalar(module, _control, 2)
    outer = Fn(module, "outer", [("x", F64), ("y", F64)], F64, internal=False)
    outer.ret(outer.call(name, outer.args, F64))
    outer.done()
    jit = llvm.Jit([llvm.compile_object(llvm.lower_to_llvm_ir(module.text(), TARGET), TARGET)])
    call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(jit.address("outer"))
    for x in (-2.5, -0.5, 0.0, 0.7, 3.0, 20.0):
        for y in (-1.0, 0.0, 1.0):
            assert call(x, y) == _control(x, y), (x, y)


def test_what_scripts_cannot_call_is_named() -> None:
    fn = Fn(KernelModule(TARGET), "f", [("x", F64)], F64)
    with pytest.raises(InternalError, match="can't call .*degrees"):
        Script(fn).call(_unknown, *fn.args)
