"""Elementwise ops: operands and result have the same shape (broadcasts are ops of their own)."""

# ruff: noqa: E704  (one-line hooks keep one op one short class)
import math
from typing import Any

import torch

from dhlo.codegen.elementwise import vmath
from dhlo.codegen.elementwise.vmath_base import any_lane, with_sign
from dhlo.codegen.kernel_ir.builder import F32, F64, I1, Fn, V
from dhlo.ir.dialect import Kind, Op, Out, Tensor, TypeError_, equal_shapes
from dhlo.ir.types import DTYPES, TensorType

Args = list[torch.Tensor]


class Elementwise(Op):
    """Base: the result has the operands' shape and, unless said otherwise, the first operand's dtype."""

    kind = Kind.ELEMENTWISE

    @classmethod
    def result_dtype(cls, operands: list[TensorType], attrs: dict[str, Any]) -> str:
        return "i1" if cls.predicate_result else operands[0].dtype.name

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        equal_shapes(operands, "operands")
        if not all(_group(t) in cls.takes for t in operands):
            raise TypeError_(f"no such operation on {', '.join(map(str, operands))}")
        if len({t.dtype for t in operands}) > 1 and cls.same_dtype:
            raise TypeError_(f"operands have different dtypes: {', '.join(map(str, operands))}")
        return [operands[0].with_dtype(cls.result_dtype(operands, attrs))]

    takes = "fibc"  # floats, integers, bools, complex numbers
    same_dtype = True
    predicate_result = False  # the result is bool

    def reference(self, args: Args, sizes: Any) -> Args:
        return [self.torch(*args).to(DTYPES[str(self.results[0].type.element_type)].torch)]

    def torch(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def emit(self, *args: Any, **kwargs: Any) -> V:
        raise NotImplementedError


def _group(t: TensorType) -> str:
    """The letter of a dtype in `takes`."""
    return "f" if t.dtype.is_float else "c" if t.dtype.is_complex else "b" if t.dtype.is_bool else "i"


class Unary(Elementwise):
    x: Tensor
    y: Out


class Binary(Elementwise):
    lhs: Tensor
    rhs: Tensor
    y: Out


# ---------------------------------------------------------------------------------------------------- arithmetic
class Add(Binary, name="add"):
    def torch(self, a: Any, b: Any) -> Any:
        return a + b

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return fn.or_(a, b) if a.elem == I1 else fn.add(a, b)


class Sub(Binary, name="sub"):
    takes = "fic"

    def torch(self, a: Any, b: Any) -> Any:
        return a - b

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return fn.sub(a, b)


class Mul(Binary, name="mul"):
    def torch(self, a: Any, b: Any) -> Any:
        return a * b

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return fn.and_(a, b) if a.elem == I1 else fn.mul(a, b)


class Div(Binary, name="div"):
    """True division of floats."""

    takes = "fc"

    def torch(self, a: Any, b: Any) -> Any:
        return a / b

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return fn.div(a, b)


class FloorDiv(Binary, name="floordiv"):
    """Division rounded to minus infinity (aten.div, rounding_mode="floor"). Integer division by zero gives 0."""

    takes = "fi"

    def torch(self, a: Any, b: Any) -> Any:
        if a.is_floating_point():
            return torch.div(a, b, rounding_mode="floor")
        q = torch.div(a, _harmless(b), rounding_mode="floor")
        return torch.where(b == 0, torch.zeros_like(a), torch.where(_is_minus_one(b), -a, q))

    def emit(self, fn: Fn, a: V, b: V) -> V:
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
        safe = _divisor(fn, b)
        q, r = fn.div(a, safe), fn.rem(a, safe)
        wrong = fn.and_(fn.cmp("ne", r, 0), fn.cmp("ne", fn.cmp("lt", r, 0), fn.cmp("lt", safe, 0)))
        return _quotient(fn, a, b, fn.select(wrong, fn.sub(q, 1), q))


# Integer division by 0, and of the lowest value by -1, stops the processor: both divide by 1 instead, whose remainder 0 is right.
def _divisor(fn: Fn, b: V) -> V:
    return fn.select(fn.or_(fn.cmp("eq", b, 0), fn.cmp("eq", b, -1)), fn.const(1, b.type), b)


def _quotient(fn: Fn, a: V, b: V, q: V) -> V:
    """`q`, which is a divided by `_divisor(b)`, put right."""
    return fn.select(fn.cmp("eq", b, 0), fn.const(0, a.type), fn.select(fn.cmp("eq", b, -1), fn.neg(a), q))


def _is_minus_one(b: torch.Tensor) -> torch.Tensor:
    return b == -1 if b.dtype.is_signed else torch.zeros_like(b, dtype=torch.bool)


def _harmless(b: torch.Tensor) -> torch.Tensor:
    return torch.where((b == 0) | _is_minus_one(b), torch.ones_like(b), b)


def _one(fn: Fn, like: V) -> V:
    return fn.const(1.0, like.type)


def _zero(fn: Fn, like: V) -> V:
    return fn.const(0.0, like.type)


class TruncDiv(Binary, name="truncdiv"):
    """Division rounded to zero (aten.div, rounding_mode="trunc"). Integer division by zero gives 0."""

    takes = "fi"

    def torch(self, a: Any, b: Any) -> Any:
        if a.is_floating_point():
            return torch.div(a, b, rounding_mode="trunc")
        q = torch.div(a, _harmless(b), rounding_mode="trunc")
        return torch.where(b == 0, torch.zeros_like(a), torch.where(_is_minus_one(b), -a, q))

    def emit(self, fn: Fn, a: V, b: V) -> V:
        if a.is_float:
            return fn.unary("trunc", round_to(fn, fn.div(a, b), str(self.results[0].type.element_type)))
        return _quotient(fn, a, b, fn.div(a, _divisor(fn, b)))


class Remainder(Binary, name="remainder"):
    """Remainder with the sign of the divisor (aten.remainder). Integer remainder by zero gives 0."""

    takes = "fi"

    def torch(self, a: Any, b: Any) -> Any:
        if a.is_floating_point():
            return torch.remainder(a, b)
        return torch.remainder(a, _harmless(b))

    def emit(self, fn: Fn, a: V, b: V) -> V:
        if a.is_float:
            m = vmath.call(fn, "fmod", a, b)
            wrong = fn.and_(fn.cmp("ne", m, 0.0), fn.xor(fn.cmp("lt", m, 0.0), fn.cmp("lt", b, 0.0)))
            return fn.select(wrong, fn.add(m, b), m)
        safe = _divisor(fn, b)
        r = fn.rem(a, safe)
        wrong = fn.and_(fn.cmp("ne", r, 0), fn.xor(fn.cmp("lt", r, 0), fn.cmp("lt", safe, 0)))
        return fn.select(wrong, fn.add(r, safe), r)


class Fmod(Binary, name="fmod"):
    """Remainder with the sign of the dividend (aten.fmod). Integer remainder by zero gives 0."""

    takes = "fi"

    def torch(self, a: Any, b: Any) -> Any:
        if a.is_floating_point():
            return torch.fmod(a, b)
        return torch.fmod(a, _harmless(b))

    def emit(self, fn: Fn, a: V, b: V) -> V:
        if a.is_float:
            return vmath.call(fn, "fmod", a, b)
        return fn.rem(a, _divisor(fn, b))


class Pow(Binary, name="pow"):
    """a ** b; integers by repeated squaring (a negative exponent gives 0 unless a is 1 or -1, as ATen)."""

    takes = "fic"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.pow(a, b)

    def emit(self, fn: Fn, a: V, b: V) -> V:
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


class Maximum(Binary, name="maximum"):
    takes = "fib"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.maximum(a, b)

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return fn.or_(a, b) if a.elem == I1 else fn.max(a, b)


class Minimum(Binary, name="minimum"):
    takes = "fib"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.minimum(a, b)

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return fn.and_(a, b) if a.elem == I1 else fn.min(a, b)


class Atan2(Binary, name="atan2"):
    takes = "f"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.atan2(a, b)

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return vmath.call(fn, "atan2", a, b)


class Gcd(Binary, name="gcd"):
    """The greatest common divisor, not negative; of two zeros 0."""

    takes = "i"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.gcd(a, b)

    def emit(self, fn: Fn, a: V, b: V) -> V:
        a, b = (fn.select(fn.cmp("lt", v, 0), fn.neg(v), v) for v in (a, b))
        with fn.loop(0, 92, 1, [a, b]) as lp:  # Euclid; neighbours of Fibonacci's sequence take longest
            x, y = lp.carried
            left = fn.cmp("ne", y, 0)

            def step(x: V = x, y: V = y, left: V = left) -> list[V]:
                return [fn.select(left, y, x), fn.select(left, fn.rem(x, _divisor(fn, y)), y)]

            lp.yield_(*fn.if_else(any_lane(fn, left), step, lambda: lp.carried, [x.type, y.type]))
        return lp.results[0]


class And(Binary, name="and"):
    """Bitwise and."""

    takes = "ib"

    def torch(self, a: Any, b: Any) -> Any:
        return a & b

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return fn.and_(a, b)


class Or(Binary, name="or"):
    """Bitwise or."""

    takes = "ib"

    def torch(self, a: Any, b: Any) -> Any:
        return a | b

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return fn.or_(a, b)


class Xor(Binary, name="xor"):
    """Bitwise exclusive or."""

    takes = "ib"

    def torch(self, a: Any, b: Any) -> Any:
        return a ^ b

    def emit(self, fn: Fn, a: V, b: V) -> V:
        return fn.xor(a, b)


class ShiftLeft(Binary, name="shl"):
    """Left shift; 0 where the count is not in [0, bits)."""

    takes = "i"

    def torch(self, a: Any, b: Any) -> Any:
        return a << b

    def emit(self, fn: Fn, a: V, b: V) -> V:
        bits = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}[a.elem]
        bad = fn.or_(fn.cmp("lt", b, 0), fn.cmp("ge", b, bits))
        return fn.select(bad, fn.const(0, a.type), fn.shl(a, fn.select(bad, fn.const(0, b.type), b)))


