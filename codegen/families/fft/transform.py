"""Transforms of vectors in memory: by all stages of their length, or by Bluestein's two between chirps."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dhlo.codegen.families.fft.butterfly import Complex, times
from dhlo.codegen.families.fft.stages import Buffers, Vectors, emit_stages
from dhlo.codegen.families.fft.table import CHIRPED
from dhlo.codegen.kernel_ir.builder import I64, Fn, V

__all__ = ["Transform"]


class Transform(Vectors, ABC):
    """Transforms of what is in buffers of vectors, by the factors and roots in a table. What a vector holds, elements of several
    lines or of one, is a subclass's."""

    factors: int  # word of the table at which the factors of the stages' length are listed

    def __init__(self, fn: Fn, real: str, inverse: bool, table: V, n: V) -> None:
        super().__init__(fn, real, inverse, table)
        self.n = n
        self.chirped = self.word(CHIRPED)

    @abstractmethod
    def once(self, buffers: Buffers) -> Buffers:
        """The transform of what is in the first two buffers: the buffers that hold it, then two others."""

    @abstractmethod
    def listed(self, start: V, count: V, i: V) -> Complex:
        """What vector i takes of `count` complex numbers of the table, conjugated for the inverse."""

    @abstractmethod
    def vectors(self, count: V) -> V:
        """How many vectors hold that many elements."""

    # ------------------------------------------------------------------ chirps
    def transformed(self, buffers: Buffers) -> Buffers:
        """The buffers that hold the transform of what is in the first ones, then two others: by all stages, or, of a length that
        isn't theirs, by all of them twice, between chirps. What follows the n elements is zeros."""
        fn = self.fn
        twice = fn.cmp("ne", self.chirped, 0)
        chirp, spectrum = fn.mul(self.length, 2), fn.mul(fn.add(self.length, self.n), 2)
        with fn.when(twice), fn.loop(0, self.vectors(self.n)) as lp:
            self.put(buffers[:2], lp.iv, times(fn, self.get(buffers[:2], lp.iv), self.listed(chirp, self.n, lp.iv)))
        with fn.loop(0, fn.add(self.chirped, 1), 1, buffers) as turn:
            held = self.once(turn.carried)
            out, again = held[:2], fn.cmp("eq", turn.iv, 0)
            with fn.when(twice):  # the conjugate's transform is the conjugate of the inverse
                start, count = (fn.select(again, x, y) for x, y in ((spectrum, chirp), (self.length, self.n)))
                with fn.loop(0, self.vectors(count)) as lp:
                    re, im = self.get(out, lp.iv)
                    x = (re, fn.select(again, im, fn.neg(im)))
                    re, im = times(fn, x, self.listed(start, count, lp.iv))
                    self.put(out, lp.iv, (re, fn.select(again, fn.neg(im), im)))
            turn.yield_(*held)
        return turn.results

    # ------------------------------------------------------------------ stages
    def stages(self, buffers: Buffers, length: V, scale: V) -> Buffers:
        """All stages of `length` vectors, whose roots are those `scale` apart; returns the buffers that hold the result, then the
        others."""
        fn = self.fn
        name = emit_stages(fn.module, self.real, self.inverse)
        count = fn.call(name, [self.table, fn.const(self.factors, I64), length, scale, *buffers], I64)
        assert count is not None
        swapped = fn.cmp("ne", fn.and_(count, 1), 0)
        others = [*buffers[2:], *buffers[:2]]
        return [fn.select(swapped, q, p) for p, q in zip(buffers, others, strict=True)]
