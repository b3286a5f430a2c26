"""Sampling at computed places (grid_sample), and its gradients: linear, nearest or cubic, with zeros, the border or reflections
outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from typing import TypeAlias

import sympy

from dhlo.frontend.aten.indexing import scatter
from dhlo.frontend.aten.resize import cubic_slopes, cubic_weights
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import vision
from dhlo.ir.symbols import product as product_of

_ZEROS, _BORDER, _REFLECTION = range(3)
_LINEAR, _NEAREST, _CUBIC = range(3)

_SIDE_BY_SIDE = 8  # channels of an image, from which they fill vectors

_Tap: TypeAlias = tuple[list[Value], list[Value], list[Value]]


@lowers(A.grid_sampler.default, A.grid_sampler_2d.default, A.grid_sampler_3d.default)
def _grid_sampler(b: OpBuilder, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    """Samples x [B, C, *spatial] at grid [B, *out, n], whose coordinates in [-1, 1] name the last spatial dim first."""
    return b.in_f32(lambda v, g: _sample(b, v, g, mode, padding, bool(corners)), x, grid)


def _sample(b: OpBuilder, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    places = _places(b, x, grid, mode, padding, corners)
    channels = b.shape(x)[1]
    if mode == _LINEAR and len(places) == 2 and b.dtype(x).name in ("f32", "f64"):
        if channels.is_Integer and channels >= _SIDE_BY_SIDE:
            return _sample_side_by_side(b, x, places)
        return b.op(vision.SampledPlanes, [x, *places])
    terms = []
    for at, weights, _ in _taps(b, x, places, mode, padding, corners):
        value = _at(b, x, at)
        terms.append(b.mul(value, b.unsqueeze(reduce(b.mul, weights), 1)) if weights else value)
    return reduce(b.add, terms)


def _sample_side_by_side(b: OpBuilder, x: Value, places: Sequence[Value]) -> Value:
    """Bilinear samples of all channels at once."""
    batch, channels, *_ = b.shape(x)
    out = b.shape(places[0])[1:]
    image = b.transpose(x, [0, 2, 3, 1])
    flat = [b.reshape(p, [batch, 1, 1, 1, product_of(out)]) for p in places]
    nowhere = [b.mul(b.pick(p, 3, 0), 0.0) for p in flat]  # what isn't a finite number has no weights
    y = b.op(vision.SampledColumns, [image, b.concat(flat, 3), b.add(reduce(b.add, nowhere), 1.0)])  # [B, P, 1, C]
    return b.transpose(b.reshape(y, [batch, *out, channels]), [0, 3, 1, 2])


def _places(b: OpBuilder, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> list[Value]:
    """Coordinates [B, *out] in each spatial dim, brought inside but for cubic sampling, whose taps are."""
    n, places = b.rank(x) - 2, []
    for k, size in enumerate(b.shape(x)[2:]):
        place = _unscaled(b, b.pick(grid, n + 1, n - 1 - k), size, corners)
        places.append(place if mode == _CUBIC else _folded(b, place, size, padding, corners))
    return places


def _unscaled(b: OpBuilder, g: Value, size: sympy.Expr, corners: bool) -> Value:
    """A coordinate in [-1, 1] as one in elements."""
    length = b.full([], size, b.dtype(g))
    scaled = b.mul(b.add(g, 1.0), b.sub(length, 1.0)) if corners else b.sub(b.mul(b.add(g, 1.0), length), 1.0)
    return b.div(scaled, 2.0)


def _taps(b: OpBuilder, x: Value, places: list[Value], mode: int, padding: int, corners: bool) -> Iterator[_Tap]:
    """For each element that a sample reads: whole coordinates, and of each dim the weight and its slope; none for the nearest."""
    if mode == _NEAREST:
        yield [b.convert(b.op(ew.Round, [p]), "i64") for p in places], [], []
        return
    low = [b.op(ew.Floor, [p]) for p in places]
    parts = [b.sub(p, f) for p, f in zip(places, low, strict=True)]
    if mode == _CUBIC:
        weights, slopes = [cubic_weights(b, p) for p in parts], [cubic_slopes(b, p) for p in parts]
    else:
        one = b.full([], 1.0, b.dtype(x))
        weights, slopes = [[b.sub(1.0, p), p] for p in parts], [[b.sub(0.0, one), one] for _ in parts]
    first = -1 if mode == _CUBIC else 0
    for taps in product(range(len(weights[0])), repeat=len(places)):
        at = []
        for f, t, size in zip(low, taps, b.shape(x)[2:], strict=True):
            tap = b.add(f, float(first + t))
            at.append(b.convert(_folded(b, tap, size, padding, corners) if mode == _CUBIC else tap, "i64"))
        yield at, [w[t] for w, t in zip(weights, taps, strict=True)], [s[t] for s, t in zip(slopes, taps, strict=True)]


def _folded(b: OpBuilder, place: Value, size: sympy.Expr, padding: int, corners: bool) -> Value:
    """A coordinate brought inside as the padding says; zeros leave it."""
    if padding == _ZEROS:
        return place
    if padding == _REFLECTION:
        place, _ = _reflected(b, place, size, corners)
    first = b.select(b.ew(ew.Gt, place, 0.0), place, 0.0)  # also what isn't a number
    return b.minimum(first, b.full([], size - 1, b.dtype(place)))


def _reflected(b: OpBuilder, place: Value, size: sympy.Expr, corners: bool) -> tuple[Value, Value]:
    """A coordinate reflected at the borders, and its slope: 1 or -1."""
    last, low = b.full([], size - 1, b.dtype(place)), 0.0 if corners else -0.5
    from_low = b.sub(place, low)
    away = b.op(ew.Abs, [from_low])
    safe = b.maximum(last if corners else b.add(last, 1.0), 1.0)  # corners of a dim of one element: everything is element 0
    flips, rest = b.op(ew.Floor, [b.div(away, safe)]), b.ew(ew.Fmod, away, safe)
    even = b.ew(ew.Eq, b.ew(ew.Fmod, flips, 2.0), 0.0)
    up = b.ew(ew.Eq, even, b.ew(ew.Ge, from_low, 0.0))
    return b.add(b.select(even, rest, b.sub(safe, rest)), low), b.select(up, 1.0, -1.0, dtype=b.dtype(place))


def _slope(b: OpBuilder, place: Value, size: sympy.Expr, padding: int, corners: bool) -> Value:
    """How far a coordinate that has been brought inside moves for a step of the grid's."""
    last = b.full([], size - 1, b.dtype(place))
    step = b.div(last if corners else b.add(last, 1.0), 2.0)
    if padding == _ZEROS:
        return step
    if padding == _REFLECTION:
        place, sign = _reflected(b, place, size, corners)
        step = b.mul(step, sign)
    inside = b.ew(ew.And, b.ew(ew.Gt, place, 0.0), b.ew(ew.Lt, place, last))
    return b.select(inside, step, 0.0)


