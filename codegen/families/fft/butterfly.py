"""Products of complex numbers, and transforms of so few of them that all are held in registers."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

from dhlo.codegen.kernel_ir.builder import Fn, V

__all__ = ["BUTTERFLIES", "Complex", "butterfly", "times"]

Complex = tuple[V, V]
BUTTERFLIES = (4, 5, 3, 2, 7, 11, 13)
"""The factors of a length that have butterflies, likelier ones first; others take products."""


def times(fn: Fn, a: Complex, b: Complex) -> Complex:
    return fn.fma(a[0], b[0], fn.neg(fn.mul(a[1], b[1]))), fn.fma(a[0], b[1], fn.mul(a[1], b[0]))


def butterfly(fn: Fn, x: Sequence[Complex], inverse: bool) -> list[Complex]:
    """The transform of a few elements: 2, 4, 8 or 16, or an odd number."""
    if len(x) == 1:
        return list(x)
    if len(x) == 2:
        return [_add(fn, *x), _sub(fn, *x)]
    if len(x) % 2:
        return _odd(fn, x, inverse)
    if len(x) == 4:
        even, odd, even2, d = _add(fn, x[0], x[2]), _add(fn, x[1], x[3]), _sub(fn, x[0], x[2]), _sub(fn, x[1], x[3])
        odd2 = _turned(fn, d, inverse)
        return [_add(fn, even, odd), _add(fn, even2, odd2), _sub(fn, even, odd), _sub(fn, even2, odd2)]
    return _composite(fn, x, inverse)


def _add(fn: Fn, a: Complex, b: Complex) -> Complex:
    return fn.add(a[0], b[0]), fn.add(a[1], b[1])


def _sub(fn: Fn, a: Complex, b: Complex) -> Complex:
    return fn.sub(a[0], b[0]), fn.sub(a[1], b[1])


def _turned(fn: Fn, x: Complex, inverse: bool) -> Complex:
    """-i x, or i x for the inverse."""
    return (fn.neg(x[1]), x[0]) if inverse else (x[1], fn.neg(x[0]))


def _by_root(fn: Fn, x: Complex, k: int, n: int, inverse: bool) -> Complex:
    """x exp(-2 pi i k / n), or its conjugate's product for the inverse."""
    if k == 0:
        return x
    if 4 * k == n:
        return _turned(fn, x, inverse)
    w = cmath.exp((2j if inverse else -2j) * math.pi * k / n)
    return times(fn, x, (fn.const(w.real, x[0].type), fn.const(w.imag, x[0].type)))


def _composite(fn: Fn, x: Sequence[Complex], inverse: bool) -> list[Complex]:
    """4 times as many elements as a smaller butterfly takes."""
    n, b = len(x), len(x) // 4
    columns = [butterfly(fn, x[j::b], inverse) for j in range(b)]
    out: list[Complex] = []
    parts = [butterfly(fn, [_by_root(fn, columns[j][k], j * k, n, inverse) for j in range(b)], inverse) for k in range(4)]
    for j in range(b):
        out += [parts[k][j] for k in range(4)]
    return out


def _odd(fn: Fn, x: Sequence[Complex], inverse: bool) -> list[Complex]:
    """Sums and differences of what stands symmetrically: cosines multiply the ones, sines the others."""
    n, half = len(x), range(1, len(x) // 2 + 1)
    sums, less = [_add(fn, x[k], x[n - k]) for k in half], [_sub(fn, x[k], x[n - k]) for k in half]
    total = x[0]
    for s in sums:
        total = _add(fn, total, s)
    ends: list[tuple[Complex, Complex]] = []
    for j in half:
        turns = [2 * math.pi * (j * k % n) / n for k in half]
        middle = tuple(_weighted(fn, [s[part] for s in sums], [math.cos(t) for t in turns], x[0][part]) for part in (0, 1))
        side = tuple(_weighted(fn, [d[part] for d in less], [math.sin(t) for t in turns]) for part in (0, 1))
        turned = _turned(fn, (side[0], side[1]), inverse)
        ends.append((_add(fn, (middle[0], middle[1]), turned), _sub(fn, (middle[0], middle[1]), turned)))
    return [total, *(low for low, _ in ends), *(high for _, high in reversed(ends))]


def _weighted(fn: Fn, x: Sequence[V], weights: Sequence[float], start: V | None = None) -> V:
    for v, w in zip(x, weights, strict=True):
        c = fn.const(w, v.type)
        start = fn.mul(v, c) if start is None else fn.fma(v, c, start)
    assert start is not None
    return start
