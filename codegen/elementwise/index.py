"""Positions of a whole vector of elements along one dim, and the arithmetic that views need on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dhlo.codegen.kernel_ir.builder import F64, I64, Fn, V

__all__ = ["Index", "IndexMath"]


@dataclass(frozen=True)
class Index:
    """Lane l stands at `base + l * step`, or at `base + vec[l]` where no such form is known.

    `multiple` divides base; it proves that lanes don't cross a row whose length it divides. `part` remembers that this is dim
    `part[1]` of the flat position `part[0]` split into sizes `part[2]`, so that joining the dims again costs nothing. `rising`:
    `vec` probably rises slowly, so that a vector of memory holds what all lanes stand at; `even`: most lanes are probably equal.
    """

    base: V | int
    step: int = 0
    vec: V | None = None
    multiple: int = 1
    part: tuple[Index, int, tuple[object, ...]] | None = None
    rising: bool = False
    even: bool = False

    @property
    def uniform(self) -> bool:
        """All lanes stand at the same position."""
        return self.vec is None and self.step == 0

    @property
    def key(self) -> tuple[object, ...]:
        base = self.base.name if isinstance(self.base, V) else self.base
        return (base, self.step, self.vec.name if self.vec else None)


class IndexMath:
    """Emits index arithmetic into a function."""

    zero = Index(0, multiple=0)

    def __init__(self, fn: Fn) -> None:
        self.fn = fn

    def lanes(self, i: Index) -> V:
        """The positions as a vector."""
        fn = self.fn
        if i.vec is not None and isinstance(i.base, int) and i.base == 0:
            return i.vec
        base = fn.splat(fn.i64(i.base))
        if i.vec is not None:
            return fn.add(base, i.vec)
        return base if i.step == 0 else fn.add(base, fn.mul(fn.iota(), i.step))

    def position(self, i: Index) -> V:
        """The position of a uniform index."""
        assert i.uniform
        return self.fn.i64(i.base)

    def add(self, a: V | int, b: V | int) -> V | int:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(a, int):
            a, b = b, a
        return self.fn.add(a, b)

    def mul(self, a: V | int, b: V | int) -> V | int:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if isinstance(a, int):
            a, b = b, a
        return 0 if b == 0 else self.fn.mul(a, b)

    def plus(self, a: Index, b: Index) -> Index:
        """Sum of two positions."""
        if a.vec is None and b.vec is None:
            return Index(self.add(a.base, b.base), a.step + b.step, multiple=math.gcd(a.multiple, b.multiple))
        even = [x.even or x.uniform for x in (a, b)]
        rising = [x.rising or x.vec is None and x.step == 1 for x in (a, b)]
        slow = rising[0] and even[1] or even[0] and rising[1] or rising[0] and rising[1]
        if a.uniform or b.uniform:  # what is the same for all lanes stays apart: the rest is that of other rows, too
            vec = b.vec if a.uniform else a.vec
            if vec is not None:
                return Index(self.add(a.base, b.base), vec=vec, rising=slow, even=all(even))
        return Index(0, vec=self.fn.add(self.lanes(a), self.lanes(b)), rising=slow, even=all(even))

    def offset(self, i: Index, by: V | int) -> Index:
        if isinstance(by, int) and by == 0:
            return i
        return self.plus(i, Index(by, multiple=by if isinstance(by, int) else 1))

    def times(self, i: Index, k: V | int) -> Index:
        """Product with a factor that is the same for all lanes."""
        if isinstance(k, int):
            if k == 1:
                return i
            if i.vec is None:
                return Index(self.mul(i.base, k), i.step * k, multiple=i.multiple * k)
            return Index(self.mul(i.base, k), vec=self.fn.mul(i.vec, k), even=i.even)
        if i.uniform:
            return Index(self.mul(i.base, k), multiple=i.multiple)
        return Index(0, vec=self.fn.mul(self.lanes(i), self.fn.splat(k)), even=i.even)

    def divmod(self, i: Index, n: V | int) -> tuple[Index, Index]:
        """Quotient and remainder of a non-negative position by a size."""
        fn = self.fn
        if isinstance(n, int) and n == 1:
            return i, self.zero
        if i.uniform:
            if isinstance(i.base, int) and isinstance(n, int):
                q, r = divmod(i.base, n)
                return Index(q, multiple=q), Index(r, multiple=r)
            base = fn.i64(i.base)
            return Index(fn.divu(base, n)), Index(fn.remu(base, n), multiple=math.gcd(i.multiple, n) if isinstance(n, int) else 1)
        if i.vec is None and i.step == 1 and isinstance(n, int) and n % fn.lanes == 0 and i.multiple % fn.lanes == 0:
            base = fn.i64(i.base)
            return Index(fn.divu(base, n)), Index(fn.remu(base, n), 1, multiple=math.gcd(i.multiple, n))
        x = self.lanes(i)
        # Most vectors lie in one row, unless rows are known to be short.
        long = (i.rising or i.vec is None and i.step == 1) and not (isinstance(n, int) and n < 2 * fn.lanes)
        if isinstance(n, int) and n > 0 and n & (n - 1) == 0:
            return Index(0, vec=fn.shr(x, n.bit_length() - 1), even=long), Index(0, vec=fn.and_(x, n - 1), rising=long)
        size = fn.splat(fn.i64(n))
        # Exact for positions below 2**51: the quotient is at least half a unit away from any integer, in units of 1 / n, and
        # rounding twice makes it off by less.
        inverse = fn.splat(fn.div(1.0, fn.cast(fn.i64(n), F64)))
        whole = fn.cast(fn.mul(fn.add(fn.cast(x, F64), 0.5), inverse), I64)
        return Index(0, vec=whole, even=long), Index(0, vec=fn.sub(x, fn.mul(whole, size)), rising=long)

    def in_range(self, i: Index, n: V | int) -> V:
        """0 <= position < n: one bit, or one a lane."""
        fn = self.fn
        x = fn.i64(i.base) if i.uniform else self.lanes(i)
        return fn.cmp("ult", x, n)
