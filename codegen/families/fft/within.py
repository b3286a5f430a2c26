"""Transforms whose vectors hold elements of one line: as a matrix of rows, by its columns, roots, and its rows.

A line of n = m w elements is m rows of w, w at most the number of lanes. Stages transform the columns, w side by side, element
(k, j) of the result is multiplied by the root of j k, and a butterfly transforms each row, as many rows at once as a vector has
lanes, transposed (Bailey, FFTs in external or hierarchical memory, 1990, where n is the product of two lengths).
"""

from __future__ import annotations

from dhlo.codegen.families.fft.butterfly import Complex, butterfly, times
from dhlo.codegen.families.fft.stages import Buffers
from dhlo.codegen.families.fft.table import ROWS, WIDTH, widths
from dhlo.codegen.families.fft.transform import Transform
from dhlo.codegen.kernel_ir.builder import I1, I64, Fn, V
from dhlo.codegen.kernel_ir.transpose import transpose_block

__all__ = ["Within"]


class Within(Transform):
    """The transform of a line, whose row i is in the first lanes of vector i; the result's elements follow each other."""

    factors = ROWS

    def __init__(self, fn: Fn, real: str, inverse: bool, table: V, n: V) -> None:
        super().__init__(fn, real, inverse, table, n)
        self.width = self.word(WIDTH)  # of rows; 0 where lines have none
        self.rows = fn.divu(self.length, fn.max(self.width, 1))
        self.target: Buffers | None = None  # where the result goes if it is of one transform; else to a buffer
        self.near = fn.alloca(2 * fn.lanes * fn.lanes, real)

    def prepare(self) -> None:
        """Keeps, for each column j, the roots of 0, j, 2 j and so on, a vector of them."""
        fn = self.fn
        everywhere, zero = fn.const(1, fn.vec(I1)), fn.const(0, fn.vec(self.real))
        with fn.loop(0, self.width) as lp:
            at = fn.mul(fn.iota(), fn.splat(lp.iv))
            re = fn.gather(fn.gep(self.roots, at, self.real), everywhere, zero)
            im = fn.gather(fn.gep(self.roots, fn.add(at, fn.splat(self.length)), self.real), everywhere, zero)
            self.put(self._near(), lp.iv, (re, fn.neg(im) if self.inverse else im))

    def _near(self) -> Buffers:
        return [self.near, self.fn.gep(self.near, self.fn.lanes**2, self.real)]

    def vectors(self, count: V) -> V:
        return self.fn.ceildivu(count, self.fn.lanes)

    def listed(self, start: V, count: V, i: V) -> Complex:
        fn = self.fn
        first = fn.mul(i, fn.lanes)
        mask, zero = fn.tail_mask(fn.sub(count, first)), fn.const(0, fn.vec(self.real))
        at = fn.add(start, first)
        re, im = (fn.masked_load(fn.gep(self.roots, k, self.real), mask, zero) for k in (at, fn.add(at, count)))
        return re, fn.neg(im) if self.inverse else im

    def once(self, buffers: Buffers) -> Buffers:
        fn = self.fn
        held = self.stages(buffers, self.rows, self.width)
        out = held[2:]
        if self.target is not None:
            single = fn.cmp("eq", self.chirped, 0)
            out = [fn.select(single, p, q) for p, q in zip(self.target, out, strict=True)]
        for w in widths(fn.lanes):
            with fn.when(fn.cmp("eq", self.width, w)):
                self.across(w, held[:2], out)
        return [*out, *held[:2]]

    def across(self, width: int, src: Buffers, dst: Buffers) -> None:
        """Transforms rows of `width` elements; the last vectors' rows may be some of those before, too."""
        fn, lanes = self.fn, self.fn.lanes
        with fn.loop(0, self.rows, lanes) as lp:
            first = fn.min(lp.iv, fn.sub(self.rows, lanes))
            rows = [self.get(src, fn.add(first, r)) for r in range(lanes)]
            re, im = (transpose_block(fn, [x[part] for x in rows])[:width] for part in (0, 1))
            x = list(zip(re, im, strict=True))
            for j in range(1, width):
                root = times(fn, self.get(self._near(), fn.const(j, I64)), self.root(fn.mul(first, j)))
                x[j] = times(fn, x[j], root)
            for j, out in enumerate(butterfly(fn, x, self.inverse)):
                at = fn.add(first, fn.mul(self.rows, j))
                for p, part in zip(dst, out, strict=True):
                    fn.store(part, fn.gep(p, at, self.real))
