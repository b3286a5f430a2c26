"""How the value of each elementwise op is computed: its emit rule, from vectors (or scalars) of operands to one of results.

Operands are in register form: f16 and bf16 as f32, unsigned bytes in 16-bit lanes. A rule serves an op's class and those that
derive from it. Every elementwise op has one; `tests/test_ops.py` sees to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dhlo.codegen.elementwise import vmath
from dhlo.codegen.elementwise.float8 import FLOAT8, from_float8, to_float8
from dhlo.codegen.elementwise.integer_division import divide
from dhlo.codegen.elementwise.vmath_base import any_lane, with_sign
from dhlo.codegen.kernel_ir.builder import BITS, F32, F64, I1, I32, Fn, V, vec
from dhlo.codegen.target import Target
from dhlo.errors import InternalError
from dhlo.ir.dialect import Op, attr, defining, number
from dhlo.ir.nans import KEEPS_PLAIN, is_number
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import special
from dhlo.ir.ops.movement import Full
from dhlo.ir.types import DTYPES

__all__ = [
    "emit_op",
    "narrow",
    "round_to",
    "rounds_by_integers",
    "rule",
    "rule_of",
    "splat",
    "typed_rule",
    "with_plain_nans",
    "wrap",
]

Rule = Callable[..., V]  # (fn, op, *operands)

_RULES: dict[type[Op], Rule] = {}
# Ops whose results are numbers of any type that their operands are numbers of.
_CHOICES = (ew.Maximum, ew.Minimum, ew.Neg, ew.Abs, ew.Select)


def rule(*classes: type[Op]) -> Callable[[Rule], Rule]:
    """Makes `(fn, *operands) -> V` the emit rule of elementwise ops."""

    def add(emit: Rule) -> Rule:
        for cls in classes:
            _RULES[cls] = lambda fn, op, *operands: emit(fn, *operands)
        return emit

    return add


def typed_rule(*classes: type[Op]) -> Callable[[Rule], Rule]:
    """Makes `(fn, op, *operands) -> V`, which asks the op for its types or name, the emit rule of elementwise ops."""

    def add(emit: Rule) -> Rule:
        _RULES.update(dict.fromkeys(classes, emit))
        return emit

    return add


def rule_of(cls: type[Op]) -> Rule:
    """The rule of a class, `(fn, op, *operands) -> V`. Raises InternalError for one without."""
    for base in cls.__mro__:
        if base in _RULES:
            return _RULES[base]
    raise InternalError(f"{cls.OPERATION_NAME} has no emit rule")


def emit_op(fn: Fn, op: Any, operands: Sequence[V]) -> V:
    """The value of an elementwise op, in the range of its dtype."""
    x = wrap(fn, rule_of(type(op))(fn, op, *operands), _dtype(op.results[0]))
    if isinstance(op, KEEPS_PLAIN) and x.elem == F32:
        given = list(zip(operands, op.operands, strict=True))[isinstance(op, ew.Select) :]
        if isinstance(op, _CHOICES) and all(v.name in fn.halves or _is_half(of) for v, of in given):
            fn.halves.add(x.name)
        if all(_is_plain(fn, v) or is_number(of) for v, of in given):
            fn.plain.add(x.name)
    return x


def _is_plain(fn: Fn, x: V) -> bool:
    return x.name in fn.plain or x.name in fn.halves


def with_plain_nans(fn: Fn, x: V) -> V:
    """An f32 register value with no NaNs but plain ones (see `dhlo.ir.nans`)."""
    if _is_plain(fn, x):
        return x
    y = fn.select(fn.cmp("uno", x, x), fn.const(math.nan, x.type), x)
    fn.plain.add(y.name)
    return y


def splat(fn: Fn, x: V) -> V:
    """A scalar in all lanes, of which as much is known."""
    y = fn.splat(x)
    for known in (fn.halves, fn.plain):
        if x.name in known:
            known.add(y.name)
    return y


def _is_half(v: Any) -> bool:
    """Whether a value is a constant that is a number of bf16."""
    op = defining(v)
    value = number(attr(op, "value")) if isinstance(op, Full) else None
    return value is not None and torch.tensor(value, dtype=torch.float64).bfloat16().double().item() == value


def _dtype(v: Any) -> str:
    return str(v.type.element_type)


def _one(fn: Fn, like: V) -> V:
    return fn.const(1.0, like.type)


def _zero(fn: Fn, like: V) -> V:
    return fn.const(0.0, like.type)


def round_to(fn: Fn, x: V, dtype: str) -> V:
    """A register value rounded to a narrower float dtype's precision."""
    if dtype == "bf16" and x.name in fn.halves:
        return x
    if dtype in ("f16", "bf16") and x.elem in (F32, F64):
        itself = _rounds_itself(fn, x, dtype)
        y = fn.bitcast(fn.and_(_rounded_bits(fn, x), -0x10000), F32) if itself else fn.cast(fn.cast(x, dtype), x.elem)
        if dtype == "bf16":
            fn.halves.add(y.name)
        return y
    if dtype in FLOAT8:
        return from_float8(fn, to_float8(fn, fn.cast(x, F32), dtype), dtype)
    return x


