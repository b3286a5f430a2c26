"""Products with a right side of codes: few rows decode it in registers, more of them panel by panel to f32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from dhlo.codegen.families.box import grain_of, product_wake_cycles
from dhlo.codegen.families.gemm.matmul import DOTS_PAY, Matmul
from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.panels import Chunk
from dhlo.codegen.families.gemm.quantised import COLUMNS, Coding, QuantisedMatrix
from dhlo.codegen.families.gemm.quantised_bytes import BYTE_INFO, byte_rows, emit_byte_rows, emit_round_row
from dhlo.codegen.families.gemm.quantised_decode import emit_decode_panel
from dhlo.codegen.families.gemm.quantised_dots import INFO_BYTES, LIMBS, block_units, has_dots
from dhlo.codegen.families.gemm.quantised_few import ROW_GAP, emit_few, most_pass_rows
from dhlo.codegen.families.gemm.quantised_outliers import list_bytes, most_outliers
from dhlo.codegen.families.gemm.quantised_rows import emit_widen_row, few_passes, most_rows
from dhlo.codegen.families.gemm.register_tile import BF16, F16, TileSpec, depth
from dhlo.codegen.kernel_ir.builder import F32, I8, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext, kernel_fn, load_args
from dhlo.errors import InternalError
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.compute import RoundedMatmul
from dhlo.ir.ops.quantised import ROUNDED
from dhlo.ir.ops.sequence import RoundedGroupedMatmul
from dhlo.ir.symbols import exact_floors

__all__ = ["CodedPanels", "QuantisedMatmul", "rounded_steps"]

# In so many passes over a panel rows decode it themselves; more are better off with a panel in f32. Dot products of bytes take
# three quarters of the time of multiply-adds, as long as the rows' limbs stay in the second-level cache; those of bf16 half.
_DOT_PASSES = 4
# Limbs of a block of rows take so many eighths of the second-level cache, or more for so many passes: they are read a few bytes a
# cycle, and codes once a block. They are made by each thread, and again for each chunk of panels where not all have room, in the
# time of one panel's products or two: chunks are of so many panels at least, as far as every thread has one; of twice as many where
# there are more passes.
_LIMBS_SHARE, _LEAST_PASSES, _SHARING_PANELS = 5, 4, 16
# Rows of bytes take a third of the room and of a panel's products, and as long to be made as those of four panels.
_BYTES_SHARING_PANELS = 64
# Any number of rows is multiplied so where a matrix has so many panels, the target so many registers, and sums are not scaled too
# often: groups of so many steps of k.
_ALWAYS_PANELS, _ALWAYS_REGISTERS, _ALWAYS_GROUP = 32, 32, 32
# Cycles that a step of k of a panel takes at least.
_STEP_CYCLES = 8
_WIDEN_WORK = 4  # simple operations in which an element of a row of any stride becomes f32


@dataclass(frozen=True)
class CodedPanels:
    """Panels of codes, decoded to scratch. Arguments: address, strides of both batch dims in bytes, bytes of a panel, units of a
    group."""

    coding: Coding
    args: tuple[str, ...] = (PTR, I64, I64, I64, I64)
    in_place: bool = False
    together: bool = False

    @property
    def name(self) -> str:
        return f"_coded_{self.coding.name}"

    def matrix(self, fn: Fn, elem: str, args: Sequence[V], i0: V, i1: V) -> Sequence[V]:
        b, b0, b1, panel_bytes, units = args
        return [fn.gep(b, fn.add(fn.mul(i0, b0), fn.mul(i1, b1)), I8), panel_bytes, units]

    def chunk(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> V:
        b, panel_bytes, units = matrix
        panel = fn.gep(b, fn.mul(fn.divu(c.n0, COLUMNS), panel_bytes), I8)
        decode = emit_decode_panel(fn.module, self.coding, F32 if elem == F16 else elem)
        fn.call(decode, [panel, units, fn.mul(c.first, depth(elem)), c.k, c.scratch])
        return c.scratch

    def chunks(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk, pitch: V) -> None:
        raise InternalError("panels of codes are decoded one by one")

    def ahead(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> tuple[V, V]:
        b, panel_bytes, _ = matrix
        each = fn.divu(panel_bytes, fn.max(c.steps, 1))  # headers of groups included
        panel = fn.gep(b, fn.mul(fn.add(fn.divu(c.n0, COLUMNS), 1), panel_bytes), I8)
        return fn.gep(panel, fn.mul(c.first, each), I8), each


def rounded_steps(op: Op) -> int:
    """The steps of k of a product whose rows, rounded to int8 or given so, share a scale; 0 where they aren't."""
    return min(attr(op, "group"), ROUNDED) if isinstance(op, (RoundedMatmul, RoundedGroupedMatmul)) else 0


