"""Elementwise ops: operands and result have the same shape (broadcasts are ops of their own)."""

# ruff: noqa: E704  (one-line hooks keep one op one short class)
import math
from typing import Any

import sympy
import torch

from dhlo.ir.dialect import Kind, Op, Out, Tensor, TypeError_, equal_shapes
from dhlo.ir.types import DTYPES, TensorType, from_mlir

Args = list[torch.Tensor]


class Elementwise(Op):
    """Base: the result has the operands' shape and, unless said otherwise, the first operand's dtype."""

    kind = Kind.ELEMENTWISE
    work = 1

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

    def flops(self) -> sympy.Expr:
        out = from_mlir(self.results[0])
        return out.numel if out.dtype.is_float else sympy.Integer(0)


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


class Sub(Binary, name="sub"):
    takes = "fic"

    def torch(self, a: Any, b: Any) -> Any:
        return a - b


class Mul(Binary, name="mul"):
    def torch(self, a: Any, b: Any) -> Any:
        return a * b


class Div(Binary, name="div"):
    """True division of floats."""

    work = 3
    takes = "fc"

    def torch(self, a: Any, b: Any) -> Any:
        return a / b


class FloorDiv(Binary, name="floordiv"):
    """Division rounded to minus infinity (aten.div, rounding_mode="floor"). Integer division by zero gives 0."""

    work = 10
    takes = "fi"

    def torch(self, a: Any, b: Any) -> Any:
        if a.is_floating_point():
            return torch.div(a, b, rounding_mode="floor")
        q = torch.div(a, _harmless(b), rounding_mode="floor")
        return torch.where(b == 0, torch.zeros_like(a), torch.where(_is_minus_one(b), -a, q))


def _is_minus_one(b: torch.Tensor) -> torch.Tensor:
    return b == -1 if b.dtype.is_signed else torch.zeros_like(b, dtype=torch.bool)


def _harmless(b: torch.Tensor) -> torch.Tensor:
    return torch.where((b == 0) | _is_minus_one(b), torch.ones_like(b), b)


class TruncDiv(Binary, name="truncdiv"):
    """Division rounded to zero (aten.div, rounding_mode="trunc"). Integer division by zero gives 0."""

    takes = "fi"

    def torch(self, a: Any, b: Any) -> Any:
        if a.is_floating_point():
            return torch.div(a, b, rounding_mode="trunc")
        q = torch.div(a, _harmless(b), rounding_mode="trunc")
        return torch.where(b == 0, torch.zeros_like(a), torch.where(_is_minus_one(b), -a, q))


class Remainder(Binary, name="remainder"):
    """Remainder with the sign of the divisor (aten.remainder). Integer remainder by zero gives 0."""

    work = 10
    takes = "fi"

    def torch(self, a: Any, b: Any) -> Any:
        if a.is_floating_point():
            return torch.remainder(a, b)
        return torch.remainder(a, _harmless(b))


class Fmod(Binary, name="fmod"):
    """Remainder with the sign of the dividend (aten.fmod). Integer remainder by zero gives 0."""

    work = 8
    takes = "fi"

    def torch(self, a: Any, b: Any) -> Any:
        if a.is_floating_point():
            return torch.fmod(a, b)
        return torch.fmod(a, _harmless(b))


class Pow(Binary, name="pow"):
    """a ** b; integers by repeated squaring (a negative exponent gives 0 unless a is 1 or -1, as ATen)."""

    work = 16
    takes = "fic"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.pow(a, b)


class Maximum(Binary, name="maximum"):
    takes = "fib"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.maximum(a, b)


class Minimum(Binary, name="minimum"):
    takes = "fib"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.minimum(a, b)


class Atan2(Binary, name="atan2"):
    takes = "f"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.atan2(a, b)


class Gcd(Binary, name="gcd"):
    """The greatest common divisor, not negative; of two zeros 0."""

    takes = "i"

    def torch(self, a: Any, b: Any) -> Any:
        return torch.gcd(a, b)


class And(Binary, name="and"):
    """Bitwise and."""

    takes = "ib"
    takes_bits = True

    def torch(self, a: Any, b: Any) -> Any:
        return a & b


class Or(Binary, name="or"):
    """Bitwise or."""

    takes = "ib"
    takes_bits = True

    def torch(self, a: Any, b: Any) -> Any:
        return a | b


class Xor(Binary, name="xor"):
    """Bitwise exclusive or."""

    takes = "ib"
    takes_bits = True

    def torch(self, a: Any, b: Any) -> Any:
        return a ^ b


class ShiftLeft(Binary, name="shl"):
    """Left shift; 0 where the count is not in [0, bits)."""

    takes = "i"

    def torch(self, a: Any, b: Any) -> Any:
        return a << b


class ShiftRight(Binary, name="shr"):
    """Arithmetic right shift; the sign where the count is not in [0, bits)."""

    takes = "i"

    def torch(self, a: Any, b: Any) -> Any:
        return a >> b


