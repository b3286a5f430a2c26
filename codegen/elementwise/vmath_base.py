"""The registry and emission helpers of vector math: what `vmath.py` offers and its function families share."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

from dhlo.codegen.kernel_ir.builder import BITS, F32, F64, I1, I32, I64, Fn, V, vec

__all__ = [
    "ARITY",
    "NATIVE",
    "ULP",
    "any_lane",
    "at_least",
    "at_most",
    "call",
    "clamp",
    "keep_zero",
    "lane_by_lane",
    "ldexp",
    "magic_round",
    "poly",
    "pow2",
    "register",
    "round_to_power",
    "square",
    "table",
    "with_sign",
]

Emit = Callable[..., V]

_MANY_COEFFICIENTS = 4  # of a polynomial

ULP: dict[str, float] = {}
ARITY: dict[str, int] = {}
NATIVE: dict[tuple[str, str], Emit] = {}  # by (name, element type)


def register(name: str, elem: str = F32, *, ulp: float | None = None, arity: int = 1) -> Callable[[Emit], Emit]:
    """Registers an emitter `(fn, *operands) -> V`; `ulp` is the bound of the f32 function."""

    def add(emit: Emit) -> Emit:
        NATIVE[name, elem], ARITY[name] = emit, arity
        if ulp is not None:
            ULP[name] = ulp
        return emit

    return add


def call(fn: Fn, name: str, *args: V) -> V:
    """`name(*args)` for operands of one type, f32 or f64, scalar or vector. Raises KeyError for an unknown function.

    The function is emitted into the module at its first use, as `vm_<name>_<elem>[x<lanes>]`.
    """
    ty, elem, lanes = args[0].type, args[0].elem, args[0].lanes
    emit = NATIVE[name, elem]
    if len(args) != ARITY[name] or any(a.type != ty for a in args):
        raise AssertionError(f"{name} takes {ARITY[name]} operands of one type, got {[a.type for a in args]}")
    symbol = f"vm_{name}_{elem}{f'x{lanes}' if lanes else ''}"
    if symbol not in fn.module.functions:
        g = Fn(fn.module, symbol, [(f"x{i}", ty) for i in range(len(args))], ty, inline=True)
        g.ret(emit(g, *g.args))
        g.done()
    out = fn.call(symbol, args, ty)
    assert out is not None
    return out


def poly(f: Fn, x: V, coefs: Sequence[float]) -> V:
    """Horner's scheme with fma, highest power first."""
    whole = x.lanes * BITS[x.elem] >= f.target.vector_bits
    if f.target.reads_factors and whole and len(coefs) >= _MANY_COEFFICIENTS:
        acc, *others = _from_memory(f, x, coefs)
    else:
        acc, *others = (f.const(c, x.type) for c in coefs)
    for c in others:
        acc = f.fma(acc, x, c)
    return acc


def _from_memory(f: Fn, x: V, coefs: Sequence[float]) -> list[V]:
    """Coefficients in vectors like `x`. Constants LLVM would keep in registers across a loop that hasn't as many, and copy from one
    to another."""
    values = [c for c in coefs for _ in range(x.lanes)]
    name = f"vm_coefs_{hashlib.sha256(repr((x.elem, values)).encode()).hexdigest()[:10]}"
    first = f.opaque(_numbers(f, name, values, x.elem))
    return [f.load(f.gep(first, i * x.lanes, x.elem), x.type) for i in range(len(coefs))]


def _numbers(f: Fn, name: str, values: Sequence[float], elem: str) -> V:
    """The address of a constant table of the module."""
    if name not in f.module.globals:
        n, code, align = len(values), ">f" if elem == F32 else ">d", f.target.vector_bits // 8
        text = ", ".join(f"0x{struct.pack(code, v).hex().upper()}" for v in values)
        body = f"(dense<[{text}]> : tensor<{n}x{elem}>) {{alignment = {align} : i64}} : !llvm.array<{n} x {elem}>"
        f.module.add_constant(name, body)
    return f.address_of(name)


def _ity(x: V) -> str:
    return I32 if x.elem == F32 else I64


def lane_by_lane(f: Fn, symbol: str, args: Sequence[V]) -> V:
    """A function of f64s, which the module has or declares, of each lane."""

    def lane(*xs: V) -> V:
        out = f.call(symbol, xs, F64)
        assert out is not None
        return out

    if not args[0].lanes:
        return lane(*args)
    y = args[0]
    for k in range(y.lanes):
        y = f.insert(lane(*[f.extract(a, k) for a in args]), y, k)
    return y


