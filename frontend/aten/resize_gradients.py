"""Gradients of padding and interpolation: each element's gradient goes back to what it was read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dhlo.frontend.aten.indexing import scatter
from dhlo.frontend.aten.resize import (
    ANTIALIASED,
    Taps,
    along,
    amounts,
    cubic_taps,
    given,
    linear_taps,
    nearest_taps,
    padded_places,
)
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.symbols import as_expr


def _sent_back(b: OpBuilder, grad: Value, d: int, own: Any, at: Value) -> Value:
    """Sums of the elements of grad, whose dims from d on are those of the places `at`, at their places of a dim of `own`
    elements."""
    shape = b.shape(grad)
    shape[d : d + b.rank(at)] = [as_expr(own)]
    return scatter(b, b.full(shape, 0, b.dtype(grad)), [at], grad, [d], d, "add")


# ---------------------------------------------------------------------------------------------------- padding
def _padding(mode: str) -> Any:
    def rule(b: OpBuilder, grad: Value, x: Value, pad: Sequence[Any]) -> Value:
        def f(g: Value) -> Value:
            for d, (own, low, high) in enumerate(zip(b.shape(x), *amounts(b, x, pad), strict=True)):
                if (low, high) != (0, 0):
                    g = _sent_back(b, g, d, own, padded_places(b, own, -low, low + own + high, mode))
            return g

        return b.in_f32(f, grad)

    return rule


for _n in (1, 2, 3):
    lowers(getattr(A, f"reflection_pad{_n}d_backward").default)(_padding("reflect"))
    lowers(getattr(A, f"replication_pad{_n}d_backward").default)(_padding("replicate"))


# ---------------------------------------------------------------------------------------------------- interpolation
def _interpolation(back: Callable[..., Value], n: int, corners: bool | None = None) -> Any:
    """A rule for n dims; `corners` as the operator's own argument where it is None here."""

    def rule(b: OpBuilder, grad: Value, out: Sequence[Any], own: Sequence[Any], *more: Any) -> Value:
        aligned, factors = (corners, more) if corners is not None else (bool(more[0]), more[1:])
        scales = given(factors) or [None] * n

        def f(g: Value) -> Value:
            for d, size, factor in zip(range(2, n + 2), own[2:], scales, strict=True):
                g = back(b, g, d, as_expr(size), factor, aligned)
            return g

        return b.in_f32(f, grad)

    return rule


def _through(find: Callable[..., Taps]) -> Callable[..., Value]:
    def back(b: OpBuilder, g: Value, d: int, own: Any, factor: Any, corners: bool) -> Value:
        taps = find(b, own, b.shape(g)[d], factor, corners, b.dtype(g))
        parts = [g if w is None else b.mul(g, along(b, w, b.rank(g), d)) for _, w in taps]
        return _sent_back(b, b.concat(parts, d), d, own, b.concat([at for at, _ in taps], 0))

    return back


def _through_kernel(find: Any) -> Callable[..., Value]:
    def back(b: OpBuilder, g: Value, d: int, own: Any, factor: Any, corners: bool) -> Value:
        at, w, inside = find(b, own, b.shape(g)[d], factor, corners, b.dtype(g))
        shape = [*b.shape(g)[:d], *b.shape(at), *b.shape(g)[d + 1 :]]
        w, inside = (b.expand(v, shape, [d, d + 1]) for v in (w, inside))
        return _sent_back(b, b.select(inside, b.mul(b.unsqueeze(g, d), w), 0.0), d, own, at)

    return back


for _n in (1, 2, 3):
    for _exact, _name in ((False, "upsample_nearest"), (True, "_upsample_nearest_exact")):
        lowers(getattr(A, f"{_name}{_n}d_backward").default)(_interpolation(_through(nearest_taps(_exact)), _n, False))
for _n, _name in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    lowers(getattr(A, f"upsample_{_name}_backward").default)(_interpolation(_through(linear_taps), _n))
lowers(A.upsample_bicubic2d_backward.default)(_interpolation(_through(cubic_taps), 2))
for _name, _find in ANTIALIASED.items():
    lowers(getattr(A, f"_upsample_{_name}2d_aa_backward").default)(_interpolation(_through_kernel(_find), 2))
