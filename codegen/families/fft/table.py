"""Tables of Fourier transforms: how a length splits into factors, roots of unity, and what lengths with large prime factors need.

Such a length n is transformed by Bluestein's algorithm (1970): with the chirp c_k = exp(-pi i k^2 / n),
X_k = c_k sum_j (x_j c_j) conj(c_(k-j)), a convolution, which is done by two transforms of a power of two, M >= 2 n - 1. Its table
has the factors and roots of M, the chirp, and the transform of the conjugate chirp, over M.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import sympy
from torch.utils._sympy.functions import Mod

from dhlo.codegen.elementwise.vmath_base import poly
from dhlo.codegen.families.fft.butterfly import Complex, times
from dhlo.codegen.families.lines import while_loop
from dhlo.codegen.kernel_ir.builder import BITS, F64, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.ir.symbols import ceil_div, is_static

__all__ = [
    "CHIRPED",
    "HEADER",
    "LENGTH",
    "ROWS",
    "WIDTH",
    "alone",
    "emit_fft_table",
    "fft_table",
    "fft_table_bytes",
    "inner_length",
    "table_scratch",
    "turns_start",
    "widths",
]

HEADER = 64  # words before the roots: the number of factors, then the factors; the same of a line's rows; and, at their ends:
ROWS = HEADER // 2
WIDTH, LENGTH, CHIRPED = range(HEADER - 3, HEADER)  # of rows, or 0; the length whose factors and roots these are; whether it is M
_FINE = 64  # roots computed as such; the others are products of one of these and one of every _FINE-th
_ROUGH = (
    64  # prime factors from here on take longer, as so many products an element, than two transforms of twice the length or more
)

_PRIMES = [p for p in range(2, _ROUGH) if all(p % q for q in range(2, p))]


def widths(lanes: int) -> list[int]:
    """How many elements a row of a line may have, largest first. Lengths have such rows if there are as many as lanes."""
    return [w for w in (lanes, lanes // 2, lanes // 4) if w >= 4]


def _factors(n: int) -> list[int]:
    """4s, then 2, then other primes, in order."""
    found, p = [], 4
    while n > 1:
        if n % p == 0:
            found.append(p)
            n //= p
        else:
            p = {4: 2, 2: 3}.get(p, p + 2)
            p = n if p > 3 and p * p > n else p
    return found


def _padded(n: int) -> int:
    """The power of two whose transforms make one of n."""
    return 1 << (2 * n - 2).bit_length()


def _smooth(n: sympy.Expr) -> sympy.Basic:
    """Whether no prime factor is large."""
    if is_static(n):
        return sympy.sympify(max(_factors(int(n)), default=1) < _ROUGH)
    # It is so if n divides a power of the product of the others, whose exponents are below 64.
    power = Mod(Mod(math.prod(_PRIMES[:11]), n) * Mod(math.prod(_PRIMES[11:]), n), n)
    for _ in range(6):
        power = Mod(power**2, n)
    return sympy.Eq(power, 0)


def inner_length(n: sympy.Expr) -> sympy.Expr:
    """Elements of a line as it is transformed, at most."""
    padded = sympy.Integer(_padded(int(n))) if is_static(n) else 4 * n
    return sympy.Piecewise((n, _smooth(n)), (padded, True))


def alone(n: sympy.Expr, lanes: int, halves: bool) -> sympy.Basic:
    """Whether rows of a line of n elements, or of the halves of a real one, are as wide as vectors: so are those of all powers of
    two that take the place of other lengths."""
    of = 2 * lanes if halves else lanes
    return sympy.Or(sympy.Not(_smooth(n)), sympy.And(sympy.Eq(Mod(n, of), 0), sympy.Ge(n, of * lanes)))


def fft_table_bytes(n: sympy.Expr, real: str) -> sympy.Expr:
    """Room for the table of a length: header, cos and -sin of 2 pi k / L for the L elements of a line as it is transformed; if
    these aren't n, chirp and transformed chirp; and for real numbers, in halves, all for n / 2 and the turns of 0 to n / 2."""
    inner = inner_length(n)
    return HEADER * 8 + (2 + (2 * inner if inner == n else 4 * inner + 2 * n)) * (BITS[real] // 8)


def fft_table(n: int, real: str, lanes: int, halves: bool) -> npt.NDArray[np.uint8]:
    """The table of a static length; for `halves`, of a real line, which an even number of elements has."""
    room, turns = int(fft_table_bytes(sympy.Integer(n), real)), []
    if halves and n % 2 == 0:
        turns, n = [-0.5j * np.exp(-2j * np.pi * np.arange(n // 2 + 1) / n)], n // 2
    inner = int(inner_length(sympy.Integer(n)))
    width = next((w for w in widths(lanes) if inner % w == 0 and inner >= w * lanes), 0)
    header = np.zeros(HEADER, np.int64)
    for start, length in ((0, inner), (ROWS, inner // width if width else 1)):
        factors = _factors(length)
        header[start], header[start + 1 : start + 1 + len(factors)] = len(factors), factors
    header[[WIDTH, LENGTH, CHIRPED]] = width, inner, inner != n
    parts = [np.exp(-2j * np.pi * np.arange(inner) / max(inner, 1))]
    if inner != n:
        k = np.arange(n, dtype=np.int64)
        chirp = np.exp(-1j * np.pi * (k * k % (2 * n)) / n)
        kernel = np.zeros(inner, np.complex128)
        kernel[:n] = chirp.conj()
        kernel[inner - n + 1 :] = chirp.conj()[:0:-1]
        parts += [chirp, np.fft.fft(kernel) / inner]
    reals = np.concatenate([x for part in parts + turns for x in (part.real, part.imag)])
    table = np.concatenate([header.view(np.uint8), reals.astype({"f32": np.float32, "f64": np.float64}[real]).view(np.uint8)])
    return np.pad(table, (0, room - len(table)))


def turns_start(fn: Fn, length: V, chirped: V, n: V) -> V:
    """Where the turns of a real line's halves are, of n elements each, among the numbers behind the header."""
    return fn.add(fn.mul(length, 2), fn.mul(chirped, fn.mul(fn.add(length, n), 2)))


def table_scratch(n: sympy.Expr) -> sympy.Expr:
    """Scratch bytes of the table kernel: roots, in whole vectors, and a line of M complex numbers, twice."""
    inner = inner_length(n)
    return 16 * (2 * _FINE + ceil_div(2 * inner, _FINE)) + 32 * inner


def emit_fft_table(module: KernelModule, real: str, halves: bool) -> str:
    """Emits (once) the kernel that makes a table at run time: (table, n), one item, `table_scratch(n)` bytes of scratch."""
    name = f"fft_table_{real}{'_halves' if halves else ''}"
    if name not in module.functions:
        _Table(module, name, real, halves).emit()
    return name


class _Table:
    def __init__(self, module: KernelModule, name: str, real: str, halves: bool) -> None:
        self.fn = fn = kernel_fn(module, name)
        self.real = real
        self.table, self.whole = load_args(fn, [PTR, I64])
        self.halved = fn.cmp("eq", fn.and_(self.whole, 1), int(not halves) * 2)
        self.n = fn.select(self.halved, fn.divu(self.whole, 2), self.whole)

    def emit(self) -> None:
        fn, n = self.fn, self.n
        count, last = self.factorise(n, 0)
        rough = fn.cmp("ge", last, _ROUGH)
        fn.store(count, self.table)
        fn.store(fn.cast(rough, I64), self.word(CHIRPED))
        power = while_loop(
            fn, [fn.const(1, I64)], lambda s: fn.cmp("lt", s[0], fn.sub(fn.mul(n, 2), 1)), lambda s: [fn.mul(s[0], 2)]
        )[0]
        inner = fn.select(rough, power, n)
        with fn.when(rough):
            fn.store(self.factorise(power, 0)[0], self.table)
        self.rows(inner)
        fn.store(inner, self.word(LENGTH))
        reals = fn.gep(self.table, HEADER, I64)
        chirp = fn.gep(reals, fn.mul(inner, 2), self.real)
        self.near = [fn.args[4], fn.gep(fn.args[4], _FINE, F64)]
        self.far = [fn.gep(fn.args[4], 2 * _FINE, F64)]
        room = fn.mul(fn.ceildivu(fn.ceildivu(fn.mul(inner, 2), _FINE), fn.lanes), fn.lanes)
        self.far.append(fn.gep(self.far[0], room, F64))
        with fn.when(rough):
            line = fn.gep(self.far[1], room, F64)
            self.roots(fn.mul(n, 2))
            self.chirp(chirp, line, power)
            self.roots(power)
            out = self.transformed(line, power)
            scale = fn.div(fn.const(1.0, F64), fn.cast(power, F64))
            spectrum = fn.gep(chirp, fn.mul(n, 2), self.real)
            with fn.loop(0, fn.mul(power, 2)) as lp:
                x = fn.mul(fn.load(fn.gep(out, lp.iv, F64), F64), scale)
                fn.store(fn.cast(x, self.real), fn.gep(spectrum, lp.iv, self.real))
        self.roots(inner)
        self.listed(reals, inner, inner)
        with fn.when(self.halved):
            self.roots(self.whole)
            at = turns_start(fn, inner, fn.cast(rough, I64), n)
            self.listed(fn.gep(reals, at, self.real), self.whole, fn.add(n, 1), turned=True)
        fn.done()

    def word(self, k: int) -> V:
        return self.fn.gep(self.table, k, I64)

    def rows(self, length: V) -> None:
        """Stores the width of rows that a line of `length` elements has, and the factors of their number."""
        fn = self.fn
        width = fn.const(0, I64)
        for w in reversed(widths(fn.lanes)):
            suits = fn.and_(fn.cmp("eq", fn.remu(length, w), 0), fn.cmp("ge", length, w * fn.lanes))
            width = fn.select(suits, w, width)
        fn.store(width, self.word(WIDTH))
        count = fn.select(fn.cmp("eq", width, 0), 1, fn.divu(length, fn.max(width, 1)))
        fn.store(self.factorise(count, ROWS)[0], self.word(ROWS))

    def factorise(self, n: V, start: int) -> tuple[V, V]:
        """Stores the factors of n behind word `start`; how many there are, and the last one."""
        fn = self.fn

        def divide(state: Sequence[V]) -> list[V]:
            rest, count, p, last = state

            def found() -> list[V]:
                fn.store(p, fn.gep(self.table, fn.add(count, start + 1), I64))
                return [fn.divu(rest, p), fn.add(count, 1), p, p]

            def other() -> list[V]:
                nxt = fn.select(fn.cmp("eq", p, 4), 2, fn.select(fn.cmp("eq", p, 2), 3, fn.add(p, 2)))
                prime = fn.and_(fn.cmp("gt", fn.mul(nxt, nxt), rest), fn.cmp("ne", nxt, 2))
                return [rest, count, fn.select(prime, rest, nxt), last]

            return fn.if_else(fn.cmp("eq", fn.remu(rest, p), 0), found, other, [I64] * 4)

        init = [n, fn.const(0, I64), fn.const(4, I64), fn.const(1, I64)]
        end = while_loop(fn, init, lambda s: fn.cmp("gt", s[0], 1), divide)
        return end[1], end[3]

    def roots(self, n: V) -> None:
        """Makes `root` and `listed` give those of n, from a few in scratch."""
        fn = self.fn
        whole = fn.cast(n, F64)
        for array, count, step in ((self.near, fn.const(_FINE, I64), 1), (self.far, fn.ceildivu(n, _FINE), _FINE)):
            with fn.loop(0, count, fn.lanes) as lp:
                k = fn.mul(fn.add(fn.splat(lp.iv), fn.iota()), step)
                for p, x in zip(array, self.turned(fn.div(fn.cast(k, F64), whole)), strict=True):
                    fn.store(x, fn.gep(p, lp.iv, F64))

    def turned(self, turns: V) -> Complex:
        """exp(-2 pi i turns) of turns of at least 0: polynomials of what is left of the nearest quarter of a turn."""
        fn = self.fn
        quarter = fn.unary("floor", fn.add(fn.mul(turns, 4.0), 0.5))
        x = fn.mul(fn.fma(quarter, fn.const(-0.25, turns.type), turns), 2 * math.pi)
        square, number = fn.mul(x, x), fn.cast(quarter, I64)
        sin = fn.mul(poly(fn, square, [(-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(9))]), x)
        cos = poly(fn, square, [(-1) ** k / math.factorial(2 * k) for k in reversed(range(9))])
        odd = fn.cmp("ne", fn.and_(number, 1), 0)
        re, im = fn.select(odd, sin, cos), fn.select(odd, cos, sin)
        left, low = (fn.cmp("ne", fn.and_(fn.add(number, k), 2), 0) for k in (1, 0))
        return fn.select(left, fn.neg(re), re), fn.select(low, im, fn.neg(im))

    def root(self, k: V) -> Complex:
        """exp(-2 pi i k / n)."""
        fn = self.fn
        near, far = fn.remu(k, _FINE), fn.divu(k, _FINE)
        x, y = (
            (fn.load(fn.gep(re, i, F64), F64), fn.load(fn.gep(im, i, F64), F64))
            for (re, im), i in ((self.near, near), (self.far, far))
        )
        return times(fn, x, y)

    def listed(self, to: V, n: V, count: V, turned: bool = False) -> None:
        """Stores `count` roots of n, real parts before imaginary ones, or their products with -i / 2."""
        fn = self.fn
        with fn.loop(0, fn.ceildivu(count, _FINE)) as lp:
            re, im = (fn.splat(fn.load(fn.gep(p, lp.iv, F64), F64)) for p in self.far)
            with fn.loop(0, _FINE, fn.lanes) as near:
                k = fn.add(fn.mul(lp.iv, _FINE), near.iv)
                x, y = (fn.load(fn.gep(p, near.iv, F64), fn.vec(F64)) for p in self.near)
                z = times(fn, (x, y), (re, im))
                z = (fn.mul(z[1], 0.5), fn.mul(z[0], -0.5)) if turned else z
                for part, at in zip(z, (k, fn.add(count, k)), strict=True):
                    fn.store_first(fn.cast(part, self.real), fn.gep(to, at, self.real), fn.sub(count, k))

    def chirp(self, chirp: V, line: V, power: V) -> None:
        """Stores the chirp, and its conjugate around 0 in a line of `power` elements, of which `root` gives those of 2 n."""
        fn, n, twice = self.fn, self.n, self.fn.mul(self.n, 2)
        zero = fn.const(0.0, F64)
        with fn.loop(0, fn.mul(power, 2)) as lp:
            fn.store(zero, fn.gep(line, lp.iv, F64))
        with fn.loop(0, n, 1, [fn.const(0, I64)]) as lp:
            square = lp.carried[0]  # of k, modulo 2 n
            re, im = self.root(square)
            for part, at in ((re, lp.iv), (im, fn.add(n, lp.iv))):
                fn.store(fn.cast(part, self.real), fn.gep(chirp, at, self.real))
            mirrored = fn.remu(fn.sub(power, lp.iv), power)
            for part, start in ((re, fn.const(0, I64)), (fn.neg(im), power)):
                for k in (lp.iv, mirrored):
                    fn.store(part, fn.gep(line, fn.add(start, k), F64))
            lp.yield_(fn.remu(fn.add(square, fn.add(fn.mul(lp.iv, 2), 1)), twice))

    def transformed(self, line: V, power: V) -> V:
        """The transform of a line of `power` elements, whose roots `root` gives; it and what lies behind it are overwritten."""
        fn = self.fn

        def stage(state: Sequence[V]) -> list[V]:
            current, stride, src, dst = state
            half = fn.divu(current, 2)
            with fn.loop(0, half) as row:
                w = self.root(fn.mul(row.iv, stride))
                with fn.loop(0, stride) as lp:
                    low = fn.add(lp.iv, fn.mul(stride, row.iv))
                    x, y = (self.complex_at(src, at, power) for at in (low, fn.add(low, fn.mul(stride, half))))
                    out = fn.add(lp.iv, fn.mul(fn.mul(stride, row.iv), 2))
                    total, less = (tuple(f(p, q) for p, q in zip(x, y, strict=True)) for f in (fn.add, fn.sub))
                    for z, at in ((total, out), (times(fn, (less[0], less[1]), w), fn.add(out, stride))):
                        fn.store(z[0], fn.gep(dst, at, F64))
                        fn.store(z[1], fn.gep(dst, fn.add(at, power), F64))
            return [half, fn.mul(stride, 2), dst, src]

        state = [power, fn.const(1, I64), line, fn.gep(line, fn.mul(power, 2), F64)]
        return while_loop(fn, state, lambda s: fn.cmp("gt", s[0], 1), stage)[2]

    def complex_at(self, line: V, k: V, power: V) -> Complex:
        fn = self.fn
        return fn.load(fn.gep(line, k, F64), F64), fn.load(fn.gep(line, fn.add(k, power), F64), F64)
