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

from dhlo.codegen.elementwise import vmath
from dhlo.codegen.families.lines import while_loop
from dhlo.codegen.kernel_ir.builder import BITS, F64, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.ir.symbols import ceil_div, is_static

__all__ = [
    "CHIRPED",
    "HEADER",
    "LENGTH",
    "Complex",
    "emit_fft_table",
    "fft_table",
    "fft_table_bytes",
    "inner_length",
    "table_scratch",
    "times",
]

HEADER = 64  # words before the roots: the number of factors, then the factors; and, at their ends:
LENGTH, CHIRPED = HEADER - 2, HEADER - 1  # the length whose factors and roots these are, and whether it is M
_FINE = 64  # roots computed one by one; the others are products of one of these and one of every _FINE-th
_ROUGH = (
    64  # prime factors from here on take longer, as so many products an element, than two transforms of twice the length or more
)

_PRIMES = [p for p in range(2, _ROUGH) if all(p % q for q in range(2, p))]

Complex = tuple[V, V]


def times(fn: Fn, a: Complex, b: Complex) -> Complex:
    return fn.sub(fn.mul(a[0], b[0]), fn.mul(a[1], b[1])), fn.add(fn.mul(a[0], b[1]), fn.mul(a[1], b[0]))


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


def inner_length(n: sympy.Expr) -> sympy.Expr:
    """Elements of a line as it is transformed, at most."""
    if is_static(n):
        return sympy.Integer(_padded(int(n)) if max(_factors(int(n)), default=1) >= _ROUGH else int(n))
    # No prime factor is large if n divides a power of the product of the others, whose exponents are below 64.
    power = Mod(Mod(math.prod(_PRIMES[:11]), n) * Mod(math.prod(_PRIMES[11:]), n), n)
    for _ in range(6):
        power = Mod(power**2, n)
    return sympy.Piecewise((n, sympy.Eq(power, 0)), (4 * n, True))