def _at(b: OpBuilder, x: Value, places: Sequence[Value]) -> Value:
    """x at whole coordinates [B, *out], as [B, C, *out]; zero outside."""
    inside, clamped = _clamped(b, x, places)
    n = len(clamped)
    batch = b.iota(b.shape(places[0]), 0, "i64")
    found = b.take(x, [batch, *clamped], [0, *range(2, n + 2)], 0)  # [B, *out, C]
    found = b.transpose(found, [0, n + 1, *range(1, n + 1)])
    return b.select(b.unsqueeze(inside, 1), found, 0.0, dtype=b.dtype(x))


def _clamped(b: OpBuilder, x: Value, places: Sequence[Value]) -> tuple[Value, list[Value]]:
    """Which whole coordinates are inside x, and all of them brought inside."""
    sizes = b.shape(x)[2:]
    inside = [b.ew(ew.And, b.ew(ew.Ge, p, 0), b.ew(ew.Lt, p, size)) for p, size in zip(places, sizes, strict=True)]
    clamped = [b.minimum(b.maximum(p, 0), size - 1) for p, size in zip(places, sizes, strict=True)]
    return reduce(lambda p, q: b.ew(ew.And, p, q), inside), clamped


@lowers(A.grid_sampler_2d_backward.default, A.grid_sampler_3d_backward.default)
def _grid_sampler_backward(
    b: OpBuilder, grad: Value, x: Value, grid: Value, mode: int, padding: int, corners: bool, output_mask: Sequence[bool]
) -> list[Value | None]:
    """The gradients of x, None if `output_mask` says so, and of the grid."""
    dtypes = b.dtype(x), b.dtype(grid)
    grad, x, grid = (b.convert(v, "f32") if b.dtype(v).bytes < 4 else v for v in (grad, x, grid))
    taps = list(_taps(b, x, _places(b, x, grid, mode, padding, corners), mode, padding, corners))
    dx = _to_elements(b, grad, x, taps) if output_mask[0] else None
    dgrid = _to_places(b, grad, x, grid, taps, padding if mode != _CUBIC else _ZEROS, corners)
    return [None if v is None else b.convert(v, d) for v, d in zip((dx, dgrid), dtypes, strict=True)]


def _to_elements(b: OpBuilder, grad: Value, x: Value, taps: Sequence[_Tap]) -> Value:
    """Sums, for each element of x, of the gradients of the samples that read it."""
    batch, channels, *spatial = b.shape(x)
    grad, flat, parts, out = b.swap(grad, 0, 1), [], [], b.shape(grad)[2:]  # [C, B, *out]
    for at, weights, _ in taps:
        inside, clamped = _clamped(b, x, at)
        flat.append(reduce(lambda p, q: b.add(b.mul(p, q[1]), q[0]), zip(clamped[1:], spatial[1:], strict=True), clamped[0]))
        weight = b.select(inside, reduce(b.mul, weights) if weights else 1.0, 0.0, dtype=b.dtype(x))
        parts.append(b.unsqueeze(b.mul(grad, weight), 1))
    where = b.concat([b.unsqueeze(f, 0) for f in flat], 0)  # [taps, B, *out]
    start = b.full([batch, channels, product_of(spatial)], 0, b.dtype(x))
    source = b.reshape(b.concat(parts, 1), [channels, len(parts), batch, *out])
    y = scatter(b, start, [b.iota(b.shape(where), 1, "i64"), where], source, [0, 2], 1, "add")
    return b.reshape(y, b.shape(x))


def _to_places(b: OpBuilder, grad: Value, x: Value, grid: Value, taps: Sequence[_Tap], padding: int, corners: bool) -> Value:
    """The gradient of each coordinate: what the samples change by as the weights do."""
    n, shape = b.rank(x) - 2, b.shape(grid)[:-1]
    if not taps[0][1]:
        return b.full(b.shape(grid), 0, b.dtype(grid))
    values = [b.reduce(b.mul(_at(b, x, at), grad), "sum", [1]) for at, _, _ in taps]
    found = []
    for k, size in enumerate(b.shape(x)[2:]):
        terms = []
        for value, (_, weights, slopes) in zip(values, taps, strict=True):
            terms.append(reduce(b.mul, [value, slopes[k], *weights[:k], *weights[k + 1 :]]))
        place = _unscaled(b, b.pick(grid, n + 1, n - 1 - k), size, corners)
        found.append(b.mul(reduce(b.add, terms), _slope(b, place, size, padding, corners)))
    return b.concat([b.reshape(v, [*shape, 1]) for v in reversed(found)], n + 1)