class ShiftRight(Binary, name="shr"):
    """Arithmetic right shift; the sign where the count is not in [0, bits)."""

    takes = "i"

    def torch(self, a: Any, b: Any) -> Any:
        return a >> b

    def emit(self, fn: Fn, a: V, b: V) -> V:
        bits = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}[a.elem]
        bad = fn.or_(fn.cmp("lt", b, 0), fn.cmp("ge", b, bits))
        return fn.shr(a, fn.select(bad, fn.const(bits - 1, b.type), b))


# ---------------------------------------------------------------------------------------------------- unary
class Copy(Unary, name="copy"):
    """The operand in memory of its own."""

    def torch(self, x: Any) -> Any:
        return x.clone()

    def emit(self, fn: Fn, x: V) -> V:
        return x


class Neg(Unary, name="neg"):
    takes = "fic"

    def torch(self, x: Any) -> Any:
        return -x

    def emit(self, fn: Fn, x: V) -> V:
        return fn.neg(x)


class Abs(Unary, name="abs"):
    takes = "fic"

    def torch(self, x: Any) -> Any:
        return x.abs()

    def emit(self, fn: Fn, x: V) -> V:
        return fn.unary("fabs", x) if x.is_float else fn.select(fn.cmp("lt", x, 0), fn.neg(x), x)