@dataclass(frozen=True)
class QuantisedMatmul:
    """C[b, m, n] = sum over k of A[b, m, k] * B[b, k, n] with B a `QuantisedMatrix`, in f32, handed to an epilogue as `Matmul`
    does. `elem` is that of A, f32, bf16 or f16, or i8 where `block` isn't 0.

    Few rows scale partial sums of groups, more rows multiply by the numbers that codes stand for: results differ by rounding.

    Where `block` isn't 0, A is rounded to int8 as it's read, each so many steps of a group of k with a scale of their own: products
    are then those of integers, or, on targets that don't multiply bytes, of the numbers that these stand for. A of i8 stays as it
    is.
    """

    elem: str
    spec: TileSpec
    matrix: QuantisedMatrix
    narrow: bool = False
    block: int = 0
    beside: int = 0  # bytes of all constants of the program, of which B is one

    def _ahead(self, host: HostContext) -> V:
        """How far ahead few rows prefetch codes. They are few bytes, which take as much arithmetic as several rows of f32, and come
        from memory where the third cache doesn't hold a program's constants: a Zen 5 takes 0.80 to 0.85 of the time there with the
        distance of more rows, and 1.09 with it where the cache holds them."""
        fn = host.fn
        far = fn.cmp("gt", fn.i64(self.beside), host.machine("l3_bytes"))
        return fn.select(far, host.machine("ahead_more"), fn.divu(host.machine("ahead_one"), 2))

    @property
    def coding(self) -> Coding:
        return self.matrix.coding

    @property
    def _tiled(self) -> Matmul:
        return Matmul(F32 if self._widens else self.elem, self.spec, narrow=self.narrow)

    @property
    def _widens(self) -> bool:
        """Whether many rows of A become f32 in memory first."""
        return self.elem == BF16 or self.block > 0

    @property
    def _rounds(self) -> bool:
        """Whether rows are rounded as they're read."""
        return self.block > 0 and self.elem != I8

    @property
    def _by_bytes(self) -> bool:
        """Whether rows are rounded to int8 and multiplied so, any number of them."""
        return self.block > 0 and has_dots(self.spec.target, self.coding.form)

    @property
    def _padded(self) -> int:
        """Steps of k of all units."""
        return self.matrix.groups * self.matrix.units * self.coding.form.depth

    @property
    def _pitch(self) -> int:
        """Elements from row to row of A as f32: whole units where they are rounded."""
        return self._padded if self.block else self.matrix.k

    @property
    def _native(self) -> Matmul | None:
        """The product of bf16 rows with numbers that are rounded to it, as the program says, where the target has dot products."""
        return Matmul(BF16, self.spec, narrow=self.narrow) if self.elem == BF16 and self.spec.bf16_dot and not self.block else None

    @property
    def _few(self) -> int:
        """The most rows that decode codes themselves."""
        target, form = self.spec.target, self.coding.form
        if self._native is not None:
            return most_pass_rows(target, form) if has_dots(target, form) else most_rows(target)
        passes = _DOT_PASSES if has_dots(target, form) else few_passes(target, form)
        return most_pass_rows(target, form) * passes

    @property
    def _always_few(self) -> bool:
        """Whether any number of rows is better multiplied so than in f32."""
        target, form, matrix = self.spec.target, self.coding.form, self.matrix
        if self._by_bytes:
            return True
        if not has_dots(target, form) or target.registers < _ALWAYS_REGISTERS or matrix.panels < _ALWAYS_PANELS:
            return False
        return matrix.units * form.depth >= _ALWAYS_GROUP

    def workspace_bytes(self, rows: sympy.Expr) -> sympy.Expr:
        """Workspace for `rows` rows of A of all batches: where they become f32 first."""
        return exact_floors(rows * self._pitch * 4 if self._widens and not self._always_few else sympy.Integer(0))

    def emit_kernels(self, module: KernelModule) -> None:
        """Emits the kernels that `emit_launch` chooses from and all that they call, once a module."""
        for product in (None if self._always_few else self._tiled, self._native):
            if product is not None:
                product.emit_kernels_from(module, CodedPanels(self.coding))
        if self._by_bytes:
            emit_byte_rows(module, self.elem, self.coding)
            return
        emit_few(module, self.elem, self.coding, rounded=self._rounds)
        if self._widens and not self._always_few:
            _emit_widen(module, self.elem, rounded=self._rounds)

    def emit_launch(self, host: HostContext, x: Operands) -> None:
        """Emits the choice and the launches. Of `x`, `b` is the packed matrices' address, `b_strides` are their batches' in
        bytes, `workspace` has room for `workspace_bytes`."""
        fn = host.fn

        def few() -> list[V]:
            self._launch_few(host, x)
            return []

        b = [x.b, *x.b_strides[:2], fn.i64(self.matrix.panel_bytes), fn.i64(self.matrix.units)]

        def tiled() -> list[V]:
            if self._always_few:
                return few()
            y = x if not self._widens else replace(self._widened(host, x), result=None)  # which isn't of f32
            self._tiled.launch_from(host, y, CodedPanels(self.coding), b)
            return []

        def many() -> list[V]:
            native = self._native
            if native is None:
                return tiled()

            def launch() -> list[V]:
                native.launch_from(host, x, CodedPanels(self.coding), b)
                return []

            return fn.if_else(fn.cmp("ge", host.machine("bf16_percent"), DOTS_PAY), launch, tiled, [])

        if self._always_few and self._native is None:
            few()
        else:
            fn.if_else(fn.cmp("le", x.m, self._few), few, many, [])

    def _launch_bytes(self, host: HostContext, x: Operands) -> None:
        """Products of rows as int8."""
        fn, matrix = host.fn, self.matrix
        most, block = byte_rows(self.spec.target, self.coding.form), self.block_units
        passes = fn.max(fn.ceildivu(x.m, most), 1)
        count = fn.select(fn.cmp("eq", x.m, 0), 0, fn.mul(fn.mul(*x.batch), matrix.panels))
        each = most * (self._padded + BYTE_INFO * matrix.groups * -(-matrix.units // block))  # bytes of a pass
        fit = fn.max(fn.divu(fn.mul(host.l2_bytes, _LIMBS_SHARE), 8 * each), _LEAST_PASSES)
        per = fn.ceildivu(passes, fn.ceildivu(passes, fit))
        grain = fn.add(fn.divu(product_wake_cycles(host), max(self._padded * _STEP_CYCLES, 1)), 1)
        grain = fn.max(grain, _sharing(host, count, _BYTES_SHARING_PANELS))
        cuts = [fn.i64(matrix.groups), fn.i64(matrix.units), fn.i64(block), per, self._ahead(host)]
        sizes, ends = [x.m, x.n, x.k, fn.max(x.batch[1], 1), *cuts], [x.epilogue, x.epilogue_args, host.kept()]
        host.launch(
            emit_byte_rows(host.module, self.elem, self.coding),
            [x.a, *x.a_strides, x.b, *x.b_strides[:2], *sizes, *ends],
            count,
            grain,
            fn.add(fn.mul(per, each), 4 * (most * COLUMNS + self._padded)),
        )

    @property
    def block_units(self) -> int:
        """Units that share a scale of the rows."""
        form, units = self.coding.form, self.matrix.units
        return min(-(-self.block // form.depth), units) if self.block else block_units(form, units)

    def _launch_few(self, host: HostContext, x: Operands) -> None:
        if self._by_bytes:
            self._launch_bytes(host, x)
            return
        fn, matrix = host.fn, self.matrix
        form, target = self.coding.form, self.spec.target
        padded, most = self._padded, most_pass_rows(target, form)
        passes = fn.max(fn.ceildivu(x.m, most), 1)
        count = fn.select(fn.cmp("eq", x.m, 0), 0, fn.mul(fn.mul(*x.batch), matrix.panels))
        block = self.block_units
        most_out = fn.i64(most_outliers(padded))
        cuts = [fn.i64(matrix.groups), fn.i64(matrix.units), fn.i64(block), most_out]
        ahead = self._ahead(host)
        row, limbs = fn.i64(4 * (padded + ROW_GAP) + 8), LIMBS * padded + INFO_BYTES * matrix.groups * -(-matrix.units // block)
        per, grain = passes, fn.add(fn.divu(product_wake_cycles(host), max(padded * _STEP_CYCLES, 1)), 1)
        if has_dots(target, form):
            row = fn.add(row, fn.add(list_bytes(fn, most_out), limbs))
            fit = fn.max(fn.divu(fn.mul(host.l2_bytes, _LIMBS_SHARE), 8 * most * limbs), _LEAST_PASSES)
            per = fn.ceildivu(passes, fn.ceildivu(passes, fit))
            least_shared = fn.select(fn.cmp("gt", passes, _DOT_PASSES), fn.i64(2 * _SHARING_PANELS), _SHARING_PANELS)
            grain = fn.max(grain, _sharing(host, count, least_shared))
        sizes = [x.m, x.n, x.k, fn.max(x.batch[1], 1), *cuts, per, ahead]
        rows = fn.min(x.m, fn.mul(per, most))
        scratch = fn.add(fn.mul(rows, row), 4 * most * COLUMNS)
        host.launch(
            emit_few(host.module, self.elem, self.coding, rounded=self._rounds),
            [x.a, *x.a_strides, x.b, *x.b_strides[:2], *sizes, x.epilogue, x.epilogue_args, host.kept()],
            count,
            grain,
            scratch,
        )

    def _widened(self, host: HostContext, x: Operands) -> Operands:
        """The same with A converted to dense f32, and rounded if it shall be."""
        fn, pitch, depth = host.fn, host.fn.i64(self._pitch), self.coding.form.depth
        assert x.workspace is not None
        rows = fn.mul(fn.mul(*x.batch), x.m)
        batch0, batch1, row, column = x.a_strides
        cuts = (
            [fn.i64(n) for n in (self.matrix.groups, self.matrix.units * depth, self.block_units * depth)] if self._rounds else []
        )
        host.launch(
            _emit_widen(host.module, self.elem, rounded=self._rounds),
            [x.a, batch0, batch1, row, column, fn.max(x.batch[1], 1), fn.max(x.m, 1), x.k, pitch, *cuts, x.workspace],
            rows,
            grain_of(host, self.matrix.k * _WIDEN_WORK),
        )
        size = fn.mul(x.m, pitch)
        return replace(x, a=x.workspace, a_strides=[fn.mul(size, x.batch[1]), size, pitch, fn.i64(1)])


def _sharing(host: HostContext, panels: V, least: V | int) -> V:
    """How many panels share rows that are prepared for them, at least, as far as every thread has a share: as many shares for
    each thread, since with three of 32 panels for two of them one would wait for the other."""
    fn = host.fn
    each = fn.ceildivu(panels, fn.max(host.num_threads, 1))
    return fn.ceildivu(each, fn.max(fn.divu(each, least), 1))


def _emit_widen(module: KernelModule, elem: str, *, rounded: bool) -> str:
    """Emits a kernel that converts A to f32, and rounds it to int8 where so asked: items are rows of all batches."""
    name = f"widen_{elem}{'_rounded' if rounded else ''}"
    if name in module.functions:
        return name
    widen = emit_widen_row(module, elem)
    fn = kernel_fn(module, name)
    a, a0, a1, sm, sk, batch1, m, k, pitch, *cuts, to = load_args(fn, [PTR, *[I64] * (11 if rounded else 8), PTR])
    with fn.loop(fn.args[1], fn.args[2]) as loop:
        batch, row = fn.divu(loop.iv, m), fn.remu(loop.iv, m)
        at = fn.add(fn.mul(fn.divu(batch, batch1), a0), fn.add(fn.mul(fn.remu(batch, batch1), a1), fn.mul(row, sm)))
        out = fn.gep(to, fn.mul(loop.iv, pitch), F32)
        fn.call(widen, [fn.gep(a, at, elem), sk, k, pitch, out])
        if rounded:
            fn.call(emit_round_row(module), [out, *cuts])
    fn.done()
    return name
