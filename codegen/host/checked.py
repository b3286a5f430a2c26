"""Integer arithmetic of the host program: exact, or recorded as an overflow. Where the ranges of its operands prove that an
operation fits in 64 bits, it is the plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dhlo.codegen.kernel_ir.builder import I1, I64, Fn, KernelModule, Loop, Num, V, elem_of

__all__ = ["I64_MAX", "I64_MIN", "CheckedFn", "Interval"]

I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
Interval = tuple[int, int]  # least and greatest value, both included
_ANY: Interval = (I64_MIN, I64_MAX)


class CheckedFn(Fn):
    """A host function. Every i64 value has an interval that its true value lies in; operations whose result might leave the 64 bits
    set `overflow`, one flag of the whole function, and go on with a wrong value. So whoever uses a value for memory tests the flag
    first; `is_tested` says that nothing can have set it since the last test.
    """

    def __init__(
        self, module: KernelModule, name: str, args: Sequence[tuple[str, str]], result: str | None = None, *, internal: bool = True
    ) -> None:
        super().__init__(module, name, args, result, internal=internal, once=True)
        self._intervals: list[dict[str, Interval]] = [{}]
        self._flag: V | None = None
        self._captured: list[list[V]] = []
        self._wraps = 0
        self.is_tested = True

    # ------------------------------------------------------------------ intervals
    def interval(self, x: Num) -> Interval:
        """Where the value lies; all 64 bits where nothing is known."""
        if not isinstance(x, V):
            return int(x), int(x)
        for known in reversed(self._intervals):
            if x.name in known:
                return known[x.name]
        return _ANY

    def assume(self, x: V, lo: int | None = None, hi: int | None = None) -> V:
        """Narrows a value's interval by what its definition or a check says; until `pop`, if inside of `push`."""
        a, b = self.interval(x)
        a, b = a if lo is None else max(a, lo), b if hi is None else min(b, hi)
        self._intervals[-1][x.name] = (a, max(a, b))  # bounds that exclude each other stand in code that never runs
        return x

    def define(self, x: V, lo: int, hi: int) -> V:
        """Gives the interval of a value that comes from outside, wherever it is used."""
        self._intervals[0][x.name] = (lo, hi)
        return x

    def const(self, value: int | float | bool, ty: str) -> V:
        c = super().const(value, ty)
        return self.define(c, int(value), int(value)) if ty == I64 else c

    @property
    def is_nested(self) -> bool:
        """Does code go into a structured branch or loop now, from which the function can't return?"""
        return self._indent > 1

    def push(self) -> None:
        """Opens a branch: what is assumed in it ends with `pop`."""
        self._intervals.append({})

    def pop(self) -> None:
        self._intervals.pop()

    # ------------------------------------------------------------------ the flag
    def overflow(self) -> V:
        """The flag as i1, tested from here on."""
        return self.const(False, I1) if self._flag is None else self.load(self._flag, I1)

    def record(self, bad: V) -> None:
        """Sets the flag where `bad` holds."""
        if self._captured:
            self._captured[-1].append(bad)
            return
        if self._flag is None:
            self._flag = self.alloca(1, I1, 8)
            self.entry_store(self.const(False, I1), self._flag, 0)
        self.store(self.or_(self.load(self._flag, I1), bad), self._flag)
        self.is_tested = False

    @contextmanager
    def capture(self) -> Iterator[list[V]]:
        """Collects what would set the flag, for code whose result may turn out not to be needed; no branches inside."""
        found: list[V] = []
        self._captured.append(found)
        yield found
        self._captured.pop()

    def any_of(self, flags: Sequence[V]) -> V:
        """Is one of the i1 values true?"""
        out = flags[0]
        for x in flags[1:]:
            out = self.or_(out, x)
        return out

    @contextmanager
    def wrapping(self) -> Iterator[None]:
        """Arithmetic modulo 2^64: of estimates, which decide how fast code runs only, and where the end result is known to fit."""
        self._wraps += 1
        yield
        self._wraps -= 1

    # ------------------------------------------------------------------ arithmetic
    # Nothing is left out for a number's sake, such as a factor of 1: with another target's numbers the program has the same form,
    # so that several levels can share it. LLVM leaves it out.
    def _both(self, a: Num, b: Num) -> tuple[Interval, Interval] | None:
        """The operands' intervals if they are i64."""
        for x in (a, b):
            if (x.type != I64) if isinstance(x, V) else not isinstance(x, int):
                return None
        return self.interval(a), self.interval(b)

    def _known(self, r: V, *values: int) -> V:
        """The interval of a result: from the least to the greatest of some values, if they fit."""
        lo, hi = min(values), max(values)
        if lo >= I64_MIN and hi <= I64_MAX and r.type == I64:
            self._intervals[-1][r.name] = (lo, hi)
        return r

    def _exact(self, name: str, a: Num, b: Num, values: Sequence[int], plain: Callable[[], V]) -> V:
        """An operation whose true result lies among `values`: the plain one if they all fit, else with a check."""
        lo, hi = min(values), max(values)
        if self._wraps or (lo >= I64_MIN and hi <= I64_MAX):
            return self._known(plain(), lo, hi)
        x, y = self.i64(a), self.i64(b)
        pair = self.fresh("!llvm.struct<(i64, i1)>")
        self.raw(f'{pair.name} = "llvm.intr.{name}.with.overflow"({x.name}, {y.name}) : (i64, i64) -> {pair.type}')
        r = self.op(I64, f"llvm.extractvalue {pair.name}[0] : {pair.type}")
        self.record(self.op(I1, f"llvm.extractvalue {pair.name}[1] : {pair.type}"))
        return self._known(r, max(lo, I64_MIN), min(hi, I64_MAX))

    def add(self, a: Num, b: Num) -> V:
        both = self._both(a, b)
        if both is None:
            return super().add(a, b)
        (p, q), (r, s) = both
        return self._exact("sadd", a, b, (p + r, q + s), lambda: self._bin("addi", "", a, b))

    def sub(self, a: Num, b: Num) -> V:
        both = self._both(a, b)
        if both is None:
            return super().sub(a, b)
        (p, q), (r, s) = both
        return self._exact("ssub", a, b, (p - s, q - r), lambda: self._bin("subi", "", a, b))

    def mul(self, a: Num, b: Num) -> V:
        both = self._both(a, b)
        if both is None:
            return super().mul(a, b)
        (p, q), (r, s) = both
        return self._exact("smul", a, b, (p * r, p * s, q * r, q * s), lambda: self._bin("muli", "", a, b))

    def neg(self, a: V) -> V:
        return self.sub(0, a) if a.type == I64 else super().neg(a)

    def div(self, a: Num, b: Num) -> V:
        both = self._both(a, b)
        if both is None:
            return super().div(a, b)
        b, (p, q), (r, s) = self._no_trap(a, b), *both
        out = super().div(a, b)
        return self._known(out, *(_toward_zero(x, y) for x in (p, q) for y in _divisors(r, s)))

    def floordiv(self, a: Num, b: Num) -> V:
        both = self._both(a, b)
        if both is None:
            return super().floordiv(a, b)
        b, (p, q), (r, s) = self._no_trap(a, b), *both
        plain = super().divu if p >= 0 and r > 0 and isinstance(b, int) else super().floordiv  # cheaper by powers of two
        return self._known(plain(a, b), *(x // y for x in (p, q) for y in _divisors(r, s)))

    def _no_trap(self, a: Num, b: Num) -> Num:
        """The divisor, or 1 where the processor would trap: for 0, and where the quotient of the least number by -1 doesn't fit.
        Intervals don't tell: they are of true values, and what has overflowed is in the register as something else."""
        if isinstance(b, int) and b not in (0, -1):
            return b
        (p, _), (r, s) = self.interval(a), self.interval(b)
        least = self.and_(self.cmp("eq", self.i64(a), I64_MIN), self.cmp("eq", self.i64(b), -1))
        if p == I64_MIN and r <= -1 <= s:
            self.record(least)
        return self.select(self.or_(least, self.cmp("eq", self.i64(b), 0)), 1, b)

    def divu(self, a: Num, b: Num) -> V:
        safe = b if isinstance(b, int) else super().select(self.cmp("eq", b, 0), 1, b)
        out, both = super().divu(a, safe), self._both(a, b)
        if both is not None and both[0][0] >= 0 and both[1][0] >= 1:
            (p, q), (r, s) = both
            self._known(out, p // s, q // r)
        return out

    def rem(self, a: Num, b: Num) -> V:
        both = self._both(a, b)
        return super().rem(a, b if both is None else self._no_trap(a, b))

    def remu(self, a: Num, b: Num) -> V:
        safe = b if isinstance(b, int) else super().select(self.cmp("eq", b, 0), 1, b)
        out, both = super().remu(a, safe), self._both(a, b)
        if both is not None and both[0][0] >= 0 and both[1][0] >= 1:
            self._known(out, 0, min(both[0][1], both[1][1] - 1))
        return out

    def min(self, a: Num, b: Num) -> V:
        out, both = super().min(a, b), self._both(a, b)
        return out if both is None else self._known(out, min(both[0][0], both[1][0]), min(both[0][1], both[1][1]))

    def max(self, a: Num, b: Num) -> V:
        out, both = super().max(a, b), self._both(a, b)
        return out if both is None else self._known(out, max(both[0][0], both[1][0]), max(both[0][1], both[1][1]))

    def and_(self, a: Num, b: Num) -> V:
        out, both = super().and_(a, b), self._both(a, b)
        tops = [hi for lo, hi in both or () if lo >= 0]
        return self._known(out, 0, min(tops)) if tops else out

    def or_(self, a: Num, b: Num) -> V:
        out, both = super().or_(a, b), self._both(a, b)
        if both is None or min(both[0][0], both[1][0]) < 0:
            return out
        return self._known(out, 0, (1 << max(both[0][1], both[1][1]).bit_length()) - 1)

    def shl(self, a: Num, b: Num) -> V:
        """Shift left by at most 63; what doesn't fit and other distances set the flag."""
        both = self._both(a, b)
        if both is None or self._wraps:
            return super().shl(a, b)
        (p, q), (r, s) = both
        by = self.and_(self.i64(b), 63)
        out = super().shl(a, by)
        if r >= 0 and s <= 63 and all(I64_MIN <= x << y <= I64_MAX for x in (p, q) for y in (r, s)):
            return self._known(out, *(x << y for x in (p, q) for y in (r, s)))
        lost = self.cmp("ne", super().shr(out, by), a)
        self.record(self.or_(lost, self.cmp("ne", self.i64(b), by)))
        return out

    def shr(self, a: Num, b: Num) -> V:
        """Arithmetic shift right; by 63 where the distance is more, while a negative one sets the flag."""
        both = self._both(a, b)
        if both is None or self._wraps:
            return super().shr(a, b)
        (p, q), (r, _) = both
        if r < 0:
            self.record(self.cmp("lt", self.i64(b), 0))
        return self._known(super().shr(a, self.min(self.max(b, 0), 63)), min(p, 0, -1 if p < 0 else 0), max(q, 0))

    def select(self, c: V, a: Num, b: Num) -> V:
        out, both = super().select(c, a, b), self._both(a, b)
        return out if both is None else self._known(out, *both[0], *both[1])

    def cast(self, a: V, elem: str, *, signed: bool = True) -> V:
        if elem == I64 and a.type in ("f16", "bf16", "f32", "f64") and not self._wraps:
            x = super().cast(a, "f64")
            fits = self.and_(self.cmp("ge", x, float(I64_MIN)), self.cmp("lt", x, -float(I64_MIN)))
            self.record(self.not_(fits))
            return super().cast(self.select(fits, x, 0.0), I64)
        out = super().cast(a, elem, signed=signed)
        bits = {"i1": 1, "i8": 8, "i16": 16, "i32": 32}.get(a.type)
        if elem == I64 and bits is not None:
            unsigned = not signed or bits == 1
            self._known(out, 0 if unsigned else -(1 << bits - 1), (1 << (bits if unsigned else bits - 1)) - 1)
        return out

    @contextmanager
    def loop(self, lo: Num, hi: Num, step: Num = 1, init: Sequence[V] = ()) -> Iterator[Loop]:
        first, last = self.interval(lo)[0], self.interval(hi)[1]
        with super().loop(lo, hi, step, init) as lp:
            self._known(lp.iv, first, max(first, last - 1))
            yield lp

    def if_else(self, cond: V, then: Callable[[], Sequence[V]], other: Callable[[], Sequence[V]], types: Sequence[str]) -> list[V]:
        sides: list[Sequence[V]] = []

        def kept(side: Callable[[], Sequence[V]]) -> Callable[[], Sequence[V]]:
            def run() -> Sequence[V]:
                sides.append(side())
                return sides[-1]

            return run

        out = super().if_else(cond, kept(then), kept(other), types)
        for r, a, b in zip(out, *sides, strict=False):
            if elem_of(r.type) == I64:
                self._known(r, *self.interval(a), *self.interval(b))
        return out


def _divisors(lo: int, hi: int) -> list[int]:
    """The divisors from lo to hi whose quotients are extreme; 0 is none."""
    return [y for y in (lo, hi, -1, 1) if lo <= y <= hi and y != 0] or [1]


def _toward_zero(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q
