"""Bessel functions and the scaled complementary error function; f32 is evaluated in f64 and rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dhlo.codegen.elementwise.vmath_base import call, poly, register, with_sign
from dhlo.codegen.kernel_ir.builder import F32, F64, Fn, V

__all__: list[str] = []

# Chebyshev series of exp(-x) I0(x) and exp(-x) I1(x) / x in x / 4 - 1 for 0 <= x <= 8, and of both functions times
# sqrt(x) in 16 / x - 1 beyond (the forms of Cephes' i0e and i1e); 1e-17
_I0_NEAR = (
    0.33839763720473803,
    -0.3046826723431984,
    0.17162090152220877,
    -0.09490109704804764,
    0.04930528423967071,
    -0.02373741480589947,
    0.010546460394594998,
    -0.004324309995050576,
    0.0016394756169413357,
    -0.0005763755745385824,
    0.00018850288509584165,
    -5.754195010082104e-05,
    1.6448448070728896e-05,
    -4.4167383584587505e-06,
    1.1173875391201037e-06,
    -2.670793853940612e-07,
    6.046995022541919e-08,
    -1.300025009986248e-08,
    2.6598237246823866e-09,
    -5.189795601635263e-10,
    9.675809035373237e-11,
    -1.726826291441556e-11,
    2.95505266312964e-12,
    -4.856446783111929e-13,
    7.676185498604936e-14,
    -1.1685332877993451e-14,
    1.715391285555133e-15,
    -2.431279846547955e-16,
    3.3307945188222384e-17,
    -4.4153416464793395e-18,
)
_I0_FAR = (
    0.4022452055070544,
    0.0033691164782556943,
    6.889758346916825e-05,
    2.8913705208347567e-06,
    2.0489185894690638e-07,
    2.266668990498178e-08,
    3.3962320257083865e-09,
    4.94060238822497e-10,
    1.1889147107846439e-11,
    -3.1499165279632416e-11,
    -1.3215811840447713e-11,
    -1.7941785315068062e-12,
    7.180124451383666e-13,
    3.8527783827421426e-13,
    1.54008621752141e-14,
    -4.150569347287222e-14,
    -9.554846698828307e-15,
    3.8116806693526224e-15,
    1.7725601330565263e-15,
    -3.425485619677219e-16,
    -2.8276239805165836e-16,
    3.461222867697461e-17,
    4.46562142029676e-17,
    -4.830504485944182e-18,
    -7.233180487874754e-18,
)
_I1_NEAR = (
    0.12629359322181682,
    -0.17641651835783406,
    0.1026436586898471,
    -0.05294598120809499,
    0.024726449030626516,
    -0.010564084894626197,
    0.004156422944312888,
    -0.0015135724506312532,
    0.0005122859561685758,
    -0.00016176081582589674,
    4.781565107550054e-05,
    -1.3273163656039436e-05,
    3.4702513081376785e-06,
    -8.568720264695455e-07,
    2.0032947535521353e-07,
    -4.445059128796328e-08,
    9.381537386495773e-09,
    -1.8872497517228294e-09,
    3.625590281552117e-10,
    -6.663489723502027e-11,
    1.1736186298890901e-11,
    -1.9839743977649436e-12,
    3.223793365945575e-13,
    -5.042185504727912e-14,
    7.600684294735408e-15,
    -1.1055969477353862e-15,
    1.5536319577362005e-16,
    -2.111421214358166e-17,
    2.7779141127610464e-18,
)
_I1_FAR = (
    0.38928811750914005,
    -0.009761097491361469,
    -0.00011058893876262371,
    -3.882564808877691e-06,
    -2.512236237870209e-07,
    -2.6314688468895196e-08,
    -3.835380385964237e-09,
    -5.589743462196584e-10,
    -1.8974958123505413e-11,
    3.2526035830154884e-11,
    1.4125807436613782e-11,
    2.0356285441470896e-12,
    -7.198551776245908e-13,
    -4.0835511110921974e-13,
    -2.1015418427726643e-14,
    4.272440016711951e-14,
    1.0420276984128802e-14,
    -3.8144030724370075e-15,
    -1.8803547755107825e-15,
    3.3082023109209285e-16,
    2.96262899764595e-16,
    -3.209525921993424e-17,
    -4.6503053684893586e-17,
    4.414348323071708e-18,
    7.517296310842105e-18,
    -9.314178867326884e-19,
    -1.242193275194891e-18,
)


def _chebyshev(f: Fn, x: V, coefs: Sequence[float]) -> V:
    """The sum of coefs[k] T_k(x), by Clenshaw's recurrence."""
    twice, b1, b2 = f.add(x, x), f.const(0.0, x.type), f.const(0.0, x.type)
    for c in reversed(coefs[1:]):
        b1, b2 = f.fma(twice, b1, f.sub(f.const(c, x.type), b2)), b1
    return f.fma(x, b1, f.sub(f.const(coefs[0], x.type), b2))


