"""Random numbers: PyTorch's distributions out of the random bits of the session's generator, and dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from dhlo.frontend.aten.reduction import scan
from dhlo.frontend.builder import OpBuilder, Operand, Size, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import lookup, random
from dhlo.ir.symbols import as_expr
from dhlo.ir.types import DTYPES, DType, TensorType

__all__ = ["drop"]

Make = Callable[[OpBuilder, Sequence[Size], DType], Value]

_DIGITS = {"f16": 11, "bf16": 8, "f32": 24}  # significant bits of a float
_SELU_ALPHA = 1.7580993408473766  # minus the value that SELU saturates at


# ---------------------------------------------------------------------------------------------------- distributions
class _Draw:
    """One draw from the generator: four independent 32-bit words for every element of a shape."""

    def __init__(self, b: OpBuilder, shape: Sequence[Size]) -> None:
        self.b, self.type = b, TensorType.of("i32", shape)
        self.key = b.op(random.RandomKey, [])

    def word(self, number: int, digits: int) -> Value:
        """The upper `digits` bits of a word, as i32."""
        bits = self.b.op(random.RandomBits, [self.key], {"word": number}, [self.type])
        return self.b.ew(ew.And, self.b.ew(ew.ShiftRight, bits, 32 - digits), (1 << digits) - 1)

    def unit(self, dtype: DType, number: int = 0) -> Value:
        """Uniform on the dtype's multiples of its precision in [0, 1), as aten.rand; f64 takes two words."""
        b, f = self.b, dtype if dtype.name == "f64" else DTYPES["f32"]
        if dtype.name == "f64":
            high, low = (b.convert(self.word(2 * number + k, 26 + k), f) for k in range(2))
            return b.mul(b.add(b.mul(high, 2.0**27), low), 2.0**-53)
        digits = _DIGITS[dtype.name]
        return b.convert(b.mul(b.convert(self.word(number, digits), f), 2.0**-digits), dtype)

    def normal(self, dtype: DType) -> Value:
        """Box and Muller's transform of two uniform numbers."""
        b, f = self.b, dtype if dtype.name == "f64" else DTYPES["f32"]
        radius = b.unary(ew.Sqrt, b.mul(b.unary(ew.Log, b.sub(1.0, self.unit(f, 0))), -2.0))
        return b.convert(b.mul(radius, b.unary(ew.Cos, b.mul(self.unit(f, 1), 2 * math.pi))), dtype)

    def below(self, n: Any) -> Value:
        """Uniform integers (i64) in [0, n): a small range scales 32 bits, another takes the remainder of 63."""
        b, n = self.b, as_expr(n)
        high = b.convert(self.word(0, 31), "i64")
        low = b.ew(ew.And, b.convert(b.op(random.RandomBits, [self.key], {"word": 1}, [self.type]), "i64"), (1 << 32) - 1)
        if n.is_number and n <= 1 << 31:
            return b.ew(ew.ShiftRight, b.mul(low, n), 32)
        bits = b.ew(ew.Or, b.ew(ew.ShiftLeft, high, 32), low)
        return bits if n.is_number and n > 1 << 63 else b.remainder(bits, n)


def _uniform(b: OpBuilder, shape: Sequence[Size], dtype: DType) -> Value:
    return _Draw(b, shape).unit(dtype)


def _normal(b: OpBuilder, shape: Sequence[Size], dtype: DType) -> Value:
    return _Draw(b, shape).normal(dtype)


def _exponential(b: OpBuilder, shape: Sequence[Size], dtype: DType, rate: float = 1.0) -> Value:
    f = dtype if dtype.name == "f64" else DTYPES["f32"]
    return b.convert(b.mul(b.unary(ew.Log1p, b.unary(ew.Neg, _uniform(b, shape, f))), -1.0 / rate), dtype)