def fft_table_bytes(n: sympy.Expr, real: str) -> sympy.Expr:
    """Size of the table of a length: header, cos and -sin of 2 pi k / L for the L elements of a line as it is transformed, and, if
    these aren't n, chirp and transformed chirp."""
    inner = inner_length(n)
    return HEADER * 8 + (2 * inner if inner == n else 4 * inner + 2 * n) * (BITS[real] // 8)


def fft_table(n: int, real: str) -> npt.NDArray[np.uint8]:
    """The table of a static length."""
    inner = int(inner_length(sympy.Integer(n)))
    factors, header = _factors(inner), np.zeros(HEADER, np.int64)
    header[0], header[1 : 1 + len(factors)], header[LENGTH], header[CHIRPED] = len(factors), factors, inner, inner != n
    parts = [np.exp(-2j * np.pi * np.arange(inner) / max(inner, 1))]
    if inner != n:
        k = np.arange(n, dtype=np.int64)
        chirp = np.exp(-1j * np.pi * (k * k % (2 * n)) / n)
        kernel = np.zeros(inner, np.complex128)
        kernel[:n] = chirp.conj()
        kernel[inner - n + 1 :] = chirp.conj()[:0:-1]
        parts += [chirp, np.fft.fft(kernel) / inner]
    reals = np.concatenate([x for part in parts for x in (part.real, part.imag)])
    return np.concatenate([header.view(np.uint8), reals.astype({"f32": np.float32, "f64": np.float64}[real]).view(np.uint8)])


def table_scratch(n: sympy.Expr) -> sympy.Expr:
    """Scratch bytes of the table kernel: roots, and a line of M complex numbers, twice."""
    inner = inner_length(n)
    return 16 * (_FINE + ceil_div(inner, _FINE)) + 32 * inner


def emit_fft_table(module: KernelModule, real: str) -> str:
    """Emits (once) the kernel that makes a table at run time: (table, n), one item, `table_scratch(n)` bytes of scratch."""
    name = f"fft_table_{real}"
    if name not in module.functions:
        _Table(module, name, real).emit()
    return name


class _Table:
    def __init__(self, module: KernelModule, name: str, real: str) -> None:
        self.fn = kernel_fn(module, name)
        self.real = real
        self.table, self.n = load_args(self.fn, [PTR, I64])

    def emit(self) -> None:
        fn, n = self.fn, self.n
        count, last = self.factorise(n)
        rough = fn.cmp("ge", last, _ROUGH)
        fn.store(count, self.table)
        fn.store(fn.cast(rough, I64), self.word(CHIRPED))
        power = while_loop(
            fn, [fn.const(1, I64)], lambda s: fn.cmp("lt", s[0], fn.sub(fn.mul(n, 2), 1)), lambda s: [fn.mul(s[0], 2)]
        )[0]
        inner = fn.select(rough, power, n)
        fn.store(inner, self.word(LENGTH))
        reals = fn.gep(self.table, HEADER, I64)
        chirp = fn.gep(reals, fn.mul(inner, 2), self.real)
        self.near = fn.args[4]
        self.far = fn.gep(self.near, 2 * _FINE, F64)
        with fn.when(rough):
            fn.store(self.factorise(power)[0], self.table)
            line = fn.gep(self.far, fn.mul(fn.ceildivu(power, _FINE), 2), F64)
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
        with fn.loop(0, inner) as lp:
            for part, at in zip(self.root(lp.iv), (lp.iv, fn.add(inner, lp.iv)), strict=True):
                fn.store(fn.cast(part, self.real), fn.gep(reals, at, self.real))
        fn.done()

    def word(self, k: int) -> V:
        return self.fn.gep(self.table, k, I64)

    def factorise(self, n: V) -> tuple[V, V]:
        """Stores the factors of n; how many there are, and the last one."""
        fn = self.fn

        def divide(state: Sequence[V]) -> list[V]:
            rest, count, p, last = state

            def found() -> list[V]:
                fn.store(p, fn.gep(self.table, fn.add(count, 1), I64))
                return [fn.divu(rest, p), fn.add(count, 1), p, p]

            def other() -> list[V]:
                nxt = fn.select(fn.cmp("eq", p, 4), 2, fn.select(fn.cmp("eq", p, 2), 3, fn.add(p, 2)))
                prime = fn.and_(fn.cmp("gt", fn.mul(nxt, nxt), rest), fn.cmp("ne", nxt, 2))
                return [rest, count, fn.select(prime, rest, nxt), last]

            return fn.if_else(fn.cmp("eq", fn.remu(rest, p), 0), found, other, [I64] * 4)

        start = [n, fn.const(0, I64), fn.const(4, I64), fn.const(1, I64)]
        end = while_loop(fn, start, lambda s: fn.cmp("gt", s[0], 1), divide)
        return end[1], end[3]

    def roots(self, n: V) -> None:
        """Makes `root` give those of n, from a few in scratch."""
        fn = self.fn
        turn = fn.div(fn.const(2 * np.pi, F64), fn.cast(n, F64))
        for array, count, step in ((self.near, fn.const(_FINE, I64), 1), (self.far, fn.ceildivu(n, _FINE), _FINE)):
            with fn.loop(0, count) as lp:
                angle = fn.mul(fn.cast(fn.mul(lp.iv, step), F64), turn)
                at = fn.mul(lp.iv, 2)
                fn.store(vmath.call(fn, "cos", angle), fn.gep(array, at, F64))
                fn.store(fn.neg(vmath.call(fn, "sin", angle)), fn.gep(array, fn.add(at, 1), F64))

    def root(self, k: V) -> Complex:
        """exp(-2 pi i k / n)."""
        fn = self.fn
        a, b = (fn.mul(i, 2) for i in (fn.remu(k, _FINE), fn.divu(k, _FINE)))
        x, y = (
            (fn.load(fn.gep(p, i, F64), F64), fn.load(fn.gep(p, fn.add(i, 1), F64), F64))
            for p, i in ((self.near, a), (self.far, b))
        )
        return times(fn, x, y)

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
