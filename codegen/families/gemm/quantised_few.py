"""The kernel of few rows times panels of codes: rows are prepared in scratch, then multiplied pass by pass with each panel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dhlo.codegen.families.blocks import Blocks
from dhlo.codegen.families.gemm.plan import RowSplit
from dhlo.codegen.families.gemm.quantised import COLUMNS, Coding, Form
from dhlo.codegen.families.gemm.quantised_bytes import emit_round_row
from dhlo.codegen.families.gemm.quantised_dots import INFO_BYTES, LIMBS, dot_bias, dot_rows, emit_dot_kernel, has_dots
from dhlo.codegen.families.gemm.quantised_outliers import emit_limbs, emit_outliers, list_bytes
from dhlo.codegen.families.gemm.quantised_rows import emit_row_kernel, emit_tame_row, emit_widen_row, most_part_rows, most_rows
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.target import Target

__all__ = ["ROW_GAP", "emit_few", "most_pass_rows"]

ROW_GAP: Final = 16
"""Elements between prepared rows: a line, so that rows of powers of two don't all lie in one set of the first-level cache."""

# Of two vectors of columns each: their sums cover the latency of multiply-adds.
_LEAST_HEIGHT: Final = 4


def most_pass_rows(target: Target, form: Form) -> int:
    """Rows of a pass over a panel of codes."""
    return dot_rows(target) if has_dots(target, form) else most_part_rows(target, form)


def _emit_table(module: KernelModule, coding: Coding) -> tuple[str, int]:
    """A table of kernels for 1, 2, ... rows, and how many."""
    rows = most_pass_rows(module.target, coding.form)
    dots = has_dots(module.target, coding.form)
    name = f"coded_table_{coding.name}"
    if name not in module.globals:
        emit = emit_dot_kernel if dots else emit_row_kernel
        module.add_pointers(name, [emit(module, coding, r + 1) for r in range(rows)])
    return name, rows


def emit_few(module: KernelModule, elem: str, coding: Coding, *, rounded: bool = False) -> str:
    """Emits the kernel `matmul_coded_{coding}_{elem}`; its items are (batch, column panel). Returns its symbol. Rows are `rounded`
    to int8 first, block by block, for targets that don't multiply bytes."""
    name = f"matmul_coded_{coding.name}_{elem}{'_rounded' if rounded else ''}"
    if name in module.functions:
        return name
    fn = kernel_fn(module, name)
    a, a0, a1, sm, sk, b, b0, b1, m, n, k, batch1, groups, units, block, most_out, per, ahead, epilogue, eargs, kept = load_args(
        fn, [PTR, *[I64] * 4, PTR, *[I64] * 12, PTR, PTR, PTR]
    )
    *_, tile = fn.args
    dots = has_dots(module.target, coding.form)
    table, most = _emit_table(module, coding)
    kernels, passes = fn.address_of(table), fn.ceildivu(m, most)
    split = _passes(fn, m, most, dots=dots)
    capacity = fn.min(m, fn.mul(per, most))
    rows = _Rows(fn, coding, fn.gep(tile, most * COLUMNS, F32), capacity, k, groups, units, block, ahead, most_out, rounded)
    panel_bytes = fn.mul(groups, fn.add(fn.mul(units, coding.form.bytes), coding.header_bytes))
    panels = fn.max(fn.ceildivu(n, COLUMNS), 1)
    runs = fn.divu(fn.add(passes, fn.sub(per, 1)), per)
    with Blocks(fn, kept).in_rounds(panels, runs) as (batch, run, lo, hi, other):
        i0, i1 = fn.divu(batch, batch1), fn.remu(batch, batch1)
        b_at = fn.gep(b, fn.add(fn.mul(i0, b0), fn.mul(i1, b1)), I8)
        p0 = fn.mul(run, per)
        p1 = fn.min(fn.add(p0, per), passes)
        row0, after = (split.panel(p)[0] for p in (p0, p1))
        a_at = fn.gep(a, fn.add(fn.add(fn.mul(i0, a0), fn.mul(i1, a1)), fn.mul(row0, sm)), elem)
        with fn.when(other):
            rows.widen(elem, a_at, sm, sk, fn.sub(after, row0))
            with fn.loop(p0, p1) as i:
                first, mr = split.panel(i.iv)
                rows.prepare(fn.sub(first, row0), mr)
        with fn.loop(lo, hi) as p:
            panel, n0 = fn.gep(b_at, fn.mul(p.iv, panel_bytes), I8), fn.mul(p.iv, COLUMNS)
            width = fn.min(fn.sub(n, n0), COLUMNS)

            def finish(first: V, mr: V, batch: V = batch, n0: V = n0, width: V = width) -> None:
                fn.call_ptr(epilogue, [eargs, tile, fn.i64(COLUMNS), batch, first, n0, mr, width])

            with fn.loop(p0, p1) as i:
                first, mr = split.panel(i.iv)
                at = fn.sub(first, row0)

                def whole(first: V = first, at: V = at, mr: V = mr, panel: V = panel) -> list[V]:
                    kernel = fn.load(fn.gep(kernels, fn.sub(mr, 1), PTR), PTR)
                    fn.call_ptr(kernel, rows.arguments(at, panel, tile, dots=dots))
                    if dots:
                        rows.add_outliers(at, mr, panel, tile)
                    finish(first, mr)
                    return []

                def in_f32(first: V = first, at: V = at, mr: V = mr, panel: V = panel) -> list[V]:
                    for start, end, size in _powers(fn, mr, most_rows(module.target)):
                        with fn.loop(start, end, size) as r:
                            row = fn.add(at, r.iv)
                            fn.call(emit_row_kernel(module, coding, size), rows.arguments(row, panel, tile, dots=False))
                            finish(fn.add(first, r.iv), fn.i64(size))
                    return []

                if dots:
                    fn.if_else(rows.has_limbs(at), whole, in_f32, [])
                else:
                    whole()
    fn.done()
    return name


