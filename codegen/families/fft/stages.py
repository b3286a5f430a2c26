"""All stages of Stockham's algorithm, a function that the kernels of transforms share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dhlo.codegen.families.fft.butterfly import BUTTERFLIES, Complex, butterfly, times
from dhlo.codegen.families.fft.table import HEADER, LENGTH
from dhlo.codegen.kernel_ir.builder import I64, PTR, Fn, KernelModule, V

__all__ = ["Buffers", "Vectors", "emit_stages"]

Buffers = Sequence[V]
"""Addresses of real and imaginary parts: of what is transformed, and of as much room beside it."""


class Vectors:
    """Vectors in buffers, and the roots in a table."""

    def __init__(self, fn: Fn, real: str, inverse: bool, table: V) -> None:
        self.fn, self.real, self.inverse, self.table = fn, real, inverse, table
        self.roots = fn.gep(table, HEADER, I64)
        self.length = self.word(LENGTH)  # of what all stages transform

    def word(self, k: int) -> V:
        return self.fn.load(self.fn.gep(self.table, k, I64), I64)

    def root(self, k: V) -> Complex:
        """exp(-2 pi i k / length) in all lanes, or its conjugate for the inverse."""
        fn = self.fn
        re, im = (fn.load(fn.gep(self.roots, i, self.real), self.real) for i in (k, fn.add(k, self.length)))
        return fn.splat(re), fn.splat(fn.neg(im) if self.inverse else im)

    def get(self, buffers: Buffers, i: V) -> Complex:
        fn = self.fn
        re, im = (fn.load(fn.gep(b, fn.mul(i, fn.lanes), self.real), fn.vec(self.real)) for b in buffers)
        return re, im

    def put(self, buffers: Buffers, i: V, x: Complex) -> None:
        for b, part in zip(buffers, x, strict=True):
            self.fn.store(part, self.fn.gep(b, self.fn.mul(i, self.fn.lanes), self.real))


def emit_stages(module: KernelModule, real: str, inverse: bool) -> str:
    """Emits (once) the function of all stages of some vectors: (table, the word at which it lists the factors of their number,
    their number, how far apart their roots are, four buffers) -> number of stages. The result is in the first two buffers if that
    is even, else in the others."""
    name = f"fft_stages_{real}{'_inverse' if inverse else ''}"
    if name not in module.functions:
        args = [("table", PTR), *((n, I64) for n in ("factors", "vectors", "scale")), *((f"b{k}", PTR) for k in range(4))]
        _Stages(Fn(module, name, args, I64, noinline=True), real, inverse).emit()
    return name


class _Stages(Vectors):
    def __init__(self, fn: Fn, real: str, inverse: bool) -> None:
        super().__init__(fn, real, inverse, fn.args[0])

    def emit(self) -> None:
        fn = self.fn
        _, factors, vectors, scale, *buffers = fn.args
        listed = fn.gep(self.table, factors, I64)
        count = fn.load(listed, I64)
        with fn.loop(0, count, 1, [vectors, fn.const(1, I64), *buffers]) as lp:
            current, stride, *held = lp.carried
            p = fn.load(fn.gep(listed, fn.add(lp.iv, 1), I64), I64)
            self._by_factor(p, lambda width: self.stage(width, p, current, stride, scale, held[:2], held[2:]))
            lp.yield_(fn.divu(current, p), fn.mul(stride, p), *held[2:], *held[:2])
        fn.ret(count)
        fn.done()

    def _by_factor(self, p: V, run: Callable[[int], None], known: Sequence[int] = BUTTERFLIES) -> None:
        """Runs what factor p has: its own butterfly, or 0."""

        def own() -> list[V]:
            run(known[0])
            return []

        def other() -> list[V]:
            self._by_factor(p, run, known[1:])
            return []

        if known:
            self.fn.if_else(self.fn.cmp("eq", p, known[0]), own, other, [])
        else:
            run(0)

    def stage(self, width: int, p: V, current: V, stride: V, scale: V, src: Buffers, dst: Buffers) -> None:
        """Splits transforms of length `current` into p of length current / p; width 0 is for any p."""
        fn = self.fn
        m, turn = fn.divu(current, width or p), fn.mul(stride, scale)
        with fn.loop(0, m) as row:
            twiddles = [self.root(fn.mul(fn.mul(row.iv, j), turn)) for j in range(1, width)]
            with fn.loop(0, stride) as lp:

                def read(k: V | int) -> Complex:
                    return self.get(src, fn.add(lp.iv, fn.mul(stride, fn.add(row.iv, fn.mul(m, k)))))

                def write(j: V | int, x: Complex) -> None:
                    self.put(dst, fn.add(lp.iv, fn.mul(stride, fn.add(fn.mul(row.iv, width or p), j))), x)

                if width:
                    for j, x in enumerate(butterfly(fn, [read(k) for k in range(width)], self.inverse)):
                        write(j, times(fn, x, twiddles[j - 1]) if j else x)
                else:
                    self.products(p, fn.mul(row.iv, turn), read, write)

    def products(self, p: V, turn: V, read: Callable[[V | int], Complex], write: Callable[[V | int, Complex], None]) -> None:
        """A transform of p elements by definition."""
        fn, per = self.fn, self.fn.divu(self.length, p)
        zero = fn.const(0, fn.vec(self.real))
        with fn.loop(0, p) as out:
            with fn.loop(0, p, 1, [zero, zero, fn.const(0, I64)]) as lp:
                re, im, k = lp.carried
                x = times(fn, read(lp.iv), self.root(fn.mul(k, per)))
                nxt = fn.add(k, out.iv)
                lp.yield_(fn.add(re, x[0]), fn.add(im, x[1]), fn.select(fn.cmp("ge", nxt, p), fn.sub(nxt, p), nxt))
            write(out.iv, times(fn, (lp.results[0], lp.results[1]), self.root(fn.mul(turn, out.iv))))