def narrow(fn: Fn, x: V, dtype: str) -> V:
    """A register value as memory holds it, rounded unless that is known to change nothing."""
    if not _rounds_itself(fn, x, dtype):
        return fn.cast(x, dtype)
    bits = fn.bitcast(x, I32) if x.name in fn.halves else _rounded_bits(fn, x)
    return fn.bitcast(fn.cast(fn.shr(bits, 16), "i16"), dtype)


def rounds_by_integers(target: Target) -> bool:
    """Whether a target has no instruction that rounds to bf16."""
    return "bf16" not in target.dots


def _rounds_itself(fn: Fn, x: V, dtype: str) -> bool:
    """Whether vectors of f32 become bf16 by operations on integers: LLVM's own take twice as many instructions where the target has
    none for it, and go by way of sixteen bits."""
    return dtype == "bf16" and x.elem == F32 and bool(x.lanes) and rounds_by_integers(fn.target)


def _rounded_bits(fn: Fn, x: V) -> V:
    """Bits (i32) of f32 whose upper halves are those of x rounded to nearest, ties to even, as bf16; of NaN they are some NaN's.
    What is added doesn't reach the upper half of a plain one; it may make a number of another."""
    bits = fn.bitcast(x, I32)
    with fn.wrapping():
        up = fn.add(fn.add(bits, 0x7FFF), fn.and_(fn.shr(bits, 16), 1))
    return up if x.name in fn.plain else fn.select(fn.cmp("ne", x, x), fn.const(-1, up.type), up)


def wrap(fn: Fn, x: V, dtype: str) -> V:
    """Keeps a register value in the range of its dtype (unsigned bytes live in 16-bit lanes)."""
    return fn.and_(x, 255) if dtype == "ui8" else x


@rule(ew.Add)
def _add(fn: Fn, a: V, b: V) -> V:
    return fn.or_(a, b) if a.elem == I1 else fn.add(a, b)


@rule(ew.Sub)
def _sub(fn: Fn, a: V, b: V) -> V:
    return fn.sub(a, b)


@rule(ew.Mul)
def _mul(fn: Fn, a: V, b: V) -> V:
    return fn.and_(a, b) if a.elem == I1 else fn.mul(a, b)


@rule(ew.Div)
def _div(fn: Fn, a: V, b: V) -> V:
    return fn.div(a, b)


@rule(ew.FloorDiv)
def _floor_div(fn: Fn, a: V, b: V) -> V:
    if a.is_float:  # as ATen: (a - mod) / b, then the nearest integer
        mod = vmath.call(fn, "fmod", a, b)
        q = fn.div(fn.sub(a, mod), b)
        adjust = fn.and_(
            fn.cmp("ne", mod, 0.0),
            fn.cmp(
                "ne",
                fn.select(fn.cmp("lt", b, 0.0), _one(fn, a), _zero(fn, a)),
                fn.select(fn.cmp("lt", mod, 0.0), _one(fn, a), _zero(fn, a)),
            ),
        )
        q = fn.select(adjust, fn.sub(q, 1.0), q)
        fl = fn.unary("floor", q)
        fl = fn.select(fn.cmp("gt", fn.sub(q, fl), 0.5), fn.add(fl, 1.0), fl)
        whole = fn.div(a, b)
        fl = fn.select(fn.cmp("eq", q, 0.0), with_sign(fn, _zero(fn, a), whole), fl)
        return fn.select(fn.cmp("eq", b, 0.0), whole, fl)
    return divide(fn, a, b, "floor")[0]


