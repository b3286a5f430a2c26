"""Discrete Fourier transforms of any length along a dim: Stockham's algorithm over vectors, of lines side by side or of one line.

A line of n = p1 p2 ... elements takes one stage a factor: 4, 5, 3, 2 and 7 have butterflies of their own, another prime p takes
p products an element. Where one is large, a line is multiplied by a chirp and convolved with another, by two transforms of a power
of two. Factors, roots of unity and chirps come in a table (`table.py`), constant for static n and made by a kernel otherwise.

Vectors hold elements of one line (`within.py`) where there are few lines, or where the lanes divide a length; else elements of
several lines (`beside.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.fft.beside import Beside, Slot, read_lines, write_lines
from dhlo.codegen.families.fft.stages import Buffers
from dhlo.codegen.families.fft.table import alone, inner_length
from dhlo.codegen.families.fft.within import Within
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import Lines, OpKernel, lanes_at
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import BITS, PTR, V
from dhlo.ir.dialect import Op
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div
from dhlo.ir.types import from_mlir

__all__ = ["FftKernel", "lower_fft"]

_MORE = 8  # vectors between buffers: one for element n / 2 of a half; loads shortly behind stores to the same place in a page wait


class FftKernel(OpKernel):
    """One pass along a dim, from `src` to `dst`, which may be the same; its first argument is the table."""

    halves = False  # whether an even length is that of two halves, the real and the imaginary part of what is transformed

    def __init__(
        self, low: Lowering, group: Group, op: Op, dim: int, inverse: bool, in_place: bool = False, lines: FftKernel | None = None
    ) -> None:
        """`lines` is the kernel of lines one by one, None for that one itself; both take the same arguments."""
        super().__init__(low, group, op, 1, lines.args.slots if lines else (), noinline=lines is None)
        fn, x, y = self.fn, from_mlir(op.operands[0]), from_mlir(op.results[0])
        self.dtype, self.real = x.dtype, x.dtype.register
        self.source, self.target = Lines.of(x, dim), Lines.of(y, dim)
        self.dst = [self.result(i) for i in range(len(op.results))]
        self.src = self.dst if in_place else [self.operand(i) for i in range(len(op.operands))]
        self.n = self.size(self.whole.n)
        table = fn.entry_load(fn.args[0], 0, PTR)
        count = self.transformed_count()
        self.beside = Beside(fn, self.real, inverse, table, count)
        self.within = Within(fn, self.real, inverse, table, count)

    @property
    def whole(self) -> Lines:
        """The lines with all elements of the transform."""
        return self.source

    def transformed_count(self) -> V:
        """How many complex elements of a line are transformed."""
        return self.n

    def buffers(self, vectors: V) -> list[V]:
        """Scratch for four times as many vectors, and some more each."""
        fn, out = self.fn, [self.scratch]
        for _ in range(3):
            out.append(fn.gep(out[-1], fn.mul(fn.add(vectors, _MORE), fn.lanes), self.real))
        return out

    # ------------------------------------------------------------------ lines
    def lower_lines(self) -> str:
        """The kernel of lines one by one, which are its items; its name."""
        fn = self.fn
        self.within.prepare()
        with fn.loop(self.begin, self.end) as item:
            self.line(*(self.line_start(item.iv, lines) for lines in (self.source, self.target)))
        return finish(self, "fft_lines")

    def lower(self, lines: str) -> Launch:
        """The kernel of all calls: items are lines where vectors hold elements of one in any case, else as many neighbouring lines
        as vectors have lanes."""
        fn, lanes = self.fn, self.fn.lanes
        contiguous, outer, inner, n = self.source.contiguous, self.source.outer, self.source.inner, self.whole.n
        single = alone(n, lanes, self.halves) if contiguous else sympy.false

        def one_by_one() -> list[V]:
            fn.call(lines, fn.args)
            return []

        def by_blocks() -> list[V]:
            self.blocks(lines)
            return []

        if contiguous:
            fn.if_else(fn.cmp("eq", self.within.width, lanes), one_by_one, by_blocks, [])
        else:
            by_blocks()
        size, elements = BITS[self.real] // 8, inner_length(n) + _MORE
        blocks = ceil_div(outer, lanes) if contiguous else outer * ceil_div(inner, lanes)

        def either(one: sympy.Expr, many: sympy.Expr) -> sympy.Expr:
            return sympy.Piecewise((one, single), (many, True))

        scratch = either(4 * size * (elements + _MORE * lanes), 4 * size * lanes * elements)
        return Launch(finish(self, "fft"), self.args.slots, either(outer, blocks), either(n * 8, n * lanes * 8), scratch)

    def blocks(self, lines: str) -> None:
        """Runs the kernel's items where each is up to a vector of neighbouring lines: one by one if they are few."""
        fn, lanes, few = self.fn, self.fn.lanes, self.within.width
        across = self.size(self.source.outer if self.source.contiguous else self.source.inner)
        blocks = fn.ceildivu(across, lanes)
        with fn.loop(self.begin, self.end) as item:
            c = fn.mul(fn.remu(item.iv, blocks), lanes)
            first, left = fn.add(fn.mul(fn.divu(item.iv, blocks), across), c), fn.min(fn.sub(across, c), lanes)

            def one_by_one(first: V = first, left: V = left) -> list[V]:
                args, _, _, *others = fn.args
                fn.call(lines, [args, first, fn.add(first, left), *others])
                return []

            def side_by_side(first: V = first, left: V = left) -> list[V]:
                self.block(first, left)
                return []

            few = few if self.source.contiguous else fn.divu(few, 2)  # whose elements are gathered one by one
            fn.if_else(fn.cmp("le", left, few), one_by_one, side_by_side, [])

    def row(self, buffers: Buffers) -> Slot:
        """Where elements are in buffers of lines side by side."""
        return lambda part, i: self.fn.gep(buffers[part], self.fn.mul(i, self.fn.lanes), self.real)

    # ------------------------------------------------------------------ lines side by side
    def block(self, first: V, left: V) -> None:
        """Transforms a vector of lines from `first` on."""
        beside = self.beside
        buffers = self.buffers(beside.length)
        read_lines(self, self.src, self.dtype, self.source, first, left, self.row(buffers))
        beside.clear(buffers[:2], self.n, beside.length)
        out = beside.transformed(buffers)
        write_lines(self, self.dst, self.dtype, self.target, first, left, self.row(out))

    # ------------------------------------------------------------------ a line
    def line(self, start: V, end: V) -> None:
        """Transforms the line whose first element is at `start`, to where the result's is, `end`."""
        within = self.within
        buffers = self.buffers(within.rows)
        self.fill(start, buffers)
        self.drain(end, within.transformed(buffers))

    def fill(self, start: V, buffers: Buffers) -> None:
        """Brings a line to rows."""
        self.each_row(buffers, lambda first: [self.load(p, self.dtype, self.elements(start, first, self.source)) for p in self.src])
        if self.target.contiguous:
            self.within.target = [self.fn.gep(p, start, self.real) for p in self.dst]

    def drain(self, end: V, out: Buffers) -> None:
        """Takes a line's result from buffers, where it isn't in its place."""
        fn, within = self.fn, self.within
        count = fn.select(fn.cmp("eq", within.chirped, 0), 0, self.n) if within.target else self.n
        self.copy(out[:2], self.dst, end, count)

    def each_row(self, buffers: Buffers, load: Callable[[V], Sequence[V]]) -> None:
        """Puts into the buffers what `load` finds for the elements from its argument on, as many as a row has, then zeros."""
        fn, within = self.fn, self.within
        with fn.loop(0, within.rows) as lp:
            first = fn.mul(lp.iv, within.width)
            with self.em.scope(fn.tail_mask(fn.min(within.width, fn.sub(within.n, first)))):
                re, im = load(first)
            within.put(buffers[:2], lp.iv, (re, im))

    def copy(self, src: Buffers, dst: Sequence[V], end: V, count: V) -> None:
        """Writes `count` elements of buffers to the result's line that begins at `end`."""

        def body(i: V, _: Sequence[V]) -> list[V]:
            for p, q in zip(src, dst, strict=True):
                self.em.store(self.em.load_memory(p, self.dtype, Index(i, 1)), q, self.dtype, self.elements(end, i, self.target))
            return []

        lanes_at(self, 0, count, [], body)


def lower_fft(kernel: Callable[[FftKernel | None], FftKernel]) -> Launch:
    """The pass of a kind of kernel, made for lines one by one and then, with that one, for all calls. The launch takes the
    table's address before its slots."""
    lines = kernel(None)
    name = lines.lower_lines()
    return kernel(lines).lower(name)
