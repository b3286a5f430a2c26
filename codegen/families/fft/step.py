"""Fourier transforms, a pass a dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import sympy

from dhlo.codegen.elementwise.emit import Slot
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.fft.fft import FftKernel, lower_fft
from dhlo.codegen.families.fft.real import IrfftKernel, RfftKernel
from dhlo.codegen.families.fft.table import emit_fft_table, fft_table, fft_table_bytes, table_scratch
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import Lowering, anchor_of
from dhlo.codegen.kernel_ir.builder import F32
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.sequence import Fft, Irfft, Rfft
from dhlo.ir.symbols import is_static
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import aligned

__all__ = ["FftFamily"]


class FftFamily(Family):
    """A Fourier transform: one pass a dim, with a table of roots that is constant where the length is static."""

    anchor = Kind.OPAQUE.value
    ops = (Fft, Rfft, Irfft)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.OPAQUE)
        self.halves = not isinstance(self.op, Fft)
        self.dims = [attr(self.op, "dim")] if self.halves else attr(self.op, "dims")
        x = from_mlir(self.op.results[0] if isinstance(self.op, Irfft) else self.op.operands[0])
        self.real = x.dtype.register
        self.lengths = [x.shape[d] for d in self.dims]

    def emit_kernels(self) -> None:
        low = self.low
        self.passes = [low.once(self.group, f"pass{i}", partial(self._pass, i)) for i in range(len(self.dims))]
        self.tables: list[int | None] = []  # constants, by their offset
        self.offsets: list[sympy.Expr] = []  # of tables in the workspace
        for n in self.lengths:
            self.offsets.append(self.workspace)
            size = fft_table_bytes(n, self.real)
            if is_static(n):
                lanes = low.module.target.lanes(F32)
                key = ("fft_table", self.real, int(n), lanes, self.halves)
                make = partial(fft_table, int(n), self.real, lanes, self.halves)
                self.tables.append(low.constants.add(key, int(size), make))
            else:
                self.tables.append(None)
                self.workspace = self.workspace + aligned(size)

    def _pass(self, number: int) -> Launch:
        """The first reads the operands, later ones work on the results in place."""
        args = self.low, self.group, self.op, self.dims[number]
        if isinstance(self.op, Rfft):
            return lower_fft(lambda lines: RfftKernel(*args, inverse=False, lines=lines))
        if isinstance(self.op, Irfft):
            return lower_fft(lambda lines: IrfftKernel(*args, inverse=True, lines=lines))
        inverse = bool(attr(self.op, "inverse"))
        return lower_fft(lambda lines: FftKernel(*args, inverse=inverse, in_place=number > 0, lines=lines))

    def launches(self) -> Sequence[Launch]:
        out: list[Launch] = []
        one = sympy.Integer(1)
        for x, n, offset, constant in zip(self.passes, self.lengths, self.offsets, self.tables, strict=True):
            table: Slot = ("workspace", offset) if constant is None else ("constant", constant)
            if constant is None:
                make = emit_fft_table(self.low.module, self.real, self.halves)
                out.append(Launch(make, [table, ("size", n)], one, one, table_scratch(n)))
            out.append(replace(x, slots=[table, *x.slots]))
        return out
