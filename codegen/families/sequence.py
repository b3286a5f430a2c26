"""Steps of several launches with data between them: recurrent layers, grouped matrix products, Fourier transforms."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import sympy
import torch

from dhlo.codegen.families.copy.flat import BLOCK_BYTES, emit_copy_flat
from dhlo.codegen.families.fft.fft import emit_fft_table, fft_table, fft_table_bytes, lower_fft, table_scratch
from dhlo.codegen.families.gemm.matmul import Matmul, workspace_bytes
from dhlo.codegen.families.gemm.microkernel import unit
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.recurrent.recurrent import CELL_GRAIN, CHUNK, emit_cell, emit_store_rows, emit_zero
from dhlo.codegen.families.steps import GroupHost, Lowering, anchor_of, pack_matrix, view_pointer
from dhlo.codegen.kernel_ir.builder import BITS, I64, V
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.sequence import Gru, Lstm
from dhlo.ir.symbols import as_expr, exact_floors, is_static
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import aligned

__all__ = ["FftStep", "GroupedMatmulStep", "RecurrentStep", "emit_copy"]

BYTES_GRAIN = 1 << 16


def emit_copy(host: GroupHost, src: V, dst: V, nbytes: V) -> None:
    """Copies dense memory."""
    fn = host.fn
    host.launch(emit_copy_flat(host.module), [src, dst, nbytes], fn.ceildivu(nbytes, BLOCK_BYTES), BYTES_GRAIN // BLOCK_BYTES)


class _Factor:
    """The right side of products: one or more matrices [k, n], packed beforehand if constant, else at each use.
    `transposed` matrices are stored [n, k]."""

    def __init__(self, low: Lowering, group: Any, op: Any, i: int, *, transposed: bool, at: sympy.Expr | int = 0) -> None:
        v = op.operands[i]
        self.type, self.view = from_mlir(v), low.view(group, v)
        elem = self.type.dtype.name
        if elem not in ("f32", "f64", "bf16"):
            raise CompileError(f"{op.OPERATION_NAME} of {elem} has no kernel yet", where=where(op))
        self.matmul, self.transposed = Matmul(elem, low.tiles), transposed
        self.n, self.k = self.type.shape[-2:] if transposed else tuple(reversed(self.type.shape[-2:]))
        self.bytes = exact_floors(workspace_bytes(sympy.Integer(1), as_expr(self.n), as_expr(self.k), elem, low.tiles))
        value = low.constant_value(v)
        self.packed: int | None = None
        self.at = at  # of this factor's part of the group's workspace
        self.workspace: sympy.Expr = sympy.Integer(0)
        if value is None or not value.numel():
            self.workspace = aligned(self.bytes)
        else:
            key = ("packed_b", low.constant_key(v), transposed)
            count = value.numel() // (value.shape[-1] * value.shape[-2])
            self.packed = low.constants.add(key, count * int(self.bytes), lambda: self._pack(value))

    def _pack(self, value: torch.Tensor) -> Any:
        mats = value.detach().reshape(-1, *value.shape[-2:])
        nr = self.matmul.spec.nr(self.matmul.elem)
        return np.concatenate([pack_matrix(m.t() if self.transposed else m, nr).reshape(-1) for m in mats])

    def prepare(self, host: GroupHost) -> None:
        """Computes what launches need; call it outside loops."""
        strides = [host.size(s) for s in self.view.strides[-2:]]
        self.strides = [strides[1], strides[0]] if self.transposed else strides
        self.sizes = host.size(self.n), host.size(self.k)
        self.base = host.constant(self.packed) if self.packed is not None else view_pointer(host, self.view)
        each = self.bytes * 8 // BITS[unit(self.matmul.elem)] if self.packed is not None else self.view.strides[0]
        self.step = host.size(each) if self.type.rank == 3 else None
        self.memory = None if self.packed is not None else host.fn.gep(host.workspace(), host.size(self.at), "i8")

    def multiply(self, host: GroupHost, a: V, rows: V, out: V, which: V | None = None) -> None:
        """out [rows, n] = a [rows, k] times the matrix (number `which`)."""
        fn, elem = host.fn, self.matmul.elem
        n, k = self.sizes
        b = self.base
        if which is not None and self.step is not None:
            b = fn.gep(b, fn.mul(which, self.step), unit(elem) if self.packed is not None else elem)
        zero = fn.i64(0)
        epilogue = fn.address_of(emit_store_rows(host.module, self.type.dtype))
        self.matmul.emit_launch(
            host,
            a=a,
            b=b,
            m=rows,
            n=n,
            k=k,
            a_strides=[zero, zero, k, fn.i64(1)],
            b_strides=[zero, zero] if self.packed is not None else [zero, zero, *self.strides],
            epilogue=epilogue,
            epilogue_args=host.array([out, n]),
            workspace=self.memory,
            packed=self.packed is not None,
        )


class GroupedMatmulStep:
    """Rows sorted by group times the group's matrix: one product a group that has rows."""

    def __init__(self, low: Lowering, group: Any) -> None:
        self.op, self.group = anchor_of(group, Kind.OPAQUE), group
        self.x, self.offsets = (low.view(group, self.op.operands[i]) for i in (0, 2))
        self.w = _Factor(low, group, self.op, 1, transposed=False)
        self.workspace = self.w.workspace

    def emit(self, host: GroupHost) -> None:
        fn, dtype = host.fn, self.w.type.dtype
        self.w.prepare(host)
        n, k = self.w.sizes
        rows, groups = host.size(self.x.shape[0]), host.size(self.w.type.shape[0])
        x, y, offsets = (
            view_pointer(host, self.x),
            host.pointer(self.group.results[0]),
            view_pointer(host, self.offsets),
        )
        width = from_mlir(self.op.operands[2]).dtype
        host.mark_data_dependent()
        with fn.loop(0, groups, 1, [fn.const(0, I64)]) as lp:
            start = lp.carried[0]
            at = fn.gep(offsets, lp.iv, width.name)
            end = host.unless_planning(lambda: fn.cast(fn.load(at, width.name), I64), rows)
            end = fn.min(fn.max(end, start), rows)
            with fn.when(fn.cmp("lt", start, end)):
                self.w.multiply(
                    host,
                    fn.gep(x, fn.mul(start, k), dtype.name),
                    fn.sub(end, start),
                    fn.gep(y, fn.mul(start, n), dtype.name),
                    lp.iv,
                )
            lp.yield_(end)
        start = lp.results[0]
        host.launch(
            emit_zero(host.module),
            [fn.gep(y, fn.mul(start, n), dtype.name)],
            fn.mul(fn.mul(fn.sub(rows, start), n), dtype.bytes),
            BYTES_GRAIN,
        )


