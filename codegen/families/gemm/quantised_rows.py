"""Products of a few rows with a panel of codes, decoded in registers: f32 multiply-adds, scaled group by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dhlo.codegen.families.gemm.quantised import COLUMNS, Coding, Form
from dhlo.codegen.families.gemm.quantised_decode import emit_unit, parameters, scaled_by
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import Target

__all__ = ["emit_row_kernel", "emit_tame_row", "emit_widen_row", "few_passes", "most_part_rows", "most_rows"]

# Rows of a pass, at most, and where factors come from memory as they are multiplied: each number of rows has a kernel of its own.
_ROWS, _PART_ROWS = 8, 16
# In so many passes over a panel rows decode it themselves; more are better off with a panel in f32. The second where decoding
# whole bytes is hidden behind multiply-adds.
_FEW_PASSES, _WHOLE_BYTES_PASSES = 2, 4
_SPARE, _LEAST_SPARE = 4, 2
# Sums that cover the latency of multiply-adds.
_MIN_SUMS = 8
# Where factors come from memory, nibbles of more rows are taken apart by shifts: shuffles would cost 3 % of the time, and save up
# to a quarter with fewer.
_SHUFFLED_ROWS = 3
# Elements of 2 to this power and more are divided by as much; the bias of f32's exponent.
_TAMED, _BIAS = 64, 127


def most_rows(target: Target) -> int:
    """Rows whose sums over a whole panel leave registers for a unit of codes and what becomes of it."""
    return min(_ROWS, _fit(target, COLUMNS // target.lanes(F32)))


def most_part_rows(target: Target, form: Form) -> int:
    """Rows of a pass over parts of a panel: all of them share what decoding a code takes. Where factors take loads of their own,
    two vectors of columns at least share each, unless decoding takes more than that saves."""
    if target.repeats_memory:
        most = min(_PART_ROWS, _fit(target, 1))
    else:
        most = min(_ROWS, _fit(target, 1 if form.kind == "rows" else 2, form))
    return max(most_rows(target), most)


def few_passes(target: Target, form: Form) -> int:
    """Passes over a panel, of rows that decode it themselves, that are faster than a panel in f32."""
    if target.repeats_memory:
        return _FEW_PASSES
    if form.kind == "rows":
        return 1
    return _WHOLE_BYTES_PASSES if _whole_bytes(form) else _FEW_PASSES


def _whole_bytes(form: Form) -> bool:
    return form.kind == "lanes" and not form.nibbles


def _spare(target: Target, form: Form | None) -> int:
    """Registers that a factor, and what becomes of codes, take: whole bytes are numbers after two instructions."""
    return _LEAST_SPARE if not target.repeats_memory and form is not None and _whole_bytes(form) else _SPARE


def _fit(target: Target, vectors: int, form: Form | None = None) -> int:
    """Rows of as many vectors of columns that registers have room for."""
    return max(1, (target.registers - vectors - _spare(target, form)) // vectors)


def _vectors(target: Target, form: Form, rows: int) -> int:
    """Vectors of columns of a pass: one where factors come from memory as they are multiplied, else as many as there is room for,
    which share loads of factors."""
    vectors = COLUMNS // target.lanes(F32)
    if target.repeats_memory and rows > 1:
        return 1
    while vectors > 1 and rows > _fit(target, vectors, form):
        vectors //= 2
    return vectors


def emit_widen_row(module: KernelModule, elem: str) -> str:
    """Emits `widen_row_{elem}(src, stride, k, to, dst)` once: dst[to] = src[k * stride] as f32, filled up with zeros."""
    name = f"widen_row_{elem}"
    if name in module.functions:
        return name
    fn = Fn(module, name, [("src", PTR), ("stride", I64), ("k", I64), ("to", I64), ("dst", PTR)], noinline=True)
    src, stride, k, to, dst = fn.args
    lanes = fn.lanes

    def wide(x: V) -> V:
        if elem == "f16":
            return fn.cast(fn.bitcast(x, elem), F32)
        if elem == I8:
            return fn.cast(x, F32)
        return fn.bitcast(fn.shl(fn.cast(x, I32, signed=False), 16), F32) if elem == "bf16" else x

    memory = "i16" if elem in ("bf16", "f16") else elem

    def vectors() -> list[V]:
        main = fn.mul(fn.divu(k, lanes), lanes)
        with fn.loop(0, main, lanes) as loop:
            fn.store(wide(fn.load(fn.gep(src, loop.iv, memory), vec(memory, lanes))), fn.gep(dst, loop.iv, F32))
        return [main]

    done = fn.if_else(fn.cmp("eq", stride, 1), vectors, lambda: [fn.const(0, I64)], [I64])[0]
    with fn.loop(done, k) as loop:
        fn.store(wide(fn.load(fn.gep(src, fn.mul(loop.iv, stride), memory), memory)), fn.gep(dst, loop.iv, F32))
    with fn.loop(k, to) as loop:
        fn.store(fn.const(0.0, F32), fn.gep(dst, loop.iv, F32))
    fn.done()
    return name


def emit_tame_row(module: KernelModule) -> str:
    """Emits `tame_row(x, k, up)` once: where one of the k elements at x is that large, divides all by 2^64, so that sums of
    products with codes stay finite, and stores at `up` by what results must be multiplied twice: sums and scales once each."""
    name = "tame_row"
    if name in module.functions:
        return name
    fn = Fn(module, name, [("x", PTR), ("k", I64), ("up", PTR)], noinline=True)
    x, k, up = fn.args
    main = fn.mul(fn.divu(k, fn.lanes), fn.lanes)

    def size_of(at: V, lanes: int) -> V:
        return fn.and_(fn.load(fn.gep(x, at, F32), vec(I32, lanes) if lanes > 1 else I32), 0x7FFFFFFF)

    with fn.loop(0, main, fn.lanes, [fn.const(0, fn.vec(I32))]) as loop:
        loop.yield_(fn.max(loop.carried[0], size_of(loop.iv, fn.lanes)))
    with fn.loop(main, k, 1, [fn.reduce("maxsi", loop.results[0])]) as rest:
        rest.yield_(fn.max(rest.carried[0], size_of(rest.iv, 1)))
    wild = fn.cmp("ge", rest.results[0], (_BIAS + _TAMED) << 23)
    fn.store(fn.select(wild, fn.const(2.0 ** (_TAMED // 2), F32), fn.const(1.0, F32)), up)
    with fn.when(wild), fn.loop(0, k) as loop:
        p = fn.gep(x, loop.iv, F32)
        fn.store(fn.mul(fn.load(p, F32), fn.const(2.0**-_TAMED, F32)), p)
    fn.done()
    return name


def emit_row_kernel(module: KernelModule, coding: Coding, rows: int) -> str:
    """Emits `coded_{coding}_{rows}(a, lda, ups, panel, groups, units, tile, ahead)` once and returns its symbol.

    tile[rows][32] = A times the panel's columns times ups[rows]^2. `a` is f32 [rows] of `groups` times
    `units` of k, rows `lda` apart; the panel is prefetched `ahead` bytes ahead. Scales come after the sums of a group, zero points
    before the products, so that infinite elements give what they must.
    """
    name = f"coded_{coding.name}_{rows}"
    if name not in module.functions:
        _RowKernel(module, name, coding, rows).emit()
    return name


_ROW_ARGS = (
    *(("a", PTR), ("lda", I64), ("ups", PTR), ("panel", PTR)),
    *(("groups", I64), ("units", I64), ("tile", PTR), ("ahead", I64)),
)


@dataclass(frozen=True)
class _Group:
    """A group of k: addresses of its codes and of its elements of each row of A, and some vectors of columns with their zero
    points. `fetches`: it fetches for the others."""

    codes: V
    rows: Sequence[V]
    vectors: range
    zeros: Mapping[int, V | None]
    fetches: bool


class _RowKernel:
    """The function under construction."""

    def __init__(self, module: KernelModule, name: str, coding: Coding, rows: int) -> None:
        self.coding, self.rows, form = coding, rows, coding.form
        self.fn = fn = Fn(module, name, _ROW_ARGS, noinline=True)
        self.a, self.lda, self.ups, self.panel, self.groups, self.units, self.tile, self.ahead = fn.args
        self.nv = _vectors(fn.target, form, rows)
        n, registers = rows * self.nv, fn.target.registers
        self.sets = 1
        while self.sets < 4 and n * self.sets < _MIN_SUMS and 2 * self.sets * n <= registers - self.nv - _spare(fn.target, form):
            self.sets *= 2
        # What decoding takes one instruction after the other is done a step early, or multiply-adds would wait for it.
        self.early = form.kind == "rows" and rows > self.nv > 1 and n * self.sets + 2 * self.nv + 2 <= registers
        self.shifts = form.nibbles and fn.target.repeats_memory and rows > _SHUFFLED_ROWS
        self.zero, self.down = fn.const(0.0, vec(F32, fn.lanes)), 1 / scaled_by(form, shifts=self.shifts)

    def emit(self) -> None:
        for first in range(0, COLUMNS // self.fn.lanes, self.nv):
            self._part(range(first, first + self.nv), fetches=first == 0)
        self.fn.done()

    def _part(self, vectors: range, *, fetches: bool) -> None:
        """Some vectors of columns, over all k; the first ones fetch for all."""
        fn, coding = self.fn, self.coding
        cells = [fn.gep(self.tile, r * COLUMNS + v * fn.lanes, F32) for r in range(self.rows) for v in vectors]
        for p in cells:
            fn.store(self.zero, p)
        group_bytes = fn.add(fn.mul(self.units, coding.form.bytes), coding.header_bytes)
        starts = [fn.gep(self.a, fn.mul(self.lda, r), F32) for r in range(self.rows)]
        with fn.loop(0, self.groups) as g:
            head = fn.gep(self.panel, fn.mul(g.iv, group_bytes), I8)
            codes, k0 = fn.gep(head, coding.header_bytes, I8), fn.mul(fn.mul(g.iv, self.units), coding.form.depth)
            rows, zeros = [fn.gep(p, k0, F32) for p in starts], {v: self._zero_point(head, v) for v in vectors}
            if fetches:
                self._fetch(head, coding.header_bytes)
            sums = self._sums(_Group(codes, rows, vectors, zeros, fetches))
            # Scales aren't loaded before the sums, whose registers they'd take.
            self._add_scaled(cells, sums, [parameters(fn, coding, head, v, fn.lanes)[0] for v in vectors])

    def _sums(self, group: _Group) -> list[V]:
        """Sums of a group, by row and vector, before they are scaled."""
        fn, form, n = self.fn, self.coding.form, self.rows * self.nv
        first = [self._columns(group, group.codes)(0, v) for v in group.vectors] if self.early else []
        with fn.loop(0, self.units, 1, [*[self.zero] * (n * self.sets), *first]) as u:
            unit = fn.gep(group.codes, fn.mul(u.iv, form.bytes), I8)
            if group.fetches:
                self._fetch(unit, form.bytes)
            column, acc, at = self._columns(group, unit), list(u.carried[: n * self.sets]), fn.mul(u.iv, form.depth)
            ys = list(u.carried[n * self.sets :])
            for step in range(form.depth):
                s = step % self.sets * n
                factor = partial(self._factor, group, at, step)
                if self.rows <= self.nv or self.nv == 1:
                    acc[s : s + n] = self._by_columns(acc[s : s + n], factor, [partial(column, step, v) for v in group.vectors])
                    continue
                now = ys or [column(step, v) for v in group.vectors]
                if self.early:
                    if step + 1 == form.depth:
                        after = fn.min(fn.add(u.iv, 1), fn.sub(self.units, 1))
                        column = self._columns(group, fn.gep(group.codes, fn.mul(after, form.bytes), I8))
                    ys = [column((step + 1) % form.depth, v) for v in group.vectors]
                acc[s : s + n] = self._by_rows(acc[s : s + n], factor, now)
            u.yield_(*acc, *ys)
        total = list(u.results[:n])
        for s in range(1, self.sets):
            total = [fn.add(x, y) for x, y in zip(total, u.results[s * n : (s + 1) * n], strict=True)]
        return total

    # Of factors and columns, whichever are fewer stay in registers, the others come one after the other.
    def _by_columns(self, sums: Sequence[V], factor: Callable[[int], V], columns: Sequence[Callable[[], V]]) -> list[V]:
        """Adds the products of a step, column after column."""
        out, xs = list(sums), [factor(r) for r in range(self.rows)]
        for c, column in enumerate(columns):
            y = column()
            for r, x in enumerate(xs):
                out[c + r * self.nv] = self.fn.fma(x, y, out[c + r * self.nv])
        return out

    def _by_rows(self, sums: Sequence[V], factor: Callable[[int], V], columns: Sequence[V]) -> list[V]:
        """Adds the products of a step, row after row."""
        out = list(sums)
        for r in range(self.rows):
            x = factor(r)
            for c, y in enumerate(columns, r * self.nv):
                out[c] = self.fn.fma(x, y, out[c])
        return out

    def _factor(self, group: _Group, at: V, step: int, r: int) -> V:
        fn = self.fn
        return fn.splat(fn.load(fn.gep(fn.gep(group.rows[r], at, F32), step, F32), F32), fn.lanes)

    def _columns(self, group: _Group, unit: V) -> Callable[[int, int], V]:
        """Gives a vector of columns at a step of the unit, less its zero points."""
        fn = self.fn
        number = emit_unit(fn, self.coding.form, unit, fn.lanes, group.vectors, shifts=self.shifts)

        def column(step: int, v: int) -> V:
            y, of = number(step, v), group.zeros[v]
            return y if of is None else fn.sub(y, of)

        return column

    def _zero_point(self, head: V, v: int) -> V | None:
        fn = self.fn
        z = parameters(fn, self.coding, head, v, fn.lanes)[1]
        return z if z is None or self.down == 1 else fn.mul(z, fn.const(1 / self.down, z.type))

    def _add_scaled(self, cells: Sequence[V], sums: Sequence[V], scales: Sequence[V]) -> None:
        """Adds a group's sums times its scales to the tile."""
        fn = self.fn
        for i, (x, p) in enumerate(zip(sums, cells, strict=True)):
            up = fn.load(fn.gep(self.ups, i // self.nv, F32), F32)
            level = up if self.down == 1 else fn.mul(up, fn.const(self.down, F32))
            # Neither the sum of large elements overflows by it, nor that of small ones times a small scale underflows.
            x, scale = fn.mul(x, fn.splat(level, fn.lanes)), fn.mul(scales[i % self.nv], fn.splat(up, fn.lanes))
            fn.store(fn.fma(x, scale, fn.load(p, x.type)), p)

    def _fetch(self, at: V, nbytes: int) -> None:
        for line in range(0, nbytes, 64):
            self.fn.prefetch(self.fn.gep(self.fn.gep(at, self.ahead, I8), line, I8))
