"""Elementwise ATen ops: arithmetic, functions, comparisons, logic, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy
import torch

from dhlo.errors import CompileError
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.compat import prims
from dhlo.frontend.registry import LOWERINGS, lowers
from dhlo.ir.dialect import Op
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import as_expr, product


def _overloads(*names: str) -> list[Any]:
    """Every overload of the named ops that takes tensors or scalars."""
    keep = ("default", "Tensor", "Scalar", "self", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor", "other")
    return [getattr(getattr(A, n), o) for n in names for o in getattr(A, n).overloads() if o in keep]


# ---------------------------------------------------------------------------------------------------- functions of
# one tensor
_FLOAT: dict[str, type[Op]] = {
    "exp": ew.Exp,
    "exp2": ew.Exp2,
    "expm1": ew.Expm1,
    "log": ew.Log,
    "log2": ew.Log2,
    "log10": ew.Log10,
    "log1p": ew.Log1p,
    "sin": ew.Sin,
    "cos": ew.Cos,
    "tan": ew.Tan,
    "asin": ew.Asin,
    "acos": ew.Acos,
    "atan": ew.Atan,
    "sinh": ew.Sinh,
    "cosh": ew.Cosh,
    "tanh": ew.Tanh,
    "asinh": ew.Asinh,
    "acosh": ew.Acosh,
    "atanh": ew.Atanh,
    "erf": ew.Erf,
    "erfc": ew.Erfc,
    "erfinv": ew.Erfinv,
    "sigmoid": ew.Sigmoid,
    "rsqrt": ew.Rsqrt,
    "sqrt": ew.Sqrt,
    "lgamma": ew.Lgamma,
    "digamma": ew.Digamma,
    "i0": ew.BesselI0,
    "special_i0e": ew.BesselI0e,
    "special_i1": ew.BesselI1,
    "special_i1e": ew.BesselI1e,
    "special_erfcx": ew.Erfcx,
}
_SAME: dict[str, type[Op]] = {"neg": ew.Neg, "abs": ew.Abs, "sign": ew.Sign, "sgn": ew.Sign, "bitwise_not": ew.Not}
_ROUND: dict[str, type[Op]] = {
    "floor": ew.Floor,
    "ceil": ew.Ceil,
    "round": ew.Round,
    "trunc": ew.Trunc,
    "fix": ew.Trunc,
}


def _register_unary() -> None:
    def float_rule(cls: type[Op]) -> Callable[..., Value]:
        return lambda b, x: b.unary(cls, x)

    def same_rule(cls: type[Op]) -> Callable[..., Value]:
        return lambda b, x: b.op(cls, [x])

    def round_rule(cls: type[Op]) -> Callable[..., Value]:
        return lambda b, x: b.op(cls, [x]) if b.dtype(x).is_float else x

    for table, rule in ((_FLOAT, float_rule), (_SAME, same_rule), (_ROUND, round_rule)):
        for name, cls in table.items():
            lowers(getattr(A, name).default)(rule(cls))


_register_unary()


@lowers(A.round.decimals)
def _round_decimals(b: OpBuilder, x: Value, *, decimals: int) -> Value:
    scale = 10.0 ** abs(decimals)
    up, down = (b.mul, b.div) if decimals > 0 else (b.div, b.mul)
    return down(b.op(ew.Round, [up(x, scale)]), scale) if decimals else b.op(ew.Round, [x])


@lowers(A.logical_not.default)
def _logical_not(b: OpBuilder, x: Value) -> Value:
    return b.op(ew.Not, [b.convert(x, "i1")])


@lowers(A.reciprocal.default)
def _reciprocal(b: OpBuilder, x: Value) -> Value:
    return b.div(1.0, x)


@lowers(A.square.default)
def _square(b: OpBuilder, x: Value) -> Value:
    x = b.convert(x, "i64") if b.dtype(x).is_bool else x
    return b.mul(x, x)


@lowers(A.isnan.default)
def _isnan(b: OpBuilder, x: Value) -> Value:
    return b.op(ew.IsNan, [x]) if b.dtype(x).is_float else b.full(b.shape(x), False, "i1")


@lowers(A.isinf.default)
def _isinf(b: OpBuilder, x: Value) -> Value:
    return b.op(ew.IsInf, [x]) if b.dtype(x).is_float else b.full(b.shape(x), False, "i1")


@lowers(A.isfinite.default)
def _isfinite(b: OpBuilder, x: Value) -> Value:
    if not b.dtype(x).is_float:
        return b.full(b.shape(x), True, "i1")
    return b.op(ew.Not, [b.op(ew.Or, [b.op(ew.IsNan, [x]), b.op(ew.IsInf, [x])])])


@lowers(A.frac.default)
def _frac(b: OpBuilder, x: Value) -> Value:
    return b.sub(x, b.op(ew.Trunc, [x]))


@lowers(A.deg2rad.default)
def _deg2rad(b: OpBuilder, x: Value) -> Value:
    return b.mul(x, math.pi / 180)


@lowers(A.nan_to_num.default)
def _nan_to_num(
    b: OpBuilder, x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    if not b.dtype(x).is_float:
        return x
    info = torch.finfo(b.dtype(x).torch)
    y = b.select(b.op(ew.IsNan, [x]), nan or 0.0, x)
    y = b.select(b.ew(ew.Eq, x, math.inf), info.max if posinf is None else posinf, y)
    return b.select(b.ew(ew.Eq, x, -math.inf), info.min if neginf is None else neginf, y)


# ---------------------------------------------------------------------------------------------------- two operands
def _scaled(b: OpBuilder, y: Operand, alpha: Any) -> Operand:
    if alpha == 1:
        return y
    return b.mul(y, alpha) if b.is_tensor(y) else y * alpha


def _rounded_once(b: OpBuilder, f: Callable[..., Value], *xs: Operand) -> Value:
    """A composite, of reduced floats computed in f32."""
    dtype = b.result_type(*xs)
    return b.convert(b.in_f32(f, *xs), dtype) if dtype.name in ("f16", "bf16") else f(*xs)


def _with_multiple(b: OpBuilder, f: Callable[..., Value], x: Operand, y: Operand, alpha: Any) -> Value:
    """f(x, alpha * y), where f adds or subtracts; ATen adds, of what is subtracted its multiple by -alpha."""
    if alpha == 1:
        return f(x, y)
    dtype = b.result_type(x, y)
    if dtype.is_int and isinstance(alpha, float):
        raise CompileError(f"integers times alpha={alpha}", hint="convert them to float32")
    b.held(alpha if f == b.add else -alpha, dtype)
    return _rounded_once(b, lambda x, y: f(x, _scaled(b, y, alpha)), x, y)


@lowers(*_overloads("add"))
def _add(b: OpBuilder, x: Operand, y: Operand, alpha: Any = 1) -> Value:
    return _with_multiple(b, b.add, x, y, alpha)


@lowers(*_overloads("sub", "subtract"))
def _sub(b: OpBuilder, x: Operand, y: Operand, alpha: Any = 1) -> Value:
    return _with_multiple(b, b.sub, x, y, alpha)


@lowers(*_overloads("rsub"))
def _rsub(b: OpBuilder, x: Operand, y: Operand, alpha: Any = 1) -> Value:
    return _with_multiple(b, b.sub, y, x, alpha)


@lowers(*_overloads("mul", "multiply"))
def _mul(b: OpBuilder, x: Operand, y: Operand) -> Value:
    return b.mul(x, y)


@lowers(*_overloads("div", "true_divide", "divide"), A.div.Tensor_mode, A.div.Scalar_mode)
def _div(b: OpBuilder, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return b.div(x, y)
    return _quotient(b, x, y, cls=ew.FloorDiv if rounding_mode == "floor" else ew.TruncDiv)


def _quotient(b: OpBuilder, x: Operand, y: Operand, *, cls: type[Op]) -> Value:
    """A rounded quotient or remainder. Whole numbers divided by zero fail the call, unless there are none to divide."""
    common = b.result_type(x, y)
    if common.is_int:
        message = "a whole number is divided by zero"
        if b.is_tensor(y):
            whole = b.broadcast_shape(*[b.shape(v) for v in (x, y) if b.is_tensor(v)])
            b.need_all(b.expand(b.ew(ew.Ne, b.convert(y, common), 0), whole), message)
        elif b.is_tensor(x) and (divisor := as_expr(y)).free_symbols:
            b.require(sympy.Ge(sympy.Max(divisor, -divisor, 1 - product(b.shape(x))), 1), message)
    return b.ew(cls, x, y)


_QUOTIENTS: dict[str, type[Op]] = {"floor_divide": ew.FloorDiv, "remainder": ew.Remainder, "fmod": ew.Fmod}
_BINARY: dict[str, type[Op]] = {
    "gcd": ew.Gcd,
    "maximum": ew.Maximum,
    "minimum": ew.Minimum,
    "bitwise_and": ew.And,
    "bitwise_or": ew.Or,
    "bitwise_xor": ew.Xor,
    "__and__": ew.And,
    "__or__": ew.Or,
    "__xor__": ew.Xor,
    "bitwise_left_shift": ew.ShiftLeft,
    "bitwise_right_shift": ew.ShiftRight,
    "__lshift__": ew.ShiftLeft,
    "__rshift__": ew.ShiftRight,
    "eq": ew.Eq,
    "ne": ew.Ne,
    "lt": ew.Lt,
    "le": ew.Le,
    "gt": ew.Gt,
    "ge": ew.Ge,
    "greater": ew.Gt,
    "greater_equal": ew.Ge,
    "less": ew.Lt,
    "less_equal": ew.Le,
    "not_equal": ew.Ne,
}
_LOGICAL: dict[str, type[Op]] = {"logical_and": ew.And, "logical_or": ew.Or, "logical_xor": ew.Xor}


def _register_binary() -> None:
    def rule(cls: type[Op]) -> Callable[..., Value]:
        return lambda b, x, y: b.ew(cls, x, y)

    def quotient(cls: type[Op]) -> Callable[..., Value]:
        return lambda b, x, y: _quotient(b, x, y, cls=cls)

    def logical(cls: type[Op]) -> Callable[..., Value]:
        def of_truths(b: OpBuilder, x: Value, y: Value) -> Value:
            common = b.result_type(x, y)  # in which one number's truth is that of its last bits
            x, y = (b.convert(v, common) if b.dtype(v).is_int and common.is_int else v for v in (x, y))
            return b.ew(cls, b.convert(x, "i1"), b.convert(y, "i1"))

        return of_truths

    for name, cls in _BINARY.items():
        lowers(*_overloads(name))(rule(cls))
    for name, cls in _QUOTIENTS.items():
        lowers(*_overloads(name))(quotient(cls))
    for name, cls in _LOGICAL.items():
        lowers(*_overloads(name))(logical(cls))
    lowers(A.max.other)(rule(ew.Maximum))
    lowers(A.min.other)(rule(ew.Minimum))


_register_binary()


@lowers(A.fmax.default)
def _fmax(b: OpBuilder, x: Value, y: Value) -> Value:
    return _ignoring_nan(b, ew.Maximum, x, y)


@lowers(A.fmin.default)
def _fmin(b: OpBuilder, x: Value, y: Value) -> Value:
    return _ignoring_nan(b, ew.Minimum, x, y)


def _ignoring_nan(b: OpBuilder, cls: type[Op], x: Value, y: Value) -> Value:
    x, y = b.together(x, y)
    if not b.dtype(x).is_float:
        return b.op(cls, [x, y])
    return b.select(b.op(ew.IsNan, [x]), y, b.select(b.op(ew.IsNan, [y]), x, b.op(cls, [x, y])))


@lowers(A.atan2.default, A.arctan2.default)
def _atan2(b: OpBuilder, x: Value, y: Value) -> Value:
    d = b.result_type(x, y)
    return b.ew(ew.Atan2, x, y, dtype=d if d.is_float else "f32")


@lowers(*_overloads("float_power"))
def _float_power(b: OpBuilder, x: Operand, y: Operand) -> Value:
    return _pow(b, *(b.convert(v, "f64") if b.is_tensor(v) else float(v) for v in (x, y)))


@lowers(*_overloads("pow"))
def _pow(b: OpBuilder, x: Operand, y: Operand) -> Value:
    if b.is_tensor(x) and isinstance(y, int | float) and not isinstance(y, bool):
        known = _known_power(b, x, y)
        if known is not None:
            return known
        dtype = b.result_type(x, y)
        if dtype.is_int and y < 0:
            raise CompileError(f"integers to the power {y}", hint="convert them to float32")
        y = b.held(y, dtype)
    return b.ew(ew.Pow, x, y)


def _known_power(b: OpBuilder, x: Value, y: float) -> Value | None:
    """Powers that ATen computes by simpler means too."""
    is_float = b.dtype(x).is_float
    if not is_float and isinstance(y, float):
        x, is_float = b.convert(x, "f32"), True
    if y == 1:
        return x
    if y == 2:
        return b.mul(x, x)
    if y == 3:
        return b.in_f32(lambda v: b.mul(b.mul(v, v), v), x)
    if is_float and y == 0.5:
        return b.unary(ew.Sqrt, x)
    if is_float and y == -0.5:
        return b.unary(ew.Rsqrt, x)
    if is_float and y == -1:
        return b.div(1.0, x)
    return None


@lowers(A.xlogy.Tensor)
def _xlogy(b: OpBuilder, x: Value, y: Value) -> Value:
    def f(x: Value, y: Value) -> Value:
        z = b.mul(x, b.unary(ew.Log, y))
        return b.select(b.op(ew.IsNan, [b.expand(b.floating(y), b.shape(z))]), math.nan, b.select(b.ew(ew.Eq, x, 0), 0.0, z))

    return _rounded_once(b, f, x, y)


@lowers(A.hypot.default)
def _hypot(b: OpBuilder, x: Value, y: Value) -> Value:
    """The larger times a root of at most 2, as squares overflow and vanish where their root doesn't."""

    def f(x: Value, y: Value) -> Value:
        x, y = (b.op(ew.Abs, [v]) for v in (x, y))
        top = b.maximum(x, y)
        ratio = b.div(b.minimum(x, y), top)
        z = b.mul(top, b.unary(ew.Sqrt, b.add(b.mul(ratio, ratio), 1.0)))
        z = b.select(b.ew(ew.Eq, top, 0), top, z)
        return b.select(b.op(ew.IsInf, [y]), y, b.select(b.op(ew.IsInf, [x]), x, z))

    return _rounded_once(b, f, x, y)