def _powers(fn: Fn, count: V, most: int) -> list[tuple[V, V, int]]:
    """`count` rows in runs of powers of two: where those of a height begin and end. The greatest height, up to `most`, repeats."""
    greatest = 1 << most.bit_length() - 1
    start, out, size = fn.i64(0), [], greatest
    while size:
        end = fn.and_(count, -size)
        out.append((start, end, size))
        start, size = end, size // 2
    return out


class _LeastHeight:
    """M rows in panels of equal height but for the last; where there are several, of no fewer rows than hide the latency of
    multiply-adds."""

    def __init__(self, fn: Fn, m: V, most: int) -> None:
        self.fn, self.size = fn, m
        panels = fn.max(fn.ceildivu(m, most), 1)
        self.height = fn.max(fn.divu(fn.add(m, fn.sub(panels, 1)), panels), min(most, _LEAST_HEIGHT))

    def panel(self, i: V) -> tuple[V, V]:
        """First row and number of rows of a panel; from the one after the last on the rows' end."""
        fn = self.fn
        first = fn.min(fn.mul(i, self.height), self.size)
        return first, fn.min(fn.sub(self.size, first), self.height)


def _passes(fn: Fn, m: V, most: int, *, dots: bool) -> RowSplit | _LeastHeight:
    """The rows of each pass over a panel."""
    if dots or fn.target.repeats_memory:
        return RowSplit(fn, m, fn.i64(1), fn.i64(0), most)
    return _LeastHeight(fn, m, most)


