"""Adaptive pooling to rows of several outputs: windows are reduced down their columns first, into a row, and then along it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dhlo.codegen.families.pool.rows import accumulator, load_float, store_value
from dhlo.codegen.kernel_ir.builder import BITS, F64, I1, I32, I64, PTR, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

if TYPE_CHECKING:
    from dhlo.codegen.families.pool.adaptive import AdaptivePool

__all__ = ["AdaptiveRows", "rows_scratch"]

_NARROW = 6  # columns of windows of which a vector is gathered; wider ones are read by vectors, one after the other


def rows_scratch(pool: AdaptivePool, lanes: int) -> tuple[int, int]:
    """Bytes that a worker needs for a column of the input, and beside all columns."""
    size = BITS[accumulator(pool.elem)] // 8
    return size, lanes * size


class AdaptiveRows:
    """Emits the kernel; items are the rows (plane, z, y) of the outputs, in order. Where windows begin and end is counted on from
    one output to the next as a whole number and a remainder, since a division takes longer than a window."""

    def __init__(self, pool: AdaptivePool, module: KernelModule) -> None:
        self.pool, self.acc = pool, accumulator(pool.elem)
        self.lanes = module.target.lanes(self.acc)
        self.other = float("-inf") if pool.kind == "max" else 0.0
        self.f = kernel_fn(module, pool.rows_name)

    def emit(self) -> None:
        f = self.f
        x, out, *sizes = load_args(f, [PTR] * 2 + [I64] * 6)
        sizes, outs = sizes[:3], sizes[3:]
        width, across = sizes[2], outs[2]
        plane_size = f.mul(f.mul(sizes[0], sizes[1]), width)
        whole, part = f.divu(width, across), f.remu(width, across)
        longest = f.add(whole, f.select(f.cmp("eq", part, 0), f.i64(0), f.i64(2)))
        narrow = f.cmp("le", longest, _NARROW)
        _, begin, end, *_ = f.args
        with f.loop(begin, end) as items:
            rest, oy = f.divu(items.iv, outs[1]), f.remu(items.iv, outs[1])
            plane, oz = f.divu(rest, outs[0]), f.remu(rest, outs[0])
            lo = [f.divu(f.mul(o, n), m) for o, n, m in zip((oz, oy), sizes, outs, strict=False)]
            hi = [f.ceildivu(f.mul(f.add(o, 1), n), m) for o, n, m in zip((oz, oy), sizes, outs, strict=False)]
            src = f.gep(x, f.mul(plane, plane_size), self.pool.elem)
            rows = f.mul(f.sub(hi[0], lo[0]), f.sub(hi[1], lo[1]))
            line = self.line(src, sizes, lo, hi, rows)
            to = f.gep(out, f.mul(items.iv, across), self.pool.elem)

            def by_vectors(line: V = line, rows: V = rows, to: V = to) -> list[V]:
                self.narrow(line, to, rows, width, across, longest)
                return []

            def one_by_one(line: V = line, rows: V = rows, to: V = to) -> list[V]:
                self.wide(line, to, rows, width, across)
                return []

            f.if_else(narrow, by_vectors, one_by_one, [])
        f.done()

    def line(self, src: V, sizes: Sequence[V], lo: Sequence[V], hi: Sequence[V], rows: V) -> V:
        """What the windows' rows have in each column; a row of x where it is one."""
        f, elem, lanes = self.f, self.pool.elem, self.lanes
        everything = f.const(1, vec(I1, lanes))

        def reduced() -> list[V]:
            def column(i: V, mask: V) -> None:
                with f.loop(lo[0], hi[0], 1, [f.const(self.other, vec(self.acc, lanes))]) as lz:
                    with f.loop(lo[1], hi[1], 1, lz.carried) as ly:
                        at = f.add(f.mul(f.add(f.mul(lz.iv, sizes[1]), ly.iv), sizes[2]), i)
                        value = load_float(f, f.gep(src, at, elem), mask, self.other, elem)
                        ly.yield_(self.both(ly.carried[0], value))
                    lz.yield_(ly.results[0])
                f.store(lz.results[0], f.gep(f.args[4], i, self.acc))

            full = f.and_(sizes[2], -lanes)
            with f.loop(0, full, lanes) as lp:
                column(lp.iv, everything)
            with f.when(f.cmp("lt", full, sizes[2])):
                column(full, f.tail_mask(f.sub(sizes[2], full), lanes))
            return [f.args[4]]

        def as_it_lies() -> list[V]:
            return [f.gep(src, f.mul(f.add(f.mul(lo[0], sizes[1]), lo[1]), sizes[2]), elem)]

        if elem != self.acc:
            return reduced()[0]
        return f.if_else(f.cmp("eq", rows, 1), as_it_lies, reduced, [PTR])[0]

    def both(self, a: V, b: V) -> V:
        return self.f.add(a, b) if self.pool.kind == "avg" else self.f.max(a, b)

    def next(self, at: V, rest: V, by: V, more: V, across: V) -> tuple[V, V]:
        """A position at + rest / across that much further on."""
        f = self.f
        rest = f.add(rest, more)
        carry = f.cmp("ge", rest, across)
        return f.add(f.add(at, by), f.cast(carry, at.elem)), f.select(carry, f.sub(rest, across), rest)

    def ended(self, at: V, rest: V, by: V, more: V, across: V) -> V:
        """Where the window that begins there ends: where the next one begins, rounded up."""
        end, over = self.next(at, rest, by, more, across)
        return self.f.add(end, self.f.cast(self.f.cmp("ne", over, 0), at.elem))

    def mean(self, value: V, count: V) -> V:
        return self.f.div(value, self.f.cast(count, self.acc)) if self.pool.kind == "avg" else value

    def narrow(self, line: V, to: V, rows: V, width: V, across: V, longest: V) -> None:
        """A vector of outputs at a time, whose windows' columns are gathered one after the other."""
        f, lanes = self.f, self.lanes
        splat: Callable[[V], V] = lambda x: f.splat(f.cast(x, I32), lanes)
        whole, part = splat(f.divu(width, across)), splat(f.remu(width, across))
        ahead = f.mul(width, lanes)
        far, farther = splat(f.divu(ahead, across)), splat(f.remu(ahead, across))
        outs, count = splat(across), splat(rows)
        start = f.mul(f.cast(f.iota(I32, lanes), I64), f.splat(width, lanes))
        # Exact below 2**52: a quotient is at least half a unit away from any rounding boundary.
        first = f.cast(f.div(f.add(f.cast(start, F64), 0.5), f.splat(f.cast(across, F64), lanes)), I64)
        over = f.sub(start, f.mul(first, f.splat(across, lanes)))
        init = [f.cast(first, I32), f.cast(over, I32)]
        with f.loop(0, across, lanes, init) as lp:
            at, rest = lp.carried
            size = f.sub(self.ended(at, rest, whole, part, outs), at)
            left = f.sub(across, lp.iv)
            there = f.tail_mask(left, lanes)
            other = f.const(self.other, vec(self.acc, lanes))
            with f.loop(0, longest, 1, [other]) as lj:
                inside = f.and_(there, f.cmp("lt", splat(lj.iv), size))
                places = f.gep(f.gep(line, lj.iv, self.acc), f.cast(at, I64), self.acc)
                lj.yield_(self.both(lj.carried[0], f.gather(places, inside, other)))
            value = self.mean(lj.results[0], f.mul(size, count))
            store_value(f, value, f.gep(to, lp.iv, self.pool.elem), left, self.pool.elem)
            lp.yield_(*self.next(at, rest, far, farther, outs))

    def wide(self, line: V, to: V, rows: V, width: V, across: V) -> None:
        """One output at a time, whose window is read in vectors."""
        f, lanes, acc = self.f, self.lanes, self.acc
        whole, part = f.divu(width, across), f.remu(width, across)
        with f.loop(0, across, 1, [f.i64(0), f.i64(0)]) as lp:
            at, rest = lp.carried
            size = f.sub(self.ended(at, rest, whole, part, across), at)
            src, full = f.gep(line, at, acc), f.and_(size, -lanes)
            other = f.const(self.other, vec(acc, lanes))
            with f.loop(0, full, lanes, [other]) as lx:
                lx.yield_(self.both(lx.carried[0], f.load(f.gep(src, lx.iv, acc), vec(acc, lanes))))
            last = f.masked_load(f.gep(src, full, acc), f.tail_mask(f.sub(size, full), lanes), other)
            value = f.reduce("add" if self.pool.kind == "avg" else "maximumf", self.both(lx.results[0], last))
            value = self.mean(value, f.mul(size, rows))
            f.store(f.cast(value, self.pool.elem), f.gep(to, lp.iv, self.pool.elem))
            lp.yield_(*self.next(at, rest, whole, part, across))
