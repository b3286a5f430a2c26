"""Complex tensors: a pair of real ones from here on; the dialect's kernels see only floats."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from dhlo.errors import CompileError
from dhlo.frontend.builder import Complex, OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.compat import prims as P
from dhlo.frontend.registry import COMPLEX, LOWERINGS, into, lowers
from dhlo.ir.ops import elementwise as ew

__all__ = ["Complex", "by_parts", "on_complex", "parts_of"]


def on_complex(*ops: Any) -> Callable[[Any], Any]:
    """Registers the rule that applies where an argument is complex."""
    return into(COMPLEX, ops)


def parts_of(b: OpBuilder, x: Operand) -> tuple[Operand, Operand]:
    if isinstance(x, Complex):
        return x.re, x.im
    if isinstance(x, complex):
        return x.real, x.imag
    if b.is_tensor(x):
        x = b.floating(x)
        return x, b.full(b.shape(x), 0, b.dtype(x))
    return x, 0.0


def _pair(b: OpBuilder, re: Value, im: Value) -> Complex:
    return Complex(*b.together(re, im))


# ---------------------------------------------------------------------------------------------------- in and out
@lowers(A.polar.default)
def _polar(b: OpBuilder, radius: Value, angle: Value) -> Complex:
    return Complex(b.mul(radius, b.unary(ew.Cos, angle)), b.mul(radius, b.unary(ew.Sin, angle)))


@lowers(A.complex.default)
def _complex(b: OpBuilder, re: Value, im: Value) -> Complex:
    return _pair(b, re, im)


@lowers(A.view_as_complex.default)
def _view_as_complex(b: OpBuilder, x: Value) -> Complex:
    d = b.rank(x) - 1
    return Complex(b.pick(x, d, 0), b.pick(x, d, 1))


@on_complex(A._assert_tensor_metadata.default)
def _assert_tensor_metadata(b: OpBuilder, *args: Any, **_: Any) -> None:
    return None


@on_complex(A.view_as_real.default)
def _view_as_real(b: OpBuilder, x: Complex) -> Value:
    d = b.rank(x.re)
    return b.concat([b.unsqueeze(x.re, d), b.unsqueeze(x.im, d)], d)


@on_complex(A.real.default)
def _real(b: OpBuilder, x: Complex) -> Value:
    return x.re


@on_complex(A.imag.default)
def _imag(b: OpBuilder, x: Complex) -> Value:
    return x.im


@lowers(A.real.default, A.conj.default, A._conj.default, A.conj_physical.default, A._conj_physical.default)
def _real_of_real(b: OpBuilder, x: Value) -> Value:
    return x


@on_complex(
    *(A.to.dtype, A.to.dtype_layout, A.to.device, A.to.other, A._to_copy.default, A.type_as.default),
    P.convert_element_type.default,
)
def _to(b: OpBuilder, x: Any, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    for a in args:
        if isinstance(a, torch.dtype):
            dtype = a
        elif isinstance(a, Complex):
            dtype = b.as_dtype(f"complex<{b.dtype(a.re)}>").torch
        elif b.is_tensor(a):
            dtype = b.dtype(a).torch
    if dtype is None:
        return x
    if not isinstance(x, Complex):
        return b.convert(x, dtype)
    if dtype.is_complex:
        part = b.as_dtype(dtype).register
        return Complex(b.convert(x.re, part), b.convert(x.im, part))
    if dtype == torch.bool:  # true where the number isn't 0 (c10/util/TypeCast.h)
        return b.ew(ew.Or, b.convert(x.re, dtype), b.convert(x.im, dtype))
    return b.convert(x.re, dtype)


@lowers(A.chalf.default)
def _chalf(b: OpBuilder, x: Value, **_: Any) -> Any:
    return b.convert(x, torch.complex32)


@on_complex(A.chalf.default)
def _complex_as_chalf(b: OpBuilder, x: Complex, **_: Any) -> Any:
    return _to(b, x, dtype=torch.complex32)


@on_complex(A.full.default)
def _full(b: OpBuilder, size: Any, value: complex, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    dtype = dtype or torch.complex64
    if dtype.is_complex or dtype == torch.bool:
        return b.full(size, value if dtype.is_complex else value != 0, dtype)
    if value.imag != 0:
        raise CompileError(f"{value} can't be converted to {dtype}", hint="fill with its real part")
    return b.full(size, value.real, dtype)


def _filled(size: Any, value: Any) -> Any:
    """A new tensor's rule; `size` and `value` are given, or None if the operator's arguments say them."""

    def rule(b: OpBuilder, x: Operand, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
        rest = list(args)
        own = b.shape(parts_of(b, x)[0]) if size is None else rest.pop(0)
        like = f"complex<{b.dtype(x.re)}>" if isinstance(x, Complex) else b.dtype(x)
        return b.full(own, rest[0] if value is None else value, dtype or like)

    return rule


for _names, _value in (("zeros empty", 0), ("ones", 1), ("full", None)):
    for _name in _names.split():
        COMPLEX[getattr(A, f"{_name}_like").default] = _filled(None, _value)
        COMPLEX[getattr(A, f"new_{_name}").default] = _filled("given", _value)
on_complex(A.new_empty_strided.default)(_filled("given", 0))


@on_complex(A.sym_size.int, A.sym_numel.default, A.sym_stride.int, A.sym_storage_offset.default)
def _size(b: OpBuilder, x: Complex, *args: Any) -> Any:
    return LOWERINGS[b.node.target](b, x.re, *args)


# ---------------------------------------------------------------------------------------------------- arithmetic
@on_complex(A.add.Tensor, A.add.Scalar)
def _add(b: OpBuilder, x: Operand, y: Operand, alpha: Any = 1) -> Complex:
    (p, q), (r, s) = parts_of(b, x), parts_of(b, _mul(b, y, alpha) if alpha != 1 else y)
    return _pair(b, b.add(p, r), b.add(q, s))


@on_complex(A.sub.Tensor, A.sub.Scalar)
def _sub(b: OpBuilder, x: Operand, y: Operand, alpha: Any = 1) -> Complex:
    (p, q), (r, s) = parts_of(b, x), parts_of(b, _mul(b, y, alpha) if alpha != 1 else y)
    return _pair(b, b.sub(p, r), b.sub(q, s))


@on_complex(A.rsub.Tensor, A.rsub.Scalar)
def _rsub(b: OpBuilder, x: Operand, y: Operand, alpha: Any = 1) -> Any:
    return _sub(b, y, x, alpha)


@on_complex(A.mul.Tensor, A.mul.Scalar)
def _mul(b: OpBuilder, x: Operand, y: Operand) -> Any:
    if not isinstance(x, Complex):
        x, y = y, x
    if not isinstance(x, Complex):  # a real tensor and a complex number
        x, y = (y, x) if b.is_tensor(y) else (x, y)
        re, im = parts_of(b, y)
        return _pair(b, b.mul(b.floating(x), re), b.mul(b.floating(x), im)) if b.is_tensor(x) else x * y
    if not isinstance(y, Complex | complex):
        return Complex(b.mul(x.re, y), b.mul(x.im, y))
    (p, q), (r, s) = parts_of(b, x), parts_of(b, y)
    return Complex(b.sub(b.mul(p, r), b.mul(q, s)), b.add(b.mul(p, s), b.mul(q, r)))


@on_complex(A.square.default)
def _square(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = _mul(b, x, x)
    return z


@on_complex(A.div.Tensor, A.div.Scalar)
def _div(b: OpBuilder, x: Operand, y: Operand) -> Complex:
    if isinstance(y, complex):
        z: Complex = _mul(b, x, 1.0 / y)
        return z
    if not isinstance(y, Complex):
        return Complex(b.div(x.re, y), b.div(x.im, y))
    large = b.maximum(b.op(ew.Abs, [y.re]), b.op(ew.Abs, [y.im]))  # so that squares don't overflow
    r, s = b.div(y.re, large), b.div(y.im, large)
    size = b.mul(b.add(b.mul(r, r), b.mul(s, s)), large)
    z = _mul(b, Complex(r, b.op(ew.Neg, [s])), x)
    return Complex(b.div(z.re, size), b.div(z.im, size))


@on_complex(A.reciprocal.default)
def _reciprocal(b: OpBuilder, x: Complex) -> Any:
    one = Complex(b.full(b.shape(x.re), 1, b.dtype(x.re)), b.full(b.shape(x.re), 0, b.dtype(x.re)))
    return _div(b, one, x)


@on_complex(A.abs.default)
def _abs(b: OpBuilder, x: Complex) -> Value:
    p, q = b.op(ew.Abs, [x.re]), b.op(ew.Abs, [x.im])
    large, small = b.maximum(p, q), b.minimum(p, q)
    ratio = b.div(small, b.select(b.ew(ew.Eq, large, 0.0), 1.0, large))
    size = b.mul(large, b.unary(ew.Sqrt, b.add(b.mul(ratio, ratio), 1.0)))
    return b.select(b.ew(ew.Or, b.op(ew.IsInf, [p]), b.op(ew.IsInf, [q])), math.inf, size)  # also beside NaN


@on_complex(A.angle.default)
def _angle(b: OpBuilder, x: Complex) -> Value:
    return b.op(ew.Atan2, [x.im, x.re])


@lowers(A.angle.default)
def _angle_of_real(b: OpBuilder, x: Value) -> Value:
    x = b.floating(x)
    turned = b.select(b.ew(ew.Lt, x, 0.0), torch.pi, 0.0, dtype=b.dtype(x))
    return b.select(b.op(ew.IsNan, [x]), x, turned)


@on_complex(A.conj.default, A._conj.default, A.conj_physical.default, A._conj_physical.default)
def _conj(b: OpBuilder, x: Complex) -> Complex:
    return Complex(x.re, b.op(ew.Neg, [x.im]))


@on_complex(A.sgn.default)
def _sgn(b: OpBuilder, x: Complex) -> Complex:
    size = _abs(b, x)
    safe = b.select(b.ew(ew.Eq, size, 0.0), 1.0, size)
    return Complex(b.div(x.re, safe), b.div(x.im, safe))


@on_complex(A.exp.default)
def _exp(b: OpBuilder, x: Complex) -> Complex:
    z: Complex = _polar(b, b.unary(ew.Exp, x.re), x.im)
    return z


def _quarter(b: OpBuilder, x: Complex) -> tuple[Complex, Value]:
    """x / 4 where its size could overflow, x elsewhere; and where that is."""
    most: float = torch.finfo(b.dtype(x.re).torch).max
    huge = b.ew(ew.Gt, b.maximum(b.op(ew.Abs, [x.re]), b.op(ew.Abs, [x.im])), most / 2)
    factor = b.select(huge, 0.25, 1.0, dtype=b.dtype(x.re))
    return Complex(b.mul(x.re, factor), b.mul(x.im, factor)), huge


@on_complex(A.log.default)
def _log(b: OpBuilder, x: Complex) -> Complex:
    """Near the unit circle the size's logarithm is that of 1 + (p - 1)(p + 1) + q^2, of which nothing cancels near 1."""
    y, huge = _quarter(b, x)
    size, p, q = _abs(b, y), b.op(ew.Abs, [y.re]), b.op(ew.Abs, [y.im])
    large, small = b.maximum(p, q), b.minimum(p, q)
    beyond = b.add(b.mul(b.sub(large, 1.0), b.add(large, 1.0)), b.mul(small, small))
    near = b.ew(ew.And, b.ew(ew.Gt, size, 0.7), b.ew(ew.Lt, size, 1.5))
    log = b.select(near, b.mul(b.unary(ew.Log1p, b.select(near, beyond, 0.0)), 0.5), b.unary(ew.Log, size))
    return Complex(b.add(log, b.select(huge, math.log(4), 0.0, dtype=b.dtype(log))), _angle(b, x))