class Sign(Unary, name="sign"):
    """-1, 0 or 1; NaN gives 0 as in aten.sign."""

    def torch(self, x: Any) -> Any:
        return x.sign()

    def emit(self, fn: Fn, x: V) -> V:
        if x.elem == I1:
            return x
        zero, one, minus = (fn.const(v, x.type) for v in (0, 1, -1))
        return fn.select(fn.cmp("gt", x, zero), one, fn.select(fn.cmp("lt", x, zero), minus, zero))


class Not(Unary, name="not"):
    """Bitwise not; logical not of bools."""

    takes = "ib"

    def torch(self, x: Any) -> Any:
        return ~x

    def emit(self, fn: Fn, x: V) -> V:
        return fn.not_(x)


class Sqrt(Unary, name="sqrt"):
    takes = "fc"

    def torch(self, x: Any) -> Any:
        return x.sqrt()

    def emit(self, fn: Fn, x: V) -> V:
        return fn.unary("sqrt", x)


class Floor(Unary, name="floor"):
    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.floor()

    def emit(self, fn: Fn, x: V) -> V:
        return fn.unary("floor", x)


class Ceil(Unary, name="ceil"):
    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.ceil()

    def emit(self, fn: Fn, x: V) -> V:
        return fn.unary("ceil", x)


