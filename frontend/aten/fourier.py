"""Discrete Fourier transforms of complex and real tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from dhlo.errors import CompileError
from dhlo.frontend.aten import resize  # noqa: F401  (whose padding stft uses)
from dhlo.frontend.aten.complex import Complex
from dhlo.frontend.aten.overlap import overlapped
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.compat import prims as P
from dhlo.frontend.registry import COMPLEX, LOWERINGS, lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import sequence
from dhlo.ir.symbols import as_expr


def _shape(b: OpBuilder, x: Operand) -> list[Any]:
    return b.shape(x.re if isinstance(x, Complex) else x)


def _real(b: OpBuilder, x: Value) -> Value:
    """A real tensor in f32 or f64."""
    x = b.floating(x)
    return x if b.dtype(x).bytes >= 4 else b.convert(x, "f32")


def _parts(b: OpBuilder, x: Operand) -> tuple[Value, Value]:
    """Real and imaginary part, in f32 or f64."""
    if isinstance(x, Complex):
        return x.re, x.im
    re = _real(b, x)
    return re, b.full(b.shape(re), 0, b.dtype(re))


def _each(b: OpBuilder, x: Operand, f: Any) -> Operand:
    """A function of real tensors on both parts."""
    return Complex(f(x.re), f(x.im)) if isinstance(x, Complex) else f(x)


def _conj(b: OpBuilder, x: Operand) -> Operand:
    return Complex(x.re, b.op(ew.Neg, [x.im])) if isinstance(x, Complex) else x


def _resized(b: OpBuilder, x: Operand, dim: int, size: Any) -> Operand:
    """Cut or padded by zeros to `size` elements of a dim."""
    own = _shape(b, x)[dim]
    if b.dims.equal(own, as_expr(size)):
        return x
    both = b.size(sympy.Min(own, as_expr(size)))
    more = [as_expr(size) - both if d == dim else as_expr(0) for d in range(len(_shape(b, x)))]
    return _each(b, x, lambda v: b.pad(b.slice(v, dim, 0, both), [as_expr(0)] * len(more), more, 0.0))


def _scaled(b: OpBuilder, parts: Sequence[Value], count: Any, power: str) -> Sequence[Value]:
    """Tensors, or divided by the count of elements or by its root."""
    if power == "none":
        return parts
    by = b.full([], count, b.dtype(parts[0]))
    by = b.unary(ew.Sqrt, by) if power == "root" else by
    return [b.div(v, by) for v in parts]


def transform(b: OpBuilder, x: Operand, dims: Sequence[int], inverse: bool, power: str) -> Complex:
    """Transform of all `dims`, scaled as `power` says."""
    re, im = _parts(b, x)
    if not dims:
        return Complex(re, im)
    dims = [b.dim(re, d) for d in dims]
    return Complex(*_scaled(b, b.op(sequence.Fft, [re, im], {"dims": dims, "inverse": inverse}), b.count(re, dims), power))


def half(b: OpBuilder, x: Value, dims: Sequence[int], power: str) -> Complex:
    """The part of a real tensor's transform that isn't redundant along the last of `dims`."""
    x = _real(b, x)
    *others, last = [b.dim(x, d) for d in dims]
    z = transform(b, Complex(*b.op(sequence.Rfft, [x], {"dim": last})), others, False, "none")
    return Complex(*_scaled(b, [z.re, z.im], b.count(x, [*others, last]), power))


def to_real(b: OpBuilder, x: Operand, dims: Sequence[int], size: Any, power: str) -> Value:
    """Inverse transform of what is half of a Hermitian spectrum along the last of `dims`, where the result has `size` elements."""
    re, im = _parts(b, x)
    *others, last = [b.dim(re, d) for d in dims]
    z = _resized(b, transform(b, Complex(re, im), others, True, "none"), last, FloorDiv(as_expr(size), 2) + 1)
    result = b.type(z.re).with_shape([as_expr(size) if d == last else n for d, n in enumerate(b.shape(z.re))])
    y = b.op(sequence.Irfft, [z.re, z.im], {"dim": last}, [result])
    return _scaled(b, [y], b.count(y, [*others, last]), power)[0]


def _power(norm: str | None, inverse: bool) -> str:
    norm = norm or "backward"
    return "root" if norm == "ortho" else "all" if (norm == "forward") != inverse else "none"


_POWERS = ("none", "root", "all")  # of ATen's own transforms, by number


def _register() -> None:
    def many(inverse: bool, default: list[int] | None, kind: str) -> Any:
        def f(b: OpBuilder, x: Operand, s: Any = None, dim: Any = None, norm: str | None = None) -> Operand:
            rank = len(_shape(b, x))
            dims = dim or default or list(range(rank if s is None else rank - len(s), rank) if s else range(rank))
            return _general(b, x, s or [None] * len(dims), dims, norm, inverse, kind)

        return f

    def one(inverse: bool, kind: str) -> Any:
        def f(b: OpBuilder, x: Operand, n: Any = None, dim: int = -1, norm: str | None = None) -> Operand:
            return _general(b, x, [n], [dim], norm, inverse, kind)

        return f

    kinds = [("fft", False, "full"), ("ifft", True, "full"), ("rfft", False, "half"), ("irfft", True, "real")]
    for name, inverse, kind in (*kinds, ("hfft", False, "real"), ("ihfft", True, "half")):
        for op, f in (
            (getattr(A, f"fft_{name}").default, one(inverse, kind)),
            (getattr(A, f"fft_{name}2").default, many(inverse, [-2, -1], kind)),
            (getattr(A, f"fft_{name}n").default, many(inverse, None, kind)),
        ):
            lowers(op)(f)
            COMPLEX[op] = f


def _general(
    b: OpBuilder, x: Operand, sizes: Sequence[Any], dims: Sequence[int], norm: str | None, inverse: bool, kind: str
) -> Operand:
    rank, power = len(_shape(b, x)), _power(norm, inverse)
    dims = [d % rank for d in dims]
    out = None
    if kind == "real":  # the last size is the result's
        own = _shape(b, x)[dims[-1]]
        out = 2 * (own - 1) if sizes[-1] in (None, -1) else sizes[-1]
        sizes = [*sizes[:-1], None]
    for d, s in zip(dims, sizes, strict=True):
        x = x if s is None or s == -1 else _resized(b, x, d, s)
    if kind == "real":  # hfft goes forward, which is irfft of the conjugate
        return to_real(b, x if inverse else _conj(b, x), dims, out, power)
    if kind == "half":  # ihfft goes backward, which is the conjugate of rfft
        z = half(b, x, dims, power)
        return _conj(b, z) if inverse else z
    return transform(b, x, dims, inverse, power)


_register()


@lowers(A._fft_r2c.default)
def _r2c(b: OpBuilder, x: Value, dims: Sequence[int], normalization: int, onesided: bool) -> Complex:
    return half(b, x, dims, _POWERS[normalization]) if onesided else transform(b, x, dims, False, _POWERS[normalization])


def _c2c(b: OpBuilder, x: Operand, dims: Sequence[int], normalization: int, forward: bool) -> Complex:
    return transform(b, x, dims, not forward, _POWERS[normalization])


def _c2r(b: OpBuilder, x: Operand, dims: Sequence[int], normalization: int, size: Any) -> Value:
    return to_real(b, x, dims, size, _POWERS[normalization])


def _prim_c2c(b: OpBuilder, x: Operand, *, dim: Sequence[int], forward: bool) -> Complex:
    return transform(b, x, dim, not forward, "none")


def _prim_c2r(b: OpBuilder, x: Operand, *, dim: Sequence[int], last_dim_size: Any) -> Value:
    return to_real(b, x, dim, last_dim_size, "none")


@lowers(P.fft_r2c.default)
def _prim_r2c(b: OpBuilder, x: Value, *, dim: Sequence[int], onesided: bool) -> Any:
    return _r2c(b, x, dim, 0, onesided)


def _window(b: OpBuilder, window: Operand | None, length: int, n: int, dtype: Any) -> Operand | None:
    """A window of `length` in the middle of n zeros; None if it is all ones."""
    if window is None:
        if length == n:
            return None
        window = b.full([length], 1, dtype)
    left = (n - length) // 2
    return _each(b, window, lambda v: b.pad(v, [left], [n - length - left], 0.0))


def _stft(
    b: OpBuilder,
    x: Operand,
    n: int,
    hop: int | None = None,
    length: int | None = None,
    window: Operand | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Operand:
    """Spectra [.., n or n // 2 + 1, frames] of the frames of x [.., T] (aten.stft, nothing padded)."""
    if align_to_window:
        raise CompileError("stft with align_to_window", hint="pad the signal by (n_fft - win_length) // 2 on both sides")
    signal = _shape(b, x)
    d, hop = len(signal) - 1, hop or n // 4
    b.require(sympy.Ge(signal[d], n), "stft wants at least n_fft samples")
    frames = FloorDiv(signal[d] - n, hop) + 1
    at = b.add(b.iota([frames, n], 0, "i64", step=hop), b.iota([frames, n], 1, "i64"))
    x = _each(b, x, lambda v: b.take(v, [at], [d], d))
    whole = isinstance(x, Complex) or isinstance(window, Complex)
    w = _window(b, window, length or n, n, b.dtype(x.re if isinstance(x, Complex) else x))
    if w is not None:
        x = COMPLEX[A.mul.Tensor](b, x, w) if whole else b.mul(x, w)
    power = "root" if normalized else "none"
    z = transform(b, x, [d + 1], False, power) if whole or onesided is False else half(b, x, [d + 1], power)
    z = Complex(b.swap(z.re, d, d + 1), b.swap(z.im, d, d + 1))
    as_complex = whole if return_complex is None else return_complex
    return z if as_complex else COMPLEX[A.view_as_real.default](b, z)


def _stft_centred(
    b: OpBuilder,
    x: Operand,
    n: int,
    hop: int | None = None,
    length: int | None = None,
    window: Operand | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    *args: Any,
    **kwargs: Any,
) -> Operand:
    if center:
        x = _each(b, x, lambda v: LOWERINGS[A.pad.default](b, v, [n // 2, n // 2], pad_mode))
    return _stft(b, x, n, hop, length, window, *args, **kwargs)


def _istft(
    b: OpBuilder,
    x: Complex,
    n: int,
    hop: int | None = None,
    length: int | None = None,
    window: Operand | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    samples: Any = None,
    return_complex: bool = False,
) -> Operand:
    """The signal [.., T] of spectra [.., n or n // 2 + 1, frames] (aten.istft): frames overlap, divided by the windows' squares."""
    if isinstance(window, Complex):
        raise CompileError("istft with a complex window", hint="write it with irfft or ifft, and add the frames up")
    d, hop, power = b.rank(x.re) - 1, hop or n // 4, "root" if normalized else "all"
    # `onesided` says what x's size says: of a whole spectrum, to_real takes the first half
    z = Complex(b.swap(x.re, d - 1, d), b.swap(x.im, d - 1, d))
    count = b.shape(z.re)[d - 1]
    y: Operand = transform(b, z, [d], True, power) if return_complex else to_real(b, z, [d], n, power)
    w = _window(b, window, length or n, n, b.dtype(x.re))
    w = w if w is not None else b.full([n], 1, b.dtype(x.re))
    start = as_expr(n // 2 if center else 0)
    whole = n + hop * (count - 1)
    size = as_expr(samples) if samples is not None else whole - 2 * start if center else whole
    squares = b.expand(b.mul(w, w), [count, n])
    envelope = overlapped(b, squares, hop, start, size)
    if samples is not None:  # what the frames don't reach is zero
        t = b.iota([size], 0, "i64", start=start)
        envelope = b.select(b.ew(ew.Lt, t, whole), envelope, 1.0)
    enough = b.reduce(b.ew(ew.Gt, b.unary(ew.Abs, envelope), 1e-11), "all", [0])
    b.need_all(enough, "istft: the windows don't cover all samples")
    return _each(b, y, lambda v: b.div(overlapped(b, b.mul(v, w), hop, start, size), envelope))


_NATIVE: dict[Any, Any] = {
    A.stft.default: _stft,
    A.stft.center: _stft_centred,
    A.istft.default: _istft,
    P.fft_c2c.default: _prim_c2c,
    P.fft_c2r.default: _prim_c2r,
    A._fft_c2c.default: _c2c,
    A._fft_c2r.default: _c2r,
}
for _op, _rule in _NATIVE.items():
    lowers(_op)(_rule)
    COMPLEX[_op] = _rule


@lowers(A.fft_fftfreq.default)
def _fftfreq(b: OpBuilder, n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """0, 1, ... and, from the middle on, ..., -2, -1, over n d. (torch.export takes n for a constant.)"""
    i = b.iota([n], 0, "i64")
    i = b.select(b.ew(ew.Lt, i, (n + 1) // 2), i, b.sub(i, n))
    return b.mul(b.convert(i, dtype or torch.get_default_dtype()), 1.0 / (n * d))


@lowers(A.fft_rfftfreq.default)
def _rfftfreq(b: OpBuilder, n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return b.mul(b.convert(b.iota([n // 2 + 1], 0, "i64"), dtype or torch.get_default_dtype()), 1.0 / (n * d))