@on_complex(A.sqrt.default)
def _sqrt(b: OpBuilder, x: Complex) -> Complex:
    """The larger part is a sum without cancellation, the other one follows from 2 re im = im(x) (Kahan, "Branch cuts")."""
    x, huge = _quarter(b, x)
    p, q = b.op(ew.Abs, [x.re]), b.op(ew.Abs, [x.im])
    larger = b.unary(ew.Sqrt, b.add(b.mul(p, 0.5), b.mul(_abs(b, x), 0.5)))
    larger = b.select(b.op(ew.IsInf, [q]), math.inf, larger)
    divisor = b.mul(larger, 2.0)
    other = b.div(q, b.select(b.ew(ew.Eq, divisor, 0.0), 1.0, divisor))
    other = b.select(b.op(ew.IsInf, [q]), math.inf, other)
    left, factor = b.ew(ew.Lt, x.re, 0.0), b.select(huge, 2.0, 1.0, dtype=b.dtype(larger))
    im: Value = LOWERINGS[A.copysign.Tensor](b, b.mul(b.select(left, larger, other), factor), x.im)
    return Complex(b.mul(b.select(left, other, larger), factor), im)


@on_complex(A.eq.Tensor, A.eq.Scalar)
def _eq(b: OpBuilder, x: Operand, y: Operand) -> Value:
    (p, q), (r, s) = parts_of(b, x), parts_of(b, y)
    return b.ew(ew.And, b.ew(ew.Eq, p, r), b.ew(ew.Eq, q, s))


