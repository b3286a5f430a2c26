"""Register tiles of depthwise convolutions: output rows by a vector of columns, each row of the input loaded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dhlo.codegen.families.conv.image import load_elements
from dhlo.codegen.families.conv.pack import load_bounds, load_geometry
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.gemm.multiply_add import add_pair_products
from dhlo.codegen.kernel_ir.builder import I32, I64, PTR, Fn, V, vec

__all__ = ["HELD", "Columns", "PaddedRows", "Rows"]

HELD = 9
"""Kernel points up to which weights stay in registers."""

# Kernel points up to which the sum is one straight line of code.
_UNROLL = 49
# Kernel columns up to which a row of a looped sum is a straight line of code.
_LINE = 16
# Independent sums that cover the latency of a multiply-add.
_CHAINS = 4


class Rows:
    """Emits `rows(args, x, w, zeros, z0, y0, x0, out, ld, count)`: `rows` output rows of `count` columns to out[row * ld + column].

    (z0, y0, x0) is where the first output's window starts in channel `x`, outside of the image maybe. Up to lanes - 1
    elements after each row are clobbered, and rows are written in ascending order.
    """

    def __init__(self, p: ConvParams, name: str, rows: int, lanes: int) -> None:
        self.p, self.rows, self.lanes = p, rows, lanes
        pointers, numbers = ("args", "x", "w", "zeros"), ("z0", "y0", "x0")
        self.f = f = Fn(
            p.module,
            name,
            [*((n, PTR) for n in pointers), *((n, I64) for n in numbers), ("out", PTR), ("ld", I64), ("count", I64)],
            noinline=True,
        )
        args, self.x, self.w, self.zeros, self.z0, self.y0, self.x0, self.out, self.ld, self.count = f.args
        self.geo, self.bounds, self.stored = load_geometry(f, args), load_bounds(p, f, args), p.stored
        self.zero = f.const(0.0, vec(p.elem, lanes))
        self.width = f.splat(f.cast(self.geo.iw, I32), lanes)
        self.chains = max(1, min(_CHAINS // rows, p.window_steps))

    def emit(self) -> str:
        f, p = self.f, self.p
        held = [self.weight(self.w, i) for i in range(p.window_steps)] if p.window_steps <= HELD and p.kernel[0] == 1 else None
        lo, hi = self.planes()
        vectors = f.ceildivu(self.count, self.lanes)
        with f.loop(0, vectors) as lp:  # the last first: each overwrites what the one after it clobbered of the next row
            at = f.mul(f.sub(f.sub(vectors, 1), lp.iv), self.lanes)
            column = f.add(self.x0, f.mul(at, p.stride[2]))
            with f.loop(lo, hi, 1, self.start()) as planes:
                plane = f.gep(self.x, f.mul(f.add(self.z0, f.mul(planes.iv, p.dilation[0])), self.geo.sxd), self.stored)
                w = f.gep(self.w, f.mul(planes.iv, p.kernel[1] * p.row_steps), p.elem)
                add = self.unrolled if p.window_steps <= _UNROLL else self.looped
                planes.yield_(*add(planes.carried, plane, w, held, column))
            for r in range(self.rows):
                self.store(planes.results, r, at)
        f.done()
        return f.name

    def start(self) -> list[V]:
        """What sums begin with: the first chain's of each row, then the second's."""
        return [self.zero] * (self.rows * self.chains)

    def columns(self, column: V) -> Columns:
        """What reads rows of the input from `column` on."""
        return Columns(self, column)

    def store(self, sums: Sequence[V], row: int, at: V) -> None:
        """Adds a row's chains and stores the sum to column `at` of the output."""
        f, total = self.f, sums[row]
        for c in range(1, self.chains):
            total = f.add(total, sums[c * self.rows + row])
        f.store(total, f.gep(self.out, f.add(f.mul(self.ld, row), at), self.p.elem))

    def planes(self) -> tuple[V, V]:
        """The kernel's planes that meet the image."""
        f, dilation = self.f, self.p.dilation[0]
        lo = f.divu(f.add(f.max(f.neg(self.z0), 0), dilation - 1), dilation)
        left = f.max(f.sub(self.geo.id, self.z0), 0)
        return lo, f.min(f.divu(f.add(left, dilation - 1), dilation), self.p.kernel[0])

    def weight(self, w: V, index: V | int) -> V:
        return self.f.splat(self.f.load(self.f.gep(w, index, self.p.elem), self.p.elem), self.lanes)

    def multiply_add(self, factor: V, value: V, total: V) -> V:
        """total + factor * value. Integers (i32) are of 16 bits: a product of pairs whose other half is 0 multiplies them where the
        target has one."""
        f = self.f
        if total.is_float:
            return f.fma(factor, value, total)
        if not f.target.pair_products or self.lanes < self.p.lanes:
            return f.add(total, f.mul(factor, value))
        return add_pair_products(f, f.and_(factor, 0xFFFF), value, total)

    def line(self, plane: V, offset: V | int, column: V) -> V:
        """Address of `column` in the row `offset` below the first window's start; of zeros outside of the image."""
        f = self.f
        y = f.add(self.y0, offset)
        inside = f.gep(plane, f.add(f.mul(y, self.geo.sxh), column), self.stored)
        return f.select(f.cmp("ult", y, self.geo.ih), inside, self.zeros)

    def mask(self, column: V, step: int) -> V | None:
        """Lanes inside of the image, for elements from `column` on, `step` apart."""
        f = self.f
        steps = f.dense([i * step for i in range(self.lanes)], I32)
        return f.cmp("ult", f.add(steps, f.splat(f.cast(column, I32), self.lanes)), self.width)

    def unrolled(self, sums: Sequence[V], plane: V, w: V, held: Sequence[V] | None, column: V) -> list[V]:
        """All points of a plane in one straight line of code: each row of the input is loaded once."""
        p = self.p
        out, columns = list(sums), self.columns(column)
        weights = list(held) if held is not None else [None] * (p.kernel[1] * p.row_steps)
        users: dict[int, list[tuple[int, int]]] = {}
        for r in range(self.rows):
            for k in range(p.kernel[1]):
                users.setdefault(r * p.stride[1] + k * p.dilation[1], []).append((r, k))
        crowded = len(users) * len(columns.masks) + len(out) + (p.window_steps if held is not None else 0) > p.spec.target.registers
        for offset in sorted(users):
            values = columns.load(self.line(plane, offset, column))
            for kx, value in enumerate(values):
                for r, ky in users[offset]:
                    number = ky * p.row_steps + kx
                    factor = weights[number] or self.weight(w, number)
                    at = number % self.chains * self.rows + r
                    out[at] = self.multiply_add(factor, value, out[at])
            for r in {r for r, _ in users[offset]} if crowded else ():
                out[r] = self.fence(out[r])
            for r in [r for r in range(self.rows) if r * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] == offset]:
                self.finished(out, r)
        return out

    def finished(self, sums: Sequence[V], row: int) -> None:
        """Called when a row's sums are complete in a straight line of code."""

    def fence(self, x: V) -> V:
        """Keeps a row's sums before the next row's loads: LLVM would load all rows first, and spill."""
        register = self.f.target.constraint
        return self.f.op(
            x.type, f'llvm.inline_asm has_side_effects "", "={register},0,~{{memory}}" {x.name} : ({x.type}) -> {x.type}'
        )

    def looped(self, sums: Sequence[V], plane: V, w: V, _: Sequence[V] | None, column: V) -> list[V]:
        """Kernel rows in a loop, and columns too if many."""
        f, p = self.f, self.p
        few = p.row_steps <= _LINE
        columns = self.columns(column) if few else None

        def add(out: list[V], r: int, kx: V | int, factor: V, value: V) -> None:
            at = (kx % self.chains if isinstance(kx, int) else 0) * self.rows + r
            out[at] = self.multiply_add(factor, value, out[at])

        with f.loop(0, p.kernel[1], 1, sums) as ly:
            out, base = list(ly.carried), f.mul(ly.iv, p.row_steps)
            lines = [self.line(plane, f.add(f.mul(ly.iv, p.dilation[1]), r * p.stride[1]), column) for r in range(self.rows)]
            if columns is not None:
                values = [columns.load(line) for line in lines]
                for kx in range(p.row_steps):
                    factor = self.weight(w, f.add(base, kx))
                    for r in range(self.rows):
                        add(out, r, kx, factor, values[r][kx])
            else:
                with f.loop(0, p.kernel[2], 1, out) as lx:
                    out, shift = list(lx.carried), f.mul(lx.iv, p.dilation[2])
                    one = Columns(self, f.add(column, shift), 1)
                    factor = self.weight(w, f.add(base, lx.iv))
                    for r in range(self.rows):
                        add(out, r, lx.iv, factor, one.load(f.gep(lines[r], shift, self.stored))[0])
                    lx.yield_(*out)
                out = lx.results
            ly.yield_(*out)
        return ly.results


