"""Sampling at computed places (grid_sample): linear, nearest or cubic, with zeros, the border or reflections outside."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import sympy
import torch

from dhlo.frontend.aten.resize import cubic_weights
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.registry import lowers
from dhlo.ops import elementwise as ew

A: Any = torch.ops.aten

_ZEROS, _BORDER, _REFLECTION = range(3)
_LINEAR, _NEAREST, _CUBIC = range(3)


@lowers(A.grid_sampler.default, A.grid_sampler_2d.default, A.grid_sampler_3d.default)
def _grid_sampler(b: OpBuilder, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    """Samples x [B, C, *spatial] at grid [B, *out, n], whose coordinates in [-1, 1] name the last spatial dim first."""
    return b.in_f32(lambda v, g: _sample(b, v, g, mode, padding, bool(corners)), x, grid)


def _sample(b: OpBuilder, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    spatial, n = b.shape(x)[2:], b.rank(x) - 2
    places = []  # of each spatial dim, in order
    for k, size in enumerate(spatial):
        g, length = b.pick(grid, n + 1, n - 1 - k), b.full([], size, b.dtype(x))
        scaled = b.mul(b.add(g, 1.0), b.sub(length, 1.0)) if corners else b.sub(b.mul(b.add(g, 1.0), length), 1.0)
        place = b.div(scaled, 2.0)
        places.append(place if mode == _CUBIC else _folded(b, place, size, padding, corners))
    if mode == _NEAREST:
        return _at(b, x, [b.convert(b.op(ew.Round, [p]), "i64") for p in places])
    low = [b.op(ew.Floor, [p]) for p in places]
    parts = [b.sub(p, f) for p, f in zip(places, low, strict=True)]
    if mode == _CUBIC:
        weights, first = [cubic_weights(b, p) for p in parts], -1
    else:
        weights, first = [[b.sub(1.0, p), p] for p in parts], 0
    total = None
    for taps in product(range(len(weights[0])), repeat=n):
        at = []
        for f, t, size in zip(low, taps, spatial, strict=True):
            tap = b.add(f, float(first + t))
            at.append(b.convert(_folded(b, tap, size, padding, corners) if mode == _CUBIC else tap, "i64"))
        weight = weights[0][taps[0]]
        for w, t in zip(weights[1:], taps[1:], strict=True):
            weight = b.mul(weight, w[t])
        term = b.mul(_at(b, x, at), b.unsqueeze(weight, 1))
        total = term if total is None else b.add(total, term)
    return total


def _folded(b: OpBuilder, place: Value, size: sympy.Expr, padding: int, corners: bool) -> Value:
    """A coordinate brought inside as the padding says; zeros leave it."""
    if padding == _ZEROS:
        return place
    last = b.full([], size - 1, b.dtype(place))
    if padding == _REFLECTION:
        low = 0.0 if corners else -0.5
        span = last if corners else b.add(last, 1.0)
        away = b.op(ew.Abs, [b.sub(place, low)])
        safe = b.maximum(span, 1.0)  # corners of a dim of one element: everything is element 0
        flips, rest = b.op(ew.Floor, [b.div(away, safe)]), b.ew(ew.Fmod, away, safe)
        even = b.ew(ew.Eq, b.ew(ew.Fmod, flips, 2.0), 0.0)
        place = b.add(b.select(even, rest, b.sub(safe, rest)), low)
    return b.minimum(b.maximum(place, 0.0), last)


def _at(b: OpBuilder, x: Value, places: Sequence[Value]) -> Value:
    """x at whole coordinates [B, *out], as [B, C, *out]; zero outside."""
    inside, clamped = None, []
    for p, size in zip(places, b.shape(x)[2:], strict=True):
        here = b.ew(ew.And, b.ew(ew.Ge, p, 0), b.ew(ew.Lt, p, size))
        inside = here if inside is None else b.ew(ew.And, inside, here)
        clamped.append(b.minimum(b.maximum(p, 0), size - 1))
    n = len(clamped)
    batch = b.iota(b.shape(places[0]), 0, "i64")
    found = b.take(x, [batch, *clamped], [0, *range(2, n + 2)], 0)  # [B, *out, C]
    found = b.transpose(found, [0, n + 1, *range(1, n + 1)])
    return b.select(b.unsqueeze(inside, 1), found, 0.0, dtype=b.dtype(x))