def _is_below(b: OpBuilder, shape: Sequence[Size], p: Operand) -> Value:
    """True with probability p (a number, or a tensor that fits the shape)."""
    wide = b.is_tensor(p) and b.dtype(p).name == "f64"
    u = _uniform(b, shape, DTYPES["f64" if wide else "f32"])
    return b.ew(ew.Lt, u, p if not b.is_tensor(p) or wide else b.convert(p, "f32"))


# ---------------------------------------------------------------------------------------------------- sources
def _sized(make: Make) -> Any:
    def rule(b: OpBuilder, size: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
        return make(b, size, b.as_dtype(dtype))

    return rule


def _like(make: Make) -> Any:
    def rule(b: OpBuilder, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
        return make(b, b.shape(x), b.as_dtype(dtype, b.dtype(x)))

    return rule


lowers(A.rand.default, A.rand.generator)(_sized(_uniform))
lowers(A.randn.default, A.randn.generator)(_sized(_normal))
lowers(A.rand_like.default, A.rand_like.generator)(_like(_uniform))
lowers(A.randn_like.default, A.randn_like.generator)(_like(_normal))


def _integers(b: OpBuilder, shape: Sequence[Size], low: Any, high: Any, dtype: DType) -> Value:
    return b.convert(b.add(_Draw(b, shape).below(as_expr(high) - as_expr(low)), low), dtype)


@lowers(A.randint.low, A.randint.low_generator)
def _randint_low(b: OpBuilder, low: Any, high: Any, size: Any, *, dtype: torch.dtype | None = torch.int64, **_: Any) -> Value:
    return _integers(b, size, low, high, b.as_dtype(dtype))


@lowers(A.randint.default, A.randint.generator)
def _randint(b: OpBuilder, high: Any, size: Any, *, dtype: torch.dtype | None = torch.int64, **_: Any) -> Value:
    return _integers(b, size, 0, high, b.as_dtype(dtype))


@lowers(A.randint_like.low_dtype, A.randint_like.low_generator_dtype)
def _randint_like_low(b: OpBuilder, x: Value, low: Any, high: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _integers(b, b.shape(x), low, high, b.as_dtype(dtype, b.dtype(x)))


@lowers(A.randint_like.default, A.randint_like.generator)
def _randint_like(b: OpBuilder, x: Value, high: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _integers(b, b.shape(x), 0, high, b.as_dtype(dtype, b.dtype(x)))


@lowers(A.random.default, A.random.to, getattr(A.random, "from"))
def _random(b: OpBuilder, x: Value, *bounds: Any, to: Any = None, generator: Any = None, **named: Any) -> Value:
    d = b.dtype(x)
    low, high = (0, bounds[0]) if len(bounds) == 1 and to is None else (*bounds, to, None)[:2]
    low = named.get("from", low) or 0
    if high is None:  # all that the dtype has, from `low` on
        largest = 1 if d.is_bool else 1 << _DIGITS.get(d.name, 53) if d.is_float else torch.iinfo(d.torch).max
        high = largest + 1
    return _integers(b, b.shape(x), low, high, d)


@lowers(A.randperm.default, A.randperm.generator)
def _randperm(b: OpBuilder, n: Any, *, dtype: torch.dtype | None = torch.int64, **_: Any) -> Value:
    order = b.op(lookup.Sort, [_Draw(b, [n]).below((1 << 63) + 1)], {"dim": 0, "descending": False})[1]
    return b.convert(order, b.as_dtype(dtype))


@lowers(A.uniform.default)
def _uniform_between(b: OpBuilder, x: Value, low: float = 0.0, high: float = 1.0, **named: Any) -> Value:
    low, high = named.get("from", low), named.get("to", high)
    return b.add(b.mul(_uniform(b, b.shape(x), b.dtype(x)), high - low), low)


@lowers(A.exponential.default)
def _exponential_as(b: OpBuilder, x: Value, lambd: float = 1.0, **_: Any) -> Value:
    return _exponential(b, b.shape(x), b.dtype(x), lambd)


@lowers(A.geometric.default)
def _geometric(b: OpBuilder, x: Value, p: float, **_: Any) -> Value:
    f = DTYPES["f64" if b.dtype(x).name == "f64" else "f32"]
    tries = b.mul(_exponential(b, b.shape(x), f), -1.0 / math.log1p(-p) if p < 1 else 0.0)
    return b.convert(b.maximum(b.unary(ew.Ceil, tries), 1.0), b.dtype(x))


@lowers(A.cauchy.default)
def _cauchy(b: OpBuilder, x: Value, median: float = 0.0, sigma: float = 1.0, **_: Any) -> Value:
    f = DTYPES["f64" if b.dtype(x).name == "f64" else "f32"]
    slope = b.unary(ew.Tan, b.mul(b.sub(_uniform(b, b.shape(x), f), 0.5), math.pi))
    return b.convert(b.add(b.mul(slope, sigma), median), b.dtype(x))


@lowers(A.log_normal.default)
def _log_normal(b: OpBuilder, x: Value, mean: float = 1.0, std: float = 2.0, **_: Any) -> Value:
    return b.unary(ew.Exp, _scaled_normal(b, b.shape(x), b.dtype(x), mean, std))


def _scaled_normal(b: OpBuilder, shape: Sequence[Size], dtype: DType, mean: Operand, std: Operand) -> Value:
    return b.add(b.mul(_normal(b, shape, dtype), std), mean)


@lowers(A.normal_functional.default)
def _normal_functional(b: OpBuilder, x: Value, mean: float = 0.0, std: float = 1.0, **_: Any) -> Value:
    return _scaled_normal(b, b.shape(x), b.dtype(x), mean, std)


@lowers(A.normal.float_float)
def _normal_sized(b: OpBuilder, mean: float, std: float, size: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _scaled_normal(b, size, b.as_dtype(dtype), mean, std)


@lowers(A.normal.Tensor_float, A.normal.float_Tensor, A.normal.Tensor_Tensor)
def _normal_of(b: OpBuilder, mean: Operand, std: Operand = 1.0, **_: Any) -> Value:
    shape = b.broadcast_shape(*[b.shape(x) for x in (mean, std) if b.is_tensor(x)])
    return _scaled_normal(b, shape, b.result_type(mean, std), mean, std)


# ---------------------------------------------------------------------------------------------------- choices
def _need_probabilities(b: OpBuilder, p: Value) -> None:
    b.need_all(b.ew(ew.And, b.ew(ew.Ge, p, 0.0), b.ew(ew.Le, p, 1.0)), "bernoulli: a probability is below 0, above 1 or NaN")


@lowers(A.bernoulli.default)
def _bernoulli(b: OpBuilder, p: Value, **_: Any) -> Value:
    _need_probabilities(b, p)
    return b.convert(_is_below(b, b.shape(p), p), b.dtype(p))


@lowers(A.bernoulli.p, A.bernoulli.Tensor)
def _bernoulli_as(b: OpBuilder, x: Value, p: Operand = 0.5, **_: Any) -> Value:
    if b.is_tensor(p):
        _need_probabilities(b, p)
    return b.convert(_is_below(b, b.shape(x), p), b.dtype(x))


@lowers(A.multinomial.default)
def _multinomial(b: OpBuilder, weights: Value, count: Any, replacement: bool = False, **_: Any) -> Value:
    last = b.rank(weights) - 1
    *rows, n = b.shape(weights)
    w = b.convert(weights, "f64")
    right = b.ew(ew.And, b.ew(ew.Ge, w, 0.0), b.ew(ew.Lt, w, math.inf))  # NaN is neither
    b.need_all(right, "multinomial: a weight is negative, infinite or NaN")
    b.need_all(b.ew(ew.Gt, b.reduce(w, "max", [last]), 0.0), "multinomial: the weights of a row are all zero")
    if not replacement:  # the `count` first of independent clocks whose rates are the weights
        race = b.div(w, _exponential(b, b.shape(w), DTYPES["f64"]))
        types = [TensorType.of("f64", [*rows, count]), TensorType.of("i64", [*rows, count])]
        return b.op(lookup.TopK, [race], {"dim": last, "largest": True}, types)[1]
    ends = scan(b, w, "sum", last)
    total = b.slice(ends, last, n - 1, 1)
    at = b.op(lookup.SearchSorted, [ends, b.mul(_uniform(b, [*rows, count], DTYPES["f64"]), total)], {"right": True})
    return b.minimum(at, n - 1)


# ---------------------------------------------------------------------------------------------------- dropout
def drop(b: OpBuilder, x: Value, p: float, shape: Sequence[Size] | None = None) -> tuple[Value, Value]:
    """x with elements zeroed with probability p and the others scaled by 1 / (1 - p), and which were kept. `shape`, which
    broadcasts to x's, says what is dropped as a whole."""
    shape = b.shape(x) if shape is None else shape
    keep = _is_below(b, shape, 1.0 - p)
    scaled = b.mul(x, 1.0 / (1.0 - p)) if p < 1 else b.mul(x, 0.0)
    return b.select(b.expand(keep, b.shape(x)), scaled, 0, dtype=b.dtype(x)), keep


def _features(b: OpBuilder, x: Value) -> list[Any]:
    """The shape that drops channels as a whole."""
    return [s if d < 2 else sympy.Integer(1) for d, s in enumerate(b.shape(x))]


@lowers(A.dropout.default)
def _dropout(b: OpBuilder, x: Value, p: float, train: bool) -> Value:
    return drop(b, x, p)[0] if train and p else x


@lowers(A.native_dropout.default)
def _native_dropout(b: OpBuilder, x: Value, p: float, train: bool | None) -> list[Value]:
    if train is False or not p:
        return [x, b.full(b.shape(x), 1, "i1")]
    return list(drop(b, x, p))


@lowers(A.feature_dropout.default)
def _feature_dropout(b: OpBuilder, x: Value, p: float, train: bool) -> Value:
    return drop(b, x, p, _features(b, x))[0] if train and p else x


def _alpha(b: OpBuilder, x: Value, p: float, shape: Sequence[Size]) -> Value:
    """Dropped elements become SELU's saturation; then all are scaled and shifted so that mean and variance stay."""
    if p == 1:
        return b.mul(x, 0)
    a = 1.0 / math.sqrt((_SELU_ALPHA**2 * p + 1) * (1 - p))
    kept = b.expand(_is_below(b, shape, 1.0 - p), b.shape(x))
    shift = _SELU_ALPHA * a * p
    return b.select(kept, b.add(b.mul(x, a), shift), shift - _SELU_ALPHA * a, dtype=b.dtype(x))


@lowers(A.alpha_dropout.default)
def _alpha_dropout(b: OpBuilder, x: Value, p: float, train: bool) -> Value:
    return _alpha(b, x, p, b.shape(x)) if train and p else x


@lowers(A.feature_alpha_dropout.default)
def _feature_alpha_dropout(b: OpBuilder, x: Value, p: float, train: bool) -> Value:
    return _alpha(b, x, p, _features(b, x)) if train and p else x


@lowers(A.rrelu.default)
def _rrelu(
    b: OpBuilder, x: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Value:
    slope: Operand = (lower + upper) / 2
    if training:
        slope = b.add(b.mul(_uniform(b, b.shape(x), b.dtype(x)), upper - lower), lower)
    return b.select(b.ew(ew.Gt, x, 0), x, b.mul(x, slope))


@lowers(A.rrelu_with_noise_functional.default)
def _rrelu_with_noise_functional(
    b: OpBuilder,
    x: Value,
    noise: Value,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> list[Value]:
    if not training:
        return [_rrelu(b, x, lower, upper), noise]
    slope = b.add(b.mul(_uniform(b, b.shape(x), b.dtype(x)), upper - lower), lower)
    used = b.select(b.ew(ew.Gt, x, 0), 1, slope, dtype=b.dtype(x))
    return [b.mul(x, used), used]


@lowers(A.rrelu_with_noise.default)
def _rrelu_with_noise(b: OpBuilder, *args: Any) -> Value:
    return _rrelu_with_noise_functional(b, *args)[0]