@on_complex(A.ne.Tensor, A.ne.Scalar)
def _ne(b: OpBuilder, x: Operand, y: Operand) -> Value:
    return b.op(ew.Not, [_eq(b, x, y)])


def _register_products() -> None:
    def rule(op: Any) -> Any:
        def f(b: OpBuilder, x: Operand, y: Operand, *args: Any, **kwargs: Any) -> Complex:
            product = functools.partial(LOWERINGS[op], b)
            (p, q), (r, s) = parts_of(b, x), parts_of(b, y)
            re = b.sub(product(p, r, *args, **kwargs), product(q, s, *args, **kwargs))
            return Complex(re, b.add(product(p, s, *args, **kwargs), product(q, r, *args, **kwargs)))

        return f

    for name in "mm bmm matmul mv dot outer ger inner tensordot linalg_cross".split():
        COMPLEX[getattr(A, name).default] = rule(getattr(A, name).default)
    for op in (A.trapezoid.x, A.trapz.x):
        COMPLEX[op] = rule(op)
    COMPLEX[A.vdot.default] = lambda b, x, y: COMPLEX[A.dot.default](b, _conj(b, Complex(*parts_of(b, x))), y)


_register_products()


@on_complex(A.linear.default)
def _linear(b: OpBuilder, x: Operand, w: Operand, bias: Operand = None) -> Complex:
    z: Complex = COMPLEX[A.matmul.default](
        b, x, COMPLEX[A.t.default](b, w) if isinstance(w, Complex) else LOWERINGS[A.t.default](b, w)
    )
    return z if bias is None else _add(b, z, bias)