def with_sign(f: Fn, magnitude: V, sign: V) -> V:
    """`magnitude` (non-negative) with the sign bit of `sign`."""
    bits = f.and_(f.bitcast(sign, _ity(sign)), -(1 << (31 if sign.elem == F32 else 63)))
    return f.bitcast(f.or_(f.bitcast(magnitude, _ity(sign)), bits), sign.elem)


def keep_zero(f: Fn, x: V, y: V) -> V:
    """`x` where it is a zero (so that -0 stays -0), else `y`."""
    return f.select(f.cmp("eq", x, 0.0), x, y)


def at_least(f: Fn, x: V, low: float) -> V:
    """max(x, low); NaN stays NaN. One instruction, whatever maxima make of NaN."""
    c = f.const(low, x.type)
    return f.select(f.cmp("gt", c, x), c, x) if f.target.maxima_choose else f.max(x, c)


def at_most(f: Fn, x: V, high: float) -> V:
    """min(x, high); NaN stays NaN. One instruction, as `at_least`."""
    c = f.const(high, x.type)
    return f.select(f.cmp("lt", c, x), c, x) if f.target.maxima_choose else f.min(x, c)


def clamp(f: Fn, x: V, low: float, high: float) -> V:
    """x within low .. high; NaN stays NaN."""
    return at_least(f, at_most(f, x, high), low)


def any_lane(f: Fn, mask: V) -> V:
    return f.reduce("or", mask) if mask.lanes else mask


def magic_round(f: Fn, x: V, scale: float) -> tuple[V, V]:
    """x * scale rounded to the nearest integer as (float, int), by adding 1.5 * 2^(precision - 1). Valid far beyond all
    uses where |x * scale| < 2^22 (f32) or 2^51 (f64); no value, NaN included, is undefined behaviour.
    """
    magic = 1.5 * 2.0 ** (23 if x.elem == F32 else 52)
    t = f.fma(x, f.const(scale, x.type), f.const(magic, x.type))
    n = f.sub(f.bitcast(t, _ity(x)), f.bitcast(f.const(magic, x.type), _ity(x)))
    return f.sub(t, magic), n


def pow2(f: Fn, n: V, elem: str) -> V:
    """2^n for an integer n in the range of normal numbers."""
    bias, shift = (127, 23) if elem == F32 else (1023, 52)
    return f.bitcast(f.shl(f.add(n, bias), shift), elem)


def round_to_power(f: Fn, x: V, scale: float, down: int = 0) -> tuple[V, V]:
    """(n, 2^(n - down)), where n is x * scale rounded to the nearest integer, as a float. `n - down` must lie between the
    exponent of the least normal number less 1, whose power is 0 here, and that of infinity; NaN gives NaN and any power.
    """
    bias, shift = (127, 23) if x.elem == F32 else (1023, 52)
    magic = 1.5 * 2.0**shift + bias - down  # the exponent's bits come out as the lowest
    t = f.fma(x, f.const(scale, x.type), f.const(magic, x.type))
    return f.sub(t, magic), f.bitcast(f.shl(f.bitcast(t, _ity(x)), shift), x.elem)


def square(f: Fn, x: V) -> V:
    """x^2 + 2^-60, for terms that are added to 1: squares of small numbers would be subnormal."""
    return f.fma(x, x, f.const(2.0**-60, x.type))


def ldexp(f: Fn, x: V, n: V) -> V:
    """x * 2^n for n within twice the exponent range, rounded once. Registers of 512 bits have an instruction for it."""
    bits = x.lanes * (32 if x.elem == F32 else 64)
    if bits and bits % 512 == 0 and f.target.vector_bits == 512:
        n32 = f.cast(n, I32)
        return f.intrinsic(f"llvm.ldexp.v{x.lanes}{x.elem}.v{x.lanes}i32", x.type, x, n32)
    half = f.shr(n, 1)
    return f.mul(f.mul(x, pow2(f, half, x.elem)), pow2(f, f.sub(n, half), x.elem))


def table(f: Fn, name: str, values: Sequence[float], index: V) -> V:
    """Elements `index` (i32, in range) of a constant f64 table of the module."""
    ptrs = f.gep(_numbers(f, name, values, F64), f.cast(index, I64), F64)
    if not index.lanes:
        return f.load(ptrs, F64)
    return f.gather(ptrs, f.const(True, vec(I1, index.lanes)), f.const(0.0, vec(F64, index.lanes)))