class Round(Unary, name="round"):
    """To the nearest integer, ties to even."""

    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.round()

    def emit(self, fn: Fn, x: V) -> V:
        return fn.unary("roundeven", x)


class Trunc(Unary, name="trunc"):
    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.trunc()

    def emit(self, fn: Fn, x: V) -> V:
        return fn.unary("trunc", x)


class IsNan(Unary, name="isnan"):
    takes = "fc"
    predicate_result = True

    def torch(self, x: Any) -> Any:
        return x.isnan()

    def emit(self, fn: Fn, x: V) -> V:
        return fn.cmp("uno", x, x)


class IsInf(Unary, name="isinf"):
    takes = "fc"
    predicate_result = True

    def torch(self, x: Any) -> Any:
        return x.isinf()

    def emit(self, fn: Fn, x: V) -> V:
        return fn.cmp("eq", fn.unary("fabs", x), float("inf"))


class MathOp(Unary):
    """A function of codegen/vmath.py, of the same name as the op."""

    takes = "fc"

    def torch(self, x: Any) -> Any:
        return getattr(torch, type(self).OPERATION_NAME.removeprefix("dhlo."))(x)

    def emit(self, fn: Fn, x: V) -> V:
        return vmath.call(fn, type(self).OPERATION_NAME.removeprefix("dhlo."), x)


class Exp(MathOp, name="exp"):
    pass


class ExpBelow(MathOp, name="exp_below"):
    """exp(x) where x <= 0 or NaN, as in softmax: one step less, relative error 1.8e-7 + 1.4e-8 |x| in f32. Results below about the
    smallest normal number (1.7e-38, in f64 3.2e-308) are 0, so that kernels never see a subnormal weight.
    """

    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.exp()


class Exp2(MathOp, name="exp2"):
    pass


class Expm1(MathOp, name="expm1"):
    pass


class Log(MathOp, name="log"):
    pass


class Log2(MathOp, name="log2"):
    pass


class Log10(MathOp, name="log10"):
    pass


class Log1p(MathOp, name="log1p"):
    pass


class Sin(MathOp, name="sin"):
    pass


class Cos(MathOp, name="cos"):
    pass


class Tan(MathOp, name="tan"):
    pass


class Asin(MathOp, name="asin"):
    pass


class Acos(MathOp, name="acos"):
    pass


class Atan(MathOp, name="atan"):
    pass


class Sinh(MathOp, name="sinh"):
    pass


class Cosh(MathOp, name="cosh"):
    pass


class Tanh(MathOp, name="tanh"):
    pass


class Asinh(MathOp, name="asinh"):
    pass


class Acosh(MathOp, name="acosh"):
    pass


class Atanh(MathOp, name="atanh"):
    pass


class Erf(MathOp, name="erf"):
    pass


class Erfc(MathOp, name="erfc"):
    pass


class Erfinv(MathOp, name="erfinv"):
    pass


class Sigmoid(MathOp, name="sigmoid"):
    pass


class NormalCdf(MathOp, name="normal_cdf"):
    """The standard normal distribution function (1 + erf(x / sqrt(2))) / 2, of real numbers; aten.special_ndtr."""

    takes = "f"

    def torch(self, x: Any) -> Any:
        return (torch.erfc(x.double() * -math.sqrt(0.5)) * 0.5).to(x.dtype)


class SpecialOp(MathOp):
    """A function that torch.special has."""

    takes = "f"

    def torch(self, x: Any) -> Any:
        return getattr(torch.special, type(self).OPERATION_NAME.removeprefix("dhlo."))(x.double()).to(x.dtype)


class BesselI0(SpecialOp, name="i0"):
    pass


class BesselI0e(SpecialOp, name="i0e"):
    pass


class BesselI1(SpecialOp, name="i1"):
    pass


class BesselI1e(SpecialOp, name="i1e"):
    pass


class Erfcx(SpecialOp, name="erfcx"):
    pass


class Rsqrt(MathOp, name="rsqrt"):
    pass


class Lgamma(MathOp, name="lgamma"):
    pass


class Digamma(MathOp, name="digamma"):
    pass


