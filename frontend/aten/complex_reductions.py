"""Reductions, sums of products and selections of complex numbers, by their real and imaginary parts."""

from __future__ import annotations

import cmath
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dhlo.errors import CompileError
from dhlo.frontend.aten import indexing
from dhlo.frontend.aten.complex import Complex, by_parts, on_complex, parts_of
from dhlo.frontend.aten.complex_math import angle_of, exp_of, in_double, log_of, magnitude, plus, rule_of, times, with_parts
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import COMPLEX, LOWERINGS, into
from dhlo.ir.ops import elementwise as ew


# ---------------------------------------------------------------------------------------------------- reductions
@on_complex(A.linalg_vector_norm.default, A.norm.ScalarOpt_dim, A.norm.Scalar, A.norm.ScalarOpt_dim_dtype)  # one rule for all
def _vector_norm(b: OpBuilder, x: Complex, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Value:
    if dtype is not None:
        x = with_parts(b, x, b.as_dtype(dtype).register)
    return LOWERINGS[A.linalg_vector_norm.default](b, magnitude(b, x), *args, **kwargs)


def _register_variances() -> None:
    """The variance of a complex number is that of its parts together."""

    def variance(op: Any, root: bool) -> Callable[..., Any]:
        def f(b: OpBuilder, x: Complex, *args: Any, **kwargs: Any) -> Any:
            both = [LOWERINGS[op](b, part, *args, **kwargs) for part in (x.re, x.im)]
            total = b.add(*both)
            return b.unary(ew.Sqrt, total) if root else total

        return f

    def with_mean(op: Any, root: bool) -> Callable[..., Any]:
        def f(b: OpBuilder, x: Complex, *args: Any, **kwargs: Any) -> Any:
            (p, m), (q, n) = (LOWERINGS[op](b, part, *args, **kwargs) for part in (x.re, x.im))
            total = b.add(p, q)
            return [b.unary(ew.Sqrt, total) if root else total, Complex(m, n)]

        return f

    for name in ("default", "dim", "correction"):
        var, both = getattr(A.var, name), getattr(A.var_mean, name)
        on_complex(var)(variance(var, False))
        on_complex(getattr(A.std, name))(variance(var, True))
        on_complex(both)(with_mean(both, False))
        on_complex(getattr(A.std_mean, name))(with_mean(both, True))


_register_variances()


def _multiplied(sizes: Callable[..., Value], angles: Callable[..., Value]) -> Callable[..., Complex]:
    """A product of many numbers: of their sizes, at the sum of their angles."""

    @in_double
    def rule(b: OpBuilder, x: Complex) -> Complex:
        size, angle = sizes(b, magnitude(b, x)), angles(b, angle_of(b, x))
        return Complex(b.mul(size, b.unary(ew.Cos, angle)), b.mul(size, b.unary(ew.Sin, angle)))

    return rule


@on_complex(A.prod.default, A.prod.dim_int)
def _prod(b: OpBuilder, x: Complex, dim: Any = None, keepdim: bool = False) -> Complex:
    dims = b.dims_list(x.re, dim)
    return _multiplied(lambda b, v: b.reduce(v, "prod", dims, keepdim), lambda b, v: b.reduce(v, "sum", dims, keepdim))(b, x)


@on_complex(A.cumprod.default)
def _cumprod(b: OpBuilder, x: Complex, dim: int) -> Complex:
    sizes, angles = LOWERINGS[A.cumprod.default], LOWERINGS[A.cumsum.default]
    return _multiplied(lambda b, v: sizes(b, v, dim), lambda b, v: angles(b, v, dim))(b, x)


def _register_converted() -> None:
    """What is first converted to the dtype that is asked for may become complex there, or real."""

    def rule(own: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        def f(b: OpBuilder, x: Operand, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
            was = isinstance(x, Complex)
            if dtype is None or not (was or dtype.is_complex):
                return own(b, x, *args, **kwargs, **({} if dtype is None else {"dtype": dtype}))
            x = rule_of(A._to_copy.default)(b, x, dtype=dtype) if was else b.convert(x, dtype)
            return (own if was == isinstance(x, Complex) else other)(b, x, *args, **kwargs)

        return f

    sums = (A.sum.default, A.sum.dim_IntList, A.mean.default, A.mean.dim, A.cumsum.default)
    for op in (*sums, A.prod.default, A.prod.dim_int, A.cumprod.default):
        of_real, of_complex = LOWERINGS[op], COMPLEX[op]
        into(LOWERINGS, [op])(rule(of_real, of_complex))
        into(COMPLEX, [op])(rule(of_complex, of_real))


_register_converted()


def _below(b: OpBuilder, x: Complex, most: Value) -> tuple[Complex, Value]:
    """e^(x - most), and `most` as a number where it is none."""
    most = b.select(LOWERINGS[A.isfinite.default](b, most), most, 0.0)
    return exp_of(b, Complex(b.sub(x.re, most), x.im)), most


@on_complex(A.logsumexp.default)
@in_double
def _logsumexp(b: OpBuilder, x: Complex, dims: Any, keepdim: bool = False) -> Complex:
    over = b.dims_list(x.re, dims)
    z, most = _below(b, x, b.reduce(x.re, "max", b.dims_list(x.re, over), True))
    log = log_of(b, Complex(b.reduce(z.re, "sum", over, True), b.reduce(z.im, "sum", over, True)))
    log = Complex(b.add(log.re, most), log.im)
    return log if keepdim else Complex(b.squeeze(log.re, over), b.squeeze(log.im, over))


@on_complex(A.logcumsumexp.default)
@in_double
def _logcumsumexp(b: OpBuilder, x: Complex, dim: int) -> Complex:
    d = [b.dim(x.re, dim)] if b.rank(x.re) else []
    z, most = _below(b, x, b.reduce(x.re, "max", d, True))
    sums: Complex = rule_of(A.cumsum.default)(b, z, dim)
    log = log_of(b, sums)
    return Complex(b.add(log.re, most), log.im)


def _softmax(op: Any) -> Callable[..., Value]:
    """In a real dtype, which takes the real part; PyTorch has no other."""
    return lambda b, x, dim, dtype=None: LOWERINGS[op](b, b.convert(x.re, dtype or b.dtype(x.re)), dim)


for _op in (A.softmax.int, A.log_softmax.int):
    on_complex(_op)(_softmax(_op))


@on_complex(A.l1_loss.default)
def _l1_loss(b: OpBuilder, x: Operand, y: Operand, reduction: int = 1) -> Value:
    gap = magnitude(b, rule_of(A.sub.Tensor)(b, x, y))
    return gap if reduction == 0 else LOWERINGS[(A.mean if reduction == 1 else A.sum).default](b, gap)


# ---------------------------------------------------------------------------------------------------- products
@on_complex(A.addbmm.default)
def _addbmm(b: OpBuilder, c: Operand, x: Operand, y: Operand, *, beta: Any = 1, alpha: Any = 1) -> Complex:
    z = times(b, rule_of(A.sum.dim_IntList)(b, rule_of(A.bmm.default)(b, x, y), [0]), alpha)
    return z if beta == 0 else plus(b, z, times(b, c, beta))


def _register_convolutions() -> None:
    def rule(op: Any) -> Callable[..., Complex]:
        def f(b: OpBuilder, x: Operand, w: Operand, bias: Operand = None, *args: Any, **kwargs: Any) -> Complex:
            conv = LOWERINGS[op]
            (p, q), (r, s) = parts_of(b, x), parts_of(b, w)
            c, d = (None, None) if bias is None else parts_of(b, bias)
            re = b.sub(conv(b, p, r, c, *args, **kwargs), conv(b, q, s, None, *args, **kwargs))
            return Complex(re, b.add(conv(b, p, s, d, *args, **kwargs), conv(b, q, r, None, *args, **kwargs)))

        return f

    transposed = A.conv_transpose1d.default, A.conv_transpose2d.input, A.conv_transpose3d.input
    for n in (A.conv1d, A.conv2d, A.conv3d):
        on_complex(n.default)(rule(n.default))
        on_complex(n.padding)(rule(n.padding))
    for op in (*transposed, A.convolution.default):
        on_complex(op)(rule(op))


_register_convolutions()


# ---------------------------------------------------------------------------------------------------- chosen elements
def _columns(b: OpBuilder, mask: Value) -> list[Value]:
    """The positions of a mask's true elements, dim by dim."""
    index = indexing.nonzero(b, mask)
    return [b.pick(index, 1, d) for d in range(b.rank(mask))]


@on_complex(A.where.self, A.where.ScalarOther, A.where.ScalarSelf, A.where.Scalar)
def _where(b: OpBuilder, where: Value, x: Operand, y: Operand) -> Complex:
    (p, q), (r, s) = parts_of(b, x), parts_of(b, y)
    return Complex(*b.together(b.select(where, p, r), b.select(where, q, s)))


@on_complex(A.masked_select.default)
def _masked_select(b: OpBuilder, x: Complex, mask: Value) -> Complex:
    shape = b.broadcast_shape(b.shape(x.re), b.shape(mask))
    parts = [b.expand(v, shape) for v in (x.re, x.im, mask)]
    *both, mask = parts if shape else [b.reshape(v, [1]) for v in parts]
    at = _columns(b, mask)  # once: their number is a symbol
    return Complex(*[b.take(v, at, list(range(b.rank(v))), 0) for v in both])


@on_complex(A.index.Tensor)
def _index(b: OpBuilder, x: Operand, index: Sequence[Value | None]) -> Complex:
    whole: list[Value | None] = []
    for i in index:
        whole += _columns(b, i) if i is not None and b.dtype(i).name in ("i1", "ui8") else [i]
    return Complex(*[LOWERINGS[A.index.Tensor](b, v, whole) for v in parts_of(b, x)])


# ---------------------------------------------------------------------------------------------------- by parts
@on_complex(A.constant_pad_nd.default)
def _constant_pad_nd(b: OpBuilder, x: Complex, pad: Sequence[Any], value: Any = 0) -> Complex:
    return Complex(
        *[LOWERINGS[A.constant_pad_nd.default](b, v, pad, c) for v, c in zip(parts_of(b, x), _number(value), strict=True)]
    )


@on_complex(A.pad.default)
def _pad(b: OpBuilder, x: Complex, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Complex:
    values = (None, None) if value is None else _number(value)
    return Complex(*[LOWERINGS[A.pad.default](b, v, pad, mode, c) for v, c in zip(parts_of(b, x), values, strict=True)])


def _number(x: Any) -> tuple[Any, Any]:
    return (x.real, x.imag) if isinstance(x, complex) else (x, 0)


@on_complex(A.broadcast_tensors.default, A.meshgrid.default, A.meshgrid.indexing)
def _together(b: OpBuilder, tensors: Sequence[Operand], *args: Any, **kwargs: Any) -> list[Operand]:
    """Real tensors stay real."""
    f = LOWERINGS[b.node.target]
    re, im = (f(b, [parts_of(b, x)[i] if isinstance(x, Complex) else x for x in tensors], *args, **kwargs) for i in (0, 1))
    return [Complex(p, q) if isinstance(x, Complex) else p for x, p, q in zip(tensors, re, im, strict=True)]


@on_complex(A.normal_functional.default)
def _normal(b: OpBuilder, x: Complex, mean: Any = 0.0, std: float = 1.0, **_: Any) -> Complex:
    """The parts have the same mean and half of the variance each."""
    normal = LOWERINGS[A.normal_functional.default]
    return Complex(*[normal(b, v, mean, std * math.sqrt(0.5)) for v in (x.re, x.im)])


def _like(op: Any, scale: float) -> Callable[..., Any]:
    """Random numbers of a tensor's shape, whose parts are scaled."""

    def f(b: OpBuilder, x: Complex, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        part = b.dtype(x.re) if dtype is None else b.as_dtype(dtype)
        if not (dtype is None or part.is_complex):
            return LOWERINGS[op](b, x.re, *args, dtype=dtype, **kwargs)
        real = b.as_dtype(part.register if part.is_complex else part).torch
        return Complex(*[b.mul(LOWERINGS[op](b, v, *args, dtype=real, **kwargs), scale) for v in (x.re, x.im)])

    return f


for _op in (A.rand_like.default, A.rand_like.generator):
    into(COMPLEX, [_op])(_like(_op, 1.0))
for _op in (A.randn_like.default, A.randn_like.generator):
    into(COMPLEX, [_op])(_like(_op, math.sqrt(0.5)))


@on_complex(A.feature_alpha_dropout.default)
def _feature_alpha_dropout(b: OpBuilder, x: Complex, p: float, train: bool) -> Complex:
    if train and p:
        raise CompileError("alpha dropout of complex numbers", hint="PyTorch has it of real ones only")
    return x


@on_complex(A._unsafe_masked_index.default)
def _unsafe_masked_index(b: OpBuilder, x: Complex, mask: Value, index: Any, fill: Any) -> Complex:
    f = LOWERINGS[A._unsafe_masked_index.default]
    return Complex(*[f(b, v, mask, index, c) for v, c in zip(parts_of(b, x), _number(fill), strict=True)])


@on_complex(A.scatter.reduce, A.scatter.value_reduce)
def _scatter(b: OpBuilder, x: Complex, dim: int, index: Value, source: Operand, *, reduce: str) -> Complex:
    """Sums by parts; products of sizes, at sums of angles."""
    put = functools.partial(LOWERINGS[A.scatter.reduce], b)
    if reduce == "add":
        return Complex(*[put(v, dim, index, w, reduce="add") for v, w in zip(parts_of(b, x), parts_of(b, source), strict=True)])
    if isinstance(source, Complex):
        factor, turn = magnitude(b, source), angle_of(b, source)
    elif b.is_tensor(source):
        factor, turn = b.op(ew.Abs, [source]), LOWERINGS[A.angle.default](b, source)
    else:
        factor, turn = abs(source), cmath.phase(source)
    sizes = put(magnitude(b, x), dim, index, factor, reduce="multiply")
    polar: Complex = LOWERINGS[A.polar.default](b, sizes, put(angle_of(b, x), dim, index, turn, reduce="add"))
    return polar


by_parts(
    A.uniform.default,
    A._unsafe_masked_index_put_accumulate.default,
    A.resize.default,
    A.resize_as.default,
    A._reshape_alias.default,
    A._unsafe_view.default,
    A._unsafe_index.Tensor,
    A.alias_copy.default,
    A.as_strided.default,
    A.as_strided_copy.default,
    A.as_strided_scatter.default,
    A.channel_shuffle.default,
    A.col2im.default,
    A.detach_copy.default,
    A.diag.default,
    A.diag_embed.default,
    A.expand_copy.default,
    A.fliplr.default,
    A.flipud.default,
    A.im2col.default,
    A.narrow_copy.default,
    A.permute_copy.default,
    A.pixel_shuffle.default,
    A.pixel_unshuffle.default,
    A.reflection_pad1d.default,
    A.reflection_pad2d.default,
    A.reflection_pad3d.default,
    A.repeat_interleave.self_int,
    A.replication_pad1d.default,
    A.replication_pad2d.default,
    A.replication_pad3d.default,
    A.rot90.default,
    A.select_copy.int,
    A.slice_copy.Tensor,
    A.split_copy.Tensor,
    A.split_with_sizes_copy.default,
    A.sum_to_size.default,
    A.take.default,
    A.take_along_dim.default,
    A.tensor_split.tensor_indices_or_sections,
    A.tile.default,
    A.trace.default,
    A.transpose_copy.int,
    A.trapezoid.dx,
    A.trapz.dx,
    A.unsafe_chunk.default,
    A.unsafe_split.Tensor,
    A.unsafe_split_with_sizes.default,
    A.view_copy.default,
)
by_parts(
    A.cartesian_prod.default,
    A.column_stack.default,
    A.concat.default,
    A.concatenate.default,
    A.diff.default,
    A.hstack.default,
    A.vstack.default,
    joins=True,
)