# ---------------------------------------------------------------------------------------------------- by parts
def by_parts(*ops: Any, joins: bool = False) -> None:
    """Registers that the operators act on the real parts and on the imaginary ones alone. With `joins` other tensors may be real,
    and have zeros for imaginary parts; without, they are positions and the like, and a first one that is real stays so: the others
    give its shape."""

    def rule(op: Any) -> Any:
        def f(b: OpBuilder, *args: Any, **kwargs: Any) -> Any:
            def half(i: int) -> Any:
                def pick(x: Any) -> Any:
                    whole = isinstance(x, Complex) or (joins and b.is_tensor(x) and not b.dtype(x).is_bool)
                    return parts_of(b, x)[i] if whole else x

                picked = [[pick(v) for v in a] if isinstance(a, list | tuple) else pick(a) for a in args]
                named = {name: pick(a) for name, a in kwargs.items()}
                return LOWERINGS[op](b, *picked, **named)

            re = half(0)
            if not joins and args and b.is_tensor(args[0]):
                return re
            im = half(1)
            if isinstance(re, list | tuple):
                return [Complex(p, q) for p, q in zip(re, im, strict=True)]
            return Complex(re, im)

        return f

    for op in ops:
        into(COMPLEX, [op])(rule(op))


by_parts(A.cat.default, A.stack.default, joins=True)
by_parts(
    A.select.int,
    A.view.default,
    A.reshape.default,
    A.unsqueeze.default,
    A.squeeze.dim,
    A.squeeze.dims,
    A.squeeze.default,
    A.t.default,
    A.mT.default,
    A.numpy_T.default,
    A.movedim.intlist,
    A.movedim.int,
    A.transpose.int,
    A.permute.default,
    A.expand.default,
    A.slice.Tensor,
    A.narrow.default,
    A.diagonal.default,
    A.clone.default,
    A.contiguous.default,
    A.index_select.default,
    A.gather.default,
    A.neg.default,
    A.sum.default,
    A.sum.dim_IntList,
    A.mean.default,
    A.mean.dim,
    A.cumsum.default,
    A.flatten.using_ints,
    A.unflatten.int,
    A.unbind.int,
    A.detach.default,
    A.alias.default,
    A.roll.default,
    A.flip.default,
    A.repeat.default,
    A.tril.default,
    A.triu.default,
    A.lift_fresh_copy.default,
    A.split.Tensor,
    A.split_with_sizes.default,
    A.chunk.default,
    A.resolve_conj.default,
    A.resolve_neg.default,
    A.swapaxes.default,
    A.swapdims.default,
    A.moveaxis.int,
    A.moveaxis.intlist,
    A.view_as.default,
    A.reshape_as.default,
    A.expand_as.default,
    A.broadcast_to.default,
    A.ravel.default,
    A.positive.default,
    A.lift_fresh.default,
    A.detach_.default,
    A.unfold.default,
    A.split.sizes,
    A.tensor_split.sections,
    A.tensor_split.indices,
)