class RecurrentStep:
    """One direction of a recurrent layer: per step a product with the hidden state, then the cell, then the projection if any."""

    def __init__(self, low: Lowering, group: Any) -> None:
        self.op, self.group = anchor_of(group, Kind.OPAQUE), group
        names = {Lstm: "lstm", Gru: "gru"}
        self.kind = names.get(type(self.op)) or str(attr(self.op, "activation"))
        self.views = [low.view(group, v) for v in self.op.operands]
        self.w = _Factor(low, group, self.op, 1, transposed=True)
        self.gates = from_mlir(self.op.operands[0])
        self.product = aligned(self.gates.with_shape(self.gates.shape[1:]).bytes)  # of one step
        self.workspace = self.w.workspace + self.product
        self.projection: _Factor | None = None
        self.hidden = self.w.k
        if self.kind == "lstm" and len(self.views) == 5:
            self.projection = _Factor(low, group, self.op, 4, transposed=True, at=self.workspace)
            self.hidden = self.projection.k
            self.before_projection = self.workspace + self.projection.workspace
            self.workspace = self.before_projection + self.product  # of which a fourth is used

    def emit(self, host: GroupHost) -> None:
        fn, dtype = host.fn, self.gates.dtype
        self.w.prepare(host)
        steps, batch, hidden, size = (host.size(e) for e in (*self.gates.shape[:2], self.hidden, self.w.k))
        inputs = [view_pointer(host, v) for v in self.views]
        yields = list(list(self.group.operation.regions[0].blocks[0].operations)[-1].operands)
        results = [host.pointer(self.group.results[yields.index(r)]) for r in self.op.results]
        product = fn.gep(host.workspace(), host.size(self.w.workspace), "i8")
        state, gate_elems = fn.mul(batch, size), fn.mul(batch, self.w.sizes[0])
        cell = emit_cell(host.module, self.kind, dtype)
        items = fn.mul(batch, fn.ceildivu(hidden, CHUNK))
        h0 = inputs[3 if self.kind == "gru" else 2]
        if self.kind == "lstm":
            emit_copy(host, inputs[3], results[2], fn.mul(fn.mul(batch, hidden), dtype.bytes))
        if self.projection is not None:
            self.projection.prepare(host)
            projected = fn.gep(host.workspace(), host.size(self.before_projection), "i8")
        with fn.loop(0, steps, 1, [h0]) as lp:
            t = fn.sub(fn.sub(steps, 1), lp.iv) if attr(self.op, "reverse") else lp.iv
            out = fn.gep(results[0], fn.mul(t, state), dtype.name)
            self.w.multiply(host, lp.carried[0], batch, product)
            to = out if self.projection is None else projected
            rest = [inputs[2], lp.carried[0]] if self.kind == "gru" else results[2:]
            host.launch(cell, [fn.gep(inputs[0], fn.mul(t, gate_elems), dtype.name), product, *rest, to, hidden], items, CELL_GRAIN)
            if self.projection is not None:
                self.projection.multiply(host, projected, batch, out)
            lp.yield_(out)
        emit_copy(host, lp.results[0], results[1], fn.mul(state, dtype.bytes))