# ---------------------------------------------------------------------------------------------------- unary
class Copy(Unary, name="copy"):
    """The operand in memory of its own."""

    takes_bits = True

    def torch(self, x: Any) -> Any:
        return x.clone()


class Neg(Unary, name="neg"):
    takes = "fic"

    def torch(self, x: Any) -> Any:
        return -x


class Abs(Unary, name="abs"):
    takes = "fic"

    def torch(self, x: Any) -> Any:
        return x.abs()


class Sign(Unary, name="sign"):
    """-1, 0 or 1; NaN gives 0 as in aten.sign."""

    def torch(self, x: Any) -> Any:
        return x.sign()


class Not(Unary, name="not"):
    """Bitwise not; logical not of bools."""

    takes = "ib"
    takes_bits = True

    def torch(self, x: Any) -> Any:
        if x.dtype == torch.uint64:  # which PyTorch's kernels don't take
            return (~x.view(torch.int64)).view(torch.uint64)
        return ~x


class Sqrt(Unary, name="sqrt"):
    work = 3
    takes = "fc"

    def torch(self, x: Any) -> Any:
        return x.sqrt()


class Floor(Unary, name="floor"):
    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.floor()


class Ceil(Unary, name="ceil"):
    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.ceil()


class Round(Unary, name="round"):
    """To the nearest integer, ties to even."""

    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.round()


class Nearest(Unary, name="nearest"):
    """f32 to the nearest i32, ties to even. What i32 doesn't hold becomes what its conversion without rounding does."""

    takes = "f"

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if operands[0].dtype.name != "f32":
            raise TypeError_(f"f32 expected, not {operands[0]}")
        return [operands[0].with_dtype("i32")]

    def torch(self, x: Any) -> Any:
        return x.round()


class Trunc(Unary, name="trunc"):
    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.trunc()


class IsNan(Unary, name="isnan"):
    takes = "fc"
    predicate_result = True

    def torch(self, x: Any) -> Any:
        return x.isnan()


class IsInf(Unary, name="isinf"):
    takes = "fc"
    predicate_result = True

    def torch(self, x: Any) -> Any:
        return x.isinf()


class MathOp(Unary):
    """A function that vector math (codegen/elementwise) has under the op's name."""

    takes = "fc"

    def torch(self, x: Any) -> Any:
        return getattr(torch, type(self).OPERATION_NAME.removeprefix("dhlo."))(x)


class Exp(MathOp, name="exp"):
    work = 8


class ExpBelow(MathOp, name="exp_below"):
    """exp(x) where x <= 0 or NaN, as in softmax: one step less, relative error 1.8e-7 + 1.4e-8 |x| in f32. Results below about the
    smallest normal number (1.7e-38, in f64 3.2e-308) are 0, so that kernels never see a subnormal weight.
    """

    work = 8
    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.exp()


class Exp2(MathOp, name="exp2"):
    pass


class Expm1(MathOp, name="expm1"):
    pass


class Log(MathOp, name="log"):
    work = 8


class Log2(MathOp, name="log2"):
    pass


class Log10(MathOp, name="log10"):
    pass


class Log1p(MathOp, name="log1p"):
    pass


class Sin(MathOp, name="sin"):
    work = 10


class Cos(MathOp, name="cos"):
    work = 10


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
    work = 8


class Asinh(MathOp, name="asinh"):
    pass


class Acosh(MathOp, name="acosh"):
    pass


class Atanh(MathOp, name="atanh"):
    pass


class Erf(MathOp, name="erf"):
    work = 8


class Erfc(MathOp, name="erfc"):
    pass


class Erfinv(MathOp, name="erfinv"):
    pass


class Sigmoid(MathOp, name="sigmoid"):
    work = 8


class SigmoidShort(MathOp, name="sigmoid_short"):
    """The logistic function for results that are rounded to bf16 or f16: relative error 1e-5 in f32, half of that but far out."""

    work = 6
    takes = "f"

    def torch(self, x: Any) -> Any:
        return x.sigmoid()


class NormalCdf(MathOp, name="normal_cdf"):
    """The standard normal distribution function (1 + erf(x / sqrt(2))) / 2, of real numbers; aten.special_ndtr."""

    work = 8
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
    work = 4


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


class Eq(Compare, name="eq"):
    takes_bits = True
    predicate = "eq"


class Ne(Compare, name="ne"):
    takes_bits = True
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
    takes_bits = True
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


class Bitcast(Elementwise, name="bitcast"):
    """The operand's bits as another dtype of the same width; not of bools."""

    explicit = True
    takes_bits = True
    x: Tensor
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        x, y = operands[0], results[0]
        good = x.shape == y.shape and x.dtype.bytes == y.dtype.bytes and not x.dtype.is_bool and not y.dtype.is_bool
        return None if good else f"can't reinterpret {x} as {y}"

    def reference(self, args: Args, sizes: Any) -> Args:
        return [args[0].contiguous().view(DTYPES[str(self.results[0].type.element_type)].torch)]


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)]
