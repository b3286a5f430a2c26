"""Products of rows that are rounded to int8 as they are read (dynamic quantisation) with panels of codes, by integer dot products.

The rows of a pass over a panel lie together: rows[k / 4][row][k % 4] are bytes, info[block][row] what is known of a block of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dhlo.codegen.families.blocks import Blocks
from dhlo.codegen.families.gemm.plan import RowSplit
from dhlo.codegen.families.gemm.quantised import COLUMNS, Coding, Form
from dhlo.codegen.families.gemm.quantised_dots import DotPass, dot_bias
from dhlo.codegen.families.gemm.quantised_rows import emit_widen_row
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.target import Target

__all__ = ["BYTE_INFO", "byte_rows", "emit_byte_rows", "emit_round_row"]

BYTE_INFO: Final = 12
"""Bytes of what is known of a block: what its integers are multiplied by, their sum as f32, and what sums with codes begin with."""

_MOST: Final = 127.0
_LEAST: Final = 2.0**-100
"""Blocks whose largest element is smaller are rounded as if it were this: so much over `_MOST` is a normal number, with a finite
inverse."""
_INFINITE: Final = 0x7F800000
# Registers of codes, of what becomes of them and of masks.
_SPARE: Final = 8


def byte_rows(target: Target, form: Form) -> int:
    """Rows of a pass over a vector of columns: each has a sum in a register. Nibbles are given more registers: with 22 rows their
    products ran at 0.87 of the rate that 16 rows reach (Zen 5)."""
    return target.registers // 2 if form.nibbles else max(1, target.registers - _SPARE)


@dataclass(frozen=True)
class _Scaled:
    """By what the numbers of a block are multiplied to be integers, and these to be numbers (NaN where one isn't finite)."""

    up: V
    down: V


def _scales(fn: Fn, x: V, size: V) -> _Scaled:
    """Of the `size` numbers at x, a multiple of 4."""
    main = fn.mul(fn.divu(size, fn.lanes), fn.lanes)
    with fn.loop(0, main, fn.lanes, [fn.const(0, fn.vec(I32))]) as loop:
        loop.yield_(fn.max(loop.carried[0], _magnitude(fn, x, loop.iv, fn.lanes)))
    with fn.loop(main, size, 4, [fn.const(0, vec(I32, 4))]) as rest:
        rest.yield_(fn.max(rest.carried[0], _magnitude(fn, x, rest.iv, 4)))
    bits = fn.max(fn.reduce("maxsi", loop.results[0]), fn.reduce("maxsi", rest.results[0]))
    finite = fn.cmp("lt", bits, _INFINITE)
    largest = fn.maxnum(fn.bitcast(fn.select(finite, bits, 0), F32), fn.const(_LEAST, F32))
    most = fn.const(_MOST, F32)
    return _Scaled(
        fn.select(finite, fn.div(most, largest), fn.const(0.0, F32)),
        fn.select(finite, fn.div(largest, most), fn.bitcast(fn.const(0x7FC00000, I32), F32)),
    )


def _magnitude(fn: Fn, x: V, k: V, lanes: int) -> V:
    return fn.and_(fn.load(fn.gep(x, k, F32), vec(I32, lanes)), 0x7FFFFFFF)


def _rounded(fn: Fn, x: V, k: V, lanes: int, up: V) -> V:
    """Numbers as integers; 0 for what isn't finite."""
    raw = fn.load(fn.gep(x, k, F32), vec(I32, lanes))
    known = fn.select(fn.cmp("lt", fn.and_(raw, 0x7FFFFFFF), _INFINITE), raw, 0)
    return fn.unary("roundeven", fn.mul(fn.bitcast(known, F32), fn.splat(up, lanes)))


def _emit_to_bytes(module: KernelModule, *, rounds: bool) -> str:
    """Emits `block_to_bytes(x, size, dst, pitch, info, weight)` once: rounds the `size` numbers of a block at x, a multiple of 4,
    to int8, four of them at every `pitch` bytes from dst on, and writes `info`, whose last entry is `weight` times their sum. Where
    it doesn't round, they are such integers."""
    name = f"block_to_bytes{'' if rounds else '_as_given'}"
    if name in module.functions:
        return name
    names = [("x", PTR), ("size", I64), ("dst", PTR), ("pitch", I64), ("info", PTR), ("weight", I32)]
    fn = Fn(module, name, names, noinline=True)
    x, size, dst, pitch, info, weight = fn.args
    one = fn.const(1.0, F32)
    scaled = _scales(fn, x, size) if rounds else _Scaled(one, one)

    def write(k: V, lanes: int, total: V) -> V:
        q = fn.cast(_rounded(fn, x, k, lanes, scaled.up), I32)
        narrow = fn.cast(q, I8)
        ty = vec(I32, lanes // 4)
        four = fn.op(ty, f"vector.bitcast {narrow.name} : {narrow.type} to {ty}")
        for i in range(lanes // 4):
            at = fn.add(fn.divu(k, 4), i)
            fn.store(fn.extract(four, i), fn.gep(dst, fn.mul(at, pitch), I8), 1)
        return fn.add(total, q)

    main = fn.mul(fn.divu(size, fn.lanes), fn.lanes)
    with fn.loop(0, main, fn.lanes, [fn.const(0, fn.vec(I32))]) as loop:
        loop.yield_(write(loop.iv, fn.lanes, loop.carried[0]))
    with fn.loop(main, size, 4, [fn.const(0, vec(I32, 4))]) as rest:
        rest.yield_(write(rest.iv, 4, rest.carried[0]))
    total = fn.add(fn.reduce("add", loop.results[0]), fn.reduce("add", rest.results[0]))
    fn.store(scaled.down, info)
    fn.store(fn.cast(total, F32), fn.gep(info, 4, I8))
    fn.store(fn.mul(total, weight), fn.gep(info, 8, I8))
    fn.done()
    return name


def emit_round_row(module: KernelModule) -> str:
    """Emits `round_row(x, groups, group, block)` once: rounds each block of a row in place to the numbers that its int8 integers
    stand for, where there is no instruction that multiplies these. Groups are of a multiple of 4, blocks as well."""
    name = "round_row"
    if name in module.functions:
        return name
    fn = Fn(module, name, [("x", PTR), ("groups", I64), ("group", I64), ("block", I64)], noinline=True)
    x, groups, group, block = fn.args
    with fn.loop(0, groups) as g, fn.loop(0, group, block) as b:
        at = fn.gep(x, fn.add(fn.mul(g.iv, group), b.iv), F32)
        size = fn.min(fn.sub(group, b.iv), block)
        scaled = _scales(fn, at, size)
        with fn.loop(0, size, 4) as k:
            q = _rounded(fn, at, k.iv, 4, scaled.up)
            fn.store(fn.mul(q, fn.splat(scaled.down, 4)), fn.gep(at, k.iv, F32))
    fn.done()
    return name


class _BytePass(DotPass):
    """Of rows of int8 that lie together."""

    def __init__(self, fn: Fn, coding: Coding, rows: int, columns: range, lanes: int) -> None:
        super().__init__(fn, coding, rows, columns, lanes, 1)
        self.rows_at, self.info, self.panel, self.groups, self.units, self.block, self.tile, self.ahead = fn.args

    def starts(self, k0: V) -> list[V]:
        return [self.fn.gep(self.rows_at, self.fn.mul(k0, self.rows), I8)] * self.rows

    def word(self, q: int, r: int, limb: int) -> int:
        return 4 * (q * self.rows + r)

    @property
    def step_bytes(self) -> int:
        return self.rows

    def infos(self, block: V) -> list[V]:
        fn = self.fn
        first = fn.gep(self.info, fn.mul(block, BYTE_INFO * self.rows), I8)
        return [fn.gep(first, BYTE_INFO * r, I8) for r in range(self.rows)]


def _emit_kernel(module: KernelModule, coding: Coding, rows: int) -> str:
    """Emits `coded_bytes_{coding}_{rows}(rows, info, panel, groups, units, block, tile, ahead)` once and returns its symbol.

    tile[rows][32] = A times the panel's columns, which are prefetched `ahead` bytes ahead. A group has `units`, a block `block` of
    them.
    """
    name = f"coded_bytes_{coding.name}_{rows}"
    if name in module.functions:
        return name
    names = [("rows", PTR), ("info", PTR), ("panel", PTR), ("groups", I64), ("units", I64), ("block", I64)]
    fn = Fn(module, name, [*names, ("tile", PTR), ("ahead", I64)], noinline=True)
    vectors = COLUMNS // fn.lanes
    nv = vectors
    while nv > 1 and rows * nv > fn.target.registers - 3 * nv - 2:
        nv //= 2
    for first in range(0, vectors, nv):
        _BytePass(fn, coding, rows, range(first, first + nv), fn.lanes).emit(fetch=first == 0)
    fn.done()
    return name


def _emit_table(module: KernelModule, coding: Coding) -> str:
    """A table of kernels for 1, 2, ... rows."""
    name = f"coded_bytes_table_{coding.name}"
    if name not in module.globals:
        module.add_pointers(name, [_emit_kernel(module, coding, r + 1) for r in range(byte_rows(module.target, coding.form))])
    return name


def emit_byte_rows(module: KernelModule, elem: str, coding: Coding) -> str:
    """Emits the kernel `matmul_bytes_{coding}_{elem}`; its items are (batch, column panel). Returns its symbol.

    Scratch holds a tile, a row of A as f32, and the passes that it makes at a time (`per`), each as bytes and what is known of
    their blocks.
    """
    name = f"matmul_bytes_{coding.name}_{elem}"
    if name in module.functions:
        return name
    fn = kernel_fn(module, name)
    a, a0, a1, sm, sk, b, b0, b1, m, n, k, batch1, groups, units, block, per, ahead, epilogue, eargs, kept = load_args(
        fn, [PTR, *[I64] * 4, PTR, *[I64] * 11, PTR, PTR, PTR]
    )
    *_, tile = fn.args
    most = byte_rows(module.target, coding.form)
    kernels, passes = fn.address_of(_emit_table(module, coding)), fn.ceildivu(m, most)
    split = RowSplit(fn, m, fn.i64(1), fn.i64(0), most)
    rows = _Rows(fn, coding, fn.gep(tile, most * COLUMNS, F32), k, groups, units, block)
    _ = rows.padded, rows.pass_bytes  # computed before the loops
    panel_bytes = fn.mul(groups, fn.add(fn.mul(units, coding.form.bytes), coding.header_bytes))
    panels = fn.max(fn.ceildivu(n, COLUMNS), 1)
    runs = fn.divu(fn.add(passes, fn.sub(per, 1)), per)
    with Blocks(fn, kept).in_rounds(panels, runs) as (batch, run, lo, hi, other):
        i0, i1 = fn.divu(batch, batch1), fn.remu(batch, batch1)
        a_at = fn.gep(a, fn.add(fn.mul(i0, a0), fn.mul(i1, a1)), elem)
        b_at = fn.gep(b, fn.add(fn.mul(i0, b0), fn.mul(i1, b1)), I8)
        p0 = fn.mul(run, per)
        p1 = fn.min(fn.add(p0, per), passes)
        with fn.when(other), fn.loop(p0, p1) as i:
            first, mr = split.panel(i.iv)
            rows.prepare(fn.sub(i.iv, p0), mr, elem, fn.gep(a_at, fn.mul(first, sm), elem), sm, sk)
        with fn.loop(lo, hi) as p:
            panel, n0 = fn.gep(b_at, fn.mul(p.iv, panel_bytes), I8), fn.mul(p.iv, COLUMNS)
            width = fn.min(fn.sub(n, n0), COLUMNS)
            with fn.loop(p0, p1) as i:
                first, mr = split.panel(i.iv)
                kernel = fn.load(fn.gep(kernels, fn.sub(mr, 1), PTR), PTR)
                at, info = rows.of_pass(fn.sub(i.iv, p0), mr)
                fn.call_ptr(kernel, [at, info, panel, groups, units, block, tile, ahead])
                fn.call_ptr(epilogue, [eargs, tile, fn.i64(COLUMNS), batch, first, n0, mr, width])
    fn.done()
    return name


class _Rows:
    """The rows of some passes in scratch, from `memory` on."""

    def __init__(self, fn: Fn, coding: Coding, memory: V, k: V, groups: V, units: V, block: V) -> None:
        self.fn, self.coding, self.k, self.groups, self.units, self.block = fn, coding, k, groups, units, block
        self.group = fn.mul(units, coding.form.depth)
        self.padded = fn.mul(groups, self.group)
        self.blocks = fn.divu(fn.add(units, fn.sub(block, 1)), block)  # of a group
        self.row = memory
        self.passes = fn.gep(memory, self.padded, F32)
        row_bytes = fn.add(self.padded, fn.mul(fn.mul(groups, self.blocks), BYTE_INFO))
        self.pass_bytes = fn.mul(row_bytes, byte_rows(fn.target, coding.form))

    def of_pass(self, i: V, mr: V) -> tuple[V, V]:
        """Where the bytes of a pass of `mr` rows are, and what is known of their blocks."""
        fn = self.fn
        at = fn.gep(self.passes, fn.mul(i, self.pass_bytes), I8)
        return at, fn.gep(at, fn.mul(self.padded, mr), I8)

    def prepare(self, i: V, mr: V, elem: str, a: V, sm: V, sk: V) -> None:
        """Makes the bytes of a pass of the `mr` rows at `a`."""
        fn, depth = self.fn, self.coding.form.depth
        widen, to_bytes = emit_widen_row(fn.module, elem), _emit_to_bytes(fn.module, rounds=elem != I8)
        less = fn.const(-dot_bias(fn.target, self.coding.form), I32)
        at, info = self.of_pass(i, mr)
        pitch = fn.mul(mr, 4)
        with fn.loop(0, mr) as r:
            fn.call(widen, [fn.gep(a, fn.mul(r.iv, sm), elem), sk, self.k, self.padded, self.row])
            with fn.loop(0, fn.mul(self.groups, self.blocks)) as b:
                in_group = fn.mul(fn.remu(b.iv, self.blocks), self.block)
                start = fn.add(fn.mul(fn.divu(b.iv, self.blocks), self.group), fn.mul(in_group, depth))
                size = fn.mul(fn.min(fn.sub(self.units, in_group), self.block), depth)
                to = fn.gep(at, fn.add(fn.mul(start, mr), fn.mul(r.iv, 4)), I8)
                about = fn.gep(info, fn.mul(fn.add(fn.mul(b.iv, mr), r.iv), BYTE_INFO), I8)
                fn.call(to_bytes, [fn.gep(self.row, start, F32), size, to, pitch, about, less])