@typed_rule(ew.TruncDiv)
def _trunc_div(fn: Fn, op: ew.TruncDiv, a: V, b: V) -> V:
    if a.is_float:
        return fn.unary("trunc", round_to(fn, fn.div(a, b), _dtype(op.results[0])))
    return divide(fn, a, b, "trunc")[0]


@rule(ew.Remainder)
def _remainder(fn: Fn, a: V, b: V) -> V:
    if a.is_float:
        m = vmath.call(fn, "fmod", a, b)
        wrong = fn.and_(fn.cmp("ne", m, 0.0), fn.xor(fn.cmp("lt", m, 0.0), fn.cmp("lt", b, 0.0)))
        return fn.select(wrong, fn.add(m, b), m)
    return divide(fn, a, b, "floor")[1]


@rule(ew.Fmod)
def _fmod(fn: Fn, a: V, b: V) -> V:
    if a.is_float:
        return vmath.call(fn, "fmod", a, b)
    return divide(fn, a, b, "trunc")[1]


@rule(ew.Pow)
def _pow(fn: Fn, a: V, b: V) -> V:
    if a.is_float:
        return vmath.call(fn, "pow", a, b)
    result, base, exp = fn.const(1, a.type), a, b
    with fn.loop(0, 64 if a.elem == "i64" else 32, 1, [result, base, exp]) as lp:
        r, p, e = lp.carried
        odd = fn.cmp("ne", fn.and_(e, 1), 0)
        lp.yield_(fn.select(odd, fn.mul(r, p), r), fn.mul(p, p), fn.shr(e, 1))
    negative = fn.cmp("lt", b, 0)
    unit = fn.select(fn.cmp("eq", a, 1), fn.const(1, a.type), fn.const(0, a.type))
    minus = fn.select(fn.cmp("eq", fn.and_(b, 1), 0), fn.const(1, a.type), fn.const(-1, a.type))
    unit = fn.select(fn.cmp("eq", a, -1), minus, unit)
    return fn.select(negative, unit, lp.results[0])


@rule(ew.Maximum)
def _maximum(fn: Fn, a: V, b: V) -> V:
    return fn.or_(a, b) if a.elem == I1 else fn.max(a, b)


@rule(ew.Minimum)
def _minimum(fn: Fn, a: V, b: V) -> V:
    return fn.and_(a, b) if a.elem == I1 else fn.min(a, b)


@rule(ew.Atan2)
def _atan2(fn: Fn, a: V, b: V) -> V:
    return vmath.call(fn, "atan2", a, b)


@rule(ew.Gcd)
def _gcd(fn: Fn, a: V, b: V) -> V:
    a, b = (fn.select(fn.cmp("lt", v, 0), fn.neg(v), v) for v in (a, b))
    with fn.loop(0, 92, 1, [a, b]) as lp:  # Euclid; neighbours of Fibonacci's sequence take longest
        x, y = lp.carried
        left = fn.cmp("ne", y, 0)

        def step(x: V = x, y: V = y, left: V = left) -> list[V]:
            return [fn.select(left, y, x), fn.select(left, divide(fn, x, y, "trunc")[1], y)]

        lp.yield_(*fn.if_else(any_lane(fn, left), step, lambda: lp.carried, [x.type, y.type]))
    return lp.results[0]


@rule(ew.And)
def _and(fn: Fn, a: V, b: V) -> V:
    return fn.and_(a, b)


@rule(ew.Or)
def _or(fn: Fn, a: V, b: V) -> V:
    return fn.or_(a, b)


@rule(ew.Xor)
def _xor(fn: Fn, a: V, b: V) -> V:
    return fn.xor(a, b)


@rule(ew.ShiftLeft)
def _shift_left(fn: Fn, a: V, b: V) -> V:
    bits = BITS[a.elem]
    bad = fn.or_(fn.cmp("lt", b, 0), fn.cmp("ge", b, bits))
    return fn.select(bad, fn.const(0, a.type), fn.shl(a, fn.select(bad, fn.const(0, b.type), b)))


@rule(ew.ShiftRight)
def _shift_right(fn: Fn, a: V, b: V) -> V:
    bits = BITS[a.elem]
    bad = fn.or_(fn.cmp("lt", b, 0), fn.cmp("ge", b, bits))
    return fn.shr(a, fn.select(bad, fn.const(bits - 1, b.type), b))


@rule(ew.Copy)
def _copy(fn: Fn, x: V) -> V:
    return x


@rule(ew.Neg)
def _neg(fn: Fn, x: V) -> V:
    return fn.neg(x)


