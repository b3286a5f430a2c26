"""Direct convolution for one input channel a group: tiles of a few output rows by a vector of columns, in registers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from dhlo.codegen.families.conv.image import load_elements
from dhlo.codegen.families.conv.pack import CACHE_LINE, load_bounds, load_geometry
from dhlo.codegen.families.conv.padded import emit_pad_rows
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.kernel_ir.builder import I32, I64, PTR, Fn, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn

__all__ = ["COLUMNS", "TILE", "depthwise_scratch_bytes", "emit_depthwise_kernel", "tile_rows"]

# Output columns of an item, and the most elements handed to the epilogue at once.
COLUMNS, TILE = 512, 2048
# Kernel points up to which the sum is one straight line of code, and up to which weights stay in registers.
_UNROLL, _HELD = 49, 9
# Rows of a register tile, with weights in registers and without: each row of the input that is loaded serves all output rows
# whose windows hold it.
_ROWS_HELD, _ROWS = 8, 4
# Kernel columns up to which a row of a looped sum is a straight line of code.
_LINE = 16
# The largest copy of an item's input with zeros around it: a part of the second cache.
_PADDED_BYTES = 1 << 18
# Independent sums that cover the latency of a multiply-add.
_CHAINS = 4


def tile_rows(p: ConvParams) -> int:
    """Most output rows of a register tile; one where neighbouring rows share nothing."""
    if p.kernel[1] == 1:
        return 1
    return _ROWS_HELD if p.points <= _HELD else _ROWS


def _zeros(p: ConvParams) -> int:
    """Elements read at once from a row of the input: as many zeros stand in for rows outside of the image."""
    return (p.kernel[2] - 1) * p.dilation[2] + p.lanes * max(p.stride[2], 2) + 1


def _window(p: ConvParams, d: int, outputs: V | int, f: Fn) -> V:
    """Inputs in dim `d` that the windows of neighbouring outputs span."""
    return f.add(f.mul(f.sub(outputs, 1), p.stride[d]), (p.kernel[d] - 1) * p.dilation[d] + 1)


def _padded_elements(p: ConvParams) -> int:
    """Elements of the copy of a register tile's input, and what whole vectors read and write past it."""
    rows, columns = ((n - 1) * p.stride[d] + (p.kernel[d] - 1) * p.dilation[d] + 1 for d, n in ((1, tile_rows(p)), (2, COLUMNS)))
    return rows * (columns + p.lanes) + 2 * p.lanes * (p.stride[2] + 1)


def _padded(p: ConvParams) -> bool:
    """Whether tiles read a copy of their input with zeros around it, rather than masked vectors of the input itself: where masks
    would take registers from sums and weights."""
    fits = _padded_elements(p) * p.bytes <= _PADDED_BYTES
    return not p.spec.target.mask_registers and p.kernel[0] == 1 and p.stride[2] <= 2 and fits


def depthwise_scratch_bytes(p: ConvParams) -> int:
    """Scratch of a worker: a tile, room for the last vector's tail, and zeros or the copy of the input."""
    return (max(TILE, COLUMNS * tile_rows(p)) + p.lanes + (_padded_elements(p) if _padded(p) else _zeros(p))) * p.bytes


