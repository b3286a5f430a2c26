"""Transforms of lines side by side, a lane each, and their way between memory and buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.fft.butterfly import Complex
from dhlo.codegen.families.fft.stages import Buffers
from dhlo.codegen.families.fft.transform import Transform
from dhlo.codegen.families.lines import Lines, OpKernel
from dhlo.codegen.kernel_ir.builder import I64, V
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.ir.types import DType

__all__ = ["Beside", "Slot", "read_lines", "write_lines"]

Slot = Callable[[int, V], V]
"""Where the vector of elements i of a part (real or imaginary) is."""


class Beside(Transform):
    """The transforms of as many lines as vectors have lanes: vector i holds element i of each."""

    factors = 0

    def once(self, buffers: Buffers) -> Buffers:
        return self.stages(buffers, self.length, self.fn.const(1, I64))

    def vectors(self, count: V) -> V:
        return count

    def listed(self, start: V, count: V, i: V) -> Complex:
        fn = self.fn
        at = fn.add(start, i)
        re, im = (fn.load(fn.gep(self.roots, k, self.real), self.real) for k in (at, fn.add(at, count)))
        return fn.splat(re), fn.splat(fn.neg(im) if self.inverse else im)

    def clear(self, buffers: Buffers, start: V, end: V) -> None:
        """Zeros for the elements from `start` on."""
        zero = self.fn.const(0, self.fn.vec(self.real))
        with self.fn.loop(start, end) as lp:
            for b in buffers:
                self.fn.store(zero, self.fn.gep(b, self.fn.mul(lp.iv, self.fn.lanes), self.real))


def read_lines(k: OpKernel, src: Sequence[V], dtype: DType, lines: Lines, first: V, left: V, slot: Slot) -> None:
    """Brings a vector of lines from `first` on, of which `left` exist, to slots."""
    fn, em = k.fn, k.em
    whole = fn.const(0, I64)
    if lines.contiguous:  # square blocks are transposed; missing lines repeat the last
        n = k.size(lines.n)
        whole = fn.and_(n, -fn.lanes)
        starts = [fn.mul(fn.add(first, fn.min(fn.sub(left, 1), r)), n) for r in range(fn.lanes)]
        with fn.loop(0, whole, fn.lanes) as lp:
            for part, p in enumerate(src):
                rows = [em.load_memory(p, dtype, Index(fn.add(s, lp.iv), 1)) for s in starts]
                for r, x in enumerate(transpose_block(fn, rows)):
                    fn.store(x, slot(part, fn.add(lp.iv, r)))

    def one(i: V, at: Index) -> None:
        for part, p in enumerate(src):
            fn.store(em.load_memory(p, dtype, at), slot(part, i))

    _each(k, lines, first, left, whole, one)


def write_lines(k: OpKernel, dst: Sequence[V], dtype: DType, lines: Lines, first: V, left: V, slot: Slot) -> None:
    """Takes a vector of lines from `first` on, of which `left` exist, from slots."""
    fn, em = k.fn, k.em
    ty, whole = fn.vec(dtype.register), fn.const(0, I64)
    if lines.contiguous:
        n = k.size(lines.n)
        whole = fn.and_(n, -fn.lanes)
        with fn.loop(0, whole, fn.lanes) as lp:
            for part, p in enumerate(dst):
                columns = [fn.load(slot(part, fn.add(lp.iv, r)), ty) for r in range(fn.lanes)]
                for r, x in enumerate(transpose_block(fn, columns)):
                    with fn.when(fn.cmp("lt", fn.const(r, I64), left)):
                        em.store(x, p, dtype, Index(fn.add(fn.mul(fn.add(first, r), n), lp.iv), 1))

    def one(i: V, at: Index) -> None:
        for part, p in enumerate(dst):
            em.store(fn.load(slot(part, i), ty), p, dtype, at)

    _each(k, lines, first, left, whole, one)


def _each(k: OpKernel, lines: Lines, first: V, left: V, start: V, one: Callable[[V, Index], None]) -> None:
    """Runs `one` for each element from `start` on, with its places in the lines that exist."""
    fn, em, n = k.fn, k.em, k.size(lines.n)
    if lines.contiguous:
        starts = fn.mul(fn.add(fn.splat(first), fn.iota()), fn.splat(n))
        with fn.loop(start, n) as lp, em.scope(fn.tail_mask(left)):
            one(lp.iv, Index(0, vec=fn.add(starts, fn.splat(lp.iv))))
        return
    origin, inner = k.line_start(first, lines), k.size(lines.inner)

    def run(mask: V | None) -> list[V]:
        with fn.loop(start, n) as lp, em.scope(mask):
            one(lp.iv, Index(fn.add(origin, fn.mul(lp.iv, inner)), 1))
        return []

    fn.if_else(fn.cmp("ge", left, fn.lanes), lambda: run(None), lambda: run(fn.tail_mask(left)), [])
