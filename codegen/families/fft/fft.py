"""Discrete Fourier transforms of any length along a dim: Stockham's algorithm, a vector of lines side by side.

A line of n = p1 p2 ... elements takes one stage a factor: 4, 3 and 2 have butterflies of their own, another prime p takes
p products an element. Where one is large, a line is multiplied by a chirp and convolved with another, by two transforms of a power
of two. Factors, roots of unity and chirps come in a table (`table.py`), constant for static n and made by a kernel otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.fft.table import CHIRPED, HEADER, LENGTH, Complex, inner_length, times
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import Lines, OpKernel, block_count, blocks_across
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import BITS, I64, PTR, V
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div
from dhlo.ir.types import from_mlir

__all__ = ["lower_fft"]


class _Fft(OpKernel):
    """One pass over the tensor along one dim; its first argument is the table."""

    def __init__(self, low: Lowering, group: Group, op: Op, number: int) -> None:
        super().__init__(low, group, op, first_arg=1)
        x = from_mlir(op.operands[0])
        self.dtype, self.real = x.dtype, x.dtype.register
        self.lines = Lines.of(x, attr(op, "dims")[number])
        self.inverse = bool(attr(op, "inverse"))
        self.dst = [self.result(i) for i in range(2)]
        self.src = [self.operand(i) for i in range(2)] if number == 0 else self.dst
        fn = self.fn
        self.n = self.size(self.lines.n)
        self.table = fn.entry_load(fn.args[0], 0, PTR)
        self.cos = fn.gep(self.table, HEADER, I64)
        self.length = fn.load(fn.gep(self.table, LENGTH, I64), I64)  # of what all stages transform
        step = fn.mul(self.length, fn.lanes)
        self.buffers = [self.scratch]
        for _ in range(3):
            self.buffers.append(fn.gep(self.buffers[-1], step, self.real))

    def root(self, k: V) -> Complex:
        """exp(-2 pi i k / length), or its conjugate for the inverse."""
        return self.listed(self.fn.const(0, I64), self.length, k)

    def listed(self, start: V, count: V, k: V) -> Complex:
        """Element k of `count` complex numbers of the table, or its conjugate for the inverse."""
        fn = self.fn
        at = fn.add(start, k)
        re, im = (fn.load(fn.gep(self.cos, i, self.real), self.real) for i in (at, fn.add(at, count)))
        return fn.splat(re), fn.splat(fn.neg(im) if self.inverse else im)

    def get(self, buffers: Sequence[V], i: V) -> Complex:
        fn = self.fn
        re, im = (fn.load(fn.gep(b, fn.mul(i, fn.lanes), self.real), fn.vec(self.real)) for b in buffers)
        return re, im

    def put(self, buffers: Sequence[V], i: V, x: Complex) -> None:
        for b, part in zip(buffers, x, strict=True):
            self.fn.store(part, self.fn.gep(b, self.fn.mul(i, self.fn.lanes), self.real))

    # ------------------------------------------------------------------ lines
    def lower(self) -> Launch:
        fn, lines = self.fn, self.lines
        if lines.contiguous:
            with fn.loop(self.begin, self.end) as item:
                first = fn.mul(item.iv, fn.lanes)
                start = fn.mul(fn.add(fn.splat(first), fn.iota()), fn.splat(self.n))
                left = fn.sub(self.size(lines.outer), first)
                self.transform(lambda i: Index(0, vec=fn.add(start, fn.splat(i))), left, first)
            count = ceil_div(lines.outer, fn.lanes)
        else:

            def body(start: V, _: V) -> None:
                self.transform(lambda i: Index(fn.add(start, fn.mul(i, self.size(lines.inner))), 1))

            blocks_across(self, lines, body)
            count = block_count(lines, fn.lanes)
        scratch = 4 * fn.lanes * (BITS[self.real] // 8) * inner_length(lines.n)
        return Launch(finish(self, "fft"), self.args.slots, count, lines.n * fn.lanes * 8, scratch)

    def transform(self, place: Callable[[V], Index], left: V | None = None, first: V | None = None) -> None:
        """A vector of lines whose element i is at `place(i)`: in, all stages, out. Lines of neighbouring elements start with
        line `first`, and `left` of them exist."""
        fn, em = self.fn, self.em
        whole = fn.const(0, I64)
        if first is not None and left is not None:
            whole = fn.and_(self.n, -fn.lanes)
            self.blocks_in(whole, first, left)
        with fn.loop(whole, self.n) as lp, em.scope(None if left is None else fn.tail_mask(left)):
            at = place(lp.iv)
            x = [em.load_memory(p, self.dtype, at) for p in self.src]
            self.put(self.buffers[:2], lp.iv, (x[0], x[1]))
        out = self.transformed()
        if first is not None and left is not None:
            self.blocks_out(out, whole, first, left)
        with fn.loop(whole, self.n) as lp, em.scope(None if left is None else fn.tail_mask(left)):
            at = place(lp.iv)
            for x_, p_ in zip(self.get(out, lp.iv), self.dst, strict=True):
                em.store(x_, p_, self.dtype, at)

    def blocks_in(self, whole: V, first: V, left: V) -> None:
        """Transposes the elements before `whole` of a vector of lines into the buffers; missing lines repeat the last."""
        fn, em = self.fn, self.em
        starts = [fn.mul(fn.add(first, fn.min(fn.sub(left, 1), r)), self.n) for r in range(fn.lanes)]
        with fn.loop(0, whole, fn.lanes) as lp:
            for src, buffer in zip(self.src, self.buffers[:2], strict=True):
                rows = [em.load_memory(src, self.dtype, Index(fn.add(s, lp.iv), 1)) for s in starts]
                for r, x in enumerate(transpose_block(fn, rows)):
                    fn.store(x, fn.gep(buffer, fn.mul(fn.add(lp.iv, r), fn.lanes), self.real))

    def blocks_out(self, out: Sequence[V], whole: V, first: V, left: V) -> None:
        """Transposes the elements before `whole` back."""
        fn, em = self.fn, self.em
        with fn.loop(0, whole, fn.lanes) as lp:
            for dst, buffer in zip(self.dst, out, strict=True):
                at = [fn.gep(buffer, fn.mul(fn.add(lp.iv, r), fn.lanes), self.real) for r in range(fn.lanes)]
                for r, x in enumerate(transpose_block(fn, [fn.load(p, fn.vec(self.real)) for p in at])):
                    with fn.when(fn.cmp("lt", fn.const(r, I64), left)):
                        em.store(x, dst, self.dtype, Index(fn.add(fn.mul(fn.add(first, r), self.n), lp.iv), 1))

    def transformed(self) -> Sequence[V]:
        """The buffers that hold the transform of what is in the first ones: by all stages, or, of a length that isn't theirs, by
        all of them twice, between chirps."""
        fn = self.fn
        chirped = fn.load(fn.gep(self.table, CHIRPED, I64), I64)
        twice = fn.cmp("ne", chirped, 0)
        chirp, spectrum = fn.mul(self.length, 2), fn.mul(fn.add(self.length, self.n), 2)
        with fn.when(twice):
            with fn.loop(0, self.n) as lp:
                self.put(self.buffers[:2], lp.iv, times(fn, self.get(self.buffers[:2], lp.iv), self.listed(chirp, self.n, lp.iv)))
            zero = fn.const(0, fn.vec(self.real))
            with fn.loop(self.n, self.length) as lp:
                self.put(self.buffers[:2], lp.iv, (zero, zero))
        with fn.loop(0, fn.add(chirped, 1), 1, self.buffers) as turn:
            buffers = self.stages(turn.carried)
            out, again = buffers[:2], fn.cmp("eq", turn.iv, 0)
            with fn.when(twice):  # the conjugate's transform is the conjugate of the inverse
                start, count = (fn.select(again, x, y) for x, y in ((spectrum, chirp), (self.length, self.n)))
                with fn.loop(0, count) as lp:
                    re, im = self.get(out, lp.iv)
                    x = (re, fn.select(again, im, fn.neg(im)))
                    re, im = times(fn, x, self.listed(start, count, lp.iv))
                    self.put(out, lp.iv, (re, fn.select(again, fn.neg(im), im)))
            turn.yield_(*buffers)
        return turn.results[:2]

    def stages(self, buffers: Sequence[V]) -> list[V]:
        """All stages; returns the buffers that hold the result, then the others."""
        fn = self.fn
        one = fn.const(1, I64)
        with fn.loop(0, fn.load(self.table, I64), 1, [self.length, one, *buffers]) as lp:
            current, stride, *held = lp.carried
            p = fn.load(fn.gep(self.table, fn.add(lp.iv, 1), I64), I64)
            args = (p, current, stride, held[:2], held[2:])

            def case(width: int) -> Callable[[], list[V]]:
                def run() -> list[V]:
                    self.stage(width, *args)
                    return []

                return run

            def two() -> list[V]:
                return fn.if_else(fn.cmp("eq", p, 2), case(2), case(0), [])

            def three() -> list[V]:
                return fn.if_else(fn.cmp("eq", p, 3), case(3), two, [])

            fn.if_else(fn.cmp("eq", p, 4), case(4), three, [])
            lp.yield_(fn.divu(current, p), fn.mul(stride, p), *held[2:], *held[:2])
        return list(lp.results[2:])

    # ------------------------------------------------------------------ stages
    def stage(self, width: int, p: V, current: V, stride: V, src: Sequence[V], dst: Sequence[V]) -> None:
        """Splits transforms of length `current` into p of length current / p; width 0 is for any p."""
        fn = self.fn
        m, turn = fn.divu(current, p), fn.divu(self.length, current)
        with fn.loop(0, m) as row:
            twiddles = [self.root(fn.mul(fn.mul(row.iv, j), turn)) for j in range(1, width)]
            with fn.loop(0, stride) as lp:

                def read(k: V | int) -> Complex:
                    return self.get(src, fn.add(lp.iv, fn.mul(stride, fn.add(row.iv, fn.mul(m, k)))))

                def write(j: V | int, x: Complex) -> None:
                    self.put(dst, fn.add(lp.iv, fn.mul(stride, fn.add(fn.mul(row.iv, p), j))), x)

                if width:
                    outs = self.butterfly([read(k) for k in range(width)])
                    for j, x in enumerate(outs):
                        write(j, times(fn, x, twiddles[j - 1]) if j else x)
                else:
                    self.products(p, fn.mul(row.iv, turn), read, write)

    def butterfly(self, x: Sequence[Complex]) -> list[Complex]:
        """A transform of 2, 3 or 4 elements."""
        fn = self.fn
        add: Callable[[Complex, Complex], Complex] = lambda a, b: (fn.add(a[0], b[0]), fn.add(a[1], b[1]))
        sub: Callable[[Complex, Complex], Complex] = lambda a, b: (fn.sub(a[0], b[0]), fn.sub(a[1], b[1]))
        if len(x) == 2:
            return [add(x[0], x[1]), sub(x[0], x[1])]
        if len(x) == 3:
            both, d = add(x[1], x[2]), sub(x[1], x[2])
            middle = fn.sub(x[0][0], fn.mul(both[0], 0.5)), fn.sub(x[0][1], fn.mul(both[1], 0.5))
            side = math.sqrt(0.75) * (1 if self.inverse else -1)
            turned = fn.mul(d[1], -side), fn.mul(d[0], side)
            return [add(x[0], both), add(middle, turned), sub(middle, turned)]
        even, odd, even2, d = add(x[0], x[2]), add(x[1], x[3]), sub(x[0], x[2]), sub(x[1], x[3])
        odd2 = (fn.neg(d[1]), d[0]) if self.inverse else (d[1], fn.neg(d[0]))
        return [add(even, odd), add(even2, odd2), sub(even, odd), sub(even2, odd2)]

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


def lower_fft(low: Lowering, group: Group, op: Op, number: int) -> Launch:
    """The pass along the op's dim `number`; the first reads the operands, later ones work on the results in place. The
    launch takes the table's address before its slots."""
    return _Fft(low, group, op, number).lower()
