"""Winograd's minimal filtering F(m, r): its three linear maps, as code on vectors of one dim.

F(m, r) computes m outputs of a filter of r taps, 2 or 3, from n = m + r - 1 inputs d by n products (S. Winograd, "Arithmetic
Complexity of Computations", 1980; A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2016):
y = A^T [(G g) * (B^T d)]. The products are values of polynomials at n - 1 points and at infinity. For n = 6 these are 0, 1, -1,
1/2, -2: of the usual sets the one with the least error, since its products stay small. B depends on the points alone. In two dims
each map is applied to columns, then to rows.

Windows that are two inputs apart don't share what these products save. Their even and odd inputs do so each: a filter of 3 taps is
one of taps 0 and 2 on the even inputs, F(m, 2), and tap 1 on the odd ones, whose m products are summed in order and added to the
outputs. That makes 2 m + 1 products of 3 m.

The sums below are the rows of the matrices with what they share computed once. `matrices` has them written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dhlo.codegen.kernel_ir.builder import Fn, V

__all__ = ["OPERATIONS", "SIDES", "TAPS", "Filter", "in_two_dims", "inputs", "matrices", "outputs", "weights"]

SIDES = (4, 6)
"""The numbers n of products that there are maps for."""
TAPS = (2, 3)
"""The same of filters."""

_POINTS = {4: (0, 1, -1), 6: (0, 1, -1, Fraction(1, 2), -2)}

OPERATIONS = {(4, 3): (4, 4, 4), (6, 3): (16, 12, 12), (4, 2): (4, 3, 5), (6, 2): (16, 8, 16)}
"""Vector operations in one dim of `inputs`, `weights` and `outputs`, by n and r."""


def _product(roots: Sequence[Fraction | int]) -> list[Fraction]:
    """Coefficients, lowest first, of the polynomial with these roots and leading coefficient 1."""
    out = [Fraction(1)]
    for r in roots:
        out = [a - r * b for a, b in zip([Fraction(0), *out], [*out, Fraction(0)], strict=True)]
    return out


def matrices(n: int, r: int) -> tuple[list[list[Fraction]], list[list[Fraction]], list[list[Fraction]]]:
    """B^T [n, n], G [n, r] and A^T [m, n] of F(m, r), exact."""
    points, m = _POINTS[n], n - r + 1
    bt: list[list[Fraction]] = []
    g: list[list[Fraction]] = []
    for a in points:
        others = [b for b in points if b != a]
        row, scale = _product(others), Fraction(1)
        for b in others:
            scale *= a - b
        sign = -1 if n == 4 and a == 0 else 1  # so that G's first row is 1, 0, 0
        bt.append([sign * c for c in row] + [Fraction(0)] * (n - len(row)))
        g.append([sign * Fraction(a) ** k / scale for k in range(r)])
    bt.append(_product(points))
    g.append([Fraction(int(k == r - 1)) for k in range(r)])
    at = [[Fraction(a) ** i for a in points] + [Fraction(int(i == m - 1))] for i in range(m)]
    return bt, g, at


def inputs(f: Fn, d: Sequence[V]) -> list[V]:
    """B^T d: n vectors to as many."""
    if len(d) == 4:
        return [f.sub(d[0], d[2]), f.add(d[1], d[2]), f.sub(d[2], d[1]), f.sub(d[3], d[1])]
    # Rows are q = x^2 + 3/2 x - 1, with the roots 1/2 and -2, times x^2 - 1, x^2 + x, x^2 - x and x^3 - x; and x^3 - x times
    # x + 2 and x - 1/2. e[i] is q applied at input i.
    e = [f.sub(f.fma(d[i + 1], f.const(1.5, d[0].type), d[i + 2]), d[i]) for i in range(4)]
    odd, even = f.sub(d[3], d[1]), f.sub(d[4], d[2])
    return [
        f.sub(e[2], e[0]),
        f.add(e[2], e[1]),
        f.sub(e[2], e[1]),
        f.fma(odd, f.const(2.0, odd.type), even),
        f.fma(odd, f.const(-0.5, odd.type), even),
        f.sub(e[3], e[1]),
    ]


def weights(f: Fn, g: Sequence[V], n: int) -> list[V]:
    """G g: 2 or 3 vectors to n."""
    ty = g[0].type

    def sum_(*factors: float) -> V:
        out = f.mul(g[0], f.const(factors[0], ty))
        for x, c in zip(g[1:], factors[1:], strict=False):
            out = f.fma(x, f.const(c, ty), out)
        return out

    scale = f.const(0.5 if n == 4 else 1 / 3, ty)
    even = f.mul(f.add(g[0], g[2]) if len(g) == 3 else g[0], scale)
    if n == 4:
        return [g[0], f.fma(g[1], scale, even), f.fma(g[1], f.const(-0.5, ty), even), g[-1]]
    return [
        g[0],
        f.fma(g[1], scale, even),
        f.sub(f.mul(g[1], scale), even),
        sum_(-16 / 15, -8 / 15, -4 / 15),
        sum_(1 / 15, -2 / 15, 4 / 15),
        g[-1],
    ]


def outputs(f: Fn, s: Sequence[V], m: int) -> list[V]:
    """A^T s: n vectors to m."""
    ty = s[0].type
    even, odd = f.add(s[1], s[2]), f.sub(s[1], s[2])
    if len(s) == 4:
        out = [f.add(s[0], even), odd, even]
        return [*out[: m - 1], f.add(out[m - 1], s[3])]

    def plus(x: V, half: float, two: float) -> V:
        return f.fma(s[4], f.const(two, ty), f.fma(s[3], f.const(half, ty), x))

    out = [f.add(f.add(s[0], even), f.add(s[3], s[4]))]
    for i in range(1, m):
        x = odd if i % 2 else even
        out.append(plus(f.add(x, s[5]) if i == m - 1 else x, 0.5**i, (-2.0) ** i))
    return out


@dataclass(frozen=True)
class Filter:
    """A tile in one dim: its outputs, the inputs of their windows, and the products in between.

    `side`: n of F(m, r), 1 for a dim of windows of one input, which is left as it is; `window`: taps; `stride`: between windows, 1,
    or 2 for windows of 3.
    """

    side: int = 1
    window: int = 1
    stride: int = 1

    @staticmethod
    def of(side: int, window: int, stride: int, dilation: int) -> Filter | None:
        """That of a convolution's dim; None where there is none."""
        if window == stride == 1:
            return Filter()
        if dilation > 1 or (window not in TAPS if stride == 1 else (window, stride) != (3, 2)):
            return None
        return Filter(side, window, stride)

    @property
    def _taps(self) -> int:
        """Those that F(m, r) computes."""
        return self.window if self.stride == 1 else 2

    @property
    def m(self) -> int:
        """Outputs."""
        return self.side - self._taps + 1

    @property
    def step(self) -> int:
        """Inputs from a tile to the next."""
        return self.m * self.stride

    @property
    def overlap(self) -> int:
        """Inputs that a tile shares with the next."""
        return self.window - self.stride

    @property
    def inputs(self) -> int:
        return self.step + self.overlap

    @property
    def points(self) -> int:
        """Products."""
        return self.side + (self.stride - 1) * self.m

    @property
    def factors(self) -> int:
        """Mapped weights: the last one is that of all further points."""
        return self.side + self.stride - 1

    @property
    def operations(self) -> tuple[int, int, int]:
        """Vector operations of the three maps."""
        if self.window == 1:
            return 0, 0, 0
        of_inputs, of_weights, of_outputs = OPERATIONS[self.side, self._taps]
        return of_inputs, of_weights, of_outputs + (self.stride - 1) * self.m

    @property
    def name(self) -> str:
        return f"{self.m}" + (f"s{self.stride}" if self.stride > 1 else "")

    def map_inputs(self, f: Fn, d: Sequence[V]) -> list[V]:
        """`inputs` vectors to `points`."""
        if self.window == 1:
            return list(d)
        return inputs(f, d) if self.stride == 1 else [*inputs(f, d[::2]), *d[1::2]]

    def map_weights(self, f: Fn, g: Sequence[V]) -> list[V]:
        """`window` vectors to `factors`."""
        if self.window == 1:
            return list(g)
        return weights(f, g, self.side) if self.stride == 1 else [*weights(f, g[::2], self.side), g[1]]

    def map_outputs(self, f: Fn, s: Sequence[V]) -> list[V]:
        """`points` vectors to `m`."""
        if self.window == 1:
            return list(s)
        out = outputs(f, s[: self.side], self.m)
        return out if self.stride == 1 else [f.add(a, b) for a, b in zip(out, s[self.side :], strict=True)]


Map = Callable[[Sequence[V]], list[V]]


def in_two_dims(block: Sequence[Sequence[V]], down: Map, across: Map) -> list[list[V]]:
    """Applies a map to the columns of a block of vectors, given as rows, then another to its rows."""
    columns = [down([row[j] for row in block]) for j in range(len(block[0]))]
    return [across([column[i] for column in columns]) for i in range(len(columns[0]))]