class FftStep:
    """A Fourier transform: one pass a dim, with a table of roots that is constant where the length is static."""

    def __init__(self, low: Lowering, group: Any) -> None:
        op = anchor_of(group, Kind.OPAQUE)
        x, dims = from_mlir(op.operands[0]), attr(op, "dims")
        self.real = x.dtype.register
        self.lengths = [x.shape[d] for d in dims]
        self.passes = [low.once(group, f"pass{i}", lambda i=i: lower_fft(low, group, op, i)) for i in range(len(dims))]  # type: ignore[misc]
        self.tables: list[int | None] = [None] * len(dims)
        self.workspace: sympy.Expr = sympy.Integer(0)
        self.offsets: list[sympy.Expr] = []
        for i, n in enumerate(self.lengths):
            self.offsets.append(self.workspace)
            size = fft_table_bytes(n, self.real)
            if is_static(n):
                key, make = ("fft_table", self.real, int(n)), partial(fft_table, int(n), self.real)
                self.tables[i] = low.constants.add(key, int(size), make)
            else:
                self.workspace = self.workspace + aligned(size)

    def emit(self, host: GroupHost) -> None:
        for x, n, offset, constant in zip(self.passes, self.lengths, self.offsets, self.tables, strict=True):
            if constant is not None:
                table = host.constant(constant)
            else:
                table = host.fn.gep(host.workspace(), host.size(offset), "i8")
                host.launch(emit_fft_table(host.module, self.real), [table, host.size(n)], 1, 1, host.size(table_scratch(n)))
            host.launch(
                x.kernel,
                [table, *(host.slot(s) for s in x.slots)],
                host.size(x.count),
                host.size(x.grain),
                host.size(x.scratch),
            )