@lowers(A.logaddexp.default)
def _logaddexp(b: OpBuilder, x: Value, y: Value) -> Value:
    def f(x: Value, y: Value) -> Value:
        top = b.maximum(x, y)
        gap = b.op(ew.Neg, [b.op(ew.Abs, [b.sub(x, y)])])
        y = b.add(top, b.unary(ew.Log1p, b.unary(ew.Exp, gap)))
        return b.select(b.op(ew.IsInf, [top]), top, y)

    return _rounded_once(b, f, x, y)


@lowers(A.lerp.Scalar, A.lerp.Tensor)
def _lerp(b: OpBuilder, x: Value, y: Value, weight: Operand) -> Value:
    def f(x: Value, y: Value, weight: Operand) -> Value:
        if b.is_tensor(weight):
            near = b.ew(ew.Lt, b.op(ew.Abs, [weight]), 0.5)
            d = b.sub(y, x)
            return b.select(near, b.add(x, b.mul(weight, d)), b.sub(y, b.mul(d, b.sub(1.0, weight))))
        if isinstance(weight, sympy.Basic):
            return f(x, y, b.full([], weight, b.dtype(x)))
        if abs(weight) < 0.5:
            return b.add(x, b.mul(b.sub(y, x), weight))
        return b.sub(y, b.mul(b.sub(y, x), 1 - weight))

    return b.in_f32(f, x, y, weight)


