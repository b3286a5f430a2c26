"""Transforms between real lines and the halves of their spectra.

A real line of an even number of elements, 2 h, is transformed as h complex ones, z_j = x_2j + i x_2j+1, whose transform Z is that
of the even elements plus i times that of the odd ones: X_k = (Z_k + conj(Z_h-k)) / 2 - i w^k (Z_k - conj(Z_h-k)) / 2, with
w = exp(-2 pi i / 2h), and back, Z_k = X_k + conj(X_h-k) + i w^-k (X_k - conj(X_h-k)) (Sorensen et al., Real-valued fast Fourier
transform algorithms, 1987). The table has -i w^k / 2. One of an odd number is transformed as it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.fft.beside import Slot, read_lines, write_lines
from dhlo.codegen.families.fft.butterfly import Complex, times
from dhlo.codegen.families.fft.fft import FftKernel
from dhlo.codegen.families.fft.stages import Buffers
from dhlo.codegen.families.fft.table import turns_start
from dhlo.codegen.families.lines import Lines, lanes_at
from dhlo.codegen.kernel_ir.builder import I64, V

__all__ = ["IrfftKernel", "RfftKernel"]


class _Halves(FftKernel):
    halves = True

    def transformed_count(self) -> V:
        fn = self.fn
        self.halved = fn.and_(fn.cmp("eq", fn.and_(self.n, 1), 0), fn.cmp("ne", self.n, 0))
        self.shift = fn.cast(self.halved, I64)
        self.spectrum = fn.add(fn.divu(self.n, 2), 1)  # elements of the result that are no others' conjugates
        return fn.shr(self.n, self.shift)

    @abstractmethod
    def mixed(self, low: Complex, high: Complex, turn: Complex) -> Complex:
        """What elements k and h - k, and the turn of k make."""

    def turn(self, k: V, splat: bool = False) -> Complex:
        """Turns from k on, one a lane, or that of k in all lanes."""
        fn, t = self.fn, self.within
        at = fn.add(turns_start(fn, t.length, t.chirped, t.n), k)
        places = at, fn.add(at, fn.add(t.n, 1))
        if splat:
            re, im = (fn.splat(fn.load(fn.gep(t.roots, i, self.real), self.real)) for i in places)
        else:
            re, im = (self.em.load_memory(t.roots, self.dtype, Index(i, 1)) for i in places)
        return re, im

    def halved_row(self, buffers: Buffers) -> Slot:
        """Where the real elements of lines side by side are."""
        fn = self.fn

        def slot(_: int, i: V) -> V:
            odd = fn.cmp("ne", fn.and_(i, self.shift), 0)
            return fn.gep(fn.select(odd, buffers[1], buffers[0]), fn.mul(fn.shr(i, self.shift), fn.lanes), self.real)

        return slot

    def pairs(self, start: V, i: V, lines: Lines) -> list[Index]:
        """Positions of a vector of even elements of a line from 2 i on, and of odd ones."""
        fn, inner = self.fn, self.size(lines.inner)
        at = fn.mul(fn.add(fn.splat(i), fn.iota()), fn.splat(fn.mul(inner, 2)))
        return [Index(0, vec=fn.add(at, fn.splat(s))) for s in (start, fn.add(start, inner))]


class RfftKernel(_Halves):
    """The half of a real line's transform that isn't redundant."""

    def mixed(self, low: Complex, high: Complex, turn: Complex) -> Complex:
        fn = self.fn
        sums = fn.add(low[0], high[0]), fn.sub(low[1], high[1])
        re, im = times(fn, (fn.sub(low[0], high[0]), fn.add(low[1], high[1])), turn)
        half = fn.const(0.5, re.type)
        return fn.fma(sums[0], half, re), fn.fma(sums[1], half, im)

    def block(self, first: V, left: V) -> None:
        fn, beside = self.fn, self.beside
        buffers = self.buffers(beside.length)
        read_lines(self, self.src, self.dtype, self.source, first, left, self.halved_row(buffers))
        beside.clear(buffers[1:2], fn.const(0, I64), fn.select(self.halved, 0, self.n))
        beside.clear(buffers[:2], beside.n, fn.max(beside.length, 1))  # nothing's transform is a zero
        held = beside.transformed(buffers)
        z, to = held[:2], held[2:]
        with fn.when(self.halved), fn.loop(0, self.spectrum) as lp:
            low = fn.select(fn.cmp("eq", lp.iv, beside.n), 0, lp.iv)
            high = fn.select(fn.cmp("eq", lp.iv, 0), 0, fn.sub(beside.n, lp.iv))
            beside.put(to, lp.iv, self.mixed(beside.get(z, low), beside.get(z, high), self.turn(lp.iv, splat=True)))
        out = [fn.select(self.halved, a, b) for a, b in zip(to, z, strict=True)]
        write_lines(self, self.dst, self.dtype, self.target, first, left, self.row(out))

    def fill(self, start: V, buffers: Buffers) -> None:
        fn, em, types = self.fn, self.em, [self.fn.vec(self.real)] * 2

        def halves(first: V) -> list[V]:
            if not self.source.contiguous:
                return [em.load_memory(self.src[0], self.dtype, at) for at in self.pairs(start, first, self.source)]
            t, left, at = self.within, fn.mul(fn.min(self.within.width, fn.sub(self.within.n, first)), 2), fn.mul(first, 2)
            both = []
            for k in (0, fn.lanes):
                p = fn.gep(self.src[0], fn.add(fn.add(start, at), k), t.real)
                both.append(fn.masked_load(p, fn.tail_mask(fn.sub(left, k)), fn.const(0, types[0])))
            return [fn.shuffle(both[0], both[1], range(k, 2 * fn.lanes, 2)) for k in (0, 1)]

        def plain(first: V) -> list[V]:
            x = em.load_memory(self.src[0], self.dtype, self.elements(start, first, self.source))
            return [x, fn.const(0, types[0])]

        self.each_row(buffers, lambda first: fn.if_else(self.halved, lambda: halves(first), lambda: plain(first), types))

    def drain(self, end: V, out: Buffers) -> None:
        fn, em, n = self.fn, self.em, self.within.n
        z = out[:2]
        for p in z:  # element h is element 0 again
            fn.store(fn.load(p, self.real), fn.gep(p, n, self.real))

        def body(k: V, _: Sequence[V]) -> list[V]:
            low, high = ([em.load_memory(p, self.dtype, at) for p in z] for at in (Index(k, 1), Index(fn.sub(n, k), -1)))
            x = self.mixed((low[0], low[1]), (high[0], high[1]), self.turn(k))
            for p, part in zip(self.dst, x, strict=True):
                em.store(part, p, self.dtype, self.elements(end, k, self.target))
            return []

        lanes_at(self, 0, fn.select(self.halved, self.spectrum, 0), [], body)
        self.copy(z, self.dst, end, fn.select(self.halved, 0, self.spectrum))


class IrfftKernel(_Halves):
    """The real line whose transform's half is given, not scaled."""

    @property
    def whole(self) -> Lines:
        return self.target

    def mixed(self, low: Complex, high: Complex, turn: Complex) -> Complex:
        fn = self.fn
        less = fn.sub(low[0], high[0]), fn.add(low[1], high[1])
        re, im = times(fn, less, (turn[0], fn.neg(turn[1])))
        two = fn.const(2, re.type)
        return fn.fma(re, two, fn.add(low[0], high[0])), fn.fma(im, two, fn.sub(low[1], high[1]))

    def real_ends(self, x: Complex, first: V) -> Complex:
        """Imaginary parts of what has to be real count as 0."""
        fn = self.fn
        return x[0], fn.select(first, fn.const(0, x[1].type), x[1])

    def block(self, first: V, left: V) -> None:
        fn, beside = self.fn, self.beside
        buffers = self.buffers(beside.length)
        x, z = buffers[2:], buffers[:2]
        read_lines(self, self.src, self.dtype, self.source, first, left, self.row(x))
        with fn.when(self.halved), fn.loop(0, beside.n) as lp:
            zero = fn.cmp("eq", lp.iv, 0)
            ends = [self.real_ends(beside.get(x, k), zero) for k in (lp.iv, fn.sub(beside.n, lp.iv))]
            beside.put(z, lp.iv, self.mixed(ends[0], ends[1], self.turn(lp.iv, splat=True)))
        with fn.loop(0, fn.select(self.halved, 0, self.n)) as lp:
            mirrored = fn.sub(self.n, lp.iv)
            re, im = beside.get(x, fn.min(lp.iv, mirrored))
            beside.put(z, lp.iv, (re, fn.select(fn.cmp("gt", lp.iv, mirrored), fn.neg(im), im)))
        beside.clear(z, beside.n, beside.length)
        write_lines(self, self.dst, self.dtype, self.target, first, left, self.halved_row(beside.transformed(buffers)))

    def fill(self, start: V, buffers: Buffers) -> None:
        fn, em, types = self.fn, self.em, [self.fn.vec(self.real)] * 2
        inner, n = fn.splat(self.size(self.source.inner)), self.within.n

        def halves(first: V) -> list[V]:
            k = fn.add(fn.splat(first), fn.iota())
            if self.source.contiguous:
                back = Index(fn.add(start, fn.sub(n, first)), -1)
            else:
                back = Index(0, vec=fn.add(fn.splat(start), fn.mul(fn.sub(fn.splat(n), k), inner)))
            places = self.elements(start, first, self.source), back
            x = [[em.load_memory(p, self.dtype, at) for p in self.src] for at in places]
            ends = [self.real_ends((re, im), fn.cmp("eq", k, 0)) for re, im in x]
            return list(self.mixed(ends[0], ends[1], self.turn(first)))

        def plain(first: V) -> list[V]:
            k = fn.add(fn.splat(first), fn.iota())
            mirrored = fn.sub(fn.splat(n), k)
            at = Index(0, vec=fn.add(fn.splat(start), fn.mul(fn.min(k, mirrored), inner)))
            re, im = (em.load_memory(p, self.dtype, at) for p in self.src)
            return [re, fn.select(fn.cmp("gt", k, mirrored), fn.neg(im), im)]

        self.each_row(buffers, lambda first: fn.if_else(self.halved, lambda: halves(first), lambda: plain(first), types))

    def drain(self, end: V, out: Buffers) -> None:
        fn, em, n = self.fn, self.em, self.within.n

        def body(i: V, _: Sequence[V]) -> list[V]:
            parts = [em.load_memory(p, self.dtype, Index(i, 1)) for p in out[:2]]
            if not self.target.contiguous:
                for x, at in zip(parts, self.pairs(end, i, self.target), strict=True):
                    em.store(x, self.dst[0], self.dtype, at)
                return []
            for k in (0, fn.lanes):
                x = fn.shuffle(parts[0], parts[1], [(k + j) // 2 + (j % 2) * fn.lanes for j in range(fn.lanes)])
                p = fn.gep(self.dst[0], fn.add(fn.add(end, fn.mul(i, 2)), k), self.real)
                if em.mask is None:
                    fn.store(x, p)
                else:
                    fn.masked_store(x, p, fn.tail_mask(fn.sub(fn.mul(fn.sub(n, i), 2), k)))
            return []

        lanes_at(self, 0, fn.select(self.halved, n, 0), [], body)
        self.copy(out[:1], self.dst, end, fn.select(self.halved, 0, self.n))