def _scaled(f: Fn, x: V, near: Sequence[float], far: Sequence[float], odd: bool) -> V:
    """exp(-|x|) I0(x), or I1 if `odd`."""
    a = f.unary("fabs", x)
    beyond = f.cmp("gt", a, 8.0)
    low, high = f.select(beyond, f.const(8.0, x.type), a), f.select(beyond, a, f.const(8.0, x.type))
    y = _chebyshev(f, f.sub(f.mul(low, 0.25), 1.0), near)
    y = f.mul(y, low) if odd else y
    tail = _chebyshev(f, f.sub(f.div(f.const(16.0, x.type), high), 1.0), far)
    y = f.select(beyond, f.div(tail, f.unary("sqrt", high)), y)
    y = with_sign(f, y, x) if odd else y
    return f.select(f.cmp("uno", x, x), x, y)


@register("i0e", F64)
def _i0e64(f: Fn, x: V) -> V:
    return _scaled(f, x, _I0_NEAR, _I0_FAR, odd=False)


@register("i1e", F64)
def _i1e64(f: Fn, x: V) -> V:
    return _scaled(f, x, _I1_NEAR, _I1_FAR, odd=True)


def _unscaled(f: Fn, scaled: str, x: V) -> V:
    """In two factors, as exp(|x|) overflows before the result does."""
    e = call(f, "exp", f.mul(f.unary("fabs", x), 0.5))
    return f.mul(f.mul(call(f, scaled, x), e), e)


@register("i0", F64)
def _i064(f: Fn, x: V) -> V:
    return _unscaled(f, "i0e", x)


@register("i1", F64)
def _i164(f: Fn, x: V) -> V:
    return _unscaled(f, "i1e", x)


@register("erfcx", F64)
def _erfcx64(f: Fn, x: V) -> V:
    """exp(x^2) erfc(x): the product up to 10, with x^2 in two parts, and the asymptotic series beyond."""
    one = f.const(1.0, x.type)
    c = f.select(f.cmp("lt", x, 10.0), f.select(f.cmp("gt", x, -27.0), x, f.const(-27.0, x.type)), f.const(10.0, x.type))
    square = f.mul(c, c)
    rest = f.fma(c, c, f.neg(square))
    near = f.mul(f.mul(call(f, "exp", square), f.add(rest, 1.0)), call(f, "erfc", c))
    u = f.select(f.cmp("lt", x, 10.0), f.const(10.0, x.type), x)
    z = f.div(f.div(f.const(0.5, x.type), u), u)
    terms = [(-1) ** k * math.prod(range(1, 2 * k, 2)) for k in range(10, -1, -1)]
    far = f.div(poly(f, z, [t / math.sqrt(math.pi) for t in terms]), u)
    y = f.select(f.cmp("lt", x, 10.0), near, far)
    y = f.select(f.cmp("lt", x, -26.7), f.const(math.inf, x.type), y)
    return f.select(f.cmp("uno", x, x), f.mul(x, one), y)


def _register_f32() -> None:
    for name, ulp in (("i0", 1.0), ("i0e", 1.0), ("i1", 1.0), ("i1e", 1.0), ("erfcx", 1.0)):

        @register(name, ulp=ulp)
        def emit(f: Fn, x: V, name: str = name) -> V:
            return f.cast(call(f, name, f.cast(x, F64)), F32)


_register_f32()