@lowers(A.addcmul.default)
def _addcmul(b: OpBuilder, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    dtype = b.result_type(x, y, z)
    b.held(value, dtype)
    value = int(value) if dtype.is_int and isinstance(value, float) else value
    return _rounded_once(b, lambda x, y, z: b.add(x, _scaled(b, b.mul(y, z), value)), x, y, z)


@lowers(A.addcdiv.default)
def _addcdiv(b: OpBuilder, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    return _rounded_once(b, lambda x, y, z: b.add(x, _scaled(b, b.div(y, z), value)), x, y, z)


# ---------------------------------------------------------------------------------------------------- choices
@lowers(A.where.self, A.where.ScalarOther, A.where.ScalarSelf, A.where.Scalar)
def _where(b: OpBuilder, pred: Value, x: Operand, y: Operand) -> Value:
    return b.select(pred, x, y)


@lowers(A.masked_fill.Scalar, A.masked_fill.Tensor)
def _masked_fill(b: OpBuilder, x: Value, mask: Value, value: Operand) -> Value:
    return b.select(mask, value, x, dtype=b.dtype(x))


@lowers(A.clamp.default, A.clip.default, A.clamp.Tensor, A.clip.Tensor)
def clamp(b: OpBuilder, x: Value, min: Operand = None, max: Operand = None) -> Value:
    d = b.result_type(*[v for v in (x, min, max) if v is not None])
    x = b.convert(x, d)
    least, most = (torch.iinfo(d.torch).min, torch.iinfo(d.torch).max) if d.is_int else (None, None)
    if min is not None and not (isinstance(min, int) and least is not None and min <= least):
        x = b.ew(ew.Maximum, x, b.held(min, d), dtype=d)
    if max is not None and not (isinstance(max, int) and most is not None and max >= most):
        x = b.ew(ew.Minimum, x, b.held(max, d), dtype=d)
    return x


@lowers(A.clamp_min.default, A.clamp_min.Tensor)
def _clamp_min(b: OpBuilder, x: Value, min: Operand) -> Value:
    return clamp(b, x, min=min)


@lowers(A.clamp_max.default, A.clamp_max.Tensor)
def _clamp_max(b: OpBuilder, x: Value, max: Operand) -> Value:
    return clamp(b, x, max=max)


# ---------------------------------------------------------------------------------------------------- casts and
# identities
@lowers(
    A.clone.default,
    A.contiguous.default,
    A.detach.default,
    A.alias.default,
    A.lift_fresh_copy.default,
    A.lift_fresh.default,
    A.lift.default,
    A.resolve_conj.default,
    A.resolve_neg.default,
    A.positive.default,
    A.detach_copy.default,
    A.alias_copy.default,
    A.detach_.default,
)
def _identity(b: OpBuilder, x: Value, *args: Any, **_: Any) -> Value:
    return x


@lowers(A.to.dtype, A.to.dtype_layout, A.to.device, A.to.other, A._to_copy.default, A.type_as.default)
def _to(b: OpBuilder, x: Value, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    for a in args:
        if isinstance(a, torch.dtype):
            dtype = a
        elif b.is_tensor(a):
            return b.convert(x, b.dtype(a))
    return x if dtype is None else b.convert(x, dtype)


@lowers(A.promote_types.default)
def _promote_types(b: OpBuilder, x: torch.dtype, y: torch.dtype) -> torch.dtype:
    return torch.promote_types(x, y)


@lowers(prims.convert_element_type.default)
def _convert_element_type(b: OpBuilder, x: Value, dtype: torch.dtype) -> Value:
    return b.convert(x, dtype)


ELEMENTWISE = frozenset(op for op, lowering in LOWERINGS.items() if lowering.__module__ == __name__)
"""The overloads here: each element of a result depends on one of each tensor."""