class PaddedRows(Rows):
    """Emits `rows(x, w, ldx, out, ld, count)`: as `Rows`, from a copy of the input in which the first output's window starts at
    `x`, rows are `ldx` apart and every window holds zeros where it leaves the image.

    Rows of outputs are stored as soon as they are complete, so that few sums are live at a time.
    """

    def __init__(self, p: ConvParams, name: str, rows: int, lanes: int) -> None:
        self.p, self.rows, self.lanes = p, rows, lanes
        args = [("x", PTR), ("w", PTR), ("ldx", I64), ("out", PTR), ("ld", I64), ("count", I64)]
        self.f = f = Fn(p.module, name, args, noinline=True)
        self.x, self.w, self.ldx, self.out, self.ld, self.count = f.args
        self.bounds, self.stored = None, p.elem
        self.zero = f.const(0.0, vec(p.elem, lanes))
        self.chains = max(1, min(_CHAINS // rows, p.window_steps))

    def emit(self) -> str:
        f, p = self.f, self.p
        held = [self.weight(self.w, i) for i in range(p.window_steps)] if p.window_steps <= HELD else None
        vectors = f.ceildivu(self.count, self.lanes)
        with f.loop(0, vectors) as lp:  # in the order of `Rows`
            self.at = f.mul(f.sub(f.sub(vectors, 1), lp.iv), self.lanes)
            sums, column = self.start(), f.mul(self.at, p.stride[2])
            if p.window_steps <= _UNROLL:
                self.unrolled(sums, self.x, self.w, held, column)
            else:
                sums = self.looped(sums, self.x, self.w, None, column)
                for r in range(self.rows):
                    self.store(sums, r, self.at)
        f.done()
        return f.name

    def finished(self, sums: Sequence[V], row: int) -> None:
        self.store(sums, row, self.at)

    def line(self, plane: V, offset: V | int, column: V) -> V:
        return self.f.gep(plane, self.f.add(self.f.mul(self.ldx, offset), column), self.p.elem)

    def mask(self, column: V, step: int) -> None:
        return None


class Columns:
    """Loads what a vector of outputs needs of a row of the input, for each kernel column; lanes outside are 0."""

    def __init__(self, rows: Rows, column: V, count: int = 0) -> None:
        self.rows, self.step = rows, rows.p.stride[2]
        self.offsets = [k * rows.p.dilation[2] for k in range(count or rows.p.kernel[2])]
        f, lanes = rows.f, rows.lanes
        # Stride 2 loads two vectors, whose even and odd elements may both be needed.
        starts = {k // 2 * 2 + half for k in self.offsets for half in (0, lanes)} if self.step == 2 else set(self.offsets)
        unit = 1 if self.step == 2 else self.step
        self.masks = {s: rows.mask(f.add(column, s), unit) for s in sorted(starts)}

    def load(self, line: V) -> list[V]:
        """`line` is where the first kernel column's first lane lies."""
        rows, f, lanes = self.rows, self.rows.f, self.rows.lanes
        read = rows.p if rows.stored == rows.p.stored else replace(rows.p, image="")  # from a copy
        step = self.step if self.step > 2 else 1
        loaded = {
            start: load_elements(f, read, f.gep(line, start, rows.stored), lanes, step=step, mask=mask, bounds=rows.bounds)
            for start, mask in self.masks.items()
        }
        if self.step != 2:
            return [loaded[k] for k in self.offsets]
        even = {s: (loaded[s], loaded[s + lanes]) for s in {k // 2 * 2 for k in self.offsets}}
        return [f.shuffle(*even[k // 2 * 2], range(k % 2, 2 * lanes, 2)) for k in self.offsets]