# ---------------------------------------------------------------------------------------------------- predicates
class Compare(Binary):
    """Base of the comparisons; false on NaN but for `ne`."""

    predicate_result = True
    predicate = ""

    def torch(self, a: Any, b: Any) -> Any:
        return getattr(torch, self.predicate)(a, b)

    def emit(self, fn: Fn, a: V, b: V) -> V:
        if a.elem == I1:  # i1 is signed: true would be -1
            a, b = fn.cast(a, "i8"), fn.cast(b, "i8")
        return fn.cmp(self.predicate, a, b)


class Eq(Compare, name="eq"):
    predicate = "eq"


class Ne(Compare, name="ne"):
    predicate = "ne"


class Lt(Compare, name="lt"):
    predicate = "lt"


class Le(Compare, name="le"):
    predicate = "le"


class Gt(Compare, name="gt"):
    predicate = "gt"


class Ge(Compare, name="ge"):
    predicate = "ge"


class Select(Elementwise, name="select"):
    """Elementwise choice: on_true where `pred` holds, else on_false."""

    same_dtype = False
    pred: Tensor
    on_true: Tensor
    on_false: Tensor
    y: Out

    @classmethod
    def result_dtype(cls, operands: list[TensorType], attrs: dict[str, Any]) -> str:
        if operands[0].dtype.name != "i1" or operands[1].dtype != operands[2].dtype:
            raise TypeError_("select wants a bool and two tensors of one dtype")
        return operands[1].dtype.name

    def torch(self, c: Any, a: Any, b: Any) -> Any:
        return torch.where(c, a, b)

    def emit(self, fn: Fn, c: V, a: V, b: V) -> V:
        return fn.select(c, a, b)


class Convert(Elementwise, name="convert"):
    """Conversion to another dtype, as Tensor.to: floats to ints truncate, anything to bool means != 0."""

    explicit = True
    x: Tensor
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        return None if operands[0].shape == results[0].shape else "shapes differ"

    def torch(self, x: Any) -> Any:
        return x

    def emit(self, fn: Fn, x: V) -> V:
        src, dst = (DTYPES[str(t.type.element_type)] for t in (self.operands[0], self.results[0]))
        if dst.is_int and src.is_float:
            wide = fn.cast(x, "i64" if dst.name == "i64" else "i32")
            return fn.cast(wide, dst.register) if wide.elem != dst.register else wide
        y = fn.cast(x, dst.register)
        inexact = src.bytes > dst.bytes if src.is_float else src.is_int and src.bytes > 1
        return round_to(fn, y, dst.name) if inexact else y


class Bitcast(Elementwise, name="bitcast"):
    """The operand's bits as another dtype of the same width; not of bools."""

    explicit = True
    x: Tensor
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        x, y = operands[0], results[0]
        good = x.shape == y.shape and x.dtype.bytes == y.dtype.bytes and not x.dtype.is_bool and not y.dtype.is_bool
        return None if good else f"can't reinterpret {x} as {y}"

    def reference(self, args: Args, sizes: Any) -> Args:
        return [args[0].contiguous().view(DTYPES[str(self.results[0].type.element_type)].torch)]

    def emit(self, fn: Fn, x: V) -> V:
        src, dst = (DTYPES[str(t.type.element_type)] for t in (self.operands[0], self.results[0]))
        if src == dst:
            return x
        bits = f"i{8 * src.bytes}"
        raw = fn.bitcast(fn.cast(x, src.name), bits) if src.is_float else fn.cast(x, bits)
        if dst.is_float:
            return fn.cast(fn.bitcast(raw, dst.name), dst.register)
        return fn.cast(raw, dst.register, signed=dst.name != "ui8")


def round_to(fn: Fn, x: V, dtype: str) -> V:
    """A register value rounded to a narrower float dtype's precision."""
    if dtype in ("f16", "bf16") and x.elem in (F32, F64):
        return fn.cast(fn.cast(x, dtype), x.elem)
    return x


def wrap(fn: Fn, x: V, dtype: str) -> V:
    """Keeps a register value in the range of its dtype (unsigned bytes live in 16-bit lanes)."""
    return fn.and_(x, 255) if dtype == "ui8" else x


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)] + ["round_to", "wrap"]