@dataclass(frozen=True)
class _Rows:
    """Rows of A in scratch, m at most, from `memory` on: f32, filled up to whole units of k; a factor of each one's products;
    whether the rows of a pass have limbs (2 where some have outliers, too); limbs; lists of outliers."""

    fn: Fn
    coding: Coding
    memory: V
    m: V
    k: V
    groups: V
    units: V
    block: V  # units of a block of limbs
    ahead: V  # how many bytes ahead codes are prefetched
    most_outliers: V  # of a row
    rounded: bool  # to int8

    def __post_init__(self) -> None:
        """What all loops use is computed before them."""
        _ = self.ups, self.limbs, self.blocks, self.ld, self.lists, self.list_bytes

    @cached_property
    def group(self) -> V:
        return self.fn.mul(self.units, self.coding.form.depth)

    @cached_property
    def padded(self) -> V:
        return self.fn.mul(self.groups, self.group)

    @cached_property
    def pitch(self) -> V:
        """Elements from row to row."""
        return self.fn.add(self.padded, ROW_GAP)

    @cached_property
    def blocks(self) -> V:
        """Of a group."""
        fn = self.fn
        return fn.divu(fn.add(self.units, fn.sub(self.block, 1)), self.block)

    @cached_property
    def ups(self) -> V:
        return self.fn.gep(self.memory, self.fn.mul(self.m, self.pitch), F32)

    @cached_property
    def flags(self) -> V:
        return self.fn.gep(self.ups, self.m, F32)

    @cached_property
    def limbs(self) -> V:
        return self.fn.gep(self.flags, self.m, I32)

    @cached_property
    def ld(self) -> V:
        """Bytes of the limbs of a row and of what is known of its blocks."""
        fn = self.fn
        return fn.add(fn.mul(self.padded, LIMBS), fn.mul(fn.mul(self.groups, self.blocks), INFO_BYTES))

    @cached_property
    def lists(self) -> V:
        return self.fn.gep(self.limbs, self.fn.mul(self.m, self.ld), I8)

    @cached_property
    def list_bytes(self) -> V:
        return list_bytes(self.fn, self.most_outliers)

    def outliers(self, i: V) -> V:
        """The list of a row."""
        return self.fn.gep(self.lists, self.fn.mul(i, self.list_bytes), I8)

    def row(self, i: V) -> V:
        return self.fn.gep(self.memory, self.fn.mul(i, self.pitch), F32)

    def widen(self, elem: str, a: V, sm: V, sk: V, count: V) -> None:
        """Copies `count` rows at `a`."""
        fn, padded = self.fn, self.padded  # computed before the loop
        widen = emit_widen_row(fn.module, elem)
        with fn.loop(0, count) as i:
            fn.call(widen, [fn.gep(a, fn.mul(i.iv, sm), elem), sk, self.k, padded, self.row(i.iv)])

    def prepare(self, first: V, count: V) -> None:
        """Makes what the kernels for these rows read: limbs, if all rows have them."""
        fn = self.fn
        if not has_dots(fn.target, self.coding.form):
            self._tame(first, count)
            return
        flag = self._split(first, count)
        fn.store(flag, fn.gep(self.flags, first, I32))
        with fn.when(fn.cmp("eq", flag, 0)):
            self._tame(first, count)

    def has_limbs(self, first: V) -> V:
        """Whether the rows of a pass that begins there have."""
        return self.fn.cmp("ne", self.fn.load(self.fn.gep(self.flags, first, I32), I32), 0)

    def _tame(self, first: V, count: V) -> None:
        """Prepares products in f32."""
        fn, padded, ups = self.fn, self.padded, self.ups
        tame = emit_tame_row(fn.module)
        group, block = self.group, fn.mul(self.block, self.coding.form.depth)
        with fn.loop(first, fn.add(first, count)) as i:
            if self.rounded:
                fn.call(emit_round_row(fn.module), [self.row(i.iv), self.groups, group, block])
            fn.call(tame, [self.row(i.iv), padded, fn.gep(ups, i.iv, F32)])

    def add_outliers(self, first: V, count: V, panel: V, tile: V) -> None:
        """Adds the products of outliers to a finished tile of limbs' products."""
        fn = self.fn
        kernel = emit_outliers(fn.module, self.coding)
        with (
            fn.when(fn.cmp("gt", fn.load(fn.gep(self.flags, first, I32), I32), 1)),
            fn.loop(0, count) as r,
        ):
            fn.call(kernel, [self.outliers(fn.add(first, r.iv)), panel, self.units, fn.gep(tile, fn.mul(r.iv, COLUMNS), F32)])

    def _split(self, first: V, count: V) -> V:
        """Makes limbs; gives the rows' flag."""
        fn, depth = self.fn, self.coding.form.depth
        emit, less = emit_limbs(fn.module), fn.const(-dot_bias(fn.target, self.coding.form), I32)
        group, padded, blocks, limbs, ld = self.group, self.padded, self.blocks, self.limbs, self.ld
        one, most = fn.const(1, I32), fn.cast(self.most_outliers, I32)
        with fn.loop(first, fn.add(first, count), 1, [one, fn.const(0, I32)]) as i:
            row, to, found = self.row(i.iv), fn.gep(limbs, fn.mul(i.iv, ld), I8), self.outliers(i.iv)
            info = fn.gep(to, fn.mul(padded, LIMBS), I8)
            fn.store(fn.const(0, I32), found)
            with fn.loop(0, fn.mul(self.groups, blocks), 1, [i.carried[0]]) as b:
                in_group = fn.mul(fn.remu(b.iv, blocks), self.block)
                start = fn.add(fn.mul(fn.divu(b.iv, blocks), group), fn.mul(in_group, depth))
                size = fn.mul(fn.min(fn.sub(self.units, in_group), self.block), depth)
                at = fn.gep(info, fn.mul(b.iv, INFO_BYTES), I8)
                of = [
                    fn.gep(row, start, F32),
                    size,
                    fn.gep(to, fn.mul(start, LIMBS), I8),
                    at,
                    less,
                    fn.cast(start, I32),
                    found,
                    most,
                ]
                ok = fn.call(emit, of, I32)
                assert ok is not None
                b.yield_(fn.and_(b.carried[0], ok))
            i.yield_(b.results[0], fn.or_(i.carried[1], fn.load(found, I32)))
        ok, outliers = i.results
        return fn.select(fn.cmp("eq", ok, 0), fn.const(0, I32), fn.select(fn.cmp("ne", outliers, 0), fn.const(2, I32), one))

    def arguments(self, first: V, panel: V, tile: V, *, dots: bool) -> list[V]:
        """Of a kernel for some rows."""
        fn = self.fn
        if not dots:
            return [self.row(first), self.pitch, fn.gep(self.ups, first, F32), panel, self.groups, self.units, tile, self.ahead]
        limbs = fn.gep(self.limbs, fn.mul(first, self.ld), I8)
        info = fn.gep(limbs, fn.mul(self.padded, LIMBS), I8)
        return [limbs, info, self.ld, panel, self.groups, self.units, self.block, tile, self.ahead]