@rule(ew.Abs)
def _abs(fn: Fn, x: V) -> V:
    return fn.unary("fabs", x) if x.is_float else fn.select(fn.cmp("lt", x, 0), fn.neg(x), x)


@rule(ew.Sign)
def _sign(fn: Fn, x: V) -> V:
    if x.elem == I1:
        return x
    zero, one, minus = (fn.const(v, x.type) for v in (0, 1, -1))
    return fn.select(fn.cmp("gt", x, zero), one, fn.select(fn.cmp("lt", x, zero), minus, zero))


@rule(ew.Not)
def _not(fn: Fn, x: V) -> V:
    return fn.not_(x)


@rule(ew.Sqrt)
def _sqrt(fn: Fn, x: V) -> V:
    return fn.unary("sqrt", x)


@rule(ew.Floor)
def _floor(fn: Fn, x: V) -> V:
    return fn.unary("floor", x)


@rule(ew.Ceil)
def _ceil(fn: Fn, x: V) -> V:
    return fn.unary("ceil", x)


@rule(ew.Round)
def _round(fn: Fn, x: V) -> V:
    return fn.unary("roundeven", x)


@rule(ew.Nearest)
def _nearest(fn: Fn, x: V) -> V:
    ty, suffix = (vec(I32, x.lanes), f"v{x.lanes}") if x.lanes else (I32, "")
    return fn.intrinsic(f"llvm.lrint.{suffix}i32.{suffix}f32", ty, x)  # in the rounding that programs are run with


@rule(ew.Trunc)
def _trunc(fn: Fn, x: V) -> V:
    return fn.unary("trunc", x)


@rule(ew.IsNan)
def _is_nan(fn: Fn, x: V) -> V:
    return fn.cmp("uno", x, x)


@rule(ew.IsInf)
def _is_inf(fn: Fn, x: V) -> V:
    return fn.cmp("eq", fn.unary("fabs", x), float("inf"))


@typed_rule(ew.MathOp)
def _math_op(fn: Fn, op: ew.MathOp, x: V) -> V:
    return vmath.call(fn, type(op).OPERATION_NAME.removeprefix("dhlo."), x)


@typed_rule(special.SpecialBinary)
def _special_binary(fn: Fn, op: special.SpecialBinary, a: V, b: V) -> V:
    return vmath.call(fn, type(op).OPERATION_NAME.removeprefix("dhlo."), a, b)


@typed_rule(ew.Compare)
def _compare(fn: Fn, op: ew.Compare, a: V, b: V) -> V:
    if a.elem == I1:  # i1 is signed: true would be -1
        a, b = fn.cast(a, "i8"), fn.cast(b, "i8")
    return fn.cmp(op.predicate, a, b)


@rule(ew.Select)
def _select(fn: Fn, c: V, a: V, b: V) -> V:
    return fn.select(c, a, b)


@typed_rule(ew.Convert)
def _convert(fn: Fn, op: ew.Convert, x: V) -> V:
    src, dst = (DTYPES[_dtype(v)] for v in (op.operands[0], op.results[0]))
    if dst.is_int and src.is_float:
        # Frozen: LLVM would leave memory as it is where it knows that the integer doesn't hold x, as of NaN.
        wide = fn.freeze(fn.cast(x, "i64" if dst.name == "i64" else "i32"))
        return fn.cast(wide, dst.register) if wide.elem != dst.register else wide
    y = fn.cast(x, dst.register)
    inexact = src.bits >= dst.bits if src.is_float else src.is_int and (src.bits > 8 or dst.bits == 8)
    return round_to(fn, y, dst.name) if inexact else y


@typed_rule(ew.Bitcast)
def _bitcast(fn: Fn, op: ew.Bitcast, x: V) -> V:
    src, dst = (DTYPES[_dtype(v)] for v in (op.operands[0], op.results[0]))
    if src == dst:
        return x
    bits = f"i{src.bits}"
    if src.name in FLOAT8:
        raw = to_float8(fn, x, src.name)
    else:
        raw = fn.bitcast(fn.cast(x, src.name), bits) if src.is_float else fn.cast(x, bits)
    if dst.name in FLOAT8:
        return from_float8(fn, raw, dst.name)
    if dst.is_float:
        return fn.cast(fn.bitcast(raw, dst.name), dst.register)
    return fn.cast(raw, dst.register, signed=dst.name != "ui8")
