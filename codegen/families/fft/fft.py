"""Discrete Fourier transforms of any length along a dim: Stockham's algorithm, a vector of lines side by side.

A line of n = p1 p2 ... elements takes one stage a factor: 4, 3 and 2 have butterflies of their own, another prime p takes
p products an element. Roots of unity and factors come in a table, constant for static n and made by a kernel otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import sympy

from dhlo.codegen.elementwise import vmath
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import Lines, OpKernel, block_count, blocks_across, while_loop
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import BITS, F64, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div
from dhlo.ir.types import from_mlir

__all__ = ["emit_fft_table", "fft_table", "fft_table_bytes", "lower_fft", "table_scratch"]

HEADER = 64  # words before the roots: the number of factors, then the factors
FINE = 64  # roots computed one by one; the others are products of one of these and one of every FINE-th

Complex = tuple[V, V]


def fft_table_bytes(n: sympy.Expr, real: str) -> sympy.Expr:
    """Size of the table of a length: header, then cos and -sin of 2 pi k / n for all k."""
    return HEADER * 8 + 2 * n * (BITS[real] // 8)


def fft_table(n: int, real: str) -> npt.NDArray[np.uint8]:
    """The table of a static length."""
    factors, rest = [], n
    for p in (4, 2, *range(3, n + 1, 2)):
        while rest > 1 and rest % p == 0:
            factors.append(p)
            rest //= p
    header = np.zeros(HEADER, np.int64)
    header[0], header[1 : 1 + len(factors)] = len(factors), factors
    angle = 2 * np.pi * np.arange(n) / max(n, 1)
    roots = np.concatenate([np.cos(angle), -np.sin(angle)]).astype({"f32": np.float32, "f64": np.float64}[real])
    return np.concatenate([header.view(np.uint8), roots.view(np.uint8)])


def emit_fft_table(module: KernelModule, real: str) -> str:
    """Emits (once) the kernel that makes a table at run time: (table, n), one item, `table_scratch(n)` bytes
    of scratch."""
    name = f"fft_table_{real}"
    if name in module.functions:
        return name
    fn = kernel_fn(module, name)
    table, n = load_args(fn, [PTR, I64])

    def divide(state: Sequence[V]) -> list[V]:
        rest, count, p = state

        def found() -> list[V]:
            fn.store(p, fn.gep(table, fn.add(count, 1), I64))
            return [fn.divu(rest, p), fn.add(count, 1), p]

        def other() -> list[V]:
            nxt = fn.select(fn.cmp("eq", p, 4), 2, fn.select(fn.cmp("eq", p, 2), 3, fn.add(p, 2)))
            prime = fn.and_(fn.cmp("gt", fn.mul(nxt, nxt), rest), fn.cmp("ne", nxt, 2))
            return [rest, count, fn.select(prime, rest, nxt)]

        return fn.if_else(fn.cmp("eq", fn.remu(rest, p), 0), found, other, [I64] * 3)

    end = while_loop(fn, [n, fn.const(0, I64), fn.const(4, I64)], lambda s: fn.cmp("gt", s[0], 1), divide)
    fn.store(end[1], table)
    turn = fn.div(fn.const(2 * np.pi, F64), fn.cast(n, F64))
    near, far = fn.args[4], fn.gep(fn.args[4], 2 * FINE, F64)
    coarse = fn.ceildivu(n, FINE)
    for array, count, step in ((near, fn.const(FINE, I64), 1), (far, coarse, FINE)):
        with fn.loop(0, count) as lp:
            angle = fn.mul(fn.cast(fn.mul(lp.iv, step), F64), turn)
            at = fn.mul(lp.iv, 2)
            fn.store(vmath.call(fn, "cos", angle), fn.gep(array, at, F64))
            fn.store(fn.neg(vmath.call(fn, "sin", angle)), fn.gep(array, fn.add(at, 1), F64))
    cos = fn.gep(table, HEADER, I64)
    with fn.loop(0, n) as lp:
        a, b = (fn.mul(i, 2) for i in (fn.remu(lp.iv, FINE), fn.divu(lp.iv, FINE)))
        x, y = ((fn.load(fn.gep(p, i, F64), F64), fn.load(fn.gep(p, fn.add(i, 1), F64), F64)) for p, i in ((near, a), (far, b)))
        re, im = _times(fn, x, y)
        fn.store(fn.cast(re, real), fn.gep(cos, lp.iv, real))
        fn.store(fn.cast(im, real), fn.gep(cos, fn.add(n, lp.iv), real))
    fn.done()
    return name


def table_scratch(n: sympy.Expr) -> sympy.Expr:
    """Scratch bytes of the table kernel."""
    return 16 * (FINE + ceil_div(n, FINE))


def _times(fn: Fn, a: Complex, b: Complex) -> Complex:
    return fn.sub(fn.mul(a[0], b[0]), fn.mul(a[1], b[1])), fn.add(fn.mul(a[0], b[1]), fn.mul(a[1], b[0]))


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
        step = fn.mul(self.n, fn.lanes)
        self.buffers = [self.scratch]
        for _ in range(3):
            self.buffers.append(fn.gep(self.buffers[-1], step, self.real))

    def root(self, k: V) -> Complex:
        """exp(-2 pi i k / n), or its conjugate for the inverse."""
        fn = self.fn
        re, im = (fn.load(fn.gep(self.cos, i, self.real), self.real) for i in (k, fn.add(self.n, k)))
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
        scratch = 4 * fn.lanes * (BITS[self.real] // 8) * lines.n
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
        out = self.stages()
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

    def stages(self) -> Sequence[V]:
        """All stages; returns the buffers that hold the result."""
        fn = self.fn
        one = fn.const(1, I64)
        with fn.loop(0, fn.load(self.table, I64), 1, [self.n, one, *self.buffers]) as lp:
            current, stride, *buffers = lp.carried
            p = fn.load(fn.gep(self.table, fn.add(lp.iv, 1), I64), I64)
            args = (p, current, stride, buffers[:2], buffers[2:])

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
            lp.yield_(fn.divu(current, p), fn.mul(stride, p), *buffers[2:], *buffers[:2])
        return lp.results[2:4]

    # ------------------------------------------------------------------ stages
    def stage(self, width: int, p: V, current: V, stride: V, src: Sequence[V], dst: Sequence[V]) -> None:
        """Splits transforms of length `current` into p of length current / p; width 0 is for any p."""
        fn = self.fn
        m, turn = fn.divu(current, p), fn.divu(self.n, current)
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
                        write(j, _times(fn, x, twiddles[j - 1]) if j else x)
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
        fn, per = self.fn, self.fn.divu(self.n, p)
        zero = fn.const(0, fn.vec(self.real))
        with fn.loop(0, p) as out:
            with fn.loop(0, p, 1, [zero, zero, fn.const(0, I64)]) as lp:
                re, im, k = lp.carried
                x = _times(fn, read(lp.iv), self.root(fn.mul(k, per)))
                nxt = fn.add(k, out.iv)
                lp.yield_(fn.add(re, x[0]), fn.add(im, x[1]), fn.select(fn.cmp("ge", nxt, p), fn.sub(nxt, p), nxt))
            write(out.iv, _times(fn, (lp.results[0], lp.results[1]), self.root(fn.mul(turn, out.iv))))


def lower_fft(low: Lowering, group: Group, op: Op, number: int) -> Launch:
    """The pass along the op's dim `number`; the first reads the operands, later ones work on the results in place. The
    launch takes the table's address before its slots."""
    return _Fft(low, group, op, number).lower()