def emit_depthwise_kernel(p: ConvParams) -> str:
    """Emits the kernel; items are (image, output channel, plane, block of `panels` rows, block of COLUMNS), the last fastest.

    `blocks` is the number of row blocks.
    """
    full, half = (_emit_table(p, lanes) for lanes in (p.lanes, p.lanes // 2))
    most, padded = tile_rows(p), _padded(p)
    f = kernel_fn(p.module, f"{p.name}_depthwise")
    args, begin, end, _, tile = f.args
    geo = load_geometry(f, args)
    column_blocks = f.ceildivu(geo.ow, COLUMNS)
    beyond = f.gep(tile, max(TILE, COLUMNS * most) + p.lanes, p.elem)  # zeros, or the copy of the input
    if not padded:
        with f.loop(0, _zeros(p)) as lp:
            f.store(f.const(0.0, p.elem), f.gep(beyond, lp.iv, p.elem))
    with f.loop(begin, end) as items:
        rest, column_block = _split(f, items.iv, column_blocks)
        rest, row_block = _split(f, rest, geo.blocks)
        rest, plane = _split(f, rest, geo.od)
        image, m = _split(f, rest, f.i64(p.out_channels))
        c0 = f.mul(column_block, COLUMNS)
        width = f.min(f.sub(geo.ow, c0), COLUMNS)
        row0 = f.mul(row_block, geo.panels)
        rows = f.min(f.sub(geo.oh, row0), geo.panels)
        x = f.gep(geo.x, f.add(f.mul(image, geo.sxb), f.mul(f.divu(m, p.group_out), geo.sxc)), p.stored)
        w = f.gep(geo.w, f.mul(m, p.points), p.elem)
        z0 = f.sub(f.mul(plane, p.stride[0]), p.padding[0][0])
        # A rest of at most half a vector is computed as that, and first: whole vectors then overwrite what it clobbers.
        rest = f.remu(width, p.lanes)
        narrow = f.select(f.cmp("le", rest, p.lanes // 2), rest, 0)
        parts = ((half, f.sub(width, narrow), narrow), (full, f.i64(0), f.sub(width, narrow)))
        with f.loop(0, rows, most) as lr:
            n = f.sub(f.min(f.sub(rows, lr.iv), most), 1)
            y0 = f.sub(f.mul(f.add(row0, lr.iv), p.stride[1]), p.padding[1][0])
            out = f.gep(tile, f.mul(lr.iv, width), p.elem)
            with f.when(f.cmp("eq", width, geo.ow)):
                offset = f.add(f.mul(z0, geo.sxd), f.mul(f.add(y0, p.kernel[1] + (most - 1) * p.stride[1]), geo.sxh))
                _prefetch(f, f.gep(x, offset, p.stored), f.mul(geo.sxh, most * p.stride[1] * p.stored_bytes))
            if padded:
                x0 = f.sub(f.mul(c0, p.stride[2]), p.padding[2][0])
                columns = _window(p, 2, width, f)
                ldx = f.and_(f.add(columns, p.lanes - 1), -p.lanes)
                height = f.select(f.cmp("ult", z0, geo.id), geo.ih, 0)
                source = f.gep(x, f.mul(z0, geo.sxd), p.stored)
                lines = _window(p, 1, f.add(n, 1), f)
                limits = load_bounds(p, f, args) or ()
                f.call(emit_pad_rows(p), [source, geo.sxh, height, geo.iw, y0, x0, lines, columns, beyond, ldx, *limits])
            for table, first, count in parts:
                if padded:
                    with f.when(f.cmp("gt", count, 0)):
                        compute = f.load(f.gep(f.address_of(table), n, PTR), PTR)
                        source = f.gep(beyond, f.mul(first, p.stride[2]), p.elem)
                        f.call_ptr(compute, [source, w, ldx, f.gep(out, first, p.elem), width, count])
                    continue
                x0 = f.sub(f.mul(f.add(c0, first), p.stride[2]), p.padding[2][0])
                with f.when(f.cmp("gt", count, 0)):
                    compute = f.load(f.gep(f.address_of(table), n, PTR), PTR)
                    f.call_ptr(compute, [args, x, w, beyond, z0, y0, x0, f.gep(out, first, p.elem), width, count])
        row = f.add(f.mul(plane, geo.oh), row0)
        one = f.i64(1)

        def whole() -> list[V]:
            f.call_ptr(geo.epilogue, [geo.eargs, tile, width, image, m, f.mul(row, geo.ow), one, f.mul(rows, width)])
            return []

        def by_row() -> list[V]:
            with f.loop(0, rows) as lr:
                n0 = f.add(f.mul(f.add(row, lr.iv), geo.ow), c0)
                line = f.gep(tile, f.mul(lr.iv, width), p.elem)
                f.call_ptr(geo.epilogue, [geo.eargs, line, width, image, m, n0, one, width])
            return []

        f.if_else(f.cmp("eq", width, geo.ow), whole, by_row, [])
    f.done()
    return f.name


def _prefetch(f: Fn, start: V, size: V) -> None:
    """Fetches the next tile's rows to the second cache in order, so that the hardware goes on: they lie in few pages, in which the
    order of this tile's columns makes no stream."""
    with f.loop(0, size, CACHE_LINE) as lp:
        f.prefetch(f.gep(start, lp.iv, "i8"), 2)


def _split(f: Fn, index: V, size: V) -> tuple[V, V]:
    """Quotient and remainder."""
    q = f.divu(index, size)
    return q, f.sub(index, f.mul(q, size))


def _emit_table(p: ConvParams, lanes: int) -> str:
    """A constant table of the functions for 1 to `tile_rows` rows; convolutions of equal windows share it."""
    key = hashlib.sha256(repr((p.elem, p.kernel, p.stride[1:], p.dilation, lanes)).encode()).hexdigest()[:8]
    narrow = f"_{p.image}" if p.image and not _padded(p) else ""
    name = f"conv_rows_{p.elem}_{lanes}_{key}{narrow}"
    if name not in p.module.globals:
        rows = _PaddedRows if _padded(p) else _Rows
        symbols = [rows(p, f"{name}_{n}", n, lanes).emit() for n in range(1, tile_rows(p) + 1)]
        p.module.add_pointers(name, symbols)
    return name


class _Rows:
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
        self.chains = max(1, min(_CHAINS // rows, p.points))

    def emit(self) -> str:
        f, p = self.f, self.p
        held = [self.weight(self.w, i) for i in range(p.points)] if p.points <= _HELD and p.kernel[0] == 1 else None
        lo, hi = self.planes()
        vectors = f.ceildivu(self.count, self.lanes)
        with f.loop(0, vectors) as lp:  # the last first: each overwrites what the one after it clobbered of the next row
            at = f.mul(f.sub(f.sub(vectors, 1), lp.iv), self.lanes)
            column = f.add(self.x0, f.mul(at, p.stride[2]))
            with f.loop(lo, hi, 1, [self.zero] * (self.rows * self.chains)) as planes:
                plane = f.gep(self.x, f.mul(f.add(self.z0, f.mul(planes.iv, p.dilation[0])), self.geo.sxd), self.stored)
                w = f.gep(self.w, f.mul(planes.iv, p.kernel[1] * p.kernel[2]), p.elem)
                add = self.unrolled if p.points <= _UNROLL else self.looped
                planes.yield_(*add(planes.carried, plane, w, held, column))
            for r in range(self.rows):
                self.store(planes.results, r, at)
        f.done()
        return f.name

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
        f, pairs = self.f, self.f.target.pair_products
        if total.is_float:
            return f.fma(factor, value, total)
        if not pairs or self.lanes < self.p.lanes:
            return f.add(total, f.mul(factor, value))
        wide = vec("i16", 2 * self.lanes)
        x, y = (f.op(wide, f"vector.bitcast {v.name} : {v.type} to {wide}") for v in (f.and_(factor, 0xFFFF), value))
        return f.add(total, f.intrinsic(pairs, total.type, x, y))

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
        out, columns = list(sums), _Columns(self, column)
        weights = list(held) if held is not None else [None] * (p.kernel[1] * p.kernel[2])
        users: dict[int, list[tuple[int, int]]] = {}
        for r in range(self.rows):
            for k in range(p.kernel[1]):
                users.setdefault(r * p.stride[1] + k * p.dilation[1], []).append((r, k))
        crowded = len(users) * len(columns.masks) + len(out) + (p.points if held is not None else 0) > p.spec.target.registers
        for offset in sorted(users):
            values = columns.load(self.line(plane, offset, column))
            for kx, value in enumerate(values):
                for r, ky in users[offset]:
                    number = ky * p.kernel[2] + kx
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
        few = p.kernel[2] <= _LINE
        columns = _Columns(self, column) if few else None

        def add(out: list[V], r: int, kx: V | int, factor: V, value: V) -> None:
            at = (kx % self.chains if isinstance(kx, int) else 0) * self.rows + r
            out[at] = self.multiply_add(factor, value, out[at])

        with f.loop(0, p.kernel[1], 1, sums) as ly:
            out, base = list(ly.carried), f.mul(ly.iv, p.kernel[2])
            lines = [self.line(plane, f.add(f.mul(ly.iv, p.dilation[1]), r * p.stride[1]), column) for r in range(self.rows)]
            if columns is not None:
                values = [columns.load(line) for line in lines]
                for kx in range(p.kernel[2]):
                    factor = self.weight(w, f.add(base, kx))
                    for r in range(self.rows):
                        add(out, r, kx, factor, values[r][kx])
            else:
                with f.loop(0, p.kernel[2], 1, out) as lx:
                    out, shift = list(lx.carried), f.mul(lx.iv, p.dilation[2])
                    one = _Columns(self, f.add(column, shift), 1)
                    factor = self.weight(w, f.add(base, lx.iv))
                    for r in range(self.rows):
                        add(out, r, lx.iv, factor, one.load(f.gep(lines[r], shift, self.stored))[0])
                    lx.yield_(*out)
                out = lx.results
            ly.yield_(*out)
        return ly.results


class _PaddedRows(_Rows):
    """Emits `rows(x, w, ldx, out, ld, count)`: as `_Rows`, from a copy of the input in which the first output's window starts at
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
        self.chains = max(1, min(_CHAINS // rows, p.points))

    def emit(self) -> str:
        f, p = self.f, self.p
        held = [self.weight(self.w, i) for i in range(p.points)] if p.points <= _HELD else None
        vectors = f.ceildivu(self.count, self.lanes)
        with f.loop(0, vectors) as lp:  # in the order of `_Rows`
            self.at = f.mul(f.sub(f.sub(vectors, 1), lp.iv), self.lanes)
            sums, column = [self.zero] * (self.rows * self.chains), f.mul(self.at, p.stride[2])
            if p.points <= _UNROLL:
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


class _Columns:
    """Loads what a vector of outputs needs of a row of the input, for each kernel column; lanes outside are 0."""

    def __init__(self, rows: _Rows, column: V, count: int = 0) -> None:
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
